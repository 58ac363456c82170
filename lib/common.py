"""The book's lib/common.py: hyperparameters, batches, the loss, exploration, the run's setup, and tuning."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import ptan
import torch
from ignite.engine import Engine, Events
from ptan.ignite import PeriodicEvents  # as the book's common does; otherwise ptan.ignite is the ignite package
from torch import nn

from lib.dqn_model import DQN
from lib.experience.interface import ExperienceSource, Stopped
from lib.experience.ring import Batch
from lib.hyperparameters import HYPERPARAMS, Hyperparameters, RunParameters
from lib.nets import losses
from lib.nets.masking import INVALID
from lib.run import setup
from lib.run.folder import RunFolder
from lib.system import memory

if TYPE_CHECKING:
    from ptan.experience import ExperienceFirstLast

    from lib.book import RewardsSource

GAME_PARAMS = HYPERPARAMS  # the third edition's name

# On import, because a reader's script may call nothing else before it trains.
memory.keep_freed_memory()


def __getattr__(name: str) -> Any:
    """Return one of the third edition's names, which this project's scripts do not use."""
    if name not in ("SEED", "Hyperparams", "argparser", "train_or_tune"):
        raise AttributeError(f"module 'lib.common' has no attribute {name!r}")
    from lib import book

    return getattr(book, name)


def setup_ignite(
    engine: Engine,
    params: RunParameters | SimpleNamespace,
    exp_source: "ExperienceSource | RewardsSource",
    run_name: str,
    extra_metrics: Sequence[str] = (),
    tuner_reward_episode: int = 100,
    tuner_reward_min: float = -19.0,
    **options: Any,
) -> RunFolder:
    """Attach everything that a run needs around its loop; see lib.run.setup.setup_ignite for the other arguments.

    If a new run saves DQNs that normalise their input, they are fitted to the states of its first batch.

    Args:
        exp_source: experience source, or a plain PTAN source, with which no checkpoints are saved.
        tuner_reward_episode, tuner_reward_min: when a trial of the book's search ends; see book.stop_hopeless_trial.
    """
    if not isinstance(exp_source, ExperienceSource):
        from lib.book import PtanSource

        exp_source = PtanSource(exp_source, engine)
    run = setup.setup_ignite(engine, params, exp_source, run_name, extra_metrics, **options)
    PeriodicEvents().attach(engine)
    if getattr(params, "tuner_mode", False):
        from lib.book import stop_hopeless_trial

        stop_hopeless_trial(engine, params, tuner_reward_episode, tuner_reward_min)
    nets = [net for net in (options.get("save") or {}).values() if isinstance(net, DQN) and "normalise" in net.options]
    engine.add_event_handler(Events.ITERATION_STARTED(once=1), _normalise_by_first_batch, nets)
    return run


def _normalise_by_first_batch(engine: Engine, nets: Sequence[DQN]) -> None:
    """Fit the input normalisation of networks to the states that a new run learns from first."""
    batch: Any = engine.state.batch
    for net in nets:
        net.normalise_by(on_device(batch, gamma=0.0, device=next(net.parameters()).device).states)


def unpack_batch(
    batch: Sequence["ExperienceFirstLast"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stack transitions, whose last_state is None if the episode terminated, into arrays.

    Returns:
        states (batch, ...), actions (batch,) int64, rewards (batch,) float32, dones (batch,) uint8 and last_states
        (batch, ...). A missing last state is replaced by the state, because its value is masked anyway.
    """
    return (
        np.stack([np.asarray(exp.state) for exp in batch]),
        np.array([exp.action for exp in batch], dtype=np.int64),
        np.array([exp.reward for exp in batch], dtype=np.float32),
        np.array([exp.last_state is None for exp in batch], dtype=np.uint8),
        np.stack([np.asarray(exp.state if exp.last_state is None else exp.last_state) for exp in batch]),
    )


def calc_loss_dqn(
    batch: Sequence["ExperienceFirstLast"] | Batch,
    net: nn.Module,
    tgt_net: nn.Module,
    gamma: float,
    device: torch.device | str = "cpu",
    no_grad: bool = True,
    huber: bool = False,
) -> torch.Tensor:
    """Mean squared temporal-difference error, or its Huber loss, Mnih et al. (2015), algorithm 1.

    Args:
        gamma: discount factor between a state and its last_state. Ignored for a Batch, which holds its own discounts.
        device: device of both networks.
        net, tgt_net, no_grad: see `td_errors`.
    """
    return losses.td_losses(td_errors(on_device(batch, gamma, device), net, tgt_net, no_grad), huber).mean()


def td_errors(batch: Batch, net: nn.Module, tgt_net: nn.Module, no_grad: bool = True) -> torch.Tensor:
    """Return the temporal-difference errors of transitions, (batch,).

    Args:
        batch: as `Batch.for_net` returns it.
        net, tgt_net: networks from states (batch, ...) to action values (batch, n_actions), on the batch's device. No
            gradient flows through the targets.
        no_grad: compute the targets without recording a graph, which saves time and memory.
    """
    values = losses.select_actions(net(batch.states), batch.actions)
    with torch.no_grad() if no_grad else nullcontext():
        targets = losses.td_targets(batch.returns, batch.discounts, tgt_net(batch.next_states).max(dim=1).values)
    return values - targets.detach()


def on_device(
    batch: Sequence["ExperienceFirstLast"] | Batch, gamma: float, device: torch.device | str = "cpu"
) -> Batch:
    """Return transitions in the layout of networks on a device; see `calc_loss_dqn` for the arguments."""
    if isinstance(batch, Batch):
        return batch.for_net(device)
    states, actions, rewards, dones, last_states = (
        torch.as_tensor(each, device=device) for each in unpack_batch(batch)
    )
    discounts = gamma * (1.0 - dones.float())
    return Batch(states, actions, rewards, last_states, discounts, torch.arange(0), torch.ones_like(rewards))


class EpsilonGreedyActionSelector(ptan.actions.EpsilonGreedyActionSelector):
    """ptan's epsilon-greedy selector, except that random actions are drawn from the allowed actions only."""

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Select actions, (batch,), from values, (batch, actions); invalid actions have the value INVALID."""
        actions: np.ndarray = super().__call__(scores)
        for row in np.flatnonzero(scores[np.arange(len(scores)), actions] == INVALID):
            actions[row] = np.random.choice(np.flatnonzero(scores[row] != INVALID))
        return actions


class EpsilonTracker:
    """Linear decay of an epsilon-greedy selector's epsilon, which is set at once, and by every call of `frame`."""

    def __init__(self, selector: ptan.actions.EpsilonGreedyActionSelector, params: Hyperparameters):
        self.selector, self.params = selector, params
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


@torch.no_grad()
def calc_values_of_states(states: np.ndarray, net: nn.Module, device: torch.device | str = "cpu") -> float:
    """Return the mean of the best action values of states (number, ...). `device` is that of the network."""
    parts = torch.split(torch.as_tensor(states), 128)
    return torch.cat([net(part.to(device)).max(1).values for part in parts]).mean().item()


def batch_generator(buffer: Any, initial: int, batch_size: int, steps: int = 1) -> Iterator[Any]:
    """Fill the replay buffer, then alternate between adding steps and yielding a batch until the source ends.

    Args:
        buffer: one of PTAN's replay buffers, or a Ring.
        initial: agent steps to fill the buffer with. A resumed run adds only those that its buffer lacks.
        steps: agent steps between two batches, over all environments.
    """
    with suppress(Stopped, StopIteration):
        buffer.populate(max(0, initial - len(buffer)))
        while True:
            buffer.populate(steps)
            yield buffer.sample(batch_size)
