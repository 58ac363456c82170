"""Behaviour that all tools share."""

import os
from pathlib import Path

from finished_runs import make_run
from running import PROJECT

TOOLS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tools/*.py"))


def test_every_help_shows_an_example(answer):
    for tool in TOOLS:
        assert f"    ./{tool.name} " in answer(tool, "--help", code=0), tool
        assert os.access(PROJECT / tool, os.X_OK), tool


def test_runs_elsewhere_are_found_by_name(answer, refused, tmp_path):
    make_run(tmp_path / "elsewhere" / "one")
    options = ("one", "--runs-dir", tmp_path / "elsewhere")
    assert "one" in answer(Path("tools/compare.py"), *options)
    assert str(tmp_path / "elsewhere") in refused(Path("tools/compare.py"), "two", *options[1:])
