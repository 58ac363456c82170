"""Golden runs: what no rounding changes is that of golden/runs.json, and a stopped and killed run loses nothing.

    WRITE=1 python -m pytest -n0 tests/test_golden.py    # after a change that is meant, in a commit that says why

To compare all bits of two commits on one machine, write another file in one of them, and read it in the other:

    WRITE=1 GOLDEN=/tmp/bits.json python -m pytest -n0 tests/test_golden.py
    GOLDEN=/tmp/bits.json python -m pytest -n0 tests/test_golden.py
"""

import csv
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import pytest
import torch

from running import (
    PROJECT,
    assert_equal_runs,
    checkpoint_of,
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

RUNS_JSON = PROJECT / "tests" / "golden" / "runs.json"
GOLDEN = Path(os.environ.get("GOLDEN", RUNS_JSON))
ROUNDED = ("priorities", "weights", "highest")  # of a prioritised replay that has learnt
RESETS = ("steps_done", "resets", "starts")  # of a source, at any depth


class GoldenRun(NamedTuple):
    """A short run.

    Attributes:
        script: its path.
        options: its options.
        early: step shortly after the warm-up. Until then a DQN's actions are random, so no rounding has changed them.
        last: step at which it stops. Learning has chosen actions, train/* was logged, and a replay has wrapped around.
        watch: options of its parts, by which they are recorded or evaluated, which changes nothing.
    """

    script: Path
    options: str
    early: int
    last: int
    watch: tuple[object, ...] = ()


DQN = "--set epsilon_frames=200 --set target_net_sync=20 --set checkpoint_every=24"
PPO = "--set envs=4 --set rollout=16 --set minibatch=32 --set checkpoint_every=128 --set anneal_steps=300"
WATCHED = ("--record-every", 10, "--evaluate-every", 100)
RUNS = {
    "01_baseline": GoldenRun(
        Path("chapter09/01_baseline.py"),
        f"--env-id fakes:ShortPong-v0 {DQN} --set replay_initial=80 --set replay_size=120 --set batch_size=4",
        *(84, 200, ("--record-every", 2)),
    ),
    "03_parallel": GoldenRun(
        Path("chapter09/03_parallel.py"),
        f"--env-id fakes:Numbers-v0 {DQN} --players 2 --replay-ratio 4 --set batch_size=2"
        " --set replay_initial=120 --set replay_size=200",
        *(128, 400),
    ),
    "05_native_envs": GoldenRun(
        Path("chapter09/05_native_envs.py"),
        f"--env-id fakes:ShortPong-v0 {DQN} --set normalise=true --envs 4 --set batch_size=1"
        " --set replay_initial=120 --set replay_size=200",
        *(128, 560, ("--record-every", 2)),
    ),
    "08_dqn_rainbow": GoldenRun(
        Path("chapter08/08_dqn_rainbow.py"),
        f"--env-id fakes:Numbers-v0 {DQN} --envs 4 --set batch_size=2 --set replay_initial=120 --set replay_size=200",
        *(128, 560, WATCHED),
    ),
    "02_ppo_fast": GoldenRun(Path("distributed/02_ppo_fast.py"), f"--env-id fakes:ShortPong-v0 {PPO}", 128, 512),
    "ppo_actors": GoldenRun(
        Path("distributed/03_ppo_actors.py"), f"--env-id fakes:Numbers-v0 {PPO}", 128, 512, WATCHED
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_and_killed_equals_one_that_is_not_and_has_its_golden_digests(name, tmp_path):
    script, words, early_step, last, watch = RUNS[name]
    options, to_the_end = (*words.split(), "--seed", 5), ("--stop-after", last, "--quiet", *watch)
    straight = run_in_parts(script, options, tmp_path / "whole", [last])
    parts = run_in_parts(script, (*options, *watch), tmp_path / "parts", [early_step])
    early = checkpoint_of(parts)
    kill(script, parts, to_the_end)
    process = run(script, *resuming(parts), *to_the_end)
    assert process.returncode == 0, process.stderr
    assert_equal_runs(straight, parts)
    assert len(episodes_of(straight)) > 1
    scalars, others = scalars_of(straight), scalars_of(parts)
    if watch:
        check_videos(parts, watch[1])
    if len(watch) > 2:
        evaluations = [others.pop(f"evaluation/{figure}") for figure in ("mean", "std", "min", "max")]
        hundreds = [step // 100 for step, _ in evaluations[0]]
        assert hundreds == list(range(1, last // 100 + 1))
    assert repr(sorted(scalars.items())) == repr(sorted(others.items()))  # because nan != nan
    facts = facts_of(straight, early)
    if GOLDEN != RUNS_JSON:
        rounded = (checkpoint_of(straight)["net"], episodes_of(straight), scalars["train/loss"])
        facts["rounded"] = [digest(each) for each in rounded]
    if os.environ.get("WRITE"):
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
