import copy
import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch.utils._python_dispatch import TorchDispatchMode

from fakes import Bandit, Chain, Counting
from lib.envs import vector_env
from lib.errors import UsageError
from lib.experience.stream import Part
from lib.ppo import update
from lib.ppo.learner import PPOLearner
from lib.ppo.model import Model
from lib.ppo.progress import Progress
from lib.ppo.rollout import Agent, Rollout, Sampler, rollouts
from lib.ppo.update import Trainer, advantages, policy_loss
from lib.system import memory
from lib.system.seeds import episode_seed
from oracles import gae, ppo_update


def vectorised(make, n):
    envs = SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)
    return RecordEpisodeStatistics(vector_env.FinalStates(envs))


def rollout_of(rewards, values, next_values, terminated, ended):
    shape = np.shape(rewards)
    as_floats = {"rewards": rewards, "values": values, "next_values": next_values}
    return Rollout(
        states=torch.zeros(*shape, 1),
        actions=torch.zeros(shape, dtype=torch.int64),
        log_probs=torch.zeros(shape),
        terminated=torch.tensor(terminated),
        ended=torch.tensor(ended),
        **{name: torch.tensor(numbers, dtype=torch.float32) for name, numbers in as_floats.items()},
    )


def test_a_rollout_that_would_not_fit_is_refused_with_one_that_would(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 10_000)
    envs = vectorised(Counting, 2)
    fitting = int(0.8 * 10_000 / (2 * 27))
    with pytest.raises(UsageError, match=rf"a rollout of 1,000 steps of 2 .* take --set rollout={fitting} at most"):
        Sampler(envs, None, 1000)
    rollout = Sampler(envs, Agent(None), fitting).empty()
    assert sum(tensor.nbytes for tensor in vars(rollout).values()) == 2 * 27 * fitting


def test_advantages_worked_by_hand():
    # The second step ends the episode by truncation: 8 counts, and nothing of the third step. The fourth terminates,
    # and the 1000 that would follow is a decoy.
    rollout = rollout_of(
        rewards=[[1.0], [2.0], [3.0], [4.0]],
        values=[[10.0], [20.0], [30.0], [40.0]],
        next_values=[[20.0], [8.0], [40.0], [1000.0]],
        terminated=[[False], [False], [False], [True]],
        ended=[[False], [True], [False], [True]],
    )
    deltas = [1 + 0.5 * 20 - 10, 2 + 0.5 * 8 - 20, 3 + 0.5 * 40 - 30, 4 - 40]
    expected = [deltas[0] + 0.5 * 0.2 * deltas[1], deltas[1], deltas[2] + 0.5 * 0.2 * deltas[3], deltas[3]]
    assert advantages(rollout, 0.5, 0.2).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_those_of_the_slow_twin(seed):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, 20, 4)).tolist()
    ended = rng.random((20, 4)) < 0.2
    terminated = (ended & (rng.random((20, 4)) < 0.5)).tolist()
    rollout = rollout_of(rewards, values, next_values, terminated, ended.tolist())
    expected = gae.advantages(rewards, values, next_values, terminated, ended.tolist(), 0.9, 0.7)
    assert torch.allclose(advantages(rollout, 0.9, 0.7), torch.tensor(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, 2.2),
        (1.5, 2.0, 2.4),  # clipped: no more to be won
        (0.5, 2.0, 1.0),  # not clipped: this is to be mended
        (1.5, -2.0, -3.0),
        (0.5, -2.0, -1.6),
    ],
)
def test_the_policy_loss_worked_by_hand(ratio, advantage, expected):
    old = torch.tensor([-1.0, -2.0])
    log_probs = old + torch.tensor([ratio, 1.0]).log()
    loss = policy_loss(log_probs, old, torch.tensor([advantage, 4.0]), clip=0.2)
    assert loss.item() == pytest.approx(-(expected + 4.0) / 2)


class Fixed:
    """An agent that takes action 0; a state's value is ten times its number."""

    device = "cpu"

    def __call__(self, states, noise):
        n = len(states)
        return torch.zeros(n, dtype=torch.int64), torch.full((n,), -0.5), self.values(states)

    def values(self, states):
        return 10.0 * states[:, 0].float()


