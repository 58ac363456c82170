import copy
import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes import Bandit, Chain
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.ppo.learner import PPOLearner
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.update import Trainer, Transitions, UpdateSettings
from oracles import ppo_update
from ppo_setup import random_rollout, rollout_of, settings_of, trainer_of, vectorised


def small_model():
    """A model of states of one number, with two actions."""
    return Model(spaces.Box(0.0, 1.0, (1,)), 2)


def test_settings_are_copied_from_hyperparameters():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], minibatch=64, entropy=0.07)
    settings = UpdateSettings.of(params)
    assert dataclasses.asdict(settings).items() <= dataclasses.asdict(params).items()
    assert (settings.minibatch, settings.entropy) == (64, 0.07)


def test_a_minibatch_of_1_is_refused():
    with pytest.raises(ValueError, match=r"minibatch is 1\b.* at least 2"):
        settings_of(minibatch=1)


def test_a_minibatch_that_does_not_divide_the_rollout_is_refused():
    zeros, never = [[0.0] * 2] * 3, [[False] * 2] * 3
    with pytest.raises(ValueError, match=r"minibatch of 4 .* rollout of 6.* 2, 3, 6"):
        trainer_of(small_model()).update(rollout_of(zeros, zeros, zeros, never, never))


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.9, 0.95, 1.0])
def test_updates_agree_with_the_slow_twin(progress):
    torch.manual_seed(int(100 * progress))
    settings = UpdateSettings(
        minibatch=18,
        epochs=3,
        gamma=0.93,
        lam=0.8,
        clip=0.15,
        entropy=0.03,
        gradient_norm=0.7,
        kl_target=0.1,
        kl_final=0.025,
        final_temperature=0.5,
    )
    model = Model(spaces.Box(-1.0, 1.0, (5,)), 4)
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (torch.optim.Adam(each.parameters(), lr=3e-3, eps=1e-5) for each in (model, twin))
    trainer = Trainer(model, optimizer, settings)
    for steps, at in ((12, progress), (6, progress), (12, progress), (6, 0.85), (6, progress)):
        rollout = random_rollout(steps, 6)
        generator_state = torch.get_rng_state()
        trainer.update(rollout, at)
        torch.set_rng_state(generator_state)
        ppo_update.update(twin, twin_optimizer, rollout, settings, at)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(twin_optimizer.param_groups[0]["lr"])
        for weights, expected in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(weights, expected, atol=1e-5)
    assert model.return_std == pytest.approx(twin.return_std.item())


def test_metrics_and_the_norm_of_the_gradient_worked_by_hand():
    torch.manual_seed(0)
    model = small_model()
    states, actions = torch.tensor([[0.0], [1.0], [0.5], [0.2]]), torch.tensor([0, 1, 0, 1])
    with torch.no_grad():
        log_probs = model(states)[0].log_softmax(1).gather(1, actions[:, None]).squeeze(1)
    transitions = Transitions(
        states=states,
        actions=actions,
        log_probs=log_probs - torch.tensor([0.0, 0.0, math.log(1.3), math.log(1.1)]),  # ratios 1, 1, 1.3 and 1.1
        advantages=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        value_targets=torch.tensor([3.0, 5.0, 7.0, 9.0]),
    )
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = trainer_of(model, sgd, epochs=1, entropy=0.5, kl_target=1e-3, gradient_norm=0.01)
    before = torch.cat([weights.detach().flatten().clone() for weights in model.parameters()])
    metrics = trainer.learn(transitions, 0.0)
    # The first normalisation of the values changes no weights, so only the optimizer has moved them.
    after = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert metrics["clipped"] == 0.25
    assert metrics["kl"] == pytest.approx((0.3 - math.log(1.3) + 0.1 - math.log(1.1)) / 4, rel=1e-4)
    # The normalised advantages are -1.162, -0.387, 0.387 and 1.162; the third ratio is clipped.
    std = (5 / 3) ** 0.5
    surrogate = (-1.5 / std * 1.0 - 0.5 / std * 1.0 + 0.5 / std * 1.2 + 1.5 / std * 1.1) / 4
    assert metrics["policy_loss"] == pytest.approx(-surrogate, rel=1e-4)
    assert metrics["entropy"] == pytest.approx(math.log(2.0), abs=1e-3)
    expected_loss = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - 0.5 * metrics["entropy"]
    assert metrics["loss"] == pytest.approx(expected_loss)
    assert metrics["value_loss"] == pytest.approx(1.0, abs=0.05)  # the first values are near the mean of the returns
    assert metrics["learning_rate"] == pytest.approx(1.0 / 1.5)  # the divergence exceeds twice the target


def two_valued_rollout():
    """Terminating steps with a return of 3 in state 0 and of 5 in state 1."""
    zeros, ends = [[0.0] * 2] * 2, [[True] * 2] * 2
    rollout = rollout_of([[3.0, 5.0]] * 2, zeros, [[99.0] * 2] * 2, ends, ends)
    rollout.states[:, 1] = 1.0
    return rollout


def test_values_are_learnt():
    model = small_model()
    trainer_of(model, epochs=500).update(two_valued_rollout())
    assert model(torch.tensor([[0.0], [1.0]]))[1].tolist() == pytest.approx([3.0, 5.0], abs=0.05)


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.05, 1 / 1.5), (0.021, 1 / 1.5), (0.019, 1.0), (0.006, 1.0), (0.004, 1.5)]
)
def test_the_learning_rate_adapts_to_the_divergence(kl, factor):
    trainer = trainer_of(small_model(), kl_target=0.01)
    trainer._adapt_learning_rate(kl, 0.0)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize("kl", [0.0, 9.0])
