"""Chapter 8's extensions of the network: noisy layers, dueling streams, return distributions."""

import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_extra, dqn_model
from lib.envs.masks import MaskedBox
from lib.errors import UsageError
from lib.nets import losses, noisy
from lib.nets.masking import INVALID
from oracles import distribution

NOISES = ("factorised", "per-state", "independent")
GENERATOR = torch.Generator().manual_seed(1)
IMAGES = torch.randint(0, 256, (5, 2, 36, 36), dtype=torch.uint8, generator=GENERATOR)
VECTORS = torch.rand(5, 3, generator=GENERATOR)
KINDS = [
    {},
    {"dueling": True},
    {"sigma": 0.5},
    {"support": losses.support(-2.0, 2.0, 5)},
    {"dueling": True, "sigma": 0.017, "noise": "independent", "support": losses.support(-2.0, 2.0, 5)},
]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_numpy_number_of_actions_becomes_an_int_for_torch_compile():
    assert type(dqn_extra.ExtendedDQN((3,), np.int64(2)).n_actions) is int


@pytest.mark.parametrize("noise", NOISES)
def test_every_forward_pass_draws_new_noise(noise):
    layer, features = noisy.NoisyLinear(6, 3, noise), torch.rand(4, 6)
    assert not torch.allclose(layer(features), layer(features))


@pytest.mark.parametrize("noise", NOISES)
def test_evaluation_mode_uses_the_means_only(noise):
    layer, features = noisy.NoisyLinear(6, 3, noise).eval(), torch.rand(4, 6)
    expected = features @ layer.weight_mean.T + layer.bias_mean
    assert torch.allclose(layer(features), expected, atol=1e-6)


def test_initial_values_are_those_of_the_paper():
    factorised, independent = noisy.NoisyLinear(400, 50), noisy.NoisyLinear(400, 50, "independent")
    assert 0.9 / 20 < factorised.weight_mean.abs().max() <= 1 / 20
    assert (factorised.weight_sigma == 0.5 / 20).all()
    assert (factorised.bias_sigma == 0.5 / 20).all()
    assert 0.9 * math.sqrt(3 / 400) < independent.weight_mean.abs().max() <= math.sqrt(3 / 400)
    assert (independent.weight_sigma == 0.017).all()
    assert (independent.bias_sigma == 0.017).all()
    assert 0.5 / 20 < factorised.bias_mean.abs().max() <= 1 / 20
    assert 0.5 * math.sqrt(3 / 400) < independent.bias_mean.abs().max() <= math.sqrt(3 / 400)


@pytest.mark.parametrize(("noise", "unit"), [("factorised", 1 / 20), ("per-state", 1 / 20), ("independent", 1.0)])
def test_the_initial_sigma_can_be_given(noise, unit):
    layer = noisy.NoisyLinear(400, 50, noise, sigma=0.25)
    assert torch.allclose(layer.weight_sigma, torch.full((50, 400), 0.25 * unit))
    assert torch.allclose(layer.bias_sigma, torch.full((50,), 0.25 * unit))


def test_a_network_with_a_sigma_has_noisy_layers():
    net = dqn_extra.ExtendedDQN((3,), 2, dueling=True, sigma=0.25)
    for layer in (*net.advantage[::2], *net.value[::2]):  # type: ignore[misc]
        assert layer.noise == "per-state"
        assert layer.weight_sigma.mean().item() == pytest.approx(0.25 / math.sqrt(layer.weight_sigma.shape[1]))
    assert dqn_extra.ExtendedDQN((3,), 2, noise="independent", sigma=0.25).advantage[0].noise == "independent"