@pytest.mark.parametrize("truncates", [True, False])
def test_a_rollout_holds_what_happened_and_what_each_step_led_to(truncates):
    sampler = Sampler(vectorised(lambda: Counting(3, truncates), 2), Fixed(), steps=4)
    told = []
    sampler.on_step = told.append
    rollouts = iter(sampler)
    for states, values, next_values, rewards, ended in (
        ([0, 1, 2, 0], [0, 10, 20, 0], [10, 20, 30, 10], [1, 2, 3, 1], [0, 0, 1, 0]),
        ([1, 2, 0, 1], [10, 20, 0, 10], [20, 30, 10, 20], [2, 3, 1, 2], [0, 1, 0, 0]),
    ):
        rollout = next(rollouts)
        for index in range(2):
            assert rollout.states[:, index, 0].tolist() == states
            assert rollout.values[:, index].tolist() == values
            assert rollout.rewards[:, index].tolist() == rewards
            assert rollout.ended[:, index].tolist() == [bool(end) for end in ended]
            assert rollout.terminated[:, index].tolist() == [bool(end) and not truncates for end in ended]
            follows = ~rollout.terminated[:, index]
            assert rollout.next_values[follows, index].tolist() == [
                value for value, follow in zip(next_values, follows, strict=True) if follow
            ]
        assert rollout.log_probs.tolist() == [[-0.5] * 2] * 4
    assert sampler.steps_done == 16
    assert told == [2] * 8
    assert [(episode.total, episode.length, episode.step) for episode in sampler.pop_episodes()] == [
        *[(6.0, 3, 6)] * 2,
        *[(6.0, 3, 12)] * 2,
    ]
    assert sampler.pop_episodes() == []


def test_images_come_with_their_channels_last():
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    sampler = Sampler(envs, Agent(Model(envs.single_observation_space, 6)), steps=3, seed=4)
    assert sampler.frame_skip == 4
    rollout = next(iter(sampler))
    assert rollout.states.shape == (3, 2, 84, 84, 4)
    assert rollout.states.dtype == torch.uint8
    twin = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    states, _ = twin.reset(seed=episode_seed(4, 0, 0))
    for t in range(3):
        assert np.array_equal(rollout.states[t].numpy(), states.transpose(0, 2, 3, 1))
        states, *_ = twin.step(rollout.actions[t].numpy())


def fields(rollout):
    return [getattr(rollout, field.name).clone() for field in dataclasses.fields(rollout)]


@pytest.mark.parametrize("restart", [10**6, 40])
def test_a_resumed_sampler_goes_on_bit_for_bit(monkeypatch, restart):
    monkeypatch.setattr(Sampler, "RESTART", restart)
    model = Model(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)

    def sampler_of():
        envs = vector_env.make_vector_env("PongNoFrameskip-v4", 3)
        return Sampler(envs, Agent(model), steps=5, seed=2)

    torch.manual_seed(3)
    first = sampler_of()
    rollouts = iter(first)
    for _ in range(4):
        next(rollouts)
    state = first.state_dict()
    expected = [fields(next(rollouts)) for _ in range(3)]
    resumed = sampler_of()
    resumed.load_state_dict(state)
    torch.manual_seed(4)  # from which nothing is drawn
    rollouts = iter(resumed)
    for rollout in expected:
        assert all(torch.equal(a, b) for a, b in zip(rollout, fields(next(rollouts)), strict=True))
    assert resumed.steps_done == first.steps_done == 105


@pytest.mark.parametrize("restart", [10**6, 24])
def test_environments_dealt_out_to_several_samplers_are_played_as_by_one(monkeypatch, restart):
    monkeypatch.setattr(Sampler, "RESTART", restart)
    model = Model(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6)

    def played(first, num_envs):
        envs = vector_env.make_vector_env("PongNoFrameskip-v4", num_envs)
        sampler = Sampler(envs, Agent(model), steps=5, seed=2, part=Part(first, num_envs, of=4))
        return [fields(rollout) for _, rollout in zip(range(3), sampler, strict=False)]

    for whole, *parts in zip(played(0, 4), played(0, 1), played(1, 3), strict=True):
        for together, *apart in zip(whole, *parts, strict=True):
            assert torch.allclose(together, torch.cat(apart, dim=1), atol=1e-6)  # the same but for rounding


