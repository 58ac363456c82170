"""Linear layers with noisy weights."""

import math

import pytest
import torch

from lib.nets import noisy

NOISES = ("factorised", "per-state", "independent")


@pytest.mark.parametrize("noise", NOISES)
def test_every_forward_pass_draws_new_noise_and_evaluation_uses_the_means(noise):
    layer, features = noisy.NoisyLinear(6, 3, noise), torch.rand(4, 6)
    assert not torch.allclose(layer(features), layer(features))
    layer(features).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())
    expected = features @ layer.weight_mean.T + layer.bias_mean
    assert torch.allclose(layer.eval()(features), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "bound", "sigma", "unit"),
    [
        ("factorised", 1 / 20, 0.5 / 20, 1 / 20),
        ("per-state", 1 / 20, 0.5 / 20, 1 / 20),
        ("independent", math.sqrt(3 / 400), 0.017, 1.0),
    ],
)
def test_initial_values_are_those_of_the_paper_and_sigma_can_be_given(noise, bound, sigma, unit):
    layer, other = noisy.NoisyLinear(400, 50, noise), noisy.NoisyLinear(400, 50, noise, sigma=0.25)
    assert 0.9 * bound < layer.weight_mean.abs().max() <= bound
    assert 0.5 * bound < layer.bias_mean.abs().max() <= bound
    assert (layer.weight_sigma == sigma).all()
    assert (layer.bias_sigma == sigma).all()
    assert torch.allclose(other.weight_sigma, torch.full((50, 400), 0.25 * unit))
    assert torch.allclose(other.bias_sigma, torch.full((50,), 0.25 * unit))


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
