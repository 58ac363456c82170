"""The whole loop, as setup_ignite assembles it."""

import collections
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import ptan
import pytest
import torch
from ignite.engine import Engine, Events
from ptan.experience import ExperienceFirstLast
from torch import nn

from fakes import Counting, Failing, Linear
from lib import common, dqn_extra
from lib.envs.checked_env import CheckedEnv
from lib.errors import Fault, UsageError
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.hyperparameters import HYPERPARAMS
from lib.nets import losses
from lib.run import checkpoint_reading
from lib.run.episode_player import EpisodeResult
from lib.run.evaluation import summary
from lib.run.folder import RunFolder, in_use, read_json, read_params
from lib.run.options import RunOptions
from lib.run.return_distributions import ReturnDistributionFigure
from lib.run.setup import setup_ignite
from lib.system import clock, memory
from running import PROJECT, contents, episodes_of, folder


class TapedEnv(Counting):
    """An environment that records its calls."""

    def __init__(self, tape, **kwargs):
        super().__init__(**kwargs)
        self.tape = tape

    def reset(self, **kwargs):
        self.tape.append("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.tape.append("step")
        return super().step(action)


class Broken(Counting):
    def step(self, action):
        raise RuntimeError("the environment broke")


class TapedAgent(ptan.agent.BaseAgent):
    """An agent that records its calls and always takes action 0."""

    def __init__(self, tape):
        self.tape = tape

    def __call__(self, states, agent_states):
        self.tape.append("act")
        return [0] * len(states), agent_states


class TapedBuffer(ReplayBuffer):
    """A replay buffer that records its calls."""

    def __init__(self, tape, *args):
        super().__init__(*args)
        self.tape = tape

    def _add(self, sample):
        self.tape.append("add")
        super()._add(sample)

    def sample(self, batch_size):
        self.tape.append("sample")
        return super().sample(batch_size)


def source_of(env):
    return ExperienceSourceFirstLast(env, TapedAgent([]), gamma=0.9)


def test_the_loop_resets_acts_steps_adds_samples_and_trains_in_this_order(tmp_path):
    tape = []
    source = ExperienceSourceFirstLast(TapedEnv(tape, length=3), TapedAgent(tape), gamma=0.9)
    buffer = TapedBuffer(tape, source, 100)
    engine = Engine(lambda engine, batch: tape.append("train") or {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    setup_ignite(engine, params, source, "tape", args=RunOptions(runs_dir=tmp_path, stop_after=5))
    state = engine.run(common.batch_generator(buffer, params.replay_initial, 2))
    warm_up = ["reset", "act", "step", "add", "act", "step", "add"]
    iteration = ["act", "step", "add", "sample", "train"]
    end_of_episode = ["act", "step", "reset", "add", "sample", "train"]
    assert tape == warm_up + end_of_episode + iteration * 2
    assert (state.iteration, source.steps_done, state.stopped) == (3, 5, "step limit")  # type: ignore[attr-defined]


def test_free_memory_is_returned_every_twenty_iterations(tmp_path, monkeypatch):
    trimmed_at = []
    monkeypatch.setattr(memory.Trimmer, "__call__", lambda self: trimmed_at.append(source.steps_done))
    source = source_of(Counting())
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    setup_ignite(engine, params, source, "trims", args=RunOptions(runs_dir=tmp_path, stop_after=50))
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert trimmed_at == [22, 42]


def test_the_learning_rates_of_all_groups_fall_linearly_to_the_final_one(tmp_path):
    source = source_of(Counting())
    body, head = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.Adam([{"params": body.parameters()}, {"params": head.parameters(), "lr": 0.01}], lr=0.1)
    rates = []

    def process_batch(engine, batch):
        rates.append((source.steps_done, *(group["lr"] for group in optimizer.param_groups)))
        return {"loss": 0.0}

    engine = Engine(process_batch)
    fall = {"learning_rate": 0.1, "learning_rate_final": 0.02, "learning_rate_steps": 40}
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2, **fall)
    args = RunOptions(runs_dir=tmp_path, stop_after=60, quiet=True)
    setup_ignite(engine, params, source, "falls", args=args, save={"net": body, "optimizer": optimizer})
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    by_step = {step: others for step, *others in rates}
    assert by_step[10] == pytest.approx([0.08, 0.008])
    assert by_step[40] == pytest.approx([0.02, 0.002])
    assert by_step[60] == by_step[40]


def test_a_checkpoint_holds_what_a_handler_of_the_script_has_changed(tmp_path):
    class Counter:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counter, saved = Counter(), []
    source = source_of(Counting())
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2, checkpoint_every=10)
    args = RunOptions(runs_dir=tmp_path, quiet=True, stop_after=35)
    run = setup_ignite(engine, params, source, "own", args=args, save={"net": nn.Linear(1, 1), "counter": counter})

    @engine.on(Events.ITERATION_COMPLETED)
    def count(engine):
        if engine.state.iteration == 25:  # the newest checkpoint is from step 20
            saved.append(checkpoint_reading.newest(run.checkpoints))
        counter.count += 1

    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    [content] = saved
    assert content["source"]["steps_done"] == 20
    assert content["counter"]["count"] == content["iteration"]["iteration"] == 18


def test_a_falling_learning_rate_needs_an_optimizer(tmp_path):
    engine, args = Engine(lambda engine, batch: {"loss": 0.0}), RunOptions(runs_dir=tmp_path)
    params = dataclasses.replace(HYPERPARAMS["pong"], learning_rate_final=1e-5)
    with pytest.raises(ValueError, match="learning_rate_final needs an optimizer in `save`"):
        setup_ignite(engine, params, source_of(Counting()), "falls", args=args)
    assert not list(tmp_path.iterdir())


def test_a_script_may_end_its_run(tmp_path):
    source = source_of(Counting())
    engine = Engine(lambda engine, batch: engine.terminate() or {"loss": 0.0})
    setup_ignite(engine, HYPERPARAMS["pong"], source, "ends", args=RunOptions(runs_dir=tmp_path))
    state = engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert (state.iteration, state.stopped) == (1, "ended by the script")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("fails", "saved"), [("acting", 8), ("learning", 3)])
