"""Behaviour that all tools share."""

import os
from pathlib import Path

import pytest

from finished_runs import make_run
from running import PROJECT, WITHOUT_DISPLAY, run

TOOLS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tools/*.py"))


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_the_help_shows_an_example(answer, tool):
    assert f"    ./{tool.name} " in answer(tool, "--help", code=0)
    assert os.access(PROJECT / tool, os.X_OK)


def test_a_report_needs_no_display(tmp_path):
    path = make_run(tmp_path / "run")
    process = run(Path("tools/report.py"), path, env=WITHOUT_DISPLAY)
    assert (process.returncode, process.stderr, process.stdout) == (0, "", f"{path / 'report.html'}\n")


@pytest.mark.parametrize("tool", ["compare.py", "report.py"])
def test_runs_elsewhere_are_found_by_name(answer, refused, tmp_path, tool):
    make_run(tmp_path / "elsewhere" / "one")
    options = ("one", "--runs-dir", tmp_path / "elsewhere")
    assert "one" in answer(Path("tools", tool), *options)
    assert str(tmp_path / "elsewhere") in refused(Path("tools", tool), "two", *options[1:])
