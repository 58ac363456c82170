"""A stopped and resumed run equals an uninterrupted one bit for bit. test_golden.py kills runs of six scripts, too."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import fakes
from lib.analysis.run_data import Run
from running import (
    BASELINE,
    assert_equal_runs,
    assignments,
    checkpoint_of,
    folder,
    resuming,
    scalars_of,
    start,
    trusting,
    wait_for,
)

pytestmark = pytest.mark.slow

# Before a run is stopped, its ring has wrapped around, and the target network was synchronised.
SMALL = (
    *assignments("replay_initial=60", "replay_size=80", "target_net_sync=20", "checkpoint_every=30"),
    *assignments("batch_size=2", "epsilon_frames=150"),
    *("--env-id", "fakes:Numbers-v0", "--seed", 5, "--quiet", "--stop-after", 800),
)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_stopped_and_resumed_run_equals_the_uninterrupted_one(answer, tmp_path, number):
    answer(BASELINE, *SMALL, "--runs-dir", tmp_path / "uninterrupted")
    process = start(BASELINE, *SMALL, "--runs-dir", tmp_path / "stopped")
    wait_for(lambda: list(tmp_path.glob("stopped/*/checkpoints/step-00000009*.pt")), process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert re.search(rf"^Stopped at step \d+: {number.name}\.$", stdout, re.M)
    assert " --resume " in stdout
    uninterrupted, stopped = (folder(tmp_path / name) for name in ("uninterrupted", "stopped"))
    answer(BASELINE, *resuming(stopped), "--stop-after", 800, "--quiet")
    assert_equal_runs(uninterrupted, stopped)
    assert scalars_of(uninterrupted) == scalars_of(stopped)


def test_a_run_stopped_in_its_warm_up_starts_from_the_beginning(answer, tmp_path):
    fields = assignments("replay_initial=1000", "replay_size=1000", "batch_size=8")
    options = ("--env-id", "fakes:Chain-v0", *fields, "--stop-after", 1020, "--quiet")
    answer(BASELINE, *options, "--runs-dir", tmp_path / "uninterrupted")
    runs_dir = tmp_path / "stopped"
    process = start(BASELINE, *options, "--runs-dir", runs_dir)
    wait_for(lambda: list(runs_dir.glob("*/events.out*")), process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped at once" in stderr  # during or before the warm-up
    resumed = answer(BASELINE, *resuming(folder(runs_dir)), "--stop-after", 1020, "--quiet")
    assert "starts again from the beginning" in resumed
    assert_equal_runs(folder(tmp_path / "uninterrupted"), folder(runs_dir))


def test_a_run_resumed_without_its_replay_fills_it_again(answer, tmp_path):
    fields = assignments("replay_initial=700", "replay_size=2000", "batch_size=8", "checkpoint_replay=false")
    options = ("--env-id", "fakes:Chain-v0", *fields, "--quiet")
    answer(BASELINE, *options, "--stop-after", 720, "--runs-dir", tmp_path)
    assert "replay" not in checkpoint_of(folder(tmp_path))
    output = answer(BASELINE, *resuming(folder(tmp_path)), "--stop-after", 1550)
    assert "Resumed at step 720." in output
    assert "Replay warm-up: 701 steps" in output
    assert checkpoint_of(folder(tmp_path))["iteration"]["iteration"] == 20 + 1550 - 720 - 700
    _, ratios = Run.read(folder(tmp_path)).scalars["train/replay_ratio"]
    assert ratios == [8.0]  # without the steps that fill the replay


def test_an_environment_whose_spaces_have_changed_is_refused_and_both_are_named(refused, trained_run, monkeypatch):
    make = fakes.Shown.__init__

    def changed(self, render_mode=None):
        make(self, render_mode)
        self.observation_space = spaces.Box(0, 128, (84, 84), np.uint8)

    monkeypatch.setattr(fakes.Shown, "__init__", changed)
    message = "the observation space Box(0, 255, (84, 84), uint8), and that of fakes:Shown-v0 is Box(0, 128, (84, 84), "
    for script, *options in (
        ("distributed/01_ppo.py", *resuming(trained_run), "--stop-after", 1408),
        ("distributed/01_ppo.py", "--init", trained_run, *trusting(trained_run), "--stop-after", 128),
        ("tools/evaluate.py", trained_run, *trusting(trained_run)),
    ):
        assert message in refused(Path(script), *options)
