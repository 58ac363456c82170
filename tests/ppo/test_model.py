import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes import MASKED, first_states
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.policy import GreedyPolicy

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def test_states_are_normalised_by_those_that_the_model_was_fitted_to():
    model = FastModel(IMAGES, 2)
    rng = np.random.default_rng(0)
    states = torch.from_numpy(rng.integers(0, 255, (50, 4, 84, 84)).astype(np.uint8))
    model.normalise_by(states)
    normal = (states.movedim(1, -1).float() - model.body.mean) * model.body.scale
    assert normal.mean(0).abs().max() < 0.51 * model.body.scale  # the means are whole numbers
    assert normal.std().item() == pytest.approx(1.0, abs=0.01)
    loaded = FastModel(IMAGES, 2)
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(states)[0], model(states)[0])


def test_a_model_that_has_learnt_keeps_its_normalisation():
    model = FastModel(IMAGES, 2)
    states = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    model.normalise_by(states)
    model.normalise_values(torch.tensor([1.0, 2.0]))
    before = model(states)[0]
    model.normalise_by(states // 4)  # the first states of a run with --init
    assert torch.equal(model(states)[0], before)


def test_values_stay_the_same_when_the_statistics_of_the_returns_change():
    model = FastModel(spaces.Box(0.0, 1.0, (3,)), 2)
    states = torch.rand(10, 3)
    rng = np.random.default_rng(1)
    seen = []
    for scale, shift in ((2.0, 5.0), (30.0, -4.0), (0.1, 0.0)):
        before = model(states)[1]
        seen.append(torch.from_numpy(rng.normal(shift, scale, (20, 4)).astype(np.float32)))
        model.normalise_values(seen[-1])
        if len(seen) == 1:  # the first values are near the mean of the first returns
            assert torch.allclose(model(states)[1], seen[0].mean(), atol=0.1 * scale)
        else:
            assert torch.allclose(model(states)[1], before, atol=1e-4)
        assert model.return_mean.item() == pytest.approx(torch.stack(seen).mean().item(), abs=1e-4)
        assert model.return_std.item() == pytest.approx(torch.stack(seen).std(correction=0).item(), rel=1e-4)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_the_statistics_follow_returns_that_grow_or_narrow(factor):
    """An average over all returns would follow too slowly, and the value loss would have a wrong weight."""
    model = FastModel(spaces.Box(0.0, 1.0, (3,)), 2)
    generator = torch.Generator().manual_seed(1)
    for scale in [1.0] * 100 + [factor] * 50:
        model.normalise_values(scale * torch.randn(1024, generator=generator))
    weight_of_the_loss = (factor / model.return_std.item()) ** 2
    assert 0.5 < weight_of_the_loss < 2.0


@pytest.mark.parametrize("kind", [Model, FastModel])
@pytest.mark.parametrize("env_id", MASKED)
def test_invalid_actions_have_no_probability(env_id, kind):
    space, states = first_states(env_id)
    probabilities = GreedyPolicy(kind(space, 5)).scores(states)
    assert (probabilities[:, 0] == 0.0).all()
    assert np.allclose(probabilities.sum(1), 1.0)


def test_the_entropy_counts_valid_actions_only():
    space, states = first_states("fakes:Vector-info-v0")
    model = Model(space, 5)
    torch.nn.init.zeros_(model.policy.weight)
    log_probs, entropies = model.distribution.evaluate(model(torch.from_numpy(states))[0], torch.ones(4).long())
    assert entropies.tolist() == pytest.approx([np.log(4.0)] * 4)
    (log_probs + entropies).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.policy.parameters())
