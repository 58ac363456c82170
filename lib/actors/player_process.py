"""A player as it runs: a process that plays blocks of transitions on order, until the learner is gone."""

import pickle
import time
from typing import Any, NamedTuple

import cloudpickle
import torch

from lib.actors.shared import BlockChannel
from lib.system.console_log import start_console
from lib.system.parent import ParentGone, end_with_learner, receive, send
from lib.system.seeds import hashed_seed, seed_everything
from lib.system.shared_memory import SharedWeights


class Order(NamedTuple):
    """Play block number `block` with the weights `version` and these plain values of the action selector."""

    block: int
    version: int
    selector: dict[str, float]


class Report(NamedTuple):
    """A block is in the channel.

    Attributes:
        ends: by the place of the transition in the block that ended an episode: (return, length).
        seconds: that the player was busy with the block.
    """

    ends: dict[int, tuple[float, int]]
    seconds: float


def play(
    link: Any,
    moved: Any,
    number: int,
    weights: SharedWeights,
    channel: BlockChannel,
    rounds: int,
    counter: Any,
) -> None:
    """Play what is ordered until the learner is gone.

    Args:
        link: to the learner. Orders come in; out go None as the first sign of life, where the environments stand once
            they are ready, then reports, and a last complaint.
        moved: an experience source and where its environments stand, pickled, in shared memory.
        number: the player's.
        weights: from where every order's version of the network is read.
        channel: where the blocks go.
        rounds: steps of each environment in a block.
        counter: a shared number, raised with every step as a sign of life.
    """
    end_with_learner()
    start_console()
    torch.set_num_threads(1)  # the cores are the learner's

    def step(steps: int) -> None:
        counter.value += steps

    try:
        send(link, None)
        source, state = cloudpickle.loads(moved.raw)
        source.on_step = step
        source.load_state_dict(state)
        transitions = iter(source)
        send(link, pickle.dumps(source.state_dict()["slots"]))
        while True:
            order = receive(link)
            start, before = time.perf_counter(), source.steps_done
            names = source.agent.model.state_dict()
            source.agent.model.load_state_dict(dict(zip(names, weights.read(order.version), strict=True)))
            vars(source.agent.action_selector).update(order.selector)
            seed_everything(block_seed(source.seed, number, order.block))
            channel.put([next(transitions) for _ in range(rounds * len(source.pool))])
            ends = {end.step - before - 1: (end.total, end.length) for end in source.pop_episodes()}
            send(link, Report(ends, time.perf_counter() - start))
    except ParentGone:
        return
    except BaseException as error:
        send(link, f"{type(error).__name__}: {error}")
        raise


def block_seed(seed: int, player: int, block: int) -> int:
    """The seed of the random numbers that a player draws in a block: 32 bits hashed from all three."""
    return hashed_seed(seed, player, block, 1)
