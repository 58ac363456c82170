"""Imports point one way: from scripts and tools down to lib.errors."""

import ast
from collections.abc import Iterator
from pathlib import Path

from running import PROJECT

# Folders and modules of lib, from the lowest layer to the highest. A module imports its own layer's folder and lower
# layers only.
LAYERS = (
    "errors system envs nets hyperparameters experience atari_wrappers actors dqn_model dqn_extra ppo run cli book"
    " common+analysis"
)
OUTSIDE = ("chapter", "distributed.", "tests", "tools", "benchmarks", "examples")
RANK = {name: rank for rank, layer in enumerate(LAYERS.split()) for name in layer.split("+")}
LIB = sorted(path for path in PROJECT.glob("lib/**/*.py") if path != PROJECT / "lib" / "__init__.py")
SCRIPTS = sorted(
    path for folder in ("chapter08", "chapter09", "distributed") for path in PROJECT.glob(f"{folder}/*.py")
)


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


def box(module: str) -> str:
    """Return the folder or top-level module of lib that a dotted name belongs to."""
    return module.removeprefix("lib.").split(".")[0]


def test_lib_imports_only_lower_layers():
    too_high = []
    for path in LIB:
        own = box(module_name(path))
        others = {box(module) for module in imported_modules(path) if module.startswith("lib.")} - {own}
        too_high += [(module_name(path), other) for other in others if RANK[other] >= RANK[own]]
    assert too_high == []


def test_nothing_imports_a_script_or_a_test():
    imports = [(path, module) for path in LIB + SCRIPTS for module in imported_modules(path)]
    assert [(path, module) for path, module in imports if module.startswith(OUTSIDE)] == []
