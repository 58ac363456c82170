"""A player: a process that plays blocks of transitions on order, and the learner's handle of it."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from typing import Any, NamedTuple, NoReturn

import cloudpickle
import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib import packing
from lib.atari_wrappers import FrameStack
from lib.checkpoint import seed_everything
from lib.errors import Fault
from lib.experience import ExperienceSourceFirstLast
from lib.shared import BlockChannel, SharedWeights, processes
from lib.stopping import SIGNALS

PATIENCE = 8  # seconds without a step after which a player that owes a block is stuck
STARTING = 120  # seconds that a player has to import, build its environments and bring them back to their place


class PlayerLost(Fault):
    """A player died, failed or is stuck; the message names it."""


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


class Player:
    """What the learner has of one player: its process, its channel, and where its environments stand.

    Args:
        number: counted from 0.
        source: an unused experience source with the player's environments, whose agent is on the CPU.
        weights: where the network's weights will be published.
        rounds: steps of each environment in a block.

    Attributes:
        slots: each environment's episode, its actions so far and its state, at the end of the last block learnt from.
        reports: of the blocks that are in the channel, oldest first.
        steps: agent steps made so far by this process.
    """

    def __init__(self, number: int, source: ExperienceSourceFirstLast, weights: SharedWeights, rounds: int):
        env, envs = source.pool[0], len(source.pool)
        self.number = number
        self.slots: list[dict[str, Any]] = [{"episode": 0, "actions": [], "state": None} for _ in range(envs)]
        self.reports: deque[Report] = deque()
        self.process: Any = None
        self.link: Any = None
        self._source = source
        self._weights = weights
        self._rounds = rounds
        self._channel = BlockChannel(
            weights.size, rounds * envs, env.observation_space, isinstance(env, FrameStack), envs
        )
        self._steps = processes.RawValue("q", 0)
        self._ready = False
        self._owed = 0
        self._seen = (0, 0)  # steps when looked at last, and for how many seconds they have been the same

    @property
    def steps(self) -> int:
        return self._steps.value

    def start(self) -> None:
        """Start the process; its environments are brought to where `slots` say that they stand."""
        moved = cloudpickle.dumps((self._source, self.state_dict()))
        self.link, far_end = processes.Pipe()
        arguments = (far_end, moved, self.number, self._weights, self._channel, self._rounds, self._steps)
        self.process = processes.Process(target=play, args=arguments, name=f"player-{self.number}")
        with _signals_blocked():
            self.process.start()
        far_end.close()

    def order(self, order: Order) -> None:
        """Ask for a block.

        Raises:
            PlayerLost: the player is dead.
        """
        try:
            self.link.send(order)
        except OSError:
            self._lost()
        self._owed += 1

    def receive(self) -> None:
        """Take one message from the link, where there is one.

        Raises:
            PlayerLost: the player said that it failed, or it is dead.
        """
        try:
            said = self.link.recv()
        except (EOFError, OSError):
            self._lost()
        if isinstance(said, str):
            raise PlayerLost(f"{self} failed: {said}")
        self._seen = (self.steps, 0)  # whatever it says is a sign of life
        self._ready = True
        if said is not None:
            self._owed -= 1
            self.reports.append(said)

    def look(self) -> None:
        """To be called about once a second.

        Raises:
            PlayerLost: the player owes a block and has made no step for PATIENCE seconds. It is killed.
        """
        steps, seconds = self._seen
        working = self._owed > 0 or not self._ready
        self._seen = (self.steps, seconds + 1 if working and self.steps == steps else 0)
        if self._seen[1] >= (PATIENCE if self._ready else STARTING):
            self.process.kill()
            raise PlayerLost(f"{self} is stuck: it has not made a step for {self._seen[1]} seconds, and was killed")

    def take(self) -> tuple[list[ExperienceFirstLast], Report]:
        """The oldest block that was reported."""
        return self._channel.get(), self.reports.popleft()

    def played(self, transitions: list[ExperienceFirstLast], report: Report) -> None:
        """Bring `slots` forward over a block."""
        for place, transition in enumerate(transitions):
            slot = self.slots[place % len(self.slots)]
            slot["actions"].append(transition.action)
            slot["state"] = transition.last_state
            if place in report.ends:
                slot |= {"episode": slot["episode"] + 1, "actions": [], "state": None}

    def state_dict(self) -> dict[str, Any]:
        """What brings an experience source back to the end of the last block taken."""
        slots = [
            {
                "episode": slot["episode"],
                "actions": torch.tensor(slot["actions"], dtype=torch.int64),
                "state": None if slot["state"] is None else torch.from_numpy(np.array(slot["state"])),
            }
            for slot in self.slots
        ]
        return {"steps_done": 0, "slots": slots, "ready": packing.pack(())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called before `start`."""
        for slot, saved in zip(self.slots, state["slots"], strict=True):
            screen = None if saved["state"] is None else saved["state"].numpy()
            slot |= {"episode": saved["episode"], "actions": saved["actions"].tolist(), "state": screen}

    def end(self, patience: float = 1.0) -> None:
        """Let the process end, or kill it."""
        if self.process is not None and self.process.is_alive():
            self.link.close()
            self.process.join(patience)
            self.process.kill()
            self.process.join()

    def _lost(self) -> NoReturn:
        self.process.join(timeout=1)
        code = self.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"died with exit code {code}"
        raise PlayerLost(f"{self} {how}")

    def __str__(self) -> str:
        return f"player {self.number} (process {self.process.pid})"


def play(
    link: Any,
    moved: bytes,
    number: int,
    weights: SharedWeights,
    channel: BlockChannel,
    rounds: int,
    counter: Any,
) -> None:
    """The player's process: play what is ordered until the learner is gone.

    Args:
        link: to the learner. Orders come in; None for being ready, reports and a last complaint go out.
        moved: an experience source and where its environments stand, pickled.
        number: the player's.
        weights: from where every order's version of the network is read.
        channel: where the blocks go.
        rounds: steps of each environment in a block.
        counter: a shared number, raised with every step as a sign of life.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # the cores are the learner's

    def step() -> None:
        counter.value += 1

    try:
        source, state = cloudpickle.loads(moved)
        source.load_state_dict(state)
        source.on_step = step
        transitions = iter(source)
        link.send(None)
        while True:
            order = link.recv()
            start, before = time.perf_counter(), source.steps_done
            names = source.agent.model.state_dict()
            source.agent.model.load_state_dict(dict(zip(names, weights.read(order.version), strict=True)))
            vars(source.agent.action_selector).update(order.selector)
            seed_everything(block_seed(source.seed, number, order.block))
            channel.put([next(transitions) for _ in range(rounds * len(source.pool))])
            ends = {end.step - before - 1: (end.total, end.length) for end in source.pop_episodes()}
            link.send(Report(ends, time.perf_counter() - start))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the learner is gone, or wants no more
    except BaseException as error:
        link.send(f"{type(error).__name__}: {error}")
        raise


def block_seed(seed: int, player: int, block: int) -> int:
    """The seed of the random numbers that a player draws in a block: 32 bits hashed from all three."""
    return int(np.random.SeedSequence((seed, player, block, 1)).generate_state(1)[0])


def _end_with_parent() -> None:
    """Even where an environment hangs, and however the parent ended."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started meanwhile never hears the terminal's signals: the learner does, and ends it in good order."""
    resource_tracker.ensure_running()  # else it is started with the process, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