def test_environments_begin_anew_when_playing_again_would_take_too_long(monkeypatch):
    monkeypatch.setattr(Sampler, "RESTART", 12)
    sampler = Sampler(vectorised(lambda: Counting(100), 2), Fixed(), steps=4)
    rollouts = iter(sampler)
    for states, next_values, ended in (
        ([0, 1, 2, 3], [10, 20, 30, 40], [0, 0, 0, 0]),
        ([4, 5, 0, 1], [50, 60, 10, 20], [0, 1, 0, 0]),
        ([2, 3, 4, 5], [30, 40, 50, 60], [0, 0, 0, 1]),
    ):
        rollout = next(rollouts)
        for index in range(2):
            assert rollout.states[:, index, 0].tolist() == states
            assert rollout.next_values[:, index].tolist() == next_values
            assert rollout.ended[:, index].tolist() == [bool(end) for end in ended]
        assert not rollout.terminated.any()
    assert sampler.pop_episodes() == []  # none has come to its own end
    assert len(sampler.state_dict()["actions"]) == 0


def test_environments_that_do_not_repeat_themselves_are_told_of(caplog):
    sampler = Sampler(vectorised(lambda: Counting(100), 2), Fixed(), steps=4)
    next(iter(sampler))
    state = sampler.state_dict()
    state["actions"] = state["actions"][:3]
    Sampler(vectorised(lambda: Counting(100), 2), Fixed(), steps=4).load_state_dict(state)
    assert "do not repeat themselves" in caplog.text


def test_the_first_rollout_is_looked_at_and_forgotten_but_not_in_a_resumed_run():
    model = Model(spaces.Box(0, 255, (1,), np.uint8), 2)
    sampler = Sampler(vectorised(lambda: Counting(100), 2), Agent(model), steps=4)
    assert next(rollouts(sampler, model)).states[:, 0, 0].tolist() == [4, 5, 6, 7]
    assert model.body.mean.item() == 1.5
    resumed = Sampler(vectorised(lambda: Counting(100), 2), Agent(model), steps=4)
    resumed.load_state_dict(sampler.state_dict())
    assert next(rollouts(resumed, model)).states[:, 0, 0].tolist() == [8, 9, 10, 11]
    assert model.body.mean.item() == 1.5


def test_actions_are_drawn_as_often_as_the_policy_says():
    torch.manual_seed(1)
    model = Model(spaces.Box(0.0, 1.0, (2,)), 3)
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor([0.5, 0.2, 0.3]).log())
    noise = Sampler(vectorised(Bandit, 20), Agent(model), steps=1000)._noise().flatten(0, 1)
    actions, log_probs, _ = Agent(model)(torch.zeros(20_000, 2), noise)
    shares = actions.bincount() / len(actions)
    assert shares.tolist() == pytest.approx([0.5, 0.2, 0.3], abs=0.015)
    assert torch.allclose(log_probs.exp(), torch.tensor([0.5, 0.2, 0.3])[actions])


def test_a_model_normalises_by_what_it_has_looked_at():
    model = Model(spaces.Box(0, 255, (4, 84, 84), np.uint8), 2)
    rng = np.random.default_rng(0)
    states = torch.from_numpy(rng.integers(0, 255, (50, 84, 84, 4)).astype(np.uint8))
    model.normalise_by(states)
    normal = (states.float() - model.body.mean) * model.body.scale
    assert normal.mean(0).abs().max() < 0.51 * model.body.scale  # the means are whole numbers
    assert normal.std().item() == pytest.approx(1.0, abs=0.01)
    shifted = Model(spaces.Box(0, 255, (4, 84, 84), np.uint8), 2)
    shifted.load_state_dict(model.state_dict())
    assert torch.equal(shifted(states)[0], model(states)[0])


def test_a_model_of_bfloat16_is_close_to_the_one_of_float32():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    torch.manual_seed(2)
    plain = Model(space, 6)
    fast = Model(space, 6, torch.bfloat16)
    states = torch.randint(0, 256, (32, 84, 84, 4), dtype=torch.uint8)
    plain.normalise_by(states)
    fast.load_state_dict(plain.state_dict())
    before = states.clone()
    for expected, got in zip(plain(states), fast(states), strict=True):
        assert got.dtype == torch.float32
        assert (got - expected).norm() < 0.02 * expected.norm()
    assert torch.equal(states, before)


