"""The notebook trains, draws its curve and records a video. Its cells run as a program, with an easier goal."""

import json

import pytest

from running import PROJECT, start_program

NOTEBOOK = PROJECT / "examples" / "cartpole.ipynb"

# A stand-in for IPython, which is not installed here.
PREAMBLE = """
import sys, types
from pathlib import Path
from matplotlib.figure import Figure
Figure.savefig = Figure.really_savefig
display = types.ModuleType("IPython.display")
display.Image = lambda path: print("image", Path(path).stat().st_size)
display.Video = lambda path, embed: print("video", Path(path).stat().st_size)
sys.modules["IPython.display"] = display
"""


def cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    program = PREAMBLE + "\n".join("".join(cell["source"]) for cell in cells())
    for old, new in (("stop_reward=300.0", "stop_reward=20.0"), ("seed=1, quiet", "runs_dir=Path('runs'), quiet")):
        assert old in program
        program = program.replace(old, new, 1)
    process = start_program(program, tmp_path)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "Game solved" in output
    shown = {line.split()[0]: int(line.split()[1]) for line in output.splitlines() if line[:5] in ("image", "video")}
    assert shown["image"] > 5000
    assert shown["video"] > 1000