def test_an_error_in_acting_saves_what_was_learnt_and_an_error_in_learning_saves_nothing(tmp_path, fails, saved):
    env = Failing("raise", at=9) if fails == "acting" else Counting()
    net = nn.Linear(1, 1)
    source = source_of(env)

    def process_batch(engine, batch):
        with torch.no_grad():
            net.weight.fill_(engine.state.iteration)
        if fails == "learning" and engine.state.iteration == 4:
            raise RuntimeError("the loss broke")
        return {"loss": 0.0}

    engine = Engine(process_batch)
    args = RunOptions(runs_dir=tmp_path, quiet=True)
    run = setup_ignite(engine, HYPERPARAMS["pong"], source, "fails", args=args, save={"net": net})
    with pytest.raises(RuntimeError, match="broke"):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    content = checkpoint_reading.newest(run.checkpoints)
    assert content["source"]["steps_done"] == saved
    assert content["net"]["weight"].item() == saved - 2  # that of the last complete iteration


def test_an_error_closes_the_source_and_reaches_the_scripts_own_handler(tmp_path, monkeypatch):
    def process_batch(engine, batch):
        raise RuntimeError("the loss broke")

    done = []
    source = source_of(Counting())
    monkeypatch.setattr(source, "close", lambda: done.append("closed"))
    engine = Engine(process_batch)
    setup_ignite(engine, HYPERPARAMS["pong"], source, "fails", args=RunOptions(runs_dir=tmp_path, quiet=True))
    engine.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: done.append(str(error)))
    with pytest.raises(RuntimeError, match="the loss broke"):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert done == ["closed", "the loss broke", "the loss broke"]  # ignite reports it twice


def test_the_state_is_saved_before_a_curve_that_cannot_be_drawn(tmp_path, monkeypatch):
    saved = []

    def draw_curve(path, goal):
        saved.append(checkpoint_reading.newest(path / "checkpoints")["source"]["steps_done"])
        raise UsageError("params.json was changed")

    monkeypatch.setattr("lib.run.curve.draw_curve", draw_curve)
    source = source_of(Failing("raise", at=9))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path, quiet=True)
    setup_ignite(engine, HYPERPARAMS["pong"], source, "fails", args=args, save={"net": nn.Linear(1, 1)})
    with pytest.raises(RuntimeError, match="the paddle broke"):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert saved == [8]


