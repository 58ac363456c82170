"""The network of 2015, its version that normalises states, and the extensions of chapter 8."""

import copy

import pytest
import torch

from lib import dqn_model

GENERATOR = torch.Generator().manual_seed(1)
IMAGES = torch.randint(0, 256, (5, 2, 36, 36), dtype=torch.uint8, generator=GENERATOR)
VECTORS = torch.rand(5, 3, generator=GENERATOR)


@pytest.mark.parametrize(("shape", "states"), [((2, 36, 36), IMAGES), ((3,), VECTORS)], ids=["images", "vectors"])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_network_is_normalised_by_the_first_states_that_it_is_given_if_at_all(shape, states, normalise):
    net = dqn_model.DQN(shape, 4, normalise=normalise)
    before = copy.deepcopy(net.state_dict())
    net.normalise_by(states)
    if normalise and shape == (2, 36, 36):
        assert torch.equal(net.conv.mean, IMAGES.float().mean(0).round().movedim(0, -1))
    fitted = copy.deepcopy(net.state_dict())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in fitted.items()) == normalise
    net.normalise_by(states // 2)  # in a run with --init, for example
    assert all(torch.equal(tensor, fitted[name]) for name, tensor in net.state_dict().items())


def test_an_image_with_channels_last_is_refused():
    with pytest.raises(ValueError, match=r"\(84, 84, 1\) has its channels last; .* pytorch_img=True"):
        dqn_model.DQN((84, 84, 1), 6)


def test_sigmas_have_a_tenth_of_the_learning_rate_and_every_weight_is_in_one_group():
    net = dqn_model.DQN((3,), 2, dueling=True, sigma=0.5)
    before = {name: weights.detach().clone() for name, weights in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameter_groups(0.001))
    net(torch.rand(5, 3)).square().sum().backward()
    optimizer.step()
    # Adam's first step has the size of the learning rate for every weight with a gradient.
    for name, weights in net.named_parameters():
        change = (weights - before[name]).abs()[weights.grad.abs() > 1e-4]
        assert len(change) > 0
        assert torch.allclose(change, torch.tensor(0.0001 if name.endswith("sigma") else 0.001), rtol=0.01), name
    [group] = dqn_model.DQN((3,), 2, dueling=True).parameter_groups(0.001)
    assert (len(group["params"]), group["lr"]) == (10, 0.001)


def test_the_signal_to_noise_ratio_of_each_noisy_layer_by_hand():
    net = dqn_model.DQN((3,), 2, sigma=0.5)
    layer = net.advantage[2]
    with torch.no_grad():
        layer.weight_mean.fill_(5.0)
        layer.weight_sigma[:, ::2] = -1.0
        layer.weight_sigma[:, 1::2] = 3.0
    assert list(net.snr_metrics()) == ["snr_1", "snr_2"]
    assert net.snr_metrics()["snr_2"]() == pytest.approx((25 / 5) ** 0.5)
    assert dqn_model.DQN((3,), 2).snr_metrics() == {}


def test_a_dueling_distribution_subtracts_the_mean_advantage_at_each_atom():
    net, states = dqn_model.DQN((3,), 4, dueling=True, support=(-2.0, 2.0, 5)), torch.rand(5, 3)
    features = net.conv(states)
    values, advantages = net.value(features), net.advantage(features).reshape(5, 4, 5)  # type: ignore[misc]
    for value, advantage, predicted in zip(values, advantages, net.predict(states), strict=True):
        for action in range(4):
            logits = [value[atom] + advantage[action, atom] - sum(advantage[:, atom]) / 4 for atom in range(5)]
            assert torch.allclose(predicted[action], torch.stack(logits).log_softmax(0), atol=1e-5)


def test_a_return_distribution_sums_to_one_and_its_mean_is_the_action_value():
    net = dqn_model.DQN((3,), 4, support=(-1.0, 5.0, 3))
    states = torch.rand(5, 3)
    probs = net.predict(states).exp()
    assert probs.shape == (5, 4, 3)
    assert torch.allclose(probs.sum(-1), torch.ones(5, 4))
    assert torch.allclose(net(states), 5 * probs[..., 2] + 2 * probs[..., 1] - probs[..., 0], atol=1e-5)


@pytest.mark.parametrize("support", [None, (-1.0, 5.0, 3)], ids=["values", "distributions"])
def test_the_best_action_is_selected_by_the_network_itself_or_by_another_one(support):
    net, other = (dqn_model.DQN((3,), 4, support=support) for _ in range(2))
    states = torch.rand(50, 3)
    for selector in (None, other):
        actions = (selector or net)(states).argmax(1)
        expected = torch.stack([row[action] for row, action in zip(net.predict(states), actions, strict=True)])
        assert torch.equal(net.predict_best(states, selector), expected)
    assert not torch.equal(net.predict_best(states), net.predict_best(states, other))
