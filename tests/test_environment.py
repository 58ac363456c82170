"""Scripts and tools that are started without the environment: one line instead of a traceback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from running import PROJECT

# In the folder of each program, ./name.py is what a person types.
PROGRAMS = sorted(
    path.relative_to(PROJECT)
    for folder in ("chapter08", "chapter09", "distributed", "tools", "benchmarks", "examples")
    for path in PROJECT.glob(f"{folder}/*.py")
    if os.access(path, os.X_OK)
)


def start_bare(*arguments, cwd):
    """Start a Python without packages, as the system's own is, and return its exit code and standard error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(
        [sys.executable, "-S", *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert process.stdout == ""
    return process.returncode, process.stderr


@pytest.fixture
def checkout(tmp_path):
    """A checkout without .venv, with the files that are imported before the first package."""
    project = tmp_path / "checkout"
    shutil.copytree(PROJECT / "lib", project / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("chapter09", "examples"):
        shutil.copytree(PROJECT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return project


@pytest.mark.parametrize(
    ("variables", "turns"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")],
    ids=str,
)
def test_torchs_threads_do_not_wait_long_in_a_loop_unless_the_user_says_so(variables, turns):
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = "import lib, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, cwd=PROJECT, env=env | variables, capture_output=True, text=True, check=True)
    assert process.stdout == f"{turns}\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_without_packages_a_program_ends_in_one_line(program):
    code, errors = start_bare(f"./{program.name}", "--help", cwd=PROJECT / program.parent)
    assert code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert "is not installed" in errors


@pytest.mark.parametrize("arguments", [("chapter09/01_baseline.py",), ("-m", "examples.snake")], ids=str)
def test_the_line_says_how_to_get_the_environment(checkout, arguments):
    code, errors = start_bare(*arguments, cwd=checkout)
    assert (code, errors.count("\n")) == (2, 1)
    assert f"`make train` in {checkout}" in errors
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    code, errors = start_bare(*arguments, cwd=checkout)
    assert (code, errors.count("\n")) == (2, 1)
    assert f"source {python.parent}/activate" in errors


def test_an_old_python_is_reported(checkout):
    statement = "import sys; sys.version_info = (3, 10, 12); import lib"
    code, errors = start_bare("-c", statement, cwd=checkout)
    assert (code, errors.count("\n")) == (2, 1)
    assert "Python 3.10, and 3.11 or newer is needed" in errors


def test_a_mistake_in_a_program_keeps_its_traceback(checkout):
    script = Path(checkout, "chapter09", "typo.py")
    script.write_text("import sys\nsys.path.append('..')\nimport lib\nimport no_such_module\n")
    code, errors = start_bare(script.name, cwd=script.parent)
    assert code == 1
    assert errors.startswith("Traceback")
    assert "no_such_module" in errors
