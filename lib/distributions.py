"""Pictures of the distributions of returns that a network predicts."""

import numpy as np
import torch
from matplotlib.figure import Figure

from lib.dqn_extra import ExtendedDQN


@torch.no_grad()
def draw(net: ExtendedDQN, states: np.ndarray) -> Figure:
    """A row a state: what it shows, and the distribution under each action, its mean as a line.

    Args:
        net: with a support; asked as in evaluation, without noise.
        states: (n, *input_shape), as environments give them.
    """
    was_training = net.training
    net.eval()
    assert net.support is not None
    predicted = net.predict(torch.from_numpy(states).to(net.support.device))
    probs, means = predicted.exp().cpu().numpy(), net.values(predicted).cpu().numpy()
    net.train(was_training)
    support = net.support.cpu().numpy()
    figure = Figure(figsize=(2 * (1 + net.n_actions), 2 * len(states)), layout="constrained")
    rows = figure.subplots(len(states), 1 + net.n_actions, squeeze=False)
    for row, state, by_action, values in zip(rows, states, probs, means, strict=True):
        row[0].imshow(np.atleast_2d(state[-1] if state.ndim == 3 else state), cmap="gray")
        row[0].axis("off")
        for action, (axes, atoms) in enumerate(zip(row[1:], by_action, strict=True)):
            axes.bar(support, atoms, width=support[1] - support[0])
            axes.axvline(values[action], color="black", linewidth=0.8)
            axes.set(title=f"action {action}: {values[action]:.2f}", ylim=(0.0, 1.0))
    return figure
