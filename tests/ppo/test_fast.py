import copy
import math

import pytest
import torch
from gymnasium import spaces

from lib.envs.checked_env import CellActions
from lib.errors import UsageError
from lib.ppo.fast import CellPolicy, FastModel
from lib.ppo.update import METRICS, Transitions
from ppo_setup import random_rollout, trainer_of


def small_model():
    """A model of states of one number, with two actions."""
    return FastModel(spaces.Box(0.0, 1.0, (1,)), 2)


def test_actions_of_a_board_are_numbered_by_plane_row_and_column():
    policy = CellPolicy(features=8, filters=4, planes=2)
    board, cells = torch.randn(1, 8), torch.zeros(1, 4, 3, 5)
    before = policy(board, cells)
    cells[0, :, 1, 4] = 1.0
    changed = (policy(board, cells) != before)[0]
    assert changed.nonzero().flatten().tolist() == [1 * 5 + 4, 3 * 5 + 1 * 5 + 4]


def test_one_head_for_all_cells_needs_a_board_whose_environment_says_that_actions_are_cells():
    board = spaces.Box(0.0, 1.0, (2, 6, 7))
    assert isinstance(FastModel(board, CellActions(84)).policy, CellPolicy)
    assert not isinstance(FastModel(board, spaces.Discrete(84)).policy, CellPolicy)
    for space, actions in (board, 43), (spaces.Box(0.0, 1.0, (42,)), 42):
        with pytest.raises(UsageError, match=rf"needs a board .* there are {actions} actions"):
            FastModel(space, CellActions(actions))


@pytest.mark.parametrize(
    ("kl", "rate", "expected", "settings"),
    [
        (0.021, 1e-4, 1e-4 / 1.5, {}),
        (0.019, 1e-4, 1e-4, {}),
        (0.004, 1e-4, 1e-4 * 1.5, {}),
        (9.0, 1e-4, 1e-4, {"kl_target": None}),
        (0.0, 9e-3, 1e-2, {}),  # the maximum
        (1.0, 1.2e-2, 8e-3, {}),
        (0.001, 1e-4, 1e-4, {"epochs": 1}),  # the rate may only fall
    ],
)
def test_the_learning_rate_adapts_to_the_divergence(kl, rate, expected, settings):
    trainer = trainer_of(small_model(), **{"kl_target": 0.01, "learning_rate_max": 1e-2} | settings)
    [group] = trainer.optimizer.param_groups
    group["lr"] = rate
    row = torch.zeros(len(METRICS))
    row[METRICS.index("kl")] = kl
    trainer.after_epoch(torch.stack([row, row]), random_transitions())
    assert group["lr"] == pytest.approx(expected)


def random_transitions():
    """The four transitions of a policy that takes both actions with the same probability."""
    numbers = torch.rand(4)
    return Transitions(numbers[:, None], torch.tensor([0, 1, 0, 1]), torch.full((4,), math.log(0.5)), numbers, numbers)


@pytest.mark.parametrize(("rate", "factor"), [(30.0, 1 / 1.5), (1e-6, 1.0)])
def test_the_divergence_of_a_single_minibatch_is_measured_after_its_step(rate, factor):
    """Before the step, it would always be 0."""
    model = small_model()
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    trainer = trainer_of(model, sgd, epochs=1, minibatch=4, kl_target=0.01, gradient_norm=1.0, learning_rate_max=1e9)
    trainer.learn(random_transitions())
    assert sgd.param_groups[0]["lr"] == pytest.approx(rate * factor)


def test_steps_of_another_policy_get_present_values_and_truncated_ratios():
    trainer, rollout = trainer_of(FastModel(spaces.Box(-1.0, 1.0, (5,)), 4), minibatch=16), random_rollout(8, 4)
    played = copy.deepcopy(rollout)
    present, ratios = trainer.reevaluated(rollout)
    with torch.no_grad():
        logits, values = trainer.model(rollout.states.flatten(0, 1))
    log_probs = logits.log_softmax(1).gather(1, rollout.actions.flatten()[:, None]).view(8, 4)
    expected = (log_probs - rollout.log_probs).exp()
    assert (expected > 1.0).any()
    assert torch.allclose(ratios, expected.clamp(max=1.0), atol=1e-5)
    assert torch.allclose(present.values, values.view(8, 4), atol=1e-5)
    # The learner does not know the states after a truncation and after the last step, so their values stay.
    following = torch.cat([present.values[1:], rollout.next_values[-1:]])
    truncated = rollout.ended & ~rollout.terminated
    assert torch.equal(present.next_values, torch.where(truncated, rollout.next_values, following))
    assert all(torch.equal(tensor, vars(rollout)[name]) for name, tensor in vars(played).items())  # not overwritten


def test_the_first_rollout_is_learnt_from_as_steps_of_the_policy_before_normalisation():
    torch.manual_seed(5)
    model = FastModel(spaces.Box(-1.0, 1.0, (5,)), 4)
    rollout = random_rollout(6, 4)
    rollout.states.mul_(30.0)
    twin = copy.deepcopy(model)
    twin.normalise_by(rollout.some_states())
    expected = trainer_of(twin).transitions(*trainer_of(twin).reevaluated(rollout))
    trainer = trainer_of(model)
    seen = []
    trainer.learn = lambda transitions: seen.append(transitions) or {}  # type: ignore[method-assign,func-returns-value]
    trainer.update(rollout)
    assert all(torch.equal(*each) for each in zip(seen[0], expected, strict=True))
    assert torch.equal(seen[0].log_probs, rollout.log_probs.flatten())
    assert torch.equal(model.body.mean, twin.body.mean)
    trainer.update(rollout)
    plain = trainer_of(twin).transitions(rollout)
    assert torch.equal(seen[1].advantages, plain.advantages)
    assert model.body.count == 48
