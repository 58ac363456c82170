"""Acting in other processes: players make transitions ahead of the learner, and neither ever outruns the other.

Time is cut into cycles. In cycle k the learner learns from block k of every player, while the players make the
blocks to come. Block k is played with the weights that the learner had when cycle k - ahead began:

    learner   publishes weights k, orders block k + ahead, takes block k, learns from it, goes on to k + 1
    player    waits for an order, copies the weights that it names, plays one block, reports it, waits

So the learner waits where a player is slow, a player waits where the learner is slow, and both sleep while they do.
How many transitions are learnt from for each one made is decided by the learner alone, as it is without players. What
is played never depends on who was faster: a run can be repeated, stopped and resumed bit for bit.
"""

import atexit
import copy
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from multiprocessing import connection
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.actors.player import Player
from lib.actors.player_process import Order, Report
from lib.errors import UsageError
from lib.experience.episodes import Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.experience.source import ExperienceSourceFirstLast
from lib.system.clock import Stopwatch, since_process_start
from lib.system.processes import start_server
from lib.system.shared_memory import SharedWeights


class Players(ExperienceSource):
    """An experience source that is played in other processes; the learner reads it as it would read the source.

    Args:
        source: an unused one. Its environments are dealt out to the players and keep their seeds; its agent needs
            a `model`, of which each player has a copy, on the CPU.
        players: how many processes.
        ahead: how many blocks a player may be ahead of the learner.
        rounds: steps of each environment in a block.

    Attributes:
        steps_done: agent steps that the learner has taken so far.
        clock: seconds that the learner has spent in "wait".
        on_step: called after every agent step taken; None for nothing.

    Raises:
        UsageError: there are more players than environments.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "player_fps", "learner_fps")

    def __init__(self, source: ExperienceSourceFirstLast, players: int = 1, ahead: int = 2, rounds: int = 8):
        if players > len(source.pool):
            raise UsageError(f"{players} players need an environment each, and there are {len(source.pool)}")
        start_server()
        self.pool = source.pool
        self.frame_skip = source.frame_skip
        self.agent = source.agent
        self.steps_done = 0
        self.clock = Stopwatch()
        self._ahead = ahead
        self._weights = SharedWeights(self._tensors(), ahead + 1)
        self._policies: dict[int, dict[str, Any]] = {}  # by version: the selector's values, and the steps done by then
        self._cycle = 0
        self._place = 0  # in the cycle: how many of its transitions the learner has taken
        self._blocks: list[tuple[list[ExperienceFirstLast], Report]] = []
        self._episodes: list[Episode] = []
        self._looked = time.monotonic()
        self._made = 0  # agent steps of all players, and the seconds that these took
        self._busy = 0.0
        self._marks = (0, since_process_start(), 0.0, 0, 0.0)
        self.players = []
        for number, indices in enumerate(np.array_split(np.arange(len(self.pool)), players)):
            pool = [self.pool[index] for index in indices]
            agent = _on_cpu(self.agent)
            part = ExperienceSourceFirstLast(pool, agent, source.gamma, source.seed, first_env=int(indices[0]))
            self.players.append(Player(number, part, self._weights, rounds))
        atexit.register(self.close)

    def close(self) -> None:
        """End the players; at the end of the learner's process this happens by itself."""
        atexit.unregister(self.close)
        try:
            for player in self.players:
                player.end()
        finally:  # a second Ctrl-C comes here
            for player in self.players:
                player.kill()

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Start the players.

        Raises:
            RuntimeError: they have been started before.
        """
        if any(player.process for player in self.players):
            raise RuntimeError("the players are playing already; keep the iterator that they were started with")
        for player in self.players:
            player.start()
        self._publish()
        self._order(range(self._cycle, self._cycle + self._ahead + 1))
        while True:
            with self.clock("wait"):
                self._wait()
            self._blocks = [self._take(player) for player in self.players]
            yield from self._transitions()
            for player, block in zip(self.players, self._blocks, strict=True):
                player.played(*block)
            self._cycle += 1
            self._place = 0
            self._publish()
            self._order([self._cycle + self._ahead])

    def _transitions(self) -> Iterator[ExperienceFirstLast]:
        """The cycle's transitions, less those that a resumed run has taken before."""
        turns = []
        for player, (transitions, report) in zip(self.players, self._blocks, strict=True):
            agains = player.agains(transitions, report)
            turns += [
                (transition, report.ends.get(index), agains.get(index)) for index, transition in enumerate(transitions)
            ]
        for transition, end, again in turns[self._place :]:
            if time.monotonic() > self._looked + 1.0:
                self._look(0.0)  # it may raise, so nothing has been counted before it
            self._place += 1
            self.steps_done += 1
            if end is not None:
                self._episodes.append(Episode(*end, self.steps_done, since_process_start(), again))
            if self.on_step is not None:
                self.on_step(1)
            yield transition

    def _publish(self) -> None:
        """Publish the weights that this cycle begins with; a resumed run has done so before."""
        if self._cycle in self._policies:
            return
        self._weights.publish(self._cycle, self._tensors())
        self._policies[self._cycle] = {"selector": _plain(self.agent.action_selector), "steps": self.steps_done}
        self._policies.pop(self._cycle - self._ahead - 1, None)

    def _order(self, blocks: Iterable[int]) -> None:
        for block, player in itertools.product(blocks, self.players):
            version = self._version(block)
            player.order(Order(block, version, self._policies[version]["selector"]))

    def _version(self, block: int) -> int:
        """The weights that a block is played with."""
        return max(0, block - self._ahead)

    def _wait(self) -> None:
        """Until every player has a block to take."""
        while not all(player.reports for player in self.players):
            self._look(1.0)

    def _take(self, player: Player) -> tuple[list[ExperienceFirstLast], Report]:
        transitions, report = player.take()
        self._made += len(transitions)
        self._busy += report.seconds
        return transitions, report

    def _look(self, patience: float) -> None:
        """Hear what players say, waiting for that if need be, and see to it that they live."""
        ends = {end: player for player in self.players for end in (player.link, player.process.sentinel)}
        for player in {ends[end] for end in connection.wait(list(ends), patience)}:
            player.hear()
        elapsed = time.monotonic() - self._looked
        if elapsed > 1.0:
            self._looked += elapsed
            for player in self.players:
                player.look(min(elapsed, 2.0))  # more has passed where this process was stopped, or busy saving

    def metrics(self) -> dict[str, float]:
        """What there is to log since the last call.

        Returns:
            policy_lag: agent steps that the learner has taken since it had the weights that chose the newest action;
            player_fps, learner_fps: agent steps a second that the players and the learner would make if they never
            had to wait.
        """
        now = (self.steps_done, since_process_start(), self.clock.seconds["wait"], self._made, self._busy)
        steps, seconds, waited, played, busy = (new - old for new, old in zip(now, self._marks, strict=True))
        self._marks = now
        return {
            "policy_lag": self.steps_done - self._policies[self._version(self._cycle)]["steps"],
            "player_fps": len(self.players) * played / busy if busy else math.nan,
            "learner_fps": steps / (seconds - waited) if seconds > waited else math.nan,
        }

    def pop_episodes(self) -> list[Episode]:
        """The episodes whose last transition was taken since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Where the cycle began and how much of it was taken; what is ahead of that will be played again.

        So it can be had at any time, of players that are dead as well.
        """
        versions = self._weights.versions
        return {
            "steps_done": self.steps_done,
            "cycle": self._cycle,
            "place": self._place,
            "players": [player.state_dict() for player in self.players],
            "policies": dict(self._policies),
            "episodes": pack_episodes(self._episodes),
            "weights": {version: [weights.clone() for weights in self._weights.read(version)] for version in versions},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called before the first transition is taken."""
        self.steps_done = state["steps_done"]
        self._cycle = state["cycle"]
        self._place = state["place"]
        self._policies = state["policies"]
        self._episodes = unpack_episodes(state["episodes"])
        for version, weights in state["weights"].items():
            self._weights.publish(version, weights)
        for player, saved in zip(self.players, state["players"], strict=True):
            player.load_state_dict(saved)

    def _tensors(self) -> list[torch.Tensor]:
        return list(self.agent.model.state_dict().values())


def _plain(selector: Any) -> dict[str, float]:
    """An action selector's numbers, such as epsilon; all that a player has to be told of it."""
    return {name: value for name, value in vars(selector).items() if isinstance(value, int | float)}


def _on_cpu(agent: Any) -> Any:
    agent = copy.copy(agent)
    agent.model = copy.deepcopy(agent.model).cpu()
    agent.device = torch.device("cpu")
    return agent
