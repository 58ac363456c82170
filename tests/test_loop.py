"""What the whole loop does, in order, read from a tape."""

import dataclasses

import numpy as np
import ptan
import pytest
import torch
from ignite.engine import Engine
from ptan.experience import ExperienceFirstLast
from torch import nn

from fakes import Chain, Counting, Failing
from lib import common
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.hyperparameters import HYPERPARAMS
from lib.run import checkpoint
from lib.run.options import RunOptions
from lib.run.setup import setup_ignite
from lib.system import memory


class TapedEnv(Counting):
    def __init__(self, tape, **kwargs):
        super().__init__(**kwargs)
        self.tape = tape

    def reset(self, **kwargs):
        self.tape.append("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.tape.append("step")
        return super().step(action)


class TapedAgent(ptan.agent.BaseAgent):
    def __init__(self, tape):
        self.tape = tape

    def __call__(self, states, agent_states):
        self.tape.append("act")
        return [0] * len(states), agent_states


class TapedBuffer(ReplayBuffer):
    def __init__(self, tape, *args):
        super().__init__(*args)
        self.tape = tape

    def _add(self, sample):
        self.tape.append("add")
        super()._add(sample)

    def sample(self, batch_size):
        self.tape.append("sample")
        return super().sample(batch_size)


def test_the_loop_resets_acts_steps_adds_samples_and_trains_in_this_order(tmp_path):
    tape = []
    source = ExperienceSourceFirstLast(TapedEnv(tape, length=3), TapedAgent(tape), gamma=0.9)
    buffer = TapedBuffer(tape, source, 100)
    engine = Engine(lambda engine, batch: tape.append("train") or {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    args = RunOptions(runs_dir=tmp_path, stop_after=5)
    setup_ignite(engine, params, source, "tape", args=args)
    state = engine.run(common.batch_generator(buffer, params.replay_initial, 2))
    warm_up = ["reset", "act", "step", "add", "act", "step", "add"]
    iteration = ["act", "step", "add", "sample", "train"]
    end_of_episode = ["act", "step", "reset", "add", "sample", "train"]
    assert tape == warm_up + end_of_episode + iteration * 2
    assert (state.iteration, source.steps_done, state.stopped) == (3, 5, "step limit")


def test_memory_is_looked_after_every_twenty_iterations(tmp_path, monkeypatch):
    trims = []
    monkeypatch.setattr(memory.Trimmer, "__call__", lambda self: trims.append(source.steps_done))
    source = ExperienceSourceFirstLast(Counting(), TapedAgent([]), gamma=0.9)
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    params = dataclasses.replace(HYPERPARAMS["pong"], replay_initial=2, batch_size=2)
    setup_ignite(engine, params, source, "trims", args=RunOptions(runs_dir=tmp_path, stop_after=50))
    engine.run(common.batch_generator(ReplayBuffer(source, 100), 2, 2))
    assert trims == [22, 42]


def test_a_script_may_end_its_run_itself(tmp_path):
    source = ExperienceSourceFirstLast(Counting(), TapedAgent([]), gamma=0.9)
    buffer = ReplayBuffer(source, 100)
    engine = Engine(lambda engine, batch: engine.terminate() or {"loss": 0.0})
    args = RunOptions(runs_dir=tmp_path)
    setup_ignite(engine, HYPERPARAMS["pong"], source, "ends", args=args)
    state = engine.run(common.batch_generator(buffer, 2, 2))
    assert (state.iteration, state.stopped) == (1, "ended by the script")


@pytest.mark.parametrize(("fails", "saved"), [("acting", 8), ("learning", 3)])
def test_a_failure_to_act_costs_nothing_that_was_learnt_and_one_to_learn_saves_no_half_learnt_state(
    tmp_path, fails, saved
):
    env = Failing("raise", at=9) if fails == "acting" else Counting()
    net = nn.Linear(1, 1)
    source = ExperienceSourceFirstLast(env, TapedAgent([]), gamma=0.9)
    buffer = ReplayBuffer(source, 100)

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
        engine.run(common.batch_generator(buffer, 2, 2))
    content = checkpoint.newest(run.checkpoints)
    assert content["source"]["steps_done"] == saved
    assert content["net"]["weight"].item() == saved - 2  # that of the last whole iteration


def test_an_iteration_that_failed_half_way_is_completed_and_not_begun_again():
    def buffer_of(numbers):
        buffer = ReplayBuffer(ExperienceSourceFirstLast(Counting(), TapedAgent([]), 0.9), 100)
        buffer.experience_source_iter = (ExperienceFirstLast(np.array([n]), n, 0.0, None) for n in numbers)
        return buffer

    failing = buffer_of(number if number < 8 else next(iter(())) for number in range(100))
    failing.populate(6)
    with pytest.raises(RuntimeError):
        failing.populate(4)  # two are added, then it breaks
    resumed = buffer_of(range(8, 100))
    resumed.load_state_dict(failing.state_dict())
    resumed.populate(0)  # there is nothing missing of its warm-up
    for expected in (10, 14):
        resumed.populate(4)
        assert [transition.action for transition in resumed.buffer] == list(range(expected))


@pytest.mark.parametrize("no_grad", [True, False])
def test_dqn_learns_the_chains_known_values(tmp_path, no_grad):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    target = ptan.agent.TargetNet(net)
    selector = ptan.actions.EpsilonGreedyActionSelector()
    params = dataclasses.replace(
        HYPERPARAMS["pong"],
        replay_initial=100,
        replay_size=1000,
        epsilon_frames=1000,
        epsilon_final=0.2,
        target_net_sync=20,
        learning_rate=0.02,
        gamma=0.9,
        max_steps=1500,
    )
    tracker = common.EpsilonTracker(selector, params)
    agent = ptan.agent.DQNAgent(net, selector, preprocessor=ptan.agent.float32_preprocessor)
    source = ExperienceSourceFirstLast(Chain(3), agent, params.gamma)
    buffer = ReplayBuffer(source, params.replay_size)
    optimizer = torch.optim.Adam(net.parameters(), lr=params.learning_rate)

    def process_batch(engine, batch):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, net, target.target_model, params.gamma, no_grad=no_grad)
        loss.backward()
        optimizer.step()
        tracker.frame(engine.state.iteration)
        if engine.state.iteration % params.target_net_sync == 0:
            target.sync()
        return {"loss": loss.item(), "epsilon": selector.epsilon}

    engine = Engine(process_batch)
    setup_ignite(engine, params, source, "chain", args=RunOptions(runs_dir=tmp_path, quiet=True))
    engine.run(common.batch_generator(buffer, params.replay_initial, params.batch_size))
    values = net(torch.eye(3)).detach().numpy()
    assert values == pytest.approx(np.array([[0.81, 0.0], [0.0, 0.9], [1.0, 0.0]]), abs=0.08)