def test_the_learning_rate_is_fixed_without_a_target(kl):
    trainer = trainer_of(small_model(), kl_target=None, kl_final=0.001)
    trainer._adapt_learning_rate(kl, 0.5)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("rate", "kl", "expected"), [(9e-3, 0.0, 1e-2), (1e-2, 0.0, 1e-2), (3e-2, 0.0, 3e-2), (3e-2, 1.0, 2e-2)]
)
def test_the_learning_rate_does_not_grow_beyond_its_maximum(rate, kl, expected):
    trainer = trainer_of(small_model(), kl_target=0.01)
    [group] = trainer.optimizer.param_groups
    group["lr"] = rate
    trainer._adapt_learning_rate(kl, 0.0)
    assert group["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kl", "progress", "factor"),
    [
        (0.021, 0.0, 1.0),  # the bound is 0.03 at first
        (0.021, 0.5, 1 / 1.5),  # 0.02 half-way
        (0.011, 1.0, 1 / 1.5),  # 0.01 at the goal
        (0.009, 1.0, 1.0),
        (0.001, 0.94, 1.5),
        (0.001, 0.95, 1.0),  # with a single epoch the rate does not grow
    ],
)
def test_the_target_of_the_divergence_follows_the_progress(kl, progress, factor):
    trainer = trainer_of(small_model(), kl_target=0.015, kl_final=0.005)
    trainer._adapt_learning_rate(kl, progress)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


def weights_after(progress, **settings):
    """All parameters of a model after an update at this progress."""
    torch.manual_seed(0)
    model = small_model()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))  # so that the entropy has a gradient
    metrics = trainer_of(model, **settings).update(two_valued_rollout(), progress)
    assert metrics["progress"] == progress
    return torch.cat([weights.flatten() for weights in model.parameters()]).detach()


@pytest.mark.parametrize("progress", [0.95, 1.0])
def test_close_to_the_goal_an_update_is_a_single_epoch(progress):
    close = weights_after(progress, epochs=5)
    assert torch.equal(close, weights_after(progress, epochs=1))
    assert not torch.allclose(close, weights_after(0.949, epochs=5), atol=1e-4)
    assert torch.allclose(close, weights_after(0.949, epochs=1), atol=1e-4)


def test_the_entropy_weight_falls_to_0_with_the_progress():
    assert torch.allclose(weights_after(0.75, entropy=8.0), weights_after(0.0, entropy=2.0), atol=1e-6)
    assert torch.allclose(weights_after(1.0, epochs=1, entropy=8.0), weights_after(0.0, epochs=1, entropy=0.0))
    assert not torch.allclose(weights_after(0.0, entropy=8.0), weights_after(0.0, entropy=0.0), atol=1e-4)


def test_the_final_temperature_is_set_near_the_goal_and_stays():
    model = Model(spaces.Box(-1.0, 1.0, (5,)), 4)
    trainer = trainer_of(model, minibatch=18, final_temperature=0.25)
    for progress, temperature in ((0.0, 1.0), (0.849, 1.0), (0.85, 0.25), (1.0, 0.25), (0.3, 0.25)):
        trainer.update(random_rollout(6, 6), progress)
        assert model.temperature == temperature
        assert PPOLearner(trainer).get_model().tensors["temperature"] == temperature


@pytest.mark.parametrize("progress", [0.0, 0.9])
def test_a_rollout_at_the_final_temperature_is_learnt_from_at_that_temperature(progress):
    model = small_model()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))
    trainer = trainer_of(model, epochs=1, final_temperature=0.5)
    rollout = two_valued_rollout()
    trainer.update(rollout, 0.9)
    assert model.temperature == 0.5
    chosen = model(rollout.states.flatten(0, 1))[0].log_softmax(1).gather(1, rollout.actions.flatten()[:, None])
    rollout.log_probs.copy_(chosen.detach().view_as(rollout.log_probs))
    assert trainer.update(rollout, progress)["kl"] == pytest.approx(0.0, abs=1e-6)


def train(make, n, steps, updates, rate=3e-3, **changes):
    """Train on n environments; return the episodes' returns and the model."""
    torch.manual_seed(0)
    envs = vectorised(make, n)
    model = Model(envs.single_observation_space, int(envs.single_action_space.n))
    sampler = Sampler(envs, Agent(model), steps, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    trainer = trainer_of(model, optimizer, **{"minibatch": n * steps // 4, "epochs": 4, "lam": 0.95} | changes)
    returns = []
    for _, rollout in zip(range(updates), sampler, strict=False):
        trainer.update(rollout)
        returns += [episode.total for episode in sampler.pop_episodes()]
    return returns, model


def test_a_bandit_is_solved():
    returns, model = train(Bandit, 8, 16, 30)
    assert np.mean(returns[-100:]) > 0.95
    assert np.mean(returns[:100]) < 0.6
    policy = model(torch.eye(3))[0].argmax(1)
    assert policy.tolist() == [2, 0, 1]


def test_the_chain_is_solved_with_its_known_values():
    returns, model = train(lambda: Chain(4), 8, 32, 60, entropy=0.01)
    assert np.mean(returns[-100:]) > 0.9
    values = model(torch.eye(4))[1]
    assert values.tolist() == pytest.approx([0.9**3, 0.9**2, 0.9, 1.0], abs=0.1)


@pytest.mark.slow
def test_cart_pole_is_solved():
    returns, _ = train(lambda: gym.make("CartPole-v1"), 8, 128, 60, gamma=0.99, epochs=6, minibatch=256)
    assert max(np.mean(returns[end - 20 : end]) for end in range(20, len(returns))) >= 475
