"""Pictures of the distributions of returns that a network predicts."""

import numpy as np
import torch
from matplotlib.figure import Figure

from lib import dqn_extra
from lib.experience.ring import Ring
from lib.nets.masking import INVALID

MAX_ACTIONS = 18  # actions of a picture, as many as an Atari game has


class ReturnDistributionFigure:
    """Pictures of always the same states, so that one can be compared with the next.

    Args:
        net: see `draw`.
        buffer: its states are chosen, evenly over what it keeps when the first picture is drawn.
    """

    STATES = 4

    def __init__(self, net: dqn_extra.ExtendedDQN, buffer: Ring):
        self.net = net
        self.buffer = buffer
        self.states = torch.zeros(0)

    def __call__(self) -> Figure:
        if not len(self.states):
            self.states = self.buffer.evenly_spaced_states(self.STATES)
        return draw(self.net, self.states.numpy())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"states": self.states}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.states = state["states"]


@torch.no_grad()
def draw(net: dqn_extra.ExtendedDQN, states: np.ndarray) -> Figure:
    """A row a state: what it shows, and the distribution under each action, its mean as a line.

    Of many actions those are drawn that are the best in any of the states; what is not allowed in a state is empty.

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
    actions = np.sort(np.argsort(-means.max(axis=0), kind="stable")[:MAX_ACTIONS])
    figure = Figure(figsize=(2 * (1 + len(actions)), 2 * len(states)), layout="constrained")
    rows = figure.subplots(len(states), 1 + len(actions), squeeze=False)
    seen = net.split(torch.from_numpy(states))[0].numpy()
    for row, state, by_action, values in zip(rows, seen, probs, means, strict=True):
        row[0].imshow(np.atleast_2d(state[-1] if state.ndim == 3 else state), cmap="gray")
        row[0].axis("off")
        for action, axes in zip(actions, row[1:], strict=True):
            axes.set(title=f"action {action}", ylim=(0.0, 1.0))
            if values[action] != INVALID:
                axes.bar(support, by_action[action], width=support[1] - support[0])
                axes.axvline(values[action], color="black", linewidth=0.8)
                axes.set(title=f"action {action}: {values[action]:.2f}")
    return figure
