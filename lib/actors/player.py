"""A player as the learner has it: the handle of a process that plays blocks of transitions on order."""

import pickle
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ptan.experience import ExperienceFirstLast

from lib.actors.player_process import Order, Report, play
from lib.actors.shared import BlockChannel
from lib.envs.frames import FrameStack
from lib.experience import packing
from lib.experience.episodes import Again, pack_place
from lib.experience.source import ExperienceSourceFirstLast
from lib.system.processes import IMPORTING, Child, ChildLost, context, to_shared_memory
from lib.system.seeds import episode_seed
from lib.system.shared_memory import SharedWeights

PATIENCE = 8  # seconds without a step after which a player that owes a block is stuck


STARTING = PATIENCE if context.get_start_method() == "forkserver" else IMPORTING  # to its first sign of life


class Player(Child):
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
        super().__init__(f"player {number}")
        env, envs = source.pool[0], len(source.pool)
        self.number = number
        self.slots: list[dict[str, Any]] = [{"episode": 0, "actions": [], "state": None} for _ in range(envs)]
        self.reports: deque[Report] = deque()
        self._source = source
        self._weights = weights
        self._rounds = rounds
        self._channel = BlockChannel(
            weights.size, rounds * envs, env.observation_space, isinstance(env, FrameStack), envs
        )
        self._steps = context.RawValue("q", 0)
        self._moved: Any = None
        self._awake = False  # it has imported what it needs
        self._ready = False  # and brought its environments to their place
        self._owed = 0
        self._steps_seen = 0  # when it was looked at last
        self._silence = 0.0  # seconds since the last step

    @property
    def steps(self) -> int:
        return self._steps.value

    def start(self) -> None:
        """Start the process; its environments are brought to where `slots` say that they stand.

        Raises:
            UsageError: an environment cannot be sent to another process.
        """
        instead = "Play it without players, or have it make at its first reset what cannot be sent"
        self._moved = to_shared_memory((self._source, self.state_dict()), str(self._source.pool[0]), instead)
        self.launch(play, self._moved, self.number, self._weights, self._channel, self._rounds, self._steps)

    def order(self, order: Order) -> None:
        """Ask for a block.

        Raises:
            ChildLost: the player is dead.
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
            ChildLost: the player said that it failed, or it is dead.
        """
        try:
            said = self.link.recv()
        except (EOFError, OSError):
            raise ChildLost(self.fate()) from None
        if isinstance(said, str):
            raise ChildLost(f"{self} failed: {said}")
        self._steps_seen, self._silence = self.steps, 0.0  # whatever it says is a sign of life
        if said is None:
            self._awake = True
        elif isinstance(said, Report):
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
            ChildLost: it owes a block, or its first sign of being ready, and has made no step for PATIENCE seconds, or
                has not begun for STARTING seconds. It is killed.
        """
        working = self._owed > 0 or not self._ready
        self._silence = self._silence + elapsed if working and self.steps == self._steps_seen else 0.0
        self._steps_seen = self.steps
        if self._silence >= (PATIENCE if self._awake else STARTING):
            self.kill()
            raise ChildLost(f"{self} is stuck: it has not made a step for {self._silence:.0f} seconds, and was killed")

    def take(self) -> tuple[list[ExperienceFirstLast], Report]:
        """The oldest block that was reported."""
        return self._channel.get(), self.reports.popleft()

    def agains(self, transitions: list[ExperienceFirstLast], report: Report) -> dict[int, Callable[[], Again]]:
        """How the episodes that ended in a block are played again, by the place of their last transition in it.

        To be asked before `played`.
        """
        found: dict[int, Callable[[], Again]] = {}
        for index, slot in enumerate(self.slots):
            actions, begins = slot["actions"], index
            for number, end in enumerate(sorted(end for end in report.ends if end % len(self.slots) == index)):
                own = [transition.action for transition in transitions[begins : end + 1 : len(self.slots)]]
                seed = episode_seed(self._source.seed, self._source.first_env + index, slot["episode"] + number)
                found[end] = partial(Again, seed, actions + own, transitions[end].state)
                actions, begins = [], end + len(self.slots)
        return found

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