def test_after_an_error_a_notebook_has_ctrl_c_back_and_can_resume_the_run(tmp_path):
    def process_batch(engine, batch):
        raise RuntimeError("the loss broke")

    before = signal.getsignal(signal.SIGINT)
    engine, source = Engine(process_batch), source_of(Counting())
    save = {"net": nn.Linear(1, 1)}
    args = RunOptions(runs_dir=tmp_path)
    run = setup_ignite(engine, HYPERPARAMS["pong"], source, "fails", args=args, save=save)
    with pytest.raises(RuntimeError, match="broke"):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert signal.getsignal(signal.SIGINT) == before
    refused = dataclasses.replace(args, resume=run.path, stop_after=1)
    for _ in range(2):  # a refusal does not lock the run either
        with pytest.raises(UsageError, match="is already at step 0 and first fills"):
            setup_ignite(
                Engine(process_batch), HYPERPARAMS["pong"], source_of(Counting()), "fails", args=refused, save=save
            )


def test_a_game_for_evaluations_that_fails_to_close_does_not_harm_the_run(tmp_path, monkeypatch, caplog):
    class Stuck(Counting):
        def close(self):
            raise RuntimeError("the window is stuck")

    monkeypatch.setattr("lib.run.run_parts.make_env", lambda env_id: Stuck())
    source = source_of(Counting())
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path, stop_after=40, evaluate_every=1000, owns_process=True)
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    run = setup_ignite(engine, params, source, "closes", args=args, save={"net": nn.Linear(1, 1)})
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert "the window is stuck" in caplog.text
    assert run.read_result()["steps"] == 40
    assert checkpoint_reading.newest(run.checkpoints)["source"]["steps_done"] == 40


def test_a_run_cannot_be_resumed_during_its_final_evaluation(tmp_path, monkeypatch):
    """The evaluation ends by writing the result, which would replace that of the resumed run."""
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    options = {"stop_reward": 15.0, "milestone": None, "replay_initial": 2, "batch_size": 2}
    params = dataclasses.replace(HYPERPARAMS["pong"], **options)
    args = RunOptions(runs_dir=tmp_path)
    run = setup_ignite(engine, params, source, "solves", args=args, save={"net": nn.Linear(1, 1)})
    asked = []

    def evaluate(*args, **options):
        with pytest.raises(UsageError, match="is in use by process"):
            RunFolder("solves", params, RunOptions(resume=run.path))
        asked.append(True)
        return {"mean": 15.0}

    monkeypatch.setattr("lib.run.evaluation.evaluate", evaluate)
    monkeypatch.setattr("lib.run.evaluation.is_clearly_below", lambda *args: False)
    monkeypatch.setattr("lib.run.evaluation.log_result", lambda evaluated: None)
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert asked
    RunFolder("solves", params, RunOptions(resume=run.path)).close()


def test_a_resumed_run_removes_videos_of_undone_episodes_even_if_it_records_none(tmp_path):
    def set_up(args):
        source = source_of(Counting(length=5))
        engine = Engine(lambda engine, batch: {"loss": 0.0})
        params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
        run = setup_ignite(engine, params, source, "own", args=args, save={"net": nn.Linear(1, 1)})
        return engine, run, common.batch_generator(ReplayBuffer(source, 100), 2, 2)

    engine, run, batches = set_up(RunOptions(runs_dir=tmp_path, stop_after=40))
    engine.run(batches)
    (run.path / "videos").mkdir()
    kept, undone = (run.path / "videos" / f"episode-{number}-return-3.webm" for number in (8, 9))
    kept.touch()
    undone.touch()
    set_up(RunOptions(runs_dir=tmp_path, stop_after=60, resume=run.path))[1].close()
    assert kept.exists()
    assert not undone.exists()


