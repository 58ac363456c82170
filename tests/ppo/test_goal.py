import dataclasses

import pytest
import torch
from gymnasium import spaces

from lib.hyperparameters import PPO_FAST_HYPERPARAMS, PPO_GOAL_HYPERPARAMS
from lib.ppo.fast import FastModel, FastSettings
from lib.ppo.goal import SCHEDULES, GoalModel, GoalSettings
from lib.ppo.learner import PPOLearner
from lib.ppo.progress import Estimate
from ppo_setup import (
    assert_updates_agree_with_the_slow_twin,
    random_rollout,
    settings_of,
    trainer_of,
    two_valued_rollout,
)


def small_model():
    """A model of states of one number, with two actions."""
    return GoalModel(spaces.Box(0.0, 1.0, (1,)), 2)


def sure(progress):
    """An estimate without errors."""
    return Estimate(progress, progress)


def test_weights_of_the_parents_network_leave_the_temperature_at_1():
    space = spaces.Box(0.0, 1.0, (1,))
    net = small_model()
    net.load_state_dict(FastModel(space, 2).state_dict())
    assert net.temperature == 1.0
    with pytest.raises(RuntimeError, match="Missing"):
        net.load_state_dict({})


def update(trainer, rollout, progress):
    """Make an update of a trainer whose settings are those at progress 0."""
    settings, trainer.settings = trainer.settings, trainer.settings.at(sure(progress))
    metrics = trainer.update(rollout)
    trainer.settings = settings
    return metrics


SETTINGS = settings_of(
    GoalSettings,
    minibatch=18,
    epochs=3,
    clip=0.15,
    entropy=0.03,
    gradient_norm=0.7,
    kl_target=0.1,
    kl_final=0.025,
    final_temperature=0.5,
)


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.9, 0.95, 1.0])
def test_updates_agree_with_the_slow_twin(progress):
    torch.manual_seed(int(100 * progress))
    updates = [(12, progress), (6, progress), (12, progress), (6, 0.75), (6, progress)]
    assert_updates_agree_with_the_slow_twin(GoalModel, SETTINGS, updates, update)


@pytest.mark.parametrize(
    ("schedule", "progress", "changes"),
    [
        ("entropy", 0.75, {"entropy": 0.0075}),
        ("kl", 0.5, {"kl_target": 0.0625}),
        ("epochs", 0.95, {"epochs": 1}),
        ("epochs", 0.94, {}),
        ("temperature", 0.75, {"finishing": True}),
        ("temperature", 0.74, {}),
    ],
)
def test_each_schedule_changes_its_own_setting_and_can_be_left_out(schedule, progress, changes):
    others = set(SCHEDULES) - {schedule}
    expected = pytest.approx(dataclasses.asdict(SETTINGS) | changes)
    assert dataclasses.asdict(SETTINGS.at(sure(progress), without=others)) == expected
    without = dataclasses.asdict(SETTINGS.at(sure(progress), without={schedule}))
    assert {name: without[name] for name in changes} == {name: getattr(SETTINGS, name) for name in changes}
    assert SETTINGS.at(sure(progress), without=SCHEDULES) == SETTINGS


def test_without_a_target_or_a_final_one_the_divergence_has_no_schedule():
    for fixed in ({"kl_target": None, "kl_final": 0.001}, {"kl_target": 0.1, "kl_final": None}):
        settings = settings_of(GoalSettings, **fixed)
        assert settings.at(sure(0.5)).kl_target == settings.kl_target


def test_the_fast_script_is_the_goal_script_without_its_schedules():
    """Equal bit for bit: the networks, the hyperparameters of Pong, and the updates."""
    pong, fast_pong = PPO_GOAL_HYPERPARAMS["pong"], PPO_FAST_HYPERPARAMS["pong"]
    assert dataclasses.asdict(fast_pong).items() <= dataclasses.asdict(pong).items()
    space = spaces.Box(-1.0, 1.0, (5,))
    weights = []
    for kind, settings in (
        (FastModel, FastSettings.of(fast_pong)),
        (GoalModel, GoalSettings.of(pong).at(sure(0.9), SCHEDULES)),
    ):
        torch.manual_seed(3)
        model = kind(space, 4)
        trainer = trainer_of(model)
        trainer.settings = dataclasses.replace(settings, minibatch=18)
        for _ in range(3):
            trainer.update(random_rollout(6, 6))
        weights.append(model.state_dict())
    assert weights[1].pop("temperature") == 1.0
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_the_temperature_divides_the_logits_and_leaves_the_values_alone():
    model = GoalModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    states = torch.randn(3, 5)
    logits, values = model(states)
    model.temperature.fill_(0.25)
    sharper_logits, same_values = model(states)
    assert torch.allclose(sharper_logits, logits / 0.25, atol=1e-6)
    assert torch.equal(same_values, values)


def weights_after(progress, **settings):
    """All parameters of a model after an update at this progress."""
    torch.manual_seed(0)
    model = small_model()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))  # so that the entropy has a gradient
    update(trainer_of(model, **settings), two_valued_rollout(), progress)
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
    model = GoalModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    trainer = trainer_of(model, minibatch=18, final_temperature=0.25)
    for progress, temperature in ((0.0, 1.0), (0.749, 1.0), (0.75, 0.25), (1.0, 0.25), (0.3, 0.25)):
        update(trainer, random_rollout(6, 6), progress)
        assert model.temperature == temperature
        assert PPOLearner(trainer).get_model().tensors["temperature"] == temperature


def test_the_final_temperature_raises_none_that_is_lower():
    model = GoalModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    model.temperature.fill_(0.5)  # of the model of --init
    update(trainer_of(model, minibatch=18, final_temperature=1.0), random_rollout(6, 6), 1.0)
    assert model.temperature == 0.5


def test_a_final_temperature_that_a_resumed_model_has_is_not_set_again():
    model = GoalModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    for changed in (True, False):  # 0.3 is rounded when the model stores it
        trainer = trainer_of(model, minibatch=18, final_temperature=0.3)
        update(trainer, random_rollout(6, 6), 1.0)
        assert trainer.changed_temperature is changed


@pytest.mark.parametrize("progress", [0.0, 0.9])
def test_a_rollout_at_the_final_temperature_is_learnt_from_at_that_temperature(progress):
    model = small_model()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, 1.0]))
    trainer = trainer_of(model, epochs=1, final_temperature=0.5)
    rollout = two_valued_rollout()
    update(trainer, rollout, 0.9)
    assert model.temperature == 0.5
    chosen = model(rollout.states.flatten(0, 1))[0].log_softmax(1).gather(1, rollout.actions.flatten()[:, None])
    rollout.log_probs.copy_(chosen.detach().view_as(rollout.log_probs))
    assert update(trainer, rollout, progress)["kl"] == pytest.approx(0.0, abs=1e-6)
