"""The house rules that a machine can check."""

import ast
import operator
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import ladder
from ladder import body
from lib import bodies, ppo, precision, stream

PROJECT = Path(__file__).parents[1]
SCRIPTS = sorted([*PROJECT.glob("chapter0*/[0-9][0-9]_*.py"), *PROJECT.glob("distributed/[0-9][0-9]_*.py")])
LIB = sorted(PROJECT.glob("lib/**/*.py"))
FIELDS = ["Idea", "Parent", "Keeps", "Paper", "Run", "Read"]
KEEPS = ("exact", "close", "statistics", "changes the task", "nothing: it is the root")
# Leaf modules take plain values: they know neither hyperparameters nor the command line.
LEAVES = {
    *(
        "actors",
        "atari_wrappers",
        "bodies",
        "checkpoint",
        "child",
        "console",
        "distributions",
        "dqn_extra",
        "dqn_model",
        "errors",
        "experience",
        "files",
        "forking",
        "greedy",
        "losses",
        "masks",
        "memory",
        "observations",
        "orphans",
        "packing",
        "pictures",
        "ppo",
        "precision",
        "replay",
        "shared",
        "stopping",
        "stream",
        "sum_tree",
        "telemetry",
        "timing",
        "vector_env",
        "weights",
    )
}


def test_every_module_is_in_the_table_of_who_does_what():
    rows = re.findall(r"^\| (`.*?) \|", (PROJECT / "docs/design.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    modules = {path.relative_to(PROJECT / "lib").parts[0].removesuffix(".py") for path in LIB} - {"__init__"}
    assert modules <= named


def test_every_test_that_the_page_of_pitfalls_names_is_there():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (PROJECT / "docs/pitfalls.md").read_text())
    assert len(named) >= 13
    assert not [(file, test) for file, test in named if f"def {test}(" not in (PROJECT / "tests" / file).read_text()]


def test_all_code_that_the_numbered_details_of_ppo_name_is_there():
    details = re.findall(r"^\d+\. .*?(?=^\d+\. |^$|\Z)", (PROJECT / "docs/ppo.md").read_text(), re.M | re.S)
    assert len(details) >= 17
    parts = SimpleNamespace(**vars(bodies) | vars(stream) | vars(ppo), precision=precision)
    for detail in details:
        places = re.findall(r"`([^`]+)`", re.search(r"(?:`[^`]+`(?:, )?)+\s*$", detail)[0])
        for place in places:
            if place.endswith(".py"):
                assert (PROJECT / place).exists() or (PROJECT / "distributed" / place).exists(), place
            else:
                assert operator.attrgetter(place)(parts), place


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def name(path):
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_has_its_header(script):
    header = ast.get_docstring(ast.parse(script.read_text()))
    assert re.findall(r"^([A-Z][a-z]+)  +\S", header, re.M) == FIELDS
    assert re.search(r"^Keeps   (.*)$", header, re.M).group(1).startswith(KEEPS)
    assert f"./{script.name}" in header
    assert script.read_text().startswith("#!/usr/bin/env python3\n")
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_is_wiring_on_one_screen(script):
    tree = ast.parse(script.read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    process_batch = functions["process_batch"]
    assert process_batch.end_lineno - process_batch.lineno < 15
    assert functions["train"].end_lineno - functions["train"].lineno < 50
    assert len(body(script)) < (80 if script.stem == "08_dqn_rainbow" else 70)  # six ideas at once
    command_line = body(script)[body(script).index('if __name__ == "__main__":') :]
    assert len(command_line) == 3 + sum("add_argument" in line for line in command_line)  # a line a knob
    assert "NAME = Path(__file__).stem" in body(script)
    assert script.read_text().count(script.stem) == script.read_text().count(script.name)  # the name is never typed


@pytest.mark.parametrize("path", SCRIPTS + LIB, ids=name)
def test_scripts_import_no_scripts_and_lib_no_chapters(path):
    assert not [module for module in imports(path) if module.startswith(("chapter", "0", "tests"))]
    module = path.relative_to(PROJECT / "lib").parts[0].removesuffix(".py") if path in LIB else None
    if module in LEAVES:
        ours = {module.split(".")[1] for module in imports(path) if module.startswith("lib.")}
        assert ours <= LEAVES


@pytest.mark.parametrize(
    ("parent", "child", "budget"),
    [
        ("chapter09/01_baseline.py", "chapter09/00_slow_grads.py", 6),
        ("chapter08/01_dqn_basic.py", "chapter08/02_dqn_n_steps.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/03_dqn_double.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/04_dqn_noisy_net.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/05_dqn_prio_replay.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/06_dqn_dueling.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/07_dqn_distrib.py", 20),
        ("chapter08/01_dqn_basic.py", "chapter08/08_dqn_rainbow.py", 45),
        ("chapter08/01_dqn_basic.py", "chapter09/01_baseline.py", 20),
        ("chapter09/01_baseline.py", "chapter09/02_n_envs.py", 14),
        ("chapter09/01_baseline.py", "chapter09/03_parallel.py", 45),
        ("chapter09/02_n_envs.py", "chapter09/04_wrappers.py", 6),
        ("chapter09/04_wrappers.py", "chapter09/05_native_envs.py", 14),
        ("chapter09/05_native_envs.py", "chapter09/06_fast_learner.py", 12),
        ("chapter09/06_fast_learner.py", "chapter09/07_pong_in_minutes.py", 30),
        ("distributed/01_ppo.py", "distributed/02_ppo_actors.py", 45),
    ],
)
def test_a_rung_is_its_parent_plus_one_change(parent, child, budget):
    assert ladder.parent(PROJECT / child) == PROJECT / parent
    assert 0 < len(ladder.changed_lines(PROJECT / parent, PROJECT / child)) <= budget


def test_the_missing_no_grad_is_all_that_makes_00_slow():
    chapter = PROJECT / "chapter09"
    changed = ladder.changed_lines(chapter / "01_baseline.py", chapter / "00_slow_grads.py")
    assert len(changed) == 2
    assert all("no_grad=" in line for line in changed)


@pytest.mark.parametrize("path", LIB, ids=name)
def test_public_names_of_lib_have_docstrings(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_nothing_is_called_utils_and_no_file_name_has_a_colon():
    tracked = [
        path
        for path in PROJECT.rglob("*")
        if not any(part == ".git" or part.startswith(".venv") for part in path.parts)
    ]
    assert not [path for path in tracked if "util" in path.name or ":" in path.name]


def test_ptan_is_pinned_where_the_documents_say():
    assert "ptan==0.8.1" in (PROJECT / "Makefile").read_text()
    assert "ptan==" not in (PROJECT / "requirements.lock").read_text()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in (PROJECT / "requirements.lock").read_text().split())