def test_a_notebook_that_was_opened_long_ago_has_the_whole_time_for_its_run(tmp_path, monkeypatch):
    started = time.monotonic() - 3600.0
    monkeypatch.setattr(clock, "_process_start", lambda: started)
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    args = RunOptions(runs_dir=tmp_path, time_limit=60, stop_after=40)
    run = setup_ignite(engine, params, source, "notebook", args=args)
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    result = run.read_result()
    assert result["steps"] == 40
    assert result["seconds"] < 60.0


def test_a_refused_resume_in_a_notebook_leaves_no_process_of_its_source(tmp_path, monkeypatch):
    source = source_of(Counting())
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    save = {"net": nn.Linear(1, 1)}
    args = RunOptions(runs_dir=tmp_path)
    run = setup_ignite(Engine(lambda engine, batch: {"loss": 0.0}), params, source, "own", args=args, save=save)
    run.close()
    closed = []
    monkeypatch.setattr(RunFolder, "add_session", lambda run: run.missing)
    monkeypatch.setattr(source, "close", lambda: closed.append(True))
    args = RunOptions(resume=run.path)
    with pytest.raises(AttributeError, match="missing"):
        setup_ignite(Engine(lambda engine, batch: {"loss": 0.0}), params, source, "own", args=args, save=save)
    assert closed == [True]


@pytest.mark.parametrize(
    ("error", "is_book_script"),
    [
        (UsageError("only one game can be open"), False),
        (Fault("its observation is None"), False),
        (ValueError("broke"), False),
        (ValueError("broke"), True),
    ],
)
def test_an_evaluation_that_fails_does_not_end_a_run(tmp_path, monkeypatch, caplog, error, is_book_script):
    def fail(*values, **options):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lib.run.evaluation.evaluate", fail)
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], stop_reward=15.0, milestone=None, replay_initial=2, batch_size=2)
    args = None if is_book_script else RunOptions(runs_dir=tmp_path, owns_process=True)
    run = setup_ignite(engine, params, source, "own", args=args, save={"net": nn.Linear(1, 1)})
    state = engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert state.stopped == run.read_result()["stopped"] == "solved"  # type: ignore[attr-defined]
    assert "The evaluation failed; the run is saved." in caplog.text
    assert str(error) in caplog.text
    assert "watch it play" in caplog.text


@pytest.mark.parametrize("error", [OSError("the disk is full"), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_evaluation_without_room_ends_the_program_and_unlocks_the_run(tmp_path, monkeypatch, error):
    monkeypatch.setattr("lib.run.evaluation.evaluate", Mock(side_effect=error))
    with pytest.raises(type(error)):
        solved_run(tmp_path)
    [path] = tmp_path.iterdir()
    assert not in_use(path)
    assert read_json(path / "result.json")["stopped"] == "solved"


@pytest.mark.parametrize("save", [{}, {"model": nn.Linear(1, 1)}, {"net": {}}])
def test_objects_without_a_network_are_refused_before_a_folder_is_made(tmp_path, save):
    source, args = source_of(Counting()), RunOptions(runs_dir=tmp_path / "runs")
    with pytest.raises(TypeError, match=r"save\['net'\] is (NoneType|dict); it has to be the network"):
        setup_ignite(Engine(lambda *_: None), HYPERPARAMS["pong"], source, "refused", args=args, save=save)
    assert not args.runs_dir.exists()


PROGRAM = """
import multiprocessing, pathlib, sys
sys.path[:0] = sys.argv[2:]
from ignite.engine import Engine
from lib.hyperparameters import HYPERPARAMS
from lib.run.folder import RunFolder, in_use, read_json, read_params
from lib.run.options import RunOptions
from lib.run.setup import setup_ignite
from sources import CountingSource

options = RunOptions(runs_dir=pathlib.Path(sys.argv[1]))
setup_ignite(Engine(lambda engine, batch: None), HYPERPARAMS["pong"], CountingSource({}), "own", args=options)
child = multiprocessing.get_context("spawn").Process(target=print)
child.start()
child.join()
"""


@pytest.mark.slow
def test_a_child_that_imports_a_program_makes_no_run(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, tmp_path / "program.py", tmp_path / "runs", PROJECT, PROJECT / "tests"]
    process = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert "setup_ignite was called while a child process imports this program" in process.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_program_without_a_command_line_evaluates_in_its_own_process(tmp_path, monkeypatch):
    processes = []

    def evaluate(*values, **options):
        processes.append(options["processes"])
        return summary(EpisodeResult(number, 20.0, 5, b"") for number in range(20))

    monkeypatch.setattr("lib.run.evaluation.evaluate", evaluate)
    solved_run(tmp_path)
    solved_run(tmp_path, owns_process=True)
    assert processes == [1, None]


def test_a_run_that_is_refused_before_its_first_step_leaves_no_folder(tmp_path):
    source = source_of(Counting())
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path)
    setup_ignite(engine, HYPERPARAMS["pong"], source, "refused", args=args, save={"net": nn.Linear(1, 1)})
    with pytest.raises(UsageError, match="a batch of 9 cannot be drawn from 5 transitions"):
        engine.run(common.batch_generator(ReplayBuffer(source, 5), 2, 9, steps=3))
    assert not list(tmp_path.iterdir())


def test_environments_for_evaluations_that_cannot_be_made_leave_no_folder(tmp_path):
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], env_name="fakes:Missing-v0")
    args = RunOptions(runs_dir=tmp_path, evaluate_every=1000)
    with pytest.raises(UsageError, match=r"--evaluate-every needs 10 more environments\. Leave it out.*Missing"):
        setup_ignite(engine, params, source_of(Counting()), "refused", args=args, save={"net": nn.Linear(1, 1)})
    assert not list(tmp_path.iterdir())


