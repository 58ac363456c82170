"""A player: a process that plays blocks of transitions on order, and the learner's handle of it."""

import ctypes
import os
import pickle
import signal
import sys
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

from lib import console, packing
from lib.atari_wrappers import FrameStack
from lib.checkpoint import seed_everything
from lib.errors import Fault, UsageError
from lib.experience import ExperienceSourceFirstLast, pack_place
from lib.shared import BlockChannel, SharedWeights, spawn
from lib.stopping import SIGNALS

PR_SET_PDEATHSIG = 1  # prctl(2)
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
        self._steps = spawn.RawValue("q", 0)
        self._moved: Any = None
        self._ready = False
        self._owed = 0
        self._steps_seen = 0  # when it was looked at last
        self._silence = 0.0  # seconds since they were fewer

    @property
    def steps(self) -> int:
        return self._steps.value

    def start(self) -> None:
        """Start the process; its environments are brought to where `slots` say that they stand.

        Raises:
            UsageError: an environment cannot be sent to another process.
        """
        try:
            moved = cloudpickle.dumps((self._source, self.state_dict()))
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise UsageError(
                f"{self._source.pool[0]} cannot be sent to another process: {error}. Play it without players, or "
                "have it make at its first reset what cannot be sent"
            ) from error
        self.link, far_end = spawn.Pipe()
        # In shared memory, as a process that dies while it starts would leave us writing to its pipe for ever.
        self._moved = spawn.RawArray("c", moved)  # and held until it has been read
        arguments = (far_end, self._moved, self.number, self._weights, self._channel, self._rounds, self._steps)
        self.process = spawn.Process(target=play, args=arguments, name=f"player-{self.number}")
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
            while True:  # until it comes to what the player has said of its end, or to the end itself
                self.hear()
        self._owed += 1

    def hear(self) -> None:
        """Take what the player has said, or wait for it.

        Raises:
            PlayerLost: the player said that it failed, or it is dead.
        """
        try:
            said = self.link.recv()
        except (EOFError, OSError):
            self._lost()
        if isinstance(said, str):
            raise PlayerLost(f"{self} failed: {said}")
        self._steps_seen, self._silence = self.steps, 0.0  # whatever it says is a sign of life
        if isinstance(said, Report):
            self._owed -= 1
            self.reports.append(said)
        else:
            self._ready = True
            self._moved = None
            self.load_state_dict({"slots": pickle.loads(said)})  # a source that does not repeat itself stands elsewhere

    def look(self, elapsed: float) -> None:
        """See whether the player lives.

        Args:
            elapsed: seconds since it was looked at last.

        Raises:
            PlayerLost: it owes a block and has made no step for PATIENCE seconds. It is killed.
        """
        working = self._owed > 0 or not self._ready
        self._silence = self._silence + elapsed if working and self.steps == self._steps_seen else 0.0
        self._steps_seen = self.steps
        if self._silence >= (PATIENCE if self._ready else STARTING):
            self.process.kill()
            raise PlayerLost(f"{self} is stuck: it has not made a step for {self._silence:.0f} seconds, and was killed")

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
        slots = [pack_place(**slot) for slot in self.slots]
        return {"steps_done": 0, "slots": slots, "ready": packing.pack(()), "episodes": []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` or the player's own source said; to be called before `start`."""
        for slot, saved in zip(self.slots, state["slots"], strict=True):
            screen = None if saved["state"] is None else saved["state"].numpy()
            slot |= {"episode": saved["episode"], "actions": saved["actions"].tolist(), "state": screen}

    def end(self, patience: float = 1.0) -> None:
        """Let the process end, or kill it."""
        if self.process is not None and self.process.is_alive():
            self.link.close()
            self.process.join(patience)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None and self.process.is_alive():
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
    moved: Any,
    number: int,
    weights: SharedWeights,
    channel: BlockChannel,
    rounds: int,
    counter: Any,
) -> None:
    """The player's process: play what is ordered until the learner is gone.

    Args:
        link: to the learner. Orders come in; where the environments stand once they are ready, then reports, and a last
            complaint go out.
        moved: an experience source and where its environments stand, pickled, in shared memory.
        number: the player's.
        weights: from where every order's version of the network is read.
        channel: where the blocks go.
        rounds: steps of each environment in a block.
        counter: a shared number, raised with every step as a sign of life.
    """
    _end_with_parent()
    console.start_console()
    torch.set_num_threads(1)  # the cores are the learner's

    def step() -> None:
        counter.value += 1

    try:
        source, state = cloudpickle.loads(moved.raw)
        source.load_state_dict(state)
        source.on_step = step
        transitions = iter(source)
        _tell(link, pickle.dumps(source.state_dict()["slots"]))
        while True:
            order = _hear(link)
            start, before = time.perf_counter(), source.steps_done
            names = source.agent.model.state_dict()
            source.agent.model.load_state_dict(dict(zip(names, weights.read(order.version), strict=True)))
            vars(source.agent.action_selector).update(order.selector)
            seed_everything(block_seed(source.seed, number, order.block))
            channel.put([next(transitions) for _ in range(rounds * len(source.pool))])
            ends = {end.step - before - 1: (end.total, end.length) for end in source.pop_episodes()}
            _tell(link, Report(ends, time.perf_counter() - start))
    except _LearnerGone:
        return
    except BaseException as error:
        _tell(link, f"{type(error).__name__}: {error}")
        raise


def block_seed(seed: int, player: int, block: int) -> int:
    """The seed of the random numbers that a player draws in a block: 32 bits hashed from all three."""
    return int(np.random.SeedSequence((seed, player, block, 1)).generate_state(1)[0])


class _LearnerGone(BaseException):
    """The learner has ended, or wants no more blocks."""


def _hear(link: Any) -> Any:
    try:
        return link.recv()
    except (EOFError, OSError) as error:
        raise _LearnerGone from error


def _tell(link: Any, what: Any) -> None:
    try:
        link.send(what)
    except OSError as error:
        raise _LearnerGone from error


def _end_with_parent() -> None:
    """End this process when its parent ends, however that ends, and even where an environment hangs."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":  # where the system does it, even to a process that is stopped
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started meanwhile never hears the terminal's signals: the learner does, and ends it in good order."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is started with the process, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
