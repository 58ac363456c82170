"""The whole loop, as setup_ignite assembles it."""

import dataclasses
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import ptan
import pytest
import torch
from gymnasium.wrappers import TransformReward
from ignite.engine import Engine, Events
from torch import nn

from fakes import Counting, Failing, Linear
from lib import common
from lib.errors import Fault, UsageError
from lib.experience.transitions import ExperienceSourceFirstLast, ReplayBuffer
from lib.hyperparameters import HYPERPARAMS
from lib.run import checkpoint
from lib.run.arguments import RunOptions
from lib.run.episode_player import EpisodeResult
from lib.run.evaluation import summary
from lib.run.folder import RunFolder, in_use
from lib.run.setup import setup_ignite
from lib.system import clock
from running import contents, folder, result_of
from sources import Alternating

SMALL = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
GOAL = {"stop_reward": 15.0, "milestone": None}  # reached when 100 episodes of Counting(length=5) have ended


def set_up(tmp_path, env=None, process=None, save=..., params=None, **options):
    """Set up a run on an environment whose returns are 15 and whose episodes have 5 steps.

    Args:
        process: process function of the engine, without arguments but the iteration.
        save: see setup_ignite; by default a network that is not trained.
        params: hyperparameters that differ from SMALL.
    """
    source = ExperienceSourceFirstLast(env or Counting(length=5), Alternating(), gamma=0.9)
    engine = Engine(lambda engine, batch: {"loss": 0.0, **((process and process(engine.state.iteration)) or {})})
    args = RunOptions(**{"runs_dir": tmp_path, "quiet": True, **options})
    save = {"net": Linear(1)} if save is ... else save
    run = setup_ignite(engine, dataclasses.replace(SMALL, **params or {}), source, "own", args=args, save=save)
    batches = common.batch_generator(ReplayBuffer(source, 100), 2, 2)
    return SimpleNamespace(engine=engine, source=source, run=run, batches=batches)


def train(tmp_path, *args, **options):
    """Set up a run and train it to its end; see `set_up`."""
    own = set_up(tmp_path, *args, **options)
    own.engine.run(own.batches)
    return own


def test_the_learning_rates_of_all_groups_fall_linearly_to_the_final_one(tmp_path):
    body, head = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.Adam([{"params": body.parameters()}, {"params": head.parameters(), "lr": 0.01}], lr=0.1)
    rates = {}

    def process(iteration):
        rates[iteration + 2] = [group["lr"] for group in optimizer.param_groups]

    fall = {"learning_rate": 0.1, "learning_rate_final": 0.02, "learning_rate_steps": 40}
    train(tmp_path, process=process, save={"net": body, "optimizer": optimizer}, params=fall, stop_after=60)
    assert rates[10] == pytest.approx([0.08, 0.008])
    assert rates[60] == rates[40] == pytest.approx([0.02, 0.002])


def test_a_checkpoint_holds_what_a_handler_of_the_script_has_changed(tmp_path):
    state = {"count": 0}
    save = {"net": Linear(1), "counter": Mock(state_dict=lambda: state)}
    own = set_up(tmp_path, save=save, stop_after=35)
    own.engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: state.update(count=state["count"] + 1))
    own.engine.run(own.batches)
    content = checkpoint.newest(own.run.checkpoints)
    assert content["counter"]["count"] == content["iteration"]["iteration"] == 33


def test_a_state_that_could_not_be_read_again_is_refused_at_the_first_checkpoint(tmp_path):
    own = set_up(
        tmp_path, save={"net": Linear(1), "statistics": Mock(state_dict=lambda: {"mean": np.float64(1)})}, stop_after=60
    )
    with pytest.raises(Fault, match=r"holds numpy\S*scalar, and only tensors and plain values are loaded"):
        own.engine.run(own.batches)
    assert own.source.steps_done == 3  # of the warm-up and the first iteration