def trained_on_counting(tmp_path, save, changed=None, **options):
    """Train until the step limit, and return the run. `changed` has hyperparameters, and `options` those of the run."""
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2, **changed or {})
    run = setup_ignite(engine, params, source, "own", args=RunOptions(runs_dir=tmp_path, **options), save=save)
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    return run


def test_environments_for_evaluations_that_cannot_be_made_leave_a_run_to_be_resumed_unchanged(tmp_path):
    changed, save = {"env_name": "fakes:Missing-v0"}, {"net": nn.Linear(1, 1)}
    run = trained_on_counting(tmp_path, save, changed, stop_after=40)
    before = contents(run.path)
    with pytest.raises(UsageError, match="--evaluate-every needs 10 more environments"):
        trained_on_counting(tmp_path, save, changed, stop_after=60, resume=run.path, evaluate_every=10)
    assert contents(run.path) == before


def test_a_run_without_checkpoints_is_not_resumed(tmp_path):
    run = trained_on_counting(tmp_path, None, stop_after=40)
    before = contents(run.path)
    with pytest.raises(UsageError, match="cannot be resumed, because its script saves no checkpoints"):
        trained_on_counting(tmp_path, None, stop_after=60, resume=run.path)
    assert contents(run.path) == before


@pytest.mark.parametrize(("option", "value"), [("init", Path("models/pong")), ("evaluate_every", 10)])
def test_options_that_need_the_network_are_refused_without_it(tmp_path, option, value):
    engine, args = Engine(lambda engine, batch: {"loss": 0.0}), RunOptions(runs_dir=tmp_path, **{option: value})
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} needs the network, which this script does not"):
        setup_ignite(engine, HYPERPARAMS["pong"], source_of(Counting()), "own", args=args)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("closing", [False, True])
def test_ctrl_c_while_a_complete_run_is_saved_or_closed_cancels_its_evaluation(tmp_path, monkeypatch, capfd, closing):
    class Interrupting(nn.Linear):
        def state_dict(self, *args, **kwargs):
            if source.steps_done == 40 and not closing:
                os.kill(os.getpid(), signal.SIGINT)
            return super().state_dict(*args, **kwargs)

    evaluated = []
    monkeypatch.setattr("lib.run.evaluation.evaluate", lambda *values, **options: evaluated.append(values))
    source = source_of(Counting(length=5))
    if closing:
        monkeypatch.setattr(source, "close", lambda: os.kill(os.getpid(), signal.SIGINT))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2, max_steps=40)
    args = RunOptions(runs_dir=tmp_path, quiet=True)
    run = setup_ignite(engine, params, source, "stops", args=args, save={"net": Interrupting(1, 1)})
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert "Stopping after this update, then saving" in capfd.readouterr().err
    assert run.read_result()["steps"] == 40
    assert not evaluated


