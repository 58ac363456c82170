"""Scripts and tools on a GPU. The whole module is skipped where torch finds none."""

import itertools
from pathlib import Path

import pytest
import torch

from lib.run.folder import read_params
from running import CATCH, DQNS, PPOS, assert_equal_runs, assignments, checkpoint_of, run_in_parts, scalars_of

if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.slow

GPU = itertools.repeat("cuda")
OWN_OPTIONS: dict[str, list[tuple[object, ...]]] = {
    "04_wrappers": [(), ("--parallel",)],
    "07_pong_in_minutes": [("--envs", 12)],
}
PPO_OPTIONS = (*CATCH[:4], *assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128"))
# Script, options, and two steps, which are multiples of every script's environments.
DQN_RUNS = [(script, (*CATCH, *own), 144, 168) for script in DQNS for own in OWN_OPTIONS.get(script.stem, [()])]
PPO_RUNS = [(script, PPO_OPTIONS, 128, 320) for script in PPOS]


def devices_of(path):
    """Return the names of the devices that a run has used."""
    return [session["machine"]["device"] for session in read_params(path)["sessions"]]


@pytest.mark.parametrize(
    ("script", "options", "middle", "last"),
    DQN_RUNS + PPO_RUNS,
    ids=lambda value: str(value) if isinstance(value, Path) else "",
)
def test_a_script_is_resumed_bit_for_bit(tmp_path, script, options, middle, last):
    one = run_in_parts(script, options, tmp_path / "one", [last], GPU)
    two = run_in_parts(script, options, tmp_path / "two", [middle, last], GPU)
    assert devices_of(two) == [torch.cuda.get_device_name()] * 2
    assert_equal_runs(one, two)


@pytest.mark.parametrize(("script", "options", "middle", "last"), [DQN_RUNS[0], *PPO_RUNS])
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
        path = run_in_parts(PPOS[0], options, tmp_path / device, [128], [device])
        losses.append([value for _, value in scalars_of(path)["train/loss"]])
    assert len(losses[0]) == 2
    # Only to a few digits, because a GPU's convolutions round to TF32.
    assert losses[1] == pytest.approx(losses[0], rel=0.02, abs=1e-3)