def test_a_script_may_end_its_run_and_runs_its_engine_once(tmp_path):
    own = set_up(tmp_path, process=lambda iteration: own.engine.terminate())
    state = own.engine.run(own.batches)
    assert (state.iteration, state.stopped) == (1, "ended by the script")
    with pytest.raises(RuntimeError, match="this run has ended; resume it, or start a new one"):
        own.engine.run([0])


@pytest.mark.parametrize("fails", ["acting", "learning"])
def test_an_error_saves_nothing_closes_all_and_says_how_to_continue(tmp_path, monkeypatch, fails):
    net, done = nn.Linear(1, 1), []
    before = signal.getsignal(signal.SIGINT)

    def process(iteration):
        with torch.no_grad():
            net.weight.fill_(iteration)
        if fails == "learning" and iteration == 4:
            raise RuntimeError("the loss broke")

    monkeypatch.setattr(ExperienceSourceFirstLast, "close", lambda source: done.append("closed"))
    own = set_up(tmp_path, Failing("raise", at=9) if fails == "acting" else None, process, save={"net": net})
    own.engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: done.append("handled"))
    with pytest.raises(RuntimeError, match="broke") as error:
        own.engine.run(own.batches)
    content = checkpoint.newest(own.run.checkpoints)
    assert content["source"]["steps_done"] == 3  # the first iteration's
    assert content["net"]["weight"].item() == 1
    assert done == ["handled", "closed", "handled"]  # ignite reports the error twice
    assert [note for note in error.value.__notes__ if "To continue:" in note and "--resume" in note]
    assert signal.getsignal(signal.SIGINT) == before
    assert not in_use(own.run.path)
    env = Failing("raise", at=0) if fails == "acting" else None
    resumed = set_up(tmp_path, env, save={"net": net}, resume=own.run.path)
    assert resumed.source.steps_done == 3
    resumed.run.close()


def test_a_run_cannot_be_resumed_during_its_final_evaluation(tmp_path, monkeypatch):
    """The evaluation ends by writing the result, which would replace that of the resumed run."""
    asked = []

    def evaluate(*args, **options):
        with pytest.raises(UsageError, match="is in use by process"):
            RunFolder(folder(tmp_path))
        asked.append(options["side_by_side"])
        return summary(EpisodeResult(number, 20.0, 5, b"") for number in range(20))

    monkeypatch.setattr("lib.run.evaluation.evaluate", evaluate)
    own = train(tmp_path, params=GOAL)
    assert result_of(own.run.path)["evaluation"]["mean"] == 20.0
    assert not in_use(own.run.path)
    train(tmp_path, params=GOAL, resume=own.run.path)  # nothing is left to do
    assert asked == [False]  # in its own process: a child would import a program without cli.main


def test_an_evaluation_that_fails_does_not_end_a_run(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "lib")
    monkeypatch.setattr("lib.run.evaluation.evaluate", Mock(side_effect=ValueError("broke")))
    own = train(tmp_path, params=GOAL)
    assert own.engine.state.stopped == result_of(own.run.path)["stopped"] == "solved"
    assert "The evaluation failed; the run is saved. broke" in caplog.text
    assert "watch it play" in caplog.text


def test_an_evaluation_during_training_ends_at_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.run.setup.make_env", lambda env_id, **_: Counting(length=10**9))
    own = set_up(tmp_path, evaluate_every=100, time_limit=10**6)
    monkeypatch.setattr("lib.run.stopping.since_process_start", lambda: 2e6 if own.source.steps_done == 100 else 0.0)
    state = own.engine.run(own.batches)
    assert (state.stopped, own.source.steps_done) == ("time limit", 100)


def test_a_notebook_that_was_opened_long_ago_has_the_whole_time_for_its_run(tmp_path, monkeypatch):
    started = time.monotonic() - 3600.0
    monkeypatch.setattr(clock, "_process_start", lambda: started)
    result = result_of(train(tmp_path, time_limit=60, stop_after=40).run.path)
    assert result["steps"] == 40
    assert result["seconds"] < 60.0