def test_an_evaluation_during_training_ends_at_the_time_limit(tmp_path, monkeypatch):
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=32)
    args = RunOptions(runs_dir=tmp_path, quiet=True, evaluate_every=100, time_limit=10**6)
    monkeypatch.setattr("lib.run.run_parts.make_env", lambda env_id: Counting(length=10**9))
    monkeypatch.setattr("lib.run.stopping.since_process_start", lambda: 2e6 if source.steps_done == 100 else 0.0)
    setup_ignite(engine, params, source, "evaluates", args=args, save={"net": Linear(1)})
    state = engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert state.stopped == "time limit"  # type: ignore[attr-defined]
    assert source.steps_done == 100


def test_after_a_run_a_script_of_the_book_has_its_own_alarm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    alarms = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: alarms.append(number))
    source, buffer = plain_ptan(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    setup_ignite(engine, dataclasses.replace(HYPERPARAMS["pong"], stop_reward=15.0), source, "book")
    try:
        engine.run(common.batch_generator(buffer, 10, 4))
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert alarms == [signal.SIGALRM]


def test_a_refused_resume_leaves_a_damaged_checkpoint_as_it_is(tmp_path):
    def start(**options):
        source = source_of(Counting())
        engine = Engine(lambda engine, batch: {"loss": 0.0})
        params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2, checkpoint_every=10)
        args = RunOptions(runs_dir=tmp_path, quiet=True, **options)
        run = setup_ignite(engine, params, source, "damaged", args=args, save={"net": nn.Linear(1, 1)})
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
        return run

    run = start(stop_after=45)
    newest = run.checkpoints / "step-000000045.pt"
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(UsageError, match="is already at step 40"):
        start(resume=run.path, stop_after=20)
    assert newest.exists()
    start(resume=run.path, stop_after=60)
    assert not newest.exists()
    assert newest.with_suffix(".damaged").exists()


def test_a_second_ctrl_c_saves_nothing(tmp_path):
    class Interrupted(Counting):
        def step(self, action):
            self.steps_so_far = getattr(self, "steps_so_far", 0) + 1
            for _ in range(2 if self.steps_so_far == 9 else 0):
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    source = source_of(Interrupted())
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path)
    run = setup_ignite(engine, HYPERPARAMS["pong"], source, "twice", args=args, save={"net": nn.Linear(1, 1)})
    with pytest.raises(KeyboardInterrupt):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert checkpoint_reading.newest(run.checkpoints)["source"]["steps_done"] == 3  # of the first iteration
    assert not (run.path / "curve.png").exists()


