"""Figures of return distributions."""

from unittest.mock import Mock

import numpy as np
import torch

from lib import dqn_model
from lib.experience.ring import Ring
from lib.run.return_distributions import ReturnDistributionFigure
from rings import ring_of

SUPPORT = (-2.0, 2.0, 5)


def figures_of(net, states):
    figures = ReturnDistributionFigure(net, ring_of(Ring, 50, 1, (3,)))
    figures.load_state_dict({"states": torch.from_numpy(states)})
    return figures


def test_each_state_is_shown_beside_the_distributions_of_its_actions():
    net = dqn_model.DQN((3,), 4, sigma=0.5, support=SUPPORT)
    before = torch.get_rng_state()
    states = np.eye(3, dtype=np.float32)[:2]
    figure = figures_of(net, states)()
    assert net.training
    assert torch.equal(torch.get_rng_state(), before)
    assert len(figure.axes) == 2 * (1 + 4)
    net.eval()
    probs = net.predict(torch.from_numpy(states)).exp()
    second_state_action_2 = figure.axes[1 + 4 + 1 + 2]
    heights = [bar.get_height() for bar in second_state_action_2.patches]  # type: ignore[attr-defined]
    assert np.allclose(heights, probs[1, 2].detach())
    assert np.array_equal(figure.axes[1 + 4].images[0].get_array(), states[1:])


def test_probability_at_an_end_of_the_support_is_warned_about_once(monkeypatch, caplog):
    """CartPole's returns, for example, are larger than the paper's support."""
    for best in (2, 4):
        net = dqn_model.DQN((3,), 4, support=SUPPORT)
        log_probs = torch.full((1, 4, 5), -9.0)
        log_probs[..., best] = 0.0
        monkeypatch.setattr(net, "predict", Mock(return_value=log_probs.log_softmax(dim=-1)))
        figures = figures_of(net, np.zeros((1, 3), np.float32))
        assert caplog.text == ""
        figures()
        figures()
    assert ["end atom 2." in record.getMessage() for record in caplog.records] == [True]
