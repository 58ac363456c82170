"""What the scripts of chapters 8 and 9 share: hyperparameters, batches, the loss, exploration, the ignite wiring."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from ptan.actions import EpsilonGreedyActionSelector
from ptan.agent import TargetNet
from ptan.experience import ExperienceFirstLast, ExperienceReplayBuffer
from torch import nn

from lib import dqn_model
from lib.experience.batch import Batch
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.ring import Ring
from lib.hyperparameters import HYPERPARAMS, Hyperparameters
from lib.nets import losses
from lib.run.setup import setup_ignite

__all__ = [
    "HYPERPARAMS",
    "EpsilonTracker",
    "Hyperparameters",
    "batch_generator",
    "calc_loss_dqn",
    "setup_ignite",
    "unpack_batch",
]


def unpack_batch(
    batch: Sequence[ExperienceFirstLast],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Transitions as arrays.

    Args:
        batch: transitions whose last_state is None where the episode ended there.

    Returns:
        states (batch, ...), actions (batch,) int64, rewards (batch,) float32, dones (batch,) uint8 and
        last_states (batch, ...), in which a missing last state is the first one: its value is masked anyway.

    Raises:
        TypeError: an action is no whole number.
    """
    states = [np.asarray(exp.state) for exp in batch]
    dones = [exp.last_state is None for exp in batch]
    last_states = [
        state if done else np.asarray(exp.last_state) for exp, state, done in zip(batch, states, dones, strict=True)
    ]
    actions = np.array([exp.action for exp in batch])
    if actions.dtype.kind not in "iu":
        raise TypeError(f"the actions of the batch are {actions.dtype}; they have to be whole numbers")
    return (
        np.stack(states),
        actions.astype(np.int64),
        np.array([exp.reward for exp in batch], dtype=np.float32),
        np.array(dones, dtype=np.uint8),
        np.stack(last_states),
    )


def calc_loss_dqn(
    batch: Sequence[ExperienceFirstLast] | Batch,
    net: nn.Module,
    tgt_net: nn.Module,
    gamma: float,
    device: torch.device | str = "cpu",
    no_grad: bool = True,
    huber: bool = False,
) -> torch.Tensor:
    """Mean squared temporal-difference error, Mnih et al. (2015), algorithm 1.

    Args:
        batch: transitions.
        net, tgt_net: from states (batch, ...) to action values (batch, n_actions).
        gamma: discount factor between a state and its last_state; a Batch brings its own.
        device: where both networks are.
        no_grad: whether the targets are computed without recording a graph. The gradient is the same either
            way, as no gradient goes through the targets; recording it only costs time and memory.
        huber: whether errors cost as Huber has it, see losses.penalties.

    Returns:
        A scalar, to be minimised in net's parameters.

    Raises:
        ValueError: a network gives another shape.
        TypeError: a network gives no floating-point numbers, or a batch's actions are not whole ones.
    """
    states, actions, rewards, discounts, last_states = _tensors(batch, gamma, device)
    q_values = net(states)
    _check("q_values", q_values, (len(batch), None))
    values = losses.select_actions(q_values, actions)
    with torch.no_grad() if no_grad else nullcontext():
        next_q_values = tgt_net(last_states)
        _check("next_q_values", next_q_values, tuple(q_values.shape))
        targets = losses.q_targets(rewards, discounts, next_q_values)
    return losses.penalties(values - targets.detach(), huber).mean()


def _tensors(
    batch: Sequence[ExperienceFirstLast] | Batch, gamma: float, device: torch.device | str
) -> tuple[torch.Tensor, ...]:
    """states, actions, rewards, discounts and last_states."""
    if isinstance(batch, Batch):
        moved = batch.for_net(device)
        return moved.states, moved.actions, moved.returns, moved.discounts, moved.next_states
    states, actions, rewards, dones, last_states = (
        torch.as_tensor(array, device=device) for array in unpack_batch(batch)
    )
    return states, actions, rewards, gamma * (1.0 - dones.float()), last_states


def _check(name: str, tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    fits = tensor.ndim == len(shape) and all(
        want in (None, size) for want, size in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} have the shape {tuple(tensor.shape)}; it has to be ({wanted})")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} are {tensor.dtype}; they have to be of a floating-point type")


class EpsilonTracker:
    """Linear decay of an epsilon-greedy selector's epsilon.

    Args:
        selector: its `epsilon` is set, at once and by every call of `frame`.
        params: epsilon_start, epsilon_final, epsilon_frames.
    """

    def __init__(self, selector: EpsilonGreedyActionSelector, params: Hyperparameters):
        self.selector = selector
        self.params = params
        self.frame(0)

    def frame(self, i: int) -> None:
        """Set epsilon to max(epsilon_final, epsilon_start - i / epsilon_frames)."""
        self.i = i
        decayed = self.params.epsilon_start - i / self.params.epsilon_frames
        self.selector.epsilon = max(self.params.epsilon_final, decayed)

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.frame(state["i"])


def batch_generator(
    buffer: ExperienceReplayBuffer | Ring,
    initial: int,
    batch_size: int,
    steps: int = 1,
    tgt_net: TargetNet | None = None,
) -> Iterator[list[ExperienceFirstLast] | Batch]:
    """Fill the replay with `initial` transitions, then forever add `steps` of them and yield a batch.

    Args:
        buffer: with PTAN's populate and sample.
        initial: agent steps; none if below 1, as on a resumed run.
        batch_size: of an iteration, all environments' share together.
        steps: agent steps between two batches: those of all environments.
        tgt_net: its two networks are normalised by the first batch's states, of a Ring, where they can be (see
            dqn_model.NormalisingTrunk) and have not been yet, as they have in a resumed run.

    Raises:
        UsageError: at once, if no batch could be drawn from so few transitions.
    """
    if isinstance(buffer, Ring | ReplayBuffer):
        buffer.require(batch_size, max(0, initial) + steps)
    return _batches(buffer, initial, batch_size, steps, tgt_net)


def _batches(
    buffer: ExperienceReplayBuffer | Ring, initial: int, batch_size: int, steps: int, tgt_net: TargetNet | None
) -> Iterator[list[ExperienceFirstLast] | Batch]:
    buffer.populate(initial)
    nets = () if tgt_net is None else (tgt_net.model, tgt_net.target_model)
    while True:
        buffer.populate(steps)
        batch = buffer.sample(batch_size)
        for net in nets:
            if isinstance(net.conv, dqn_model.NormalisingTrunk) and not net.conv.seen:
                net.conv.normalise_by(net.split(batch.for_net(net.conv.seen.device).states)[0])
        nets = ()
        yield batch
