import os
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import forked

# Before torch is imported, here and in every process that a test starts. Two of them at a time, each with a thread a
# core, wait for each other's threads most of the time.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """A run that a test had fail leaves its own handlers behind, too."""
    forked.signals_as_in_a_terminal()


@pytest.fixture
def answer(monkeypatch, capsys):
    """(script, *options, code) -> what it says; in this process, as most of a second one's time would go into its
    imports."""

    from lib import cli

    def ask(script, *given, code=None):
        monkeypatch.setattr(cli, "prepare", lambda seed: None)  # which is for a whole process
        monkeypatch.setattr(sys, "argv", [script.name, *map(str, given)])
        with nullcontext() if code is None else pytest.raises(SystemExit) as ended:
            runpy.run_path(str(Path(__file__).parents[1] / script), run_name="__main__")
        assert code is None or ended.value.code == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return ask


@pytest.fixture
def refused(answer):
    """(script, *options) -> what it says to a command line that is wrong."""
    return lambda script, *given, code=2: answer(script, *given, code=code)
