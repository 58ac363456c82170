"""The experience source of chapter 9's parallel scripts: players collect transitions ahead of the learner.

Time is divided into cycles. In cycle k the learner learns from block k of every player, while the players play the next
blocks. Block k is played with the weights that the learner had at the start of cycle k - ahead:

    learner   orders block k + ahead with its weights, takes block k, learns from it, goes on to cycle k + 1
    player    plays the oldest block that is ordered, sends it, waits if nothing is ordered

The learner waits for a slow player, and a player waits for a slow learner. A waiting process sleeps. As in a run
without players, the learner alone determines the replay ratio. The transitions do not depend on timing, so a run can be
repeated, stopped and resumed bit for bit. If a player is lost, cycles go on without it until it is back.
"""

import copy
import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.actors.fleet import Fleet
from lib.actors.player import Block, Player, weights_of
from lib.actors.worker import Weights
from lib.errors import UsageError, counted
from lib.experience.episodes import Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource, Stopped
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import FrameStep
from lib.experience.transitions import Transitions, pack, unpack
from lib.system.clock import Stopwatch, since_process_start
from lib.system.machine import cores, torch_threads


class _Arrived(NamedTuple):
    """A block that has arrived: its transitions, and the episodes that ended, by the index of their last transition."""

    transitions: list[ExperienceFirstLast]
    episodes: dict[int, Episode]


class Players(ExperienceSource):
    """Experience source whose environments are stepped by players. It replaces the original source.

    Args:
        source: unused experience source. Its environments are divided among the players and keep their seeds. Its
            agent has a `model`, which is copied to the CPU for each player.
        players: number of players.
        engine: one of actors.fleet.ENGINES.
        patience: seconds to wait for a block before the player is started again.
        address: address of a Ray cluster, or None.
        ahead: number of blocks that a player may be ahead of the learner.
        rounds: steps of each environment in a block.
        batch_size: transitions in an update of the learner, or None if unknown. While the players run, a learner with
            small updates, of fewer than SMALL_UPDATE transitions, leaves a core to each of them.

    Attributes:
        pool: the environments.
        steps_done: agent steps that the learner has taken.
        clock: seconds that the learner has spent in "wait".
        on_step: function that is called with 1 for every agent step that the learner takes.
        fleet: the players; None until the first transition is requested.

    Raises:
        UsageError: if there are more players than environments.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "player_fps", "learner_fps")
    SMALL_UPDATE = 64  # below, another torch thread gains less than it loses while a player uses its core

    def __init__(
        self,
        source: ExperienceSourceFirstLast,
        players: int = 1,
        engine: str = "process",
        patience: float = 60.0,
        address: str | None = None,
        ahead: int = 2,
        rounds: int = 8,
        batch_size: int | None = None,
    ):
        if players > len(source.pool):
            raise UsageError(
                f"each of {players} players needs an environment, but the source has only {len(source.pool)}; "
                "use fewer players"
            )
        self.pool = source.pool
        self.frame_skip = source.frame_skip
        self.agent = source.agent
        self.steps_done = 0
        self.clock = Stopwatch()
        self.fleet: Fleet | None = None
        self._engine = engine
        self._patience = patience
        self._address = address
        self._ahead = ahead
        self._rounds = rounds
        self._leaves_cores = batch_size is not None and batch_size < self.SMALL_UPDATE
        self._while_playing = ExitStack()
        self._parts = _parts(source, players)
        self._states: list[Any] = [None] * players
        self._transitions: list[Transitions | None] = [None] * players  # what makes them of blocks
        self._blocks: list[deque[_Arrived]] = [deque() for _ in range(players)]  # the cycle's block is the first
        self._weights: Weights  # with which blocks are ordered in this cycle
        self._steps_at = {0: 0}  # value of steps_done at the start of a cycle, by its number
        self._cycle = 0
        self._place = 0  # number of the cycle's transitions that the learner has taken
        self._episodes: list[Episode] = []
        self._iterating = False
        self._played = 0  # agent steps of all players since the start
        self._busy = 0.0  # seconds that the players took for these steps, added up
        self._marks = (0, since_process_start(), 0.0, 0, 0.0)  # values at the last call of `metrics`

    def start(self) -> None:
        """Start the players.

        Raises:
            UsageError: see Fleet.
        """
        if self.fleet is None:
            self.fleet = Fleet(
                self._engine,
                [partial(Player, part, self._rounds, self.traces) for part in self._parts],
                self._states,
                patience=self._patience,
                stop_asked=lambda: self.stop_asked(),
                name_of=self._name_of,
                address=self._address,
            )
            if self._leaves_cores:
                threads = max(1, min(torch.get_num_threads(), cores() - len(self._parts)))
                self._while_playing.enter_context(torch_threads(threads))

    def close(self) -> None:
        """End the players."""
        if self.fleet is not None:
            self.fleet.close()
            self._while_playing.close()

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Start the players, and yield transitions forever.

        Raises:
            RuntimeError: if this is not the first iterator.
            Stopped: if the run was asked to stop and no block comes.
        """
        if self._iterating:
            raise RuntimeError("the players have an iterator already; use it, or, after an error, resume the run")
        self._iterating = True
        self.start()
        assert self.fleet is not None
        with self.clock("wait"):
            while self.fleet.expected():  # a resumed player needs the weights of each cycle
                self._take()
        if not self._place:
            self._begin_cycle()
        while True:
            if not self._place:  # a resumed cycle has its blocks
                with self.clock("wait"):
                    self._wait()
            yield from self._taken()
            for blocks in self._blocks:
                if blocks:
                    blocks.popleft()
            self._cycle += 1
            self._place = 0
            self._begin_cycle()

    def _begin_cycle(self) -> None:
        """Keep the weights of this moment, and order the next blocks with them."""
        self._weights = weights_of(self.agent, self._cycle)
        self._steps_at[self._cycle] = self.steps_done
        for version in [version for version in self._steps_at if version < self._cycle - self._ahead]:
            del self._steps_at[version]
        self._order()

    def _order(self) -> None:
        """Order blocks from each player until it is `ahead` blocks ahead of the cycle's."""
        assert self.fleet is not None
        for index, record in enumerate(self.fleet.records):
            while record.ready and record.orders + len(self._blocks[index]) <= self._ahead:
                self.fleet.order(index, self._weights)

    def _wait(self) -> None:
        """Wait until the cycle's block of every player has arrived, except those of lost players."""
        assert self.fleet is not None
        pairs = list(zip(self.fleet.records, self._blocks, strict=True))
        while not any(self._blocks) or any(record.ready and not blocks for record, blocks in pairs):
            self._take()
            self._order()

    def _take(self) -> None:
        """Convert the blocks that arrive next to transitions."""
        assert self.fleet is not None
        for index, block in self.fleet.take():
            self._add(index, block)
            self._played += block.steps
            self._busy += block.seconds

    def _add(self, index: int, block: Block) -> None:
        if block.began is not None:
            self._transitions[index] = Transitions(block.began, self._parts[index].stacked)
        transitions = self._transitions[index]
        assert transitions is not None
        steps = map(FrameStep, *block.step)
        self._blocks[index].append(_Arrived([each for step in steps for each in transitions.add(step)], block.episodes))

    def _name_of(self, index: int) -> str:
        source = self._parts[index]
        envs = source.env_range.indices
        return f"player {index} ({counted('environment', envs[0], envs[-1])}, seed {source.seed})"

    def _taken(self) -> Iterator[ExperienceFirstLast]:
        """Yield the cycle's transitions, except those that the learner took before a resume."""
        content = [
            (transition, blocks[0].episodes.get(place))
            for blocks in self._blocks
            if blocks
            for place, transition in enumerate(blocks[0].transitions)
        ]
        for transition, episode in content[self._place :]:
            self._place += 1
            self.steps_done += 1
            if episode is not None:
                self._episodes.append(episode._replace(step=self.steps_done, clock=since_process_start()))
            self.on_step(1)
            yield transition

    def metrics(self) -> dict[str, float]:
        """Return policy_lag, player_fps and learner_fps since the last call.

        policy_lag: agent steps by which the weights that chose the newest action are behind the learner's.
        player_fps, learner_fps: agent steps per second that the players and the learner would make without waiting.
        """
        now = (self.steps_done, since_process_start(), self.clock.seconds["wait"], self._played, self._busy)
        steps, seconds, waited, played, busy = (new - old for new, old in zip(now, self._marks, strict=True))
        self._marks = now
        at_once = 1 if self._engine == "inline" else len(self._parts)
        return {
            "policy_lag": self.steps_done - self._steps_at[max(0, self._cycle - self._ahead)],
            "player_fps": at_once * played / busy if busy else math.nan,
            "learner_fps": steps / (seconds - waited) if seconds > waited else math.nan,
        }

    def report(self, folder: Path) -> dict[str, Any]:
        return {} if self.fleet is None else self.fleet.report(folder)

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes whose last transition was taken since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Wait for all blocks that are ordered. Return them, the state of each player, and the counters."""
        if self.fleet is not None and self._iterating:
            with suppress(Stopped):
                while self.fleet.open_orders:
                    self._take()
            self._states = self.fleet.states()
        return {
            "steps_done": self.steps_done,
            "cycle": self._cycle,
            "place": self._place,
            "steps_at": dict(self._steps_at),
            "players": self._states,
            "blocks": [_pack(blocks) for blocks in self._blocks],
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. Call this before the first transition is requested."""
        self.steps_done = state["steps_done"]
        self._cycle = state["cycle"]
        self._place = state["place"]
        self._steps_at = dict(state["steps_at"])
        self._states = list(state["players"])
        self._blocks = [_unpack(packed) for packed in state["blocks"]]
        self._episodes = unpack_episodes(state["episodes"])


