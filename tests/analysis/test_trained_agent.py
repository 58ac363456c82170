"""From a run's folder back to the agent that it has trained."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lib import dqn_extra, dqn_model
from lib.analysis.trained_agent import find_checkpoint, network_of
from lib.errors import UsageError
from lib.nets import losses
from lib.nets.masking import INVALID
from lib.ppo.model import Model
from lib.run.policy import EpsilonGreedyPolicy, GreedyPolicy

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
NETWORKS = {
    "basic": lambda shape: dqn_model.DQN(shape, 6),
    "bfloat16": lambda shape: dqn_model.DQN(shape, 6, torch.bfloat16),
    "dueling": lambda shape: dqn_extra.ExtendedDQN(shape, 6, dueling=True),
    "two whole streams": lambda shape: dqn_extra.ExtendedDQN(
        shape, 6, dueling=True, hidden=512
    ),  # as dueling ones were once
    "noisy": lambda shape: dqn_extra.ExtendedDQN(shape, 6, sigma=0.5),
    "independent": lambda shape: dqn_extra.ExtendedDQN(shape, 6, sigma=0.017, noise="independent"),
    "distributional": lambda shape: dqn_extra.ExtendedDQN(shape, 6, support=losses.support(-2.0, 2.0, 5)),
    "all": lambda shape: dqn_extra.ExtendedDQN(
        shape, 6, dueling=True, sigma=0.1, support=losses.support(-2.0, 2.0, 5), dtype=torch.bfloat16
    ),
    "normalising": lambda shape: dqn_model.DQN(shape, 6, normalise=True),
    "normalising rainbow": lambda shape: dqn_extra.ExtendedDQN(shape, 6, dueling=True, sigma=0.1, normalise=True),
    "ppo": lambda shape: Model(IMAGES if len(shape) == 3 else NUMBERS, 6),
}


def states_of(space, number=5):
    rng = np.random.default_rng(0)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (number, *space.shape)).astype(np.uint8)
    return rng.normal(size=(number, *space.shape)).astype(np.float32)


@pytest.mark.parametrize("space", [IMAGES, NUMBERS], ids=["images", "numbers"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_known_by_its_weights(name, space):
    torch.manual_seed(1)
    net = NETWORKS[name](space.shape)
    if name == "ppo":
        net.body.normalise_by(
            torch.from_numpy(states_of(space)).movedim(1, -1) if space is IMAGES else torch.rand(5, 3)
        )
    if name.startswith("normalising"):
        net.conv.normalise_by(torch.from_numpy(states_of(space)))
    made = network_of(net.state_dict(), space, 6)
    scores = GreedyPolicy(net).scores(states_of(space))
    assert scores.shape == (5, 6)
    close = 0.05 if name in ("bfloat16", "all") else 1e-6  # what is read back calculates in float32
    assert np.allclose(GreedyPolicy(made).scores(states_of(space)), scores, atol=close)
    assert not np.allclose(scores[0], scores[1], atol=1e-9)


def test_weights_of_no_network_here():
    with pytest.raises(RuntimeError):
        network_of({"layer.weight": torch.zeros(2, 2)}, IMAGES, 6)


def test_the_greedy_policy_draws_nothing_and_leaves_the_network_in_training():
    torch.manual_seed(1)
    net = NETWORKS["noisy"]((3,))
    before = torch.get_rng_state()
    policy = GreedyPolicy(net)
    first, second = (policy.scores(states_of(NUMBERS)) for _ in range(2))
    assert np.array_equal(first, second)
    assert policy(states_of(NUMBERS)).tolist() == first.argmax(1).tolist()
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training
    assert policy.meaning == "Q"


def test_probabilities_are_those_of_the_model():
    model = Model(NUMBERS, 6)
    policy, states = GreedyPolicy(model), states_of(NUMBERS)
    assert policy.meaning == "probability"
    assert np.allclose(policy.scores(states), model(torch.from_numpy(states))[0].softmax(1).detach().numpy(), atol=1e-6)
    assert policy(states).tolist() == model(torch.from_numpy(states))[0].argmax(1).tolist()


class Values(nn.Module):
    """The same values in every state."""

    def __init__(self, *values):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, states):
        return self.values.expand(len(states), len(self.values))

    def split(self, states):
        return states, (self.values != INVALID).expand(len(states), len(self.values))


def test_exploring_takes_any_action_as_often_as_it_says():
    best = GreedyPolicy(Values(0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    actions = EpsilonGreedyPolicy(best, 6, 0.3, seed=2)(np.zeros((10_000, 1)))
    assert (actions != 5).mean() == pytest.approx(0.3 * 5 / 6, abs=0.02)
    assert (EpsilonGreedyPolicy(best, 6, 0.0, seed=2)(np.zeros((100, 1))) == 5).all()


def test_exploring_takes_no_action_that_is_not_allowed():
    policy = EpsilonGreedyPolicy(GreedyPolicy(Values(INVALID, 1.0, 2.0, INVALID, 0.0)), 5, 0.6, seed=2)
    counts = np.bincount(policy(np.zeros((30_000, 1))), minlength=5) / 30_000
    assert counts == pytest.approx([0.0, 0.2, 0.6, 0.0, 0.2], abs=0.02)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("best-000000300.pt", "step-000000400.pt", "step-000000500.pt", "step-mine.pt", "step-000000600.tmp"):
        (tmp_path / "checkpoints" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("which", "name"),
    [("best", "best-000000300.pt"), ("last", "step-000000500.pt"), ("400", "step-000000400.pt"), ("300", "best-*")],
)
def test_a_checkpoint_is_found_by_what_it_is_or_its_step(run, which, name):
    assert find_checkpoint(run, which).match(name)


def test_where_nothing_was_best_yet_the_newest_is(run):
    (run / "checkpoints" / "best-000000300.pt").unlink()
    assert find_checkpoint(run, "best").name == "step-000000500.pt"


@pytest.mark.parametrize("which", ["700", "worst", "-1"])
def test_a_checkpoint_that_is_not_there(run, which):
    with pytest.raises(
        UsageError, match=rf"no checkpoint '{which}'; give best, last, or one of the steps 300, 400, 500"
    ):
        find_checkpoint(run, which)


def test_a_run_that_has_learnt_nothing_yet(tmp_path):
    with pytest.raises(UsageError, match="has no checkpoint: it was stopped before"):
        find_checkpoint(tmp_path, "best")