def test_values_stay_when_the_unit_of_returns_changes():
    model = Model(spaces.Box(0.0, 1.0, (3,)), 2)
    states = torch.rand(10, 3)
    rng = np.random.default_rng(1)
    seen = []
    for scale, shift in ((2.0, 5.0), (30.0, -4.0), (0.1, 0.0)):
        before = model(states)[1]
        seen.append(torch.from_numpy(rng.normal(shift, scale, (20, 4)).astype(np.float32)))
        model.normalise_values(seen[-1])
        if len(seen) == 1:
            assert torch.allclose(model(states)[1], seen[0].mean(), atol=0.1 * scale)
        else:
            assert torch.allclose(model(states)[1], before, atol=1e-4)
        assert model.return_mean.item() == pytest.approx(torch.stack(seen).mean().item(), abs=1e-4)
        assert model.return_std.item() == pytest.approx(torch.stack(seen).std(correction=0).item(), rel=1e-4)


def trainer_of(model, **changed):
    options = {"minibatch": 4, "epochs": 2, "gamma": 0.9, "lam": 0.9, "clip": 0.2, "entropy": 0.0} | changed
    return Trainer(model, torch.optim.Adam(model.parameters(), lr=1e-3), **options)


def test_a_minibatch_has_to_divide_the_rollout():
    model = Model(spaces.Box(0.0, 1.0, (1,)), 2)
    zeros = [[0.0] * 2] * 3
    nothing = [[False] * 2] * 3
    with pytest.raises(ValueError, match=r"of 4 does not divide the rollout of 6; give one of 2, 3, 6"):
        trainer_of(model).update(rollout_of(zeros, zeros, zeros, nothing, nothing))


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.05, 1 / 1.5), (0.021, 1 / 1.5), (0.019, 1.0), (0.006, 1.0), (0.004, 1.5)]
)
def test_the_learning_rate_follows_how_far_the_policy_moves(kl, factor):
    trainer = trainer_of(Model(spaces.Box(0.0, 1.0, (1,)), 2), kl_target=0.01)
    trainer._adapt(kl, 0.0)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


def test_the_learning_rate_grows_to_its_bound_and_one_beyond_it_only_falls():
    trainer = trainer_of(Model(spaces.Box(0.0, 1.0, (1,)), 2), kl_target=0.01, max_rate=1.2e-3)
    [group] = trainer.optimizer.param_groups
    for rate, kl, expected in ((1e-3, 0.0, 1.2e-3), (1.2e-3, 0.0, 1.2e-3), (3e-3, 0.0, 3e-3), (3e-3, 1.0, 2e-3)):
        group["lr"] = rate
        trainer._adapt(kl, 0.0)
        assert group["lr"] == pytest.approx(expected)


def test_advantages_values_and_divergence_by_hand():
    normal = update.normalised(torch.tensor([1.0, 3.0, 5.0]))
    assert normal.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    values, targets = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 6.0])
    assert update.value_loss(values, targets, torch.tensor(2.0)).item() == pytest.approx((9 + 16) / 2 / 4)
    old, new = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log()  # ratios 1/2 and 2
    expected = (0.5 - 1.0 + math.log(2.0) + 2.0 - 1.0 - math.log(2.0)) / 2
    assert update.divergence(new, old).item() == pytest.approx(expected)


def test_shapes_that_would_be_broadcast_are_refused():
    column, row = torch.zeros(3), torch.zeros(3, 1)
    with pytest.raises(ValueError, match=r"estimates have the shapes .*all have to be \(batch,\)"):
        update.policy_loss(column, column, row, 0.2)
    with pytest.raises(ValueError, match=r"values, targets have the shapes .*all have to be \(batch,\)"):
        update.value_loss(row, column, torch.tensor(1.0))
    with pytest.raises(ValueError, match="minibatch is 1; it has to be at least 2"):
        trainer_of(Model(spaces.Box(0.0, 1.0, (1,)), 2), minibatch=1)


