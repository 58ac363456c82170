"""Golden runs: what no rounding changes is that of golden/runs.json, and a stopped and killed run loses nothing.

    GOLDEN=write python -m pytest -n0 tests/test_golden.py    # after a change that is meant, in a commit that says why

golden_runs.py has the runs.
"""

import csv
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch

from golden_runs import RUNS, find_script
from running import (
    PROJECT,
    checkpoint_of,
    differences,
    episodes_of,
    result_of,
    resuming,
    run,
    run_in_parts,
    scalars_of,
    start,
    tags_of,
    wait_for,
)

pytestmark = pytest.mark.slow

GOLDEN = PROJECT / "tests" / "golden" / "runs.json"
ROUNDED = ("priorities", "weights", "highest")  # of a prioritised replay that has learnt
# The parts of these runs are evaluated or recorded, which changes nothing.
WATCH = {
    "05_native_envs": ("--record-every", 2),
    "08_dqn_rainbow": ("--record-every", 10, "--evaluate-every", 100),
    "ppo_actors": ("--record-every", 10, "--evaluate-every", 100),
}
RESETS = ("steps_done", "resets", "starts")  # of a source, at any depth


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_and_killed_equals_one_that_is_not_and_has_its_golden_digests(name, tmp_path):
    script, options = find_script(PROJECT, RUNS[name]).relative_to(PROJECT), (*RUNS[name].options.split(), "--seed", 5)
    watch = WATCH.get(name, ())
    to_the_end = ("--stop-after", RUNS[name].last, "--quiet", *watch)
    straight, _ = run_in_parts(script, options, tmp_path / "whole", [RUNS[name].last])
    parts, _ = run_in_parts(script, (*options, *watch), tmp_path / "parts", [RUNS[name].early])
    early = checkpoint_of(parts)
    kill(script, parts, to_the_end)
    process = run(script, *resuming(parts), *to_the_end)
    assert process.returncode == 0, process.stderr
    assert differences(checkpoint_of(straight), checkpoint_of(parts)) == ["/evaluations"] * (len(watch) > 2)
    assert episodes_of(straight) == episodes_of(parts)
    assert len(episodes_of(straight)) > 1
    scalars, others = scalars_of(straight), scalars_of(parts)
    if watch:
        check_videos(parts, watch[1])
    if len(watch) > 2:
        evaluations = [others.pop(f"evaluation/{figure}") for figure in ("mean", "std", "min", "max")]
        hundreds = [step // 100 for step, _ in evaluations[0]]
        assert hundreds == list(range(1, RUNS[name].last // 100 + 1))
    assert repr(sorted(scalars.items())) == repr(sorted(others.items()))  # because nan != nan
    facts = facts_of(straight, early)
    if os.environ.get("GOLDEN") == "write":
        known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps(known | {name: facts}, indent=1) + "\n")
    assert facts == json.loads(GOLDEN.read_text())[name]


def check_videos(path: Path, every: int) -> None:
    """Check that the videos show the episodes of episodes.csv from end to end."""
    with (path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= every
    for number, row in enumerate(rows, 1):
        if number % every:
            assert row["video"] == ""
            continue
        assert row["video"] == f"videos/episode-{number}-return-{row['return']}.webm"
        frames = cv2.VideoCapture(str(path / row["video"])).get(cv2.CAP_PROP_FRAME_COUNT)
        assert frames == int(row["length"]) + 1
    assert {f"videos/{file.name}" for file in (path / "videos").iterdir()} | {""} == {row["video"] for row in rows}


def kill(script: Path, path: Path, options: tuple[object, ...]) -> None:
    """Resume a run, and kill it after its next checkpoint."""
    saved = set(path.glob("checkpoints/step-*.pt"))
    process = start(script, *resuming(path), *options)
    wait_for(lambda: set(path.glob("checkpoints/step-*.pt")) - saved, process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def facts_of(path: Path, early: dict[str, Any]) -> dict[str, Any]:
    """Return what no rounding changes: names in a run's files, and digests of an early checkpoint."""
    replay = {key: value for key, value in early.get("replay", {}).items() if key not in ROUNDED}
    header, *rows = episodes_of(path)
    return {
        "tags": tags_of(path),
        "result": sorted(result_of(path)),
        "columns": (path / "episodes.csv").read_text().splitlines()[0].split(","),
        "digests": {
            "random": digest(early["random"]),
            "resets": digest(resets_of(early["source"])),
            "replay": digest(replay),
            "lengths": digest([row[: header.index("return")] for row in rows]),
        },
    }


def resets_of(state: Any) -> Any:
    """Return the entries RESETS of a nested state."""
    if isinstance(state, dict):
        found = {key: value if key in RESETS else resets_of(value) for key, value in state.items()}
        return {key: value for key, value in found.items() if value is not None}
    return list(map(resets_of, state)) if isinstance(state, list) else None


def digest(content: Any) -> str:
    """Return the first digits of a hash of nested tensors and plain values."""
    return hashlib.sha256(b"".join(parts_of(content))).hexdigest()[:16]


def parts_of(content: Any) -> Iterator[bytes]:
    """Yield the bytes of nested tensors and plain values, in an order that does not depend on that of dictionaries."""
    if isinstance(content, torch.Tensor):
        yield f"{content.dtype}{tuple(content.shape)}".encode() + content.contiguous().numpy().tobytes()
    elif isinstance(content, dict):
        for key in sorted(content):
            yield from (repr(key).encode(), *parts_of(content[key]))
    elif isinstance(content, list | tuple):
        for each in content:
            yield from parts_of(each)
    else:
        yield repr(content).encode()
