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
    ("noise", "bound", "sigma"),
    [
        ("factorised", 1 / 20, 0.5 / 20),
        ("per-state", 1 / 20, 0.5 / 20),
        ("independent", math.sqrt(3 / 400), 0.017),
    ],
)
def test_initial_values_are_those_of_the_paper(noise, bound, sigma):
    layer = noisy.NoisyLinear(400, 50, noise)
    assert 0.9 * bound < layer.weight_mean.abs().max() <= bound
    assert 0.5 * bound < layer.bias_mean.abs().max() <= bound
    assert (layer.weight_sigma == sigma).all()
    assert (layer.bias_sigma == sigma).all()


def draw_and_compute(layer, features):
    """Return the noise of a forward pass, its outputs, and those of equation 9 with matrices of weights, by row."""
    state = torch.get_rng_state()
    noise, output_noise = layer.draw(len(features))
    torch.set_rng_state(state)
    outputs, expected = layer(features), []
    for row, each in enumerate(features):
        if layer.noise == "independent":
            weight_noise, bias_noise = noise, output_noise
        else:
            bias_noise = output_noise[row % len(noise)]
            weight_noise = torch.outer(bias_noise, noise[row % len(noise)])
        weight = layer.weight_mean + layer.weight_sigma * weight_noise
        expected.append(weight @ each + layer.bias_mean + layer.bias_sigma * bias_noise)
    return noise, outputs, torch.stack(expected)


@pytest.mark.parametrize("kind", NOISES)
def test_outputs_are_those_of_a_matrix_of_noisy_weights(kind):
    layer, features = noisy.NoisyLinear(6, 3, kind), torch.rand(1, 6).expand(4, -1)
    noise, outputs, expected = draw_and_compute(layer, features)
    assert torch.allclose(outputs, expected, atol=1e-6)
    differs = [not torch.allclose(outputs[row], outputs[other]) for row in range(4) for other in range(row)]
    assert all(differs) if kind == "per-state" else not any(differs)
    assert noise.shape == {"factorised": (1, 6), "per-state": (4, 6), "independent": (3, 6)}[kind]


def test_noise_has_the_moments_of_its_equation():
    # f(x) = sgn(x) sqrt(|x|) of a normal x: mean 0, mean square E|x| = sqrt(2 / pi).
    inputs, outputs = noisy.NoisyLinear(300, 200, "per-state").draw(rows=20)
    weights = torch.einsum("ro,ri->roi", outputs, inputs)
    independent, _ = noisy.NoisyLinear(300, 200, "independent").draw(rows=20)
    for noise, mean_square in ((weights, 2 / math.pi), (inputs, math.sqrt(2 / math.pi)), (independent, 1.0)):
        assert abs(noise.mean()) < 0.02
        assert noise.square().mean().item() == pytest.approx(mean_square, rel=0.05)
