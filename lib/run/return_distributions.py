"""Figures of the return distributions that a network predicts."""

import logging

import numpy as np
import torch
from matplotlib.figure import Figure

from lib.dqn_model import DQN
from lib.experience.ring import HeldOutStates, Ring
from lib.nets.masking import INVALID
from lib.run.policy import in_evaluation_mode

MAX_ACTIONS = 18  # actions in a figure; an Atari game has at most this many

log = logging.getLogger(__name__)


class ReturnDistributionFigure(HeldOutStates):
    """Figures that always show the same states, so that they can be compared over time.

    A row per state shows its image and the predicted return distribution of each action. A vertical line is the mean.
    Invalid actions are left empty. Of more than MAX_ACTIONS, those with the highest values in any state are drawn.
    A warning is logged once if more than AT_END of the probability mass is on the first or the last atom.

    Args:
        net: network with a support. It is used in evaluation mode, without noise.
        buffer: replay ring. Evenly spaced states are taken from it when the first figure is drawn.
    """

    STATES = 4
    AT_END = 0.9

    def __init__(self, net: DQN, buffer: Ring):
        super().__init__(buffer, number=self.STATES)
        self.net = net
        self._is_warned = False

    @torch.no_grad()
    def __call__(self) -> Figure:
        net = self.net
        assert net.support is not None
        with in_evaluation_mode(net):
            predicted = net.predict(self.states.to(net.support.device))
            probs, values = predicted.exp().cpu().numpy(), net.values(predicted).cpu().numpy()
        support = net.support.cpu().numpy()
        at_ends = probs[values != INVALID][:, [0, -1]].mean(axis=0)
        if at_ends.max() > self.AT_END and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%.0f %% of the predicted probability mass is on the support's end atom %g. If returns can lie beyond "
                "it, start a new run with a wider support (see --help).",
                *(100 * at_ends.max(), support[-at_ends.argmax()]),
            )
        return _draw(net.split(self.states)[0].numpy(), probs, values, support)


def _draw(images: np.ndarray, probs: np.ndarray, values: np.ndarray, support: np.ndarray) -> Figure:
    """Draw n images, probabilities (n, n_actions, atoms), values (n, n_actions) and the support (atoms,)."""
    actions = np.sort(np.argsort(-values.max(axis=0), kind="stable")[:MAX_ACTIONS])
    figure = Figure(figsize=(2 * (1 + len(actions)), 2 * len(images)), layout="constrained")
    rows = figure.subplots(len(images), 1 + len(actions), squeeze=False)
    for row, image, state_probs, state_values in zip(rows, images, probs, values, strict=True):
        row[0].imshow(np.atleast_2d(image[-1] if image.ndim == 3 else image), cmap="gray")
        row[0].axis("off")
        for action, axes in zip(actions, row[1:], strict=True):
            axes.set(title=f"action {action}", ylim=(0.0, 1.0))
            if state_values[action] != INVALID:
                axes.bar(support, state_probs[action], width=support[1] - support[0])
                axes.axvline(state_values[action], color="black", linewidth=0.8)
                axes.set(title=f"action {action}: {state_values[action]:.2f}")
    return figure