def test_sigmas_have_a_tenth_of_the_learning_rate_and_every_weight_is_in_one_group():
    net = dqn_extra.ExtendedDQN((3,), 2, dueling=True, sigma=0.5)
    before = {name: weights.detach().clone() for name, weights in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameter_groups(0.001))
    net(torch.rand(5, 3)).square().sum().backward()
    optimizer.step()
    # Adam's first step has the size of the learning rate for every weight with a gradient.
    for name, weights in net.named_parameters():
        change = (weights - before[name]).abs()[weights.grad.abs() > 1e-4]
        assert len(change) > 0
        assert torch.allclose(change, torch.tensor(0.0001 if name.endswith("sigma") else 0.001), rtol=0.01), name
    [group] = dqn_extra.ExtendedDQN((3,), 2, dueling=True).parameter_groups(0.001)
    assert (len(group["params"]), group["lr"]) == (10, 0.001)


@pytest.mark.parametrize("sigma", [0.0, -0.1, 1e-9, 1001.0, math.inf, math.nan])
def test_a_sigma_out_of_range_is_refused(sigma):
    with pytest.raises(UsageError, match=rf"sigma is {sigma:g}; it has to be between 1e-06 and 1000"):
        noisy.NoisyLinear(2, 1, sigma=sigma)


def drawn_and_outputs(layer, features):
    """Return the noise of a forward pass, and its outputs."""
    state = torch.get_rng_state()
    drawn = layer.draw(len(features))
    torch.set_rng_state(state)
    return drawn, layer(features)


def noisy_output(layer, noise, output_noise, features):
    """Compute equation 9 with a matrix of factorised noise, from the noise of one row."""
    weight = layer.weight_mean + layer.weight_sigma * torch.outer(output_noise, noise)
    return features @ weight.T + layer.bias_mean + layer.bias_sigma * output_noise


def test_factorised_noise_equals_a_matrix_of_noisy_weights():
    layer, features = noisy.NoisyLinear(6, 3), torch.rand(4, 6)
    ([noise], [output_noise]), outputs = drawn_and_outputs(layer, features)
    assert torch.allclose(outputs, noisy_output(layer, noise, output_noise, features), atol=1e-6)


def test_per_state_noise_differs_between_rows():
    layer, features = noisy.NoisyLinear(6, 3, "per-state"), torch.rand(4, 6)
    (noise, output_noise), outputs = drawn_and_outputs(layer, features)
    expected = [noisy_output(layer, *row) for row in zip(noise, output_noise, features, strict=True)]
    assert torch.allclose(outputs, torch.stack(expected), atol=1e-6)
    outputs = layer(features[:1].expand(4, -1))
    assert all(not torch.allclose(outputs[row], outputs[other]) for row in range(4) for other in range(row))


def test_factorised_noise_has_the_moments_of_its_equation():
    # f(x) = sgn(x) sqrt(|x|) of a normal x: mean 0, mean square E|x| = sqrt(2 / pi).
    inputs, outputs = noisy.NoisyLinear(300, 200, "per-state").draw(rows=20)
    weights = torch.einsum("ro,ri->roi", outputs, inputs)
    for noise, mean_square in ((weights, 2 / math.pi), (inputs, math.sqrt(2 / math.pi))):
        assert abs(noise.mean()) < 0.02
        assert noise.square().mean().item() == pytest.approx(mean_square, rel=0.05)


def test_independent_noise_is_one_normal_number_per_weight():
    layer, features = noisy.NoisyLinear(300, 200, "independent"), torch.rand(4, 300)
    (noise, bias_noise), outputs = drawn_and_outputs(layer, features)
    weight = layer.weight_mean + layer.weight_sigma * noise
    bias = layer.bias_mean + layer.bias_sigma * bias_noise
    assert torch.allclose(outputs, features @ weight.T + bias, atol=1e-5)
    assert noise.shape == (200, 300)
    assert abs(noise.mean()) < 0.02
    assert noise.std().item() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("noise", NOISES)
