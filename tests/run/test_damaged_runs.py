"""Run folders with a damaged or lost file: each command ends clearly, or with an unchanged result."""

import random
import shutil
from pathlib import Path

import pytest

from running import SHOWN, checkpoint_of, differences, resuming, run

EVALUATE, REPORT, COMPARE = (Path(f"tools/{name}.py") for name in ("evaluate", "report", "compare"))
PPO = Path("distributed/01_ppo.py")

pytestmark = pytest.mark.slow


def flip(file, draw):
    """Change a byte, as a bad disk does."""
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    file.write_bytes(data)


def cut(file, draw):
    """Lose the end of a file, as in an incomplete copy."""
    file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size)])


def lose(file, draw):
    file.unlink()


def files_of(folder, damage):
    # Which numbers a person has changed in a JSON file, nobody can tell.
    files = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(path for path in files if damage is not flip or path.suffix != ".json")


@pytest.fixture(scope="module")
def uninterrupted(original_run, tmp_path_factory):
    """Checkpoint of the run when it is resumed without damage."""
    copy = shutil.copytree(original_run, tmp_path_factory.mktemp("whole") / original_run.name)
    process = run(PPO, *resuming(copy), "--stop-after", 1408, "--quiet")
    assert process.returncode == 0, process.stderr
    return checkpoint_of(copy)


@pytest.mark.parametrize("damage", [flip, cut, lose])
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 41))])
def test_any_damage_ends_clearly_or_changes_nothing(ends, original_run, uninterrupted, tmp_path, damage, seed):
    draw = random.Random(f"{damage.__name__} {seed}")
    damaged = shutil.copytree(original_run, tmp_path / original_run.name)
    damage(draw.choice(files_of(damaged, damage)), draw)
    for script, options in (
        (COMPARE, (damaged, original_run)),
        (REPORT, (damaged, "--output", tmp_path / "report")),
        (EVALUATE, (damaged, *SHOWN, "--episodes", 2)),
        (PPO, ("--resume", damaged, *SHOWN, "--stop-after", 1408, "--quiet")),
    ):
        code, _, errors = ends(script, *options)
        assert code in (0, 1, 2), errors
        assert "Traceback" not in errors
        assert not code or "error: " in errors
    if code == 0:
        assert differences(uninterrupted, checkpoint_of(damaged)) == []