def _pack(blocks: deque[_Arrived]) -> dict[str, Any]:
    return {
        "transitions": pack(transition for block in blocks for transition in block.transitions),
        "lengths": [len(block.transitions) for block in blocks],
        "places": [list(block.episodes) for block in blocks],
        "episodes": [pack_episodes(list(block.episodes.values())) for block in blocks],
    }


def _unpack(packed: dict[str, Any]) -> deque[_Arrived]:
    transitions = iter(unpack(packed["transitions"]))
    blocks: deque[_Arrived] = deque()
    for length, places, episodes in zip(packed["lengths"], packed["places"], packed["episodes"], strict=True):
        ended = dict(zip(places, unpack_episodes(episodes), strict=True))
        blocks.append(_Arrived([next(transitions) for _ in range(length)], ended))
    return blocks


def _parts(source: ExperienceSourceFirstLast, players: int) -> list[ExperienceSourceFirstLast]:
    """Divide a source's environments among players. Each player has a copy of the agent on the CPU."""
    parts = []
    for indices in np.array_split(np.arange(len(source.pool)), players):
        agent = copy.copy(source.agent)
        agent.model = copy.deepcopy(agent.model).cpu()
        agent.action_selector = copy.copy(agent.action_selector)
        agent.device = torch.device("cpu")
        pool = [source.pool[index] for index in indices]
        parts.append(ExperienceSourceFirstLast(pool, agent, source.gamma, source.seed, first_env=int(indices[0])))
    return parts