def test_means_and_sigmas_have_gradients(noise):
    layer = noisy.NoisyLinear(6, 3, noise)
    layer(torch.rand(4, 6)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


def test_the_signal_to_noise_ratio_by_hand():
    layer = noisy.NoisyLinear(2, 1)
    with torch.no_grad():
        layer.weight_mean.copy_(torch.tensor([[3.0, 4.0]]))
        layer.weight_sigma.copy_(torch.tensor([[-1.0, 1.0]]))
    assert layer.signal_to_noise() == pytest.approx(math.sqrt(12.5))
    net = dqn_extra.ExtendedDQN((3,), 2, sigma=0.5)
    assert list(net.snr_metrics()) == ["snr_1", "snr_2"]
    assert net.snr_metrics()["snr_2"]() == net.advantage[2].signal_to_noise()
    assert dqn_extra.ExtendedDQN((3,), 2).snr_metrics() == {}


def test_an_unknown_noise_is_refused():
    with pytest.raises(UsageError, match="noise is 'pink'; it has to be one of factorised, per-state, independent"):
        noisy.NoisyLinear(2, 1, "pink")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "+".join(kind) or "plain")
@pytest.mark.parametrize(("shape", "states"), [((2, 36, 36), IMAGES), ((3,), VECTORS)], ids=["images", "vectors"])
def test_every_combination_gives_action_values_and_gradients(kind, shape, states):
    net = dqn_extra.ExtendedDQN(shape, 4, **kind)
    values = net(states)
    assert (values.shape, values.dtype) == ((5, 4), torch.float32)
    values.sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_without_extensions_it_equals_the_plain_network():
    plain, net = dqn_model.DQN((2, 36, 36), 4), dqn_extra.ExtendedDQN((2, 36, 36), 4)
    net.load_state_dict({name.replace("fc.", "advantage."): tensor for name, tensor in plain.state_dict().items()})
    assert torch.equal(net(IMAGES), plain(IMAGES))


def test_dueling_streams_have_half_the_hidden_units_each():
    plain, dueling = (dqn_extra.ExtendedDQN((2, 36, 36), 6, dueling=dueling) for dueling in (False, True))
    assert [len(stream[0].bias) for stream in (plain.advantage, dueling.advantage, dueling.value)] == [512, 256, 256]
    assert len(dqn_extra.ExtendedDQN((2, 36, 36), 6, dueling=True, hidden=40).value[0].bias) == 40


def test_the_mean_of_dueling_action_values_is_the_state_value():
    net = dqn_extra.ExtendedDQN((3,), 4, dueling=True)
    states = torch.rand(5, 3)
    assert torch.allclose(net(states).mean(1), net.value(net.conv(states)).squeeze(1), atol=1e-6)  # type: ignore[misc]
    assert torch.allclose(net(states).diff(dim=1), net.advantage(net.conv(states)).diff(dim=1), atol=1e-6)


def test_a_dueling_distribution_subtracts_the_mean_advantage_at_each_atom():
    net, states = dqn_extra.ExtendedDQN((3,), 4, dueling=True, support=losses.support(-2.0, 2.0, 5)), torch.rand(5, 3)
    features = net.conv(states)
    value, advantage = net.value(features), net.advantage(features).reshape(5, 4, 5)  # type: ignore[misc]
    for row in range(5):
        for action in range(4):
            logits = [
                value[row, atom] + advantage[row, action, atom] - sum(advantage[row, :, atom]) / 4 for atom in range(5)
            ]
            expected = torch.stack(logits).log_softmax(0)
            assert torch.allclose(net.predict(states)[row, action], expected, atol=1e-5)


def test_a_return_distribution_sums_to_one_and_its_mean_is_the_action_value():
    net = dqn_extra.ExtendedDQN((3,), 4, support=torch.tensor([-1.0, 0.0, 5.0]))
    states = torch.rand(5, 3)
    probs = net.predict(states).exp()
    assert probs.shape == (5, 4, 3)
    assert torch.allclose(probs.sum(-1), torch.ones(5, 4))
    assert torch.allclose(net(states), 5 * probs[..., 2] - probs[..., 0], atol=1e-5)