def test_a_time_limit_that_ends_within_the_restore_is_named_and_changes_nothing(tmp_path, monkeypatch):
    path = train(tmp_path, stop_after=40).run.path
    before = contents(path)
    monkeypatch.setattr("lib.run.stopping.since_process_start", lambda: 2e6)
    with pytest.raises(UsageError, match="the time limit of 5 s ended the restore, which needs about"):
        set_up(tmp_path, resume=path, time_limit=5)
    assert contents(path) == before


def test_a_resume_undoes_what_followed_the_checkpoint(tmp_path):
    run = train(tmp_path, params={"checkpoint_every": 10}, stop_after=45).run
    newest, best = run.checkpoints / "step-000000045.pt", run.checkpoints / "best-000000043.pt"
    newest.write_bytes(newest.read_bytes()[:-7])
    video = run.path / "videos/episode-9-return-3.webm"
    video.parent.mkdir()
    for path in (best, video):
        path.touch()
    train(tmp_path, resume=run.path, stop_after=60)
    assert [path.exists() for path in (newest.with_suffix(".damaged"), best.with_suffix(".undone"))] == [True, True]
    assert [path.exists() for path in (newest, best, video)] == [False, False, False]


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"save": None, "init": Path("models/pong")}, UsageError, "--init and --evaluate-every need the network"),
        ({"evaluate_every": 9, "params": {"env_name": "fakes:Missing-v0"}}, UsageError, "cannot make"),
        ({"init": Path("models/pong")}, UsageError, "the checkpoint does not fit 'net' of this program"),
    ],
)
def test_what_is_refused_leaves_no_folder_and_a_resumed_run_as_it_was(tmp_path, options, error, reason):
    with pytest.raises(error, match=reason):
        set_up(tmp_path / "new", **options)
    assert not list(tmp_path.glob("new/*"))
    if "init" in options or "save" in options:
        return  # a resumed run is refused for another reason
    path = train(tmp_path, stop_after=40).run.path
    before = contents(path)
    with pytest.raises(error, match=reason):
        set_up(tmp_path, resume=path, stop_after=60, **options)
    assert contents(path) == before
    assert not in_use(path)


def test_a_run_that_is_refused_before_its_first_step_leaves_no_folder(tmp_path):
    def refuse():
        raise UsageError("no batch can be drawn")
        yield

    with pytest.raises(UsageError, match="no batch"):
        set_up(tmp_path).engine.run(refuse())
    assert not list(tmp_path.iterdir())


def test_with_a_plain_source_of_ptan_the_network_is_saved_and_the_run_cannot_be_resumed(tmp_path):
    def play(args):
        source = ptan.experience.ExperienceSourceFirstLast(Counting(length=5), Alternating(), gamma=0.9)
        buffer = ptan.experience.ExperienceReplayBuffer(source, buffer_size=50)
        engine = Engine(lambda engine, batch: {"loss": 1.0})
        run = common.setup_ignite(engine, SMALL, source, "book", args=args, save={"net": Linear(1)})
        engine.run(common.batch_generator(buffer, 10, 4))
        return run

    run = play(RunOptions(runs_dir=tmp_path, stop_after=50))
    assert "net" in checkpoint.newest(run.checkpoints)
    with pytest.raises(UsageError, match="PTAN's own source cannot be resumed"):
        play(RunOptions(runs_dir=tmp_path, resume=run.path))


def test_the_iterations_of_a_vector_source_of_ptan_are_counted_and_its_rewards_are_plain_numbers(tmp_path):
    envs = gym.vector.SyncVectorEnv([lambda: TransformReward(Counting(length=5), np.float32)] * 2)
    source = ptan.experience.VectorExperienceSourceFirstLast(envs, Alternating(), gamma=0.9)
    buffer = ptan.experience.ExperienceReplayBuffer(source, buffer_size=50)
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    args = RunOptions(runs_dir=tmp_path, stop_after=100)
    run = common.setup_ignite(engine, dataclasses.replace(SMALL, stop_reward=1000.0), source, "vector", args=args)
    engine.run(common.batch_generator(buffer, 32, 4))
    result = result_of(run.path)
    assert result["steps"] == 100
    assert isinstance(result["best_mean"], float)
