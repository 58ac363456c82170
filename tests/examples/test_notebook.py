"""The notebook trains, draws its curve and records a video. Its cells run as a program, with an easier goal."""

import json
import subprocess
import sys

import pytest

from running import ENVIRONMENT, PROJECT

NOTEBOOK = PROJECT / "examples" / "cartpole.ipynb"

# A stand-in for IPython, which is not installed here.
PREAMBLE = """
import sys, types
from pathlib import Path
display = types.ModuleType("IPython.display")
display.Image = lambda path: print("image", Path(path).stat().st_size)
display.Video = lambda path, embed: print("video", Path(path).stat().st_size)
sys.modules["IPython.display"] = display
"""


def cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_holds_no_results_of_a_machine():
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells())


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    program = PREAMBLE + "\n".join("".join(cell["source"]) for cell in cells())
    for old, new in (("stop_reward=300.0", "stop_reward=20.0"), ("seed=1, quiet", "runs_dir=Path('runs'), quiet")):
        assert old in program
        program = program.replace(old, new, 1)
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "Game solved" in process.stdout
    shown = {
        line.split()[0]: int(line.split()[1]) for line in process.stdout.splitlines() if line[:5] in ("image", "video")
    }
    assert shown["image"] > 5000
    assert shown["video"] > 1000