@pytest.mark.parametrize("support", [None, torch.tensor([-1.0, 0.0, 5.0])], ids=["values", "distributions"])
def test_the_best_action_is_selected_by_the_network_itself_or_by_another_one(support):
    net, other = (dqn_extra.ExtendedDQN((3,), 4, support=support) for _ in range(2))
    states = torch.rand(50, 3)
    logits = dqn_extra.DistributionalDQN((3,), 4)
    for selector in (None, other, logits):
        actions = (logits.qvals if selector is logits else selector or net)(states).argmax(1)
        expected = torch.stack([row[action] for row, action in zip(net.predict(states), actions, strict=True)])
        assert torch.equal(net.predict_best(states, selector), expected)
    assert not torch.equal(net.predict_best(states), net.predict_best(states, other))


def test_every_forward_pass_draws_new_noise_in_training_mode_only():
    net, states = dqn_extra.ExtendedDQN((3,), 4, sigma=0.5), torch.rand(5, 3)
    assert not torch.allclose(net(states), net(states))
    net.eval()
    assert torch.equal(net(states), net(states))


@pytest.mark.parametrize("learning", [True, False], ids=["learning", "acting"])
@pytest.mark.parametrize(("noise", "rows"), [("factorised", 1), ("per-state", 5), ("independent", None)])
def test_rows_share_noise_unless_it_is_per_state_and_layers_and_passes_never_do(monkeypatch, noise, rows, learning):
    drawn = []

    def recorded(layer, number, draw=noisy.NoisyLinear.draw):
        drawn.extend(noise := draw(layer, number))
        return noise

    monkeypatch.setattr(noisy.NoisyLinear, "draw", recorded)
    net = dqn_extra.ExtendedDQN((3,), 4, dueling=True, sigma=0.5, noise=noise)
    for _ in range(3):
        with torch.set_grad_enabled(learning):
            net(torch.rand(5, 3))
    assert len(drawn) == 3 * 4 * 2  # passes, layers, and tensors of each
    assert all(len(noise.unique(dim=0)) == (rows or len(noise)) for noise in drawn)
    for each, other in itertools.combinations(drawn, 2):
        assert each.shape != other.shape or not (each == other).any()


@pytest.mark.parametrize("batch", [1, 2, 5, 3])
def test_successive_batches_may_have_different_sizes(batch):
    net = dqn_extra.ExtendedDQN((3,), 4, sigma=0.5)
    for rows in (4, batch, 6):
        assert net(torch.rand(rows, 3)).shape == (rows, 4)


def test_a_bfloat16_network_is_close_to_float32_and_returns_float32():
    net = dqn_extra.ExtendedDQN((2, 36, 36), 4, dueling=True, sigma=0.5, dtype=torch.bfloat16)
    twin = dqn_extra.ExtendedDQN((2, 36, 36), 4, dueling=True, sigma=0.5)
    twin.load_state_dict(net.state_dict())
    for train in (True, False):
        net.train(train), twin.train(train)
        values = []
        for network in (net, twin):
            torch.manual_seed(1)  # the same noise
            values.append(network(IMAGES))
        assert values[0].dtype == torch.float32
        assert torch.allclose(*values, atol=0.02)  # type: ignore[misc]
        assert not torch.equal(*values)


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_the_books_projection_equals_the_slow_twin(dtype):
    rng = np.random.default_rng(0)
    next_distr = rng.dirichlet(np.ones(dqn_extra.N_ATOMS), 40).astype(np.float32)
    rewards = rng.choice([-1.0, 0.0, 1.0, 0.37, 30.0, -30.0], 40).astype(np.float32)
    dones = rng.random(40) < 0.3
    projected = dqn_extra.distr_projection(next_distr, rewards, dones.astype(dtype), 0.97)
    assert projected.dtype == np.float32
    expected = [
        distribution.project(probs, reward, 0.0 if done else 0.97, int(dqn_extra.Vmin), int(dqn_extra.Vmax))
        for probs, reward, done in zip(next_distr.tolist(), rewards.tolist(), dones, strict=True)
    ]
    assert np.allclose(projected, expected, atol=1e-5)