def random_rollout(steps, envs):
    ended = torch.rand(steps, envs) < 0.25
    return Rollout(
        states=torch.randn(steps, envs, 5),
        actions=torch.randint(4, (steps, envs)),
        log_probs=-2 * torch.rand(steps, envs),
        terminated=ended & (torch.rand(steps, envs) < 0.5),
        ended=ended,
        **{name: torch.randn(steps, envs) for name in ("values", "next_values", "rewards")},
    )


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.9, 0.95, 1.0])
def test_updates_are_those_of_the_slow_twin(progress):
    torch.manual_seed(int(100 * progress))
    options = {"minibatch": 18, "epochs": 3, "gamma": 0.93, "lam": 0.8, "clip": 0.15, "entropy": 0.03, "value": 0.5}
    options |= {"gradient_norm": 0.7, "kl_target": 0.1, "kl_final": 0.025, "final_temperature": 0.5}
    model = Model(spaces.Box(-1.0, 1.0, (5,)), 4)
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.Adam(each.parameters(), lr=3e-3, eps=1e-5) for each in (model, twin))
    trainer = Trainer(model, optimizer, **options)
    for steps, at in ((12, progress), (6, progress), (12, progress), (6, 0.85), (6, progress)):
        rollout = random_rollout(steps, 6)
        order = torch.get_rng_state()
        trainer.update(rollout, at)
        torch.set_rng_state(order)
        ppo_update.update(twin, other, rollout, options, at)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"])
        for weights, expected in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(weights, expected, atol=1e-5)
    assert model.return_std == pytest.approx(twin.return_std.item())


def test_an_update_tells_what_it_did_and_its_gradient_has_the_norm_that_is_allowed():
    torch.manual_seed(0)
    model = Model(spaces.Box(0.0, 1.0, (1,)), 2)
    states, actions = torch.tensor([[0.0], [1.0], [0.5], [0.2]]), torch.tensor([0, 1, 0, 1])
    targets = torch.tensor([3.0, 5.0, 7.0, 9.0])
    with torch.no_grad():
        log_probs = model(states)[0].log_softmax(1).gather(1, actions[:, None]).squeeze(1)
    old = log_probs - torch.tensor([0.0, 0.0, math.log(1.3), math.log(1.1)])  # ratios 1, 1, 1.3 and 1.1
    estimates = torch.tensor([1.0, 2.0, 3.0, 4.0])
    options = {"minibatch": 4, "epochs": 1, "gamma": 0.9, "lam": 0.9, "clip": 0.2, "entropy": 0.5}
    options |= {"kl_target": 1e-3, "gradient_norm": 0.01}
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)
    before = torch.cat([weights.detach().flatten().clone() for weights in model.parameters()])
    told = trainer.learn([states, actions, old, estimates, targets], 0.0)
    # The first unit of returns leaves the weights as they are, so that the step is all that moved them.
    after = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert told["clipped"] == 0.25
    assert told["kl"] == pytest.approx((0.3 - math.log(1.3) + 0.1 - math.log(1.1)) / 4, rel=1e-4)
    # Normalised to -1.162, -0.387, 0.387 and 1.162; the third ratio is clipped.
    unit = (5 / 3) ** 0.5
    surrogate = (-1.5 / unit * 1.0 - 0.5 / unit * 1.0 + 0.5 / unit * 1.2 + 1.5 / unit * 1.1) / 4
    assert told["policy_loss"] == pytest.approx(-surrogate, rel=1e-4)
    assert told["entropy"] == pytest.approx(math.log(2.0), abs=1e-3)
    assert told["loss"] == pytest.approx(told["policy_loss"] + 0.5 * told["value_loss"] - 0.5 * told["entropy"])
    assert told["value_loss"] == pytest.approx(1.0, abs=0.05)  # all values begin near the mean of the returns
    assert told["learning_rate"] == pytest.approx(1.0 / 1.5)  # further than twice the target


def test_the_loss_of_values_draws_them_to_the_returns():
    model = Model(spaces.Box(0.0, 1.0, (1,)), 2)
    trainer_of(model, epochs=500).update(two_valued_rollout())
    assert model(torch.tensor([[0.0], [1.0]]))[1].tolist() == pytest.approx([3.0, 5.0], abs=0.05)


def two_valued_rollout():
    zeros, ends = [[0.0] * 2] * 2, [[True] * 2] * 2
    rollout = rollout_of([[3.0, 5.0]] * 2, zeros, [[99.0] * 2] * 2, ends, ends)
    rollout.states[:, 1] = 1.0
    return rollout


