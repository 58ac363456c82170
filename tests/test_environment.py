"""Scripts and tools that are started without the environment: one line instead of a traceback."""

import os
import re
import subprocess
import sys

import pytest

from running import PROJECT


def start_bare(*arguments, cwd):
    """Start a Python without packages, as the system's own is, and return its exit code and standard error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.run(
        [sys.executable, "-S", *map(str, arguments)], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert process.stdout == ""
    return process.returncode, process.stderr


@pytest.mark.parametrize(("variables", "turns"), [({}, "20000"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "None")])
def test_torchs_threads_do_not_wait_long_in_a_loop_unless_the_user_says_so(variables, turns, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    program = "import lib, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    env = os.environ | variables
    assert subprocess.check_output([sys.executable, "-c", program], cwd=PROJECT, env=env, text=True) == f"{turns}\n"


@pytest.mark.parametrize("program", ["distributed/01_ppo.py", "tools/play.py"])
def test_without_packages_a_program_ends_in_one_line(program):
    folder, name = program.split("/")
    code, errors = start_bare(f"./{name}", "--help", cwd=PROJECT / folder)
    assert code == 2
    assert re.match(r"error: \w+ is not installed for ", errors)
    assert errors.count("\n") == 1
    assert f"source {PROJECT}/.venv/bin/activate" in errors


def test_an_old_python_is_reported():
    statement = "import sys; sys.version_info = (3, 10, 12); import lib"
    code, errors = start_bare("-c", statement, cwd=PROJECT)
    assert (code, errors.count("\n")) == (2, 1)
    assert "Python 3.10, and 3.11 or newer is needed" in errors