def test_after_ctrl_c_in_the_warm_up_a_notebook_is_closed_and_can_make_environments(tmp_path):
    class Interrupted(Counting):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    closed = []
    source = source_of(CheckedEnv(Interrupted(), "Interrupted-v0"))
    source.close = lambda: closed.append(source)
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    setup_ignite(engine, HYPERPARAMS["pong"], source, "warm", args=RunOptions(runs_dir=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert closed == [source]
    CheckedEnv(Counting(), "Counting-v0").reset()


def test_a_second_run_on_an_engine_is_refused_before_a_folder_is_made(tmp_path):
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path)
    setup_ignite(engine, HYPERPARAMS["pong"], source_of(Counting()), "first", args=args)
    with pytest.raises(ValueError, match="make a new Engine for each run"):
        setup_ignite(engine, HYPERPARAMS["pong"], source_of(Counting()), "second", args=args)
    assert len(list(tmp_path.iterdir())) == 1


class Saved:
    """An object with a state."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.float64(1.5), "a numpy.float64"),
        ([1, {"deep": np.zeros(3)}], "a numpy.ndarray"),
        (collections.deque([1]), "a collections.deque"),
        (Path("a"), "a pathlib.PosixPath"),
        (lambda: 1, "a builtins.function"),
        (math.nan, "NaN or a number that is too large"),
        ([torch.float32, torch.device("cpu"), np.float32(2)], "a numpy.float32"),
    ],
)
def test_a_state_that_could_not_be_read_again_is_refused_at_the_first_checkpoint(tmp_path, value, found):
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    args = RunOptions(runs_dir=tmp_path, stop_after=60)
    save = {"net": nn.Linear(1, 1), "statistics": Saved(value)}
    setup_ignite(engine, params, source, "refused", args=args, save=save)
    with pytest.raises(TypeError, match=re.escape(f"the state_dict of save['statistics'] holds {found}, so its")):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert source.steps_done == 3  # of the warm-up and the first iteration


def test_extra_metrics_that_are_one_text_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"extra_metrics is 'avg_steps'; .*\['avg_steps'\]"):
        setup_ignite(Engine(lambda *_: None), HYPERPARAMS["pong"], source_of(Counting()), "text", "avg_steps")


def test_options_take_what_a_notebook_gives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = RunOptions(seed=np.int64(3), device="cpu", runs_dir="runs", resume="runs/a")  # type: ignore[arg-type]
    assert (type(options.seed), options.seed, options.device) == (int, 3, torch.device("cpu"))
    assert (options.runs_dir, options.resume, options.init) == (tmp_path / "runs", tmp_path / "runs" / "a", None)
    with pytest.raises(TypeError):
        RunOptions(seed=1.5)  # type: ignore[arg-type]


def test_a_resume_completes_the_steps_of_an_iteration_that_failed():
    def buffer_of(numbers):
        buffer = ReplayBuffer(source_of(Counting()), 100)
        buffer.experience_source_iter = (ExperienceFirstLast(np.array([n]), n, 0.0, None) for n in numbers)
        return buffer

    failing = buffer_of(number if number < 8 else next(iter(())) for number in range(100))
    failing.populate(6)
    with pytest.raises(RuntimeError):
        failing.populate(4)  # two are added before the error
    resumed = buffer_of(range(8, 100))
    resumed.load_state_dict(failing.state_dict())
    resumed.populate(0)  # the warm-up is complete
    for expected in (10, 14):
        resumed.populate(4)
        assert [transition.action for transition in resumed.buffer] == list(range(expected))


def plain_ptan(env):
    agent = ptan.agent.DQNAgent(lambda states: torch.zeros(len(states), 2), ptan.actions.ArgmaxActionSelector())
    source = ptan.experience.ExperienceSourceFirstLast(env, agent, gamma=0.9)
    return source, ptan.experience.ExperienceReplayBuffer(source, buffer_size=50)


def test_plain_sources_and_buffers_of_ptan_run_until_the_game_is_solved(tmp_path, capsys):
    source, buffer = plain_ptan(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 1.0, "epsilon": 0.5})
    params = dataclasses.replace(HYPERPARAMS["pong"], stop_reward=15.0, milestone=14.0)
    run = setup_ignite(engine, params, source, "book", args=RunOptions(runs_dir=tmp_path))
    state = engine.run(common.batch_generator(buffer, 10, 4))
    assert state.stopped == "solved"  # type: ignore[attr-defined]
    output = capsys.readouterr().out
    assert re.search(r"^Episodes? 1\b.*=15.*, elapsed=0:00:\d\d$", output, re.M)
    assert state.metrics["avg_steps"] == pytest.approx(5.0)
    assert "after 100 episodes and " in output
    # PTAN reports an episode two steps late; those of the warm-up are written in the first iteration.
    assert [row[1] for row in episodes_of(run.path)[1:5]] == ["12", "12", "17", "22"]
    assert run.path.parent == tmp_path


def test_a_run_with_a_negative_seed_and_a_path_as_its_name_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(-1)
    source, buffer = plain_ptan(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], stop_reward=15.0, milestone=14.0)
    run = setup_ignite(engine, params, source, "book/0.001")
    engine.run(common.batch_generator(buffer, 10, 4))
    assert run.path.parent == tmp_path / "runs"
    assert "-pong-book-0.001" in run.path.name
    assert read_params(run.path)["seed"] == 2**63 - 1


@pytest.mark.slow
def test_the_steps_of_a_plain_source_of_ptan_are_counted_in_its_environments(tmp_path):
    source, buffer = plain_ptan(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    args = RunOptions(runs_dir=tmp_path, stop_after=120, quiet=True)
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=32)
    setup_ignite(engine, params, source, "book", args=args)
    state = engine.run(common.batch_generator(buffer, 10, 4))
    # One step before the first transition, ten for the buffer, and one per iteration.
    assert (state.iteration, state.stopped) == (109, "step limit")  # type: ignore[attr-defined]
    assert json.loads((folder(tmp_path) / "result.json").read_text())["steps"] == 120


def solved_run(tmp_path, **options):
    """Run until the game is solved, at step 500.

    Returns:
        the run folder, the reason for the end, and the agent steps.
    """
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    goal = {"stop_reward": 15.0, "milestone": None}
    params = dataclasses.replace(HYPERPARAMS["pong"], **goal, replay_initial=32)
    args = RunOptions(runs_dir=tmp_path, quiet=True, **options)
    run = setup_ignite(engine, params, source, "solves", args=args, save={"net": nn.Linear(1, 1)})
    state = engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    return run.path, state.stopped, source.steps_done  # type: ignore[attr-defined]


def test_a_run_from_before_its_script_drew_a_figure_is_resumed(tmp_path):
    def run(resume, stop_after, figures):
        source = source_of(Counting(length=5))
        engine = Engine(lambda engine, batch: {"loss": 0.0})
        params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=32)
        args = RunOptions(runs_dir=tmp_path, quiet=True, resume=resume, stop_after=stop_after)
        buffer = ReplayBuffer(source, 100)
        save = {"net": nn.Linear(1, 1), "replay": buffer}
        run = setup_ignite(engine, params, source, "draws", args=args, save=save, figures=figures)
        engine.run(common.batch_generator(buffer, 32 - len(buffer), 2))
        return run

    first = run(None, 60, None)
    figure = ReturnDistributionFigure(dqn_extra.ExtendedDQN((1,), 2, support=losses.support(-1.0, 1.0, 3)), None)  # type: ignore[arg-type]
    assert run(first.path, 90, {"distributions": figure}).read_result()["steps"] == 90
    assert "distributions" in checkpoint_reading.newest(first.checkpoints)


def test_an_error_in_an_evaluation_during_training_saves_the_iteration(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.run.run_parts.make_env", lambda env_id: Broken())
    source = source_of(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=32)
    args = RunOptions(runs_dir=tmp_path, quiet=True, evaluate_every=100)
    setup_ignite(engine, params, source, "evaluates", args=args, save={"net": Linear(1)})
    with pytest.raises(RuntimeError, match="the environment broke"):
        engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert checkpoint_reading.newest(folder(tmp_path) / "checkpoints")["source"]["steps_done"] == 100


def test_a_source_whose_pool_holds_no_gymnasium_environments_counts_iterations(tmp_path):
    class Workers:
        pool = ("a worker", "another one")

        def pop_rewards_steps(self):
            return []

    engine = Engine(lambda engine, batch: {"loss": 1.0})
    args = RunOptions(runs_dir=tmp_path, stop_after=20_000, quiet=True)
    setup_ignite(engine, HYPERPARAMS["pong"], Workers(), "workers", args=args)
    state = engine.run([["transition"]] * 30, max_epochs=1)
    assert json.loads((folder(tmp_path) / "result.json").read_text())["steps"] == state.iteration == 30


def test_a_plain_source_of_ptan_cannot_be_saved(tmp_path):
    source, _ = plain_ptan(Counting(length=5))
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    args = RunOptions(runs_dir=tmp_path / "runs", quiet=True)
    with pytest.raises(TypeError, match="cannot be saved in a checkpoint"):
        setup_ignite(engine, HYPERPARAMS["pong"], source, "book", args=args, save={"net": nn.Linear(1, 1)})
    assert not (tmp_path / "runs").exists()