def weights_after(progress, **options):
    torch.manual_seed(0)
    model = Model(spaces.Box(0.0, 1.0, (1,)), 2)
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))  # so that the entropy has a gradient
    told = trainer_of(model, **options).update(two_valued_rollout(), progress)
    assert told["progress"] == progress
    return torch.cat([weights.flatten() for weights in model.parameters()]).detach()


@pytest.mark.parametrize("progress", [0.95, 1.0])
def test_with_the_goal_at_hand_an_update_is_a_single_epoch(progress):
    at_hand = weights_after(progress, epochs=5)
    assert torch.equal(at_hand, weights_after(progress, epochs=1))
    assert not torch.allclose(at_hand, weights_after(0.949, epochs=5), atol=1e-4)
    assert torch.allclose(at_hand, weights_after(0.949, epochs=1), atol=1e-4)


def test_near_the_goal_chance_has_less_of_a_say_and_from_then_on():
    model = Model(spaces.Box(-1.0, 1.0, (5,)), 4)
    trainer = trainer_of(model, minibatch=18, final_temperature=0.25)
    states = torch.randn(3, 5)
    for progress, temperature in ((0.0, 1.0), (0.849, 1.0), (0.85, 0.25), (1.0, 0.25), (0.3, 0.25)):
        trainer.update(random_rollout(6, 6), progress)
        logits, values = model(states)
        assert PPOLearner(trainer).get_model().tensors["temperature"] == temperature  # what actors get
        model.temperature.fill_(1.0)
        plain, same_values = model(states)
        model.temperature.fill_(temperature)
        assert torch.allclose(logits, plain / temperature, atol=1e-6)
        assert torch.equal(values, same_values)


@pytest.mark.parametrize("progress", [0.0, 0.9])
def test_what_was_played_at_the_final_temperature_is_learnt_from_at_it(progress):
    model = Model(spaces.Box(0.0, 1.0, (1,)), 2)
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))
    trainer = trainer_of(model, epochs=1, minibatch=4, final_temperature=0.5)
    rollout = two_valued_rollout()
    trainer.update(rollout, 0.9)
    assert model.temperature == 0.5
    chosen = model(rollout.states.flatten(0, 1))[0].log_softmax(1).gather(1, rollout.actions.flatten()[:, None])
    rollout.log_probs.copy_(chosen.detach().view_as(rollout.log_probs))
    assert trainer.update(rollout, progress)["kl"] == pytest.approx(0.0, abs=1e-6)


def test_weights_that_are_older_than_the_temperature_have_one_of_one():
    model, other = (Model(spaces.Box(-1.0, 1.0, (5,)), 4) for _ in range(2))
    old = {name: weights for name, weights in model.state_dict().items() if name != "temperature"}
    other.temperature.fill_(0.3)
    other.load_state_dict(old)
    assert other.temperature == 1.0
    assert "temperature" not in old


def test_the_weight_of_the_entropy_goes_down_to_nothing_with_the_progress():
    assert torch.allclose(weights_after(0.75, entropy=8.0), weights_after(0.0, entropy=2.0), atol=1e-6)
    assert torch.allclose(weights_after(1.0, epochs=1, entropy=8.0), weights_after(0.0, epochs=1, entropy=0.0))
    assert not torch.allclose(weights_after(0.0, entropy=8.0), weights_after(0.0, entropy=0.0), atol=1e-4)


@pytest.mark.parametrize(
    ("kl", "progress", "factor"),
    [
        (0.021, 0.0, 1.0),  # twice the target is 0.03 at first
        (0.021, 0.5, 1 / 1.5),  # 0.02 half-way
        (0.011, 1.0, 1 / 1.5),
        (0.009, 1.0, 1.0),
        (0.001, 0.94, 1.5),
        (0.001, 0.95, 1.0),  # with the goal at hand the rate does not grow
    ],
)
def test_the_policy_may_move_less_the_nearer_the_goal_is(kl, progress, factor):
    trainer = trainer_of(Model(spaces.Box(0.0, 1.0, (1,)), 2), kl_target=0.015, kl_final=0.005)
    trainer._adapt(kl, progress)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


