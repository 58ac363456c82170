"""Run folders with a damaged, edited or lost file: each command ends clearly, or with an unchanged result."""

import hashlib
import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from lib.run import run_json
from running import checkpoint_of, differences, resuming

EVALUATE, REPORT, COMPARE = (Path(f"tools/{name}.py") for name in ("evaluate", "report", "compare"))
PPO = Path("distributed/01_ppo.py")
JUNK = [None, 5, -1, 2.5, "x", "", [], {}, [1], {"a": 1}, True, 1e300, 10**400, "../../x", "\ud800"]

pytestmark = pytest.mark.slow


def places(node):
    """Yield each container and key within a value of a JSON file or a checkpoint."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from places(value)


def edit(content, draw):
    """Replace or remove one entry."""
    node, key = draw.choice([*places(content)])
    if isinstance(node, dict) and draw.random() < 0.2:
        del node[key]
    else:
        node[key] = draw.choice(JUNK)


def edit_json(run, draw):
    file = run / draw.choice(["params.json", "result.json"])
    content = json.loads(file.read_text())
    edit(content, draw)
    if draw.random() < 0.5:  # with the digest that fits
        content.pop("sha256", None)
        run_json.write_json(file, content)
    else:
        file.write_text(json.dumps(content))


def edit_checkpoint(run, draw):
    """Edit a checkpoint and write the digest that fits. Averages and random numbers that are only other ones remain."""
    file = run / "checkpoints" / "step-000001280.pt"
    content = torch.load(file, weights_only=True)
    edit({name: content[name] for name in ("source", "episodes", "settings", "iteration", "files")}, draw)
    torch.save(content, file)
    file.with_name(f"{file.name}.sha256").write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n")


def edit_bytes(run, draw):
    data = bytearray((file := draw.choice(files_of(run))).read_bytes())
    place = draw.randrange(len(data))
    if draw.random() < 0.3:
        del data[place:]
    else:
        data[place] ^= draw.randrange(1, 256)
    file.write_bytes(data)


def lose(run, draw):
    draw.choice(files_of(run)).unlink()


def files_of(run):
    return sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.fixture(scope="module")
def uninterrupted(original_run, tmp_path_factory):
    """Checkpoint of the run when it is resumed without damage."""
    from running import run

    copy = shutil.copytree(original_run, tmp_path_factory.mktemp("whole") / original_run.name)
    process = run(PPO, *resuming(copy), "--stop-after", 1408, "--quiet")
    assert process.returncode == 0, process.stderr
    return checkpoint_of(copy)


@pytest.fixture(scope="module")
def undamaged_table(original_run, tmp_path_factory):
    """Table of compare.py for the run and a copy of it."""
    from running import run

    copy = shutil.copytree(
        original_run, tmp_path_factory.mktemp("test_any_damage") / original_run.name
    )  # for equal names
    return run(COMPARE, copy, original_run).stdout


@pytest.mark.parametrize("damage", [edit_json, edit_checkpoint, edit_bytes, lose])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 41))])
def test_any_damage_ends_clearly_or_changes_nothing(
    ends, original_run, uninterrupted, undamaged_table, tmp_path, damage, seed
):
    draw = random.Random(f"{damage.__name__} {seed}")
    damaged = shutil.copytree(original_run, tmp_path / original_run.name)
    damage(damaged, draw)
    for script, options in (
        (COMPARE, (damaged, original_run)),
        (REPORT, (damaged, "--output", tmp_path / "report")),
        (EVALUATE, (damaged, "--env-module", "fakes", "--quiet")),
        (PPO, (*resuming(damaged), "--stop-after", 1408, "--quiet")),
    ):
        code, output, errors = ends(script, *options)
        assert code in (0, 1, 2), errors
        assert "Traceback" not in errors
        assert not code or "error: " in errors
        if script == COMPARE and damage is edit_bytes and not errors:
            assert output == undamaged_table
    if code == 0 and damage is not edit_checkpoint:
        assert differences(uninterrupted, checkpoint_of(damaged)) == []