def test_the_books_distributional_network_returns_logits():
    net = dqn_extra.DistributionalDQN((2, 36, 36), 4)
    logits, values = net.both(IMAGES)
    assert logits.shape == (5, 4, dqn_extra.N_ATOMS)
    probs = torch.softmax(logits, dim=2)
    assert torch.allclose(net.apply_softmax(logits), probs)
    assert torch.allclose(values, (probs * torch.linspace(-10.0, 10.0, 51)).sum(dim=2), atol=1e-5)
    assert torch.allclose(net.qvals(IMAGES), values)
    assert torch.equal(net.supports, torch.linspace(-10.0, 10.0, 51))


@pytest.mark.parametrize("kind", [dqn_extra.DuelingDQN, dqn_extra.RainbowDQN])
def test_the_books_dueling_networks_combine_advantages_and_values(kind):
    net = kind((2, 36, 36), 4).eval()  # without noise
    adv, val = net.adv_val(IMAGES)
    assert (adv.shape, val.shape) == ((5, 4), (5, 1))
    assert torch.allclose(net(IMAGES), val + adv - adv.mean(dim=1, keepdim=True), atol=1e-6)


def test_only_dueling_values_can_be_taken_apart():
    for net in (
        dqn_extra.ExtendedDQN((3,), 2),
        dqn_extra.ExtendedDQN((3,), 2, dueling=True, support=KINDS[3]["support"]),
    ):
        with pytest.raises(ValueError, match="only a dueling network without a support"):
            net.adv_val(torch.rand(1, 3))


@pytest.mark.parametrize("kind", [dqn_extra.NoisyDQN, dqn_extra.RainbowDQN])
def test_the_books_noisy_networks_draw_noise_in_every_training_pass(kind):
    net = kind((2, 36, 36), 4)
    assert not torch.allclose(net(IMAGES), net(IMAGES))
    net.reset_noise()
    assert all(ratio == pytest.approx(1 / (0.1 * 3**0.5), rel=0.2) for ratio in net.noisy_layers_sigma_snr())
    net.eval()
    assert torch.equal(net(IMAGES), net(IMAGES))


@pytest.mark.parametrize("kind", [dqn_extra.DuelingDQN, dqn_extra.RainbowDQN])
def test_the_books_dueling_networks_mask_invalid_actions(kind):
    net = kind(MaskedBox(spaces.Box(-1.0, 1.0, (3,), np.float32), 2), 2).eval()
    values = net(torch.tensor([[0.1, 0.2, 0.3, 1.0, 0.0]]))
    assert values[0, 1] == INVALID < values[0, 0]


def test_the_books_noisy_network_may_be_dueling():
    assert dqn_extra.NoisyDQN((2, 36, 36), 4, True).value is not None  # the third argument


@pytest.mark.parametrize(
    ("layer", "noise", "sigma"),
    [
        (dqn_extra.NoisyLinear(400, 50), "factorised", 0.1 / 20),
        (dqn_extra.NoisyLinear(400, 50, 0.017), "independent", 0.017),  # as the second edition calls it
        (dqn_extra.NoisyLinear(400, 50, bias=False), "factorised", 0.1 / 20),
        (dqn_extra.NoisyFactorizedLinear(400, 50), "factorised", 0.4 / 20),
    ],
)
def test_the_books_noisy_layers(layer, noise, sigma):
    assert layer.noise == noise
    assert torch.allclose(layer.weight_sigma, torch.tensor(sigma))
    features = torch.rand(3, 400)
    assert not torch.allclose(layer(features), layer(features))
    layer.eval()
    bias = 0.0 if layer.bias_mean is None else layer.bias_mean
    assert torch.allclose(layer(features), features @ layer.weight_mean.T + bias, atol=1e-5)