def test_progress_is_how_far_the_newest_episodes_have_come_from_the_first():
    sampler = Sampler(vectorised(lambda: Counting(3), 2), Fixed(), steps=4)
    assert sampler.progress(10.0) == 0.0
    next(iter(sampler))  # both episodes end with 6
    for newest, goal, progress in ((6.0, 8.0, 0.0), (8.0, 8.0, 0.5), (0.0, 8.0, 0.0), (20.0, 8.0, 1.0), (1.0, None, 0)):
        sampler.progress.add(newest)
        assert sampler.progress(goal) == progress
    resumed = Sampler(vectorised(lambda: Counting(3), 2), Fixed(), steps=4)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.progress(20.0) == sampler.progress(20.0) == pytest.approx(4.5 / 14)


def test_a_goal_that_the_first_episodes_were_beyond_is_reached_or_not_begun():
    progress = Progress(2)
    progress.add(6.0)
    assert progress(5.0) == 0.0
    progress.add(6.0)
    assert progress(5.0) == progress(6.0) == 1.0
    progress.add(-9.0)
    assert progress(5.0) == progress(6.0) == 0.0


def test_states_of_double_precision_are_learnt_from():
    model = Model(spaces.Box(-1.0, 1.0, (3,), np.float64), 2)
    states = torch.rand(4, 3, dtype=torch.float64)
    model.normalise_by(states)
    assert model(states)[0].dtype == torch.float32


def test_torch_acts_in_one_thread_and_learns_in_as_many_as_before():
    before = torch.get_num_threads()
    seen = []

    class Watching(Fixed):
        def __call__(self, states, noise):
            seen.append(torch.get_num_threads())
            return super().__call__(states, noise)

    torch.set_num_threads(2)
    try:
        next(iter(Sampler(vectorised(lambda: Counting(3), 2), Watching(), steps=2)))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class Casts(TorchDispatchMode):
    """Counts how often something of a shape is cast."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default and args[0].shape == self.shape
        return func(*args, **(kwargs or {}))


def test_weights_are_cast_once_a_rollout_and_anew_for_the_next():
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    model = Model(envs.single_observation_space, 6, torch.bfloat16)
    rollouts = iter(Sampler(envs, Agent(model), steps=3, seed=4))
    for _ in range(2):
        with Casts(model.body.third.weight.shape) as casts:
            rollout = next(rollouts)
        assert casts.count == 1
        with torch.no_grad():
            for states, values in zip(rollout.states, rollout.values, strict=True):
                assert torch.equal(model(states)[1], values)
            model.body.third.weight.mul_(-1.5)  # as an optimizer changes them


def train(make, n, steps, updates, **options):
    torch.manual_seed(0)
    envs = vectorised(make, n)
    model = Model(envs.single_observation_space, int(envs.single_action_space.n))
    sampler = Sampler(envs, Agent(model), steps, seed=1)
    rate = options.pop("rate", 1e-2)
    trainer = trainer_of(model, **{"minibatch": n * steps // 4, "epochs": 4, "lam": 0.95, **options})
    trainer.optimizer.param_groups[0]["lr"] = rate
    returns = []
    for _, rollout in zip(range(updates), sampler, strict=False):
        trainer.update(rollout)
        returns += [episode.total for episode in sampler.pop_episodes()]
    return returns, model


def test_a_bandit_without_memory_is_solved():
    returns, model = train(Bandit, 8, 16, 30, rate=3e-3)
    assert np.mean(returns[-100:]) > 0.95
    assert np.mean(returns[:100]) < 0.6
    policy = model(torch.eye(3))[0].argmax(1)
    assert policy.tolist() == [2, 0, 1]


def test_the_chain_is_solved_and_its_values_are_known():
    returns, model = train(lambda: Chain(4), 8, 32, 60, rate=3e-3, entropy=0.01)
    assert np.mean(returns[-100:]) > 0.9
    values = model(torch.eye(4))[1]
    assert values.tolist() == pytest.approx([0.9**3, 0.9**2, 0.9, 1.0], abs=0.1)


def test_cart_pole_is_balanced():
    returns, _ = train(lambda: gym.make("CartPole-v1"), 8, 128, 60, rate=3e-3, gamma=0.99, epochs=6, minibatch=256)
    assert max(np.mean(returns[end - 20 : end]) for end in range(20, len(returns))) >= 475
