"""Scripts and tools on a GPU. The whole module is skipped where torch finds none."""

import itertools
from pathlib import Path

import pytest
import torch

from lib.run.folder import read_params
from running import BASELINE, PROJECT, assert_equal_runs, assignments, checkpoint_of, run_in_parts, scalars_of

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.slow

GPU = itertools.repeat("cuda")
MIDDLE, LAST = 144, 168  # multiples of every script's environments
DQN_OPTIONS = (
    *("--env-id", "fakes:Catch-v0", "--seed", 3),
    *assignments("replay_initial=120", "replay_size=2000", "batch_size=2", "target_net_sync=12", "learn_every=12"),
)
PPO_OPTIONS = (
    *("--env-id", "fakes:Catch-v0", "--seed", 3),
    *assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128"),
)
OWN_OPTIONS: dict[str, list[tuple[object, ...]]] = {
    "04_wrappers": [(), ("--parallel",)],
    "07_pong_in_minutes": [("--envs", 12)],
}
DQNS = [
    (path.relative_to(PROJECT), own)
    for path in sorted(PROJECT.glob("chapter0[89]/[0-9][0-9]_*.py"))
    for own in OWN_OPTIONS.get(path.stem, [()])
]
PPOS = [path.relative_to(PROJECT) for path in sorted(PROJECT.glob("distributed/[0-9][0-9]_*.py"))]
PPO = PPOS[0]
RUNS = [
    *((script, (*DQN_OPTIONS, *own), MIDDLE, LAST) for script, own in DQNS),
    *((script, PPO_OPTIONS, 128, 320) for script in PPOS),
]


def devices_of(path):
    """Return the names of the devices that a run has used."""
    return [session["machine"]["device"] for session in read_params(path)["sessions"]]


@pytest.mark.parametrize(
    ("script", "options", "middle", "last"), RUNS, ids=lambda value: str(value) if isinstance(value, Path) else ""
)
def test_a_script_is_resumed_bit_for_bit(tmp_path, script, options, middle, last):
    one = run_in_parts(script, options, tmp_path / "one", [last], GPU)
    two = run_in_parts(script, options, tmp_path / "two", [middle, last], GPU)
    assert devices_of(two) == [torch.cuda.get_device_name()] * 2
    assert_equal_runs(one, two)


@pytest.mark.parametrize(
    ("script", "options", "middle", "last"),
    [(BASELINE, DQN_OPTIONS, MIDDLE, LAST), *((script, PPO_OPTIONS, 128, 320) for script in PPOS)],
)
@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")], ids="-".join)
def test_a_run_goes_on_with_another_device(tmp_path, script, options, middle, last, devices):
    path = run_in_parts(script, options, tmp_path / "runs", [middle, last], devices)
    assert checkpoint_of(path)["source"]["steps_done"] == last
    assert sorted(devices_of(path)) == sorted([torch.cuda.get_device_name(), "cpu"])


def test_ppos_first_updates_equal_those_of_a_cpu(tmp_path):
    losses = []
    # One minibatch per rollout, because a GPU shuffles with random numbers of its own.
    options = (*PPO_OPTIONS, *assignments("minibatch=64", "epochs=1"))
    for device in ("cpu", "cuda"):
        path = run_in_parts(PPO, options, tmp_path / device, [128], [device])
        losses.append([value for _, value in scalars_of(path)["train/loss"]])
    assert len(losses[0]) == 2
    # Only to a few digits, because a GPU's convolutions round to TF32.
    assert losses[1] == pytest.approx(losses[0], rel=0.02, abs=1e-3)
