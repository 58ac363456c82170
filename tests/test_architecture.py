"""Imports point one way, from the scripts down to lib.errors, and never across."""

import ast
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
# From the lowest layer to the highest. A module may import its own layer and those before it.
LAYERS = (
    ("errors",),
    ("system",),
    ("envs",),
    ("nets",),
    ("hyperparameters",),
    ("experience",),
    ("atari_wrappers",),
    ("actors",),
    ("dqn_model",),
    ("dqn_extra",),
    ("ppo",),
    ("run",),
    ("common", "cli", "analysis"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LIB = sorted(PROJECT.glob("lib/**/*.py"))
SCRIPTS = sorted(
    path for folder in ("chapter08", "chapter09", "distributed") for path in PROJECT.glob(f"{folder}/*.py")
)


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def layer(module):
    """The part of lib that a dotted name belongs to."""
    return module.removeprefix("lib.").split(".")[0]


def name(path):
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize(
    "path", [path for path in LIB if path.parent != PROJECT / "lib" or path.stem != "__init__"], ids=name
)
def test_lib_imports_only_lower_layers(path):
    own = path.relative_to(PROJECT / "lib").parts[0].removesuffix(".py")
    ours = {layer(module) for module in imported_modules(path) if module.startswith("lib.")}
    too_high = {other for other in ours - {own} if RANK[other] >= RANK[own]}
    assert not too_high, f"{name(path)} is in {own}, which may not import {', '.join(sorted(too_high))}"


@pytest.mark.parametrize("path", LIB + SCRIPTS, ids=name)
def test_nothing_imports_a_script_or_a_test(path):
    assert not [module for module in imported_modules(path) if module.startswith(("chapter", "distributed.", "tests"))]
