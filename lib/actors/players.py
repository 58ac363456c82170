"""The experience source of chapter 9's parallel scripts: players collect transitions ahead of the learner.

Time is divided into cycles. In cycle k the learner learns from block k of every player, while the players play the next
blocks. Block k is played with the weights that the learner had at the start of cycle k - AHEAD:

    learner   orders block k + AHEAD with its weights, takes block k, learns from it, goes on to cycle k + 1
    player    plays the oldest block that is ordered, sends it, waits if nothing is ordered

They wait for each other, so the transitions do not depend on timing, and a run can be repeated, stopped and resumed bit
for bit. If a player is lost, cycles go on without it until it is back.
"""

import copy
import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.actors.engines import Played, Weights
from lib.actors.fleet import Fleet
from lib.errors import counted
from lib.experience.interface import Episode, ExperienceSource, State, Stopped, pack_episodes, unpack_episodes
from lib.experience.stream import Step
from lib.experience.transitions import ExperienceSourceFirstLast, Transitions, pack, unpack
from lib.system.clock import since_process_start
from lib.system.machine import cores
from lib.system.seeds import hashed_seed, seed_everything, undisturbed

# A transition, and the episode that it ends.
Transition = tuple[ExperienceFirstLast, Episode | None]


@dataclasses.dataclass
class Block(Played):
    """Segment of a player."""

    step: Step  # the arrays of the steps, each (rounds, num_envs, ...)
    episodes: dict[int, Episode]  # episodes that ended, by the index of their last transition
    began: np.ndarray | None  # (num_envs, ...) states before the first block of a new player; None in later blocks


class Player:
    """Actor that plays blocks in the environments of an experience source; see actors.engines.Actor.

    Args:
        source: the source, which must be unused.
        rounds: steps of each environment in a block.
        index: index of the player.
        state: see Actor.state_dict; None for a new run.
    """

    def __init__(self, source: ExperienceSourceFirstLast, rounds: int, index: int, state: State | None):
        self._index, self._source, self._rounds, self._version = index, source, rounds, -1
        if state is not None and "source" in state:
            source.load_state_dict(state["source"])
        elif state is not None:
            source.steps_done = state["steps_done"]
        source.begin()
        self._began: np.ndarray | None = source.states.copy()
        self._steps = source.steps()

    def set_model(self, model: Weights) -> None:
        """Act with these weights, and with these values of the action selector."""
        self._source.agent.model.load_state_dict(model.tensors)
        vars(self._source.agent.action_selector).update(model.numbers)
        self._version = model.version

    def get_trajectory_segment(self) -> Block:
        start, source, num_envs = time.perf_counter(), self._source, len(self._source.pool)
        before, began, self._began = source.steps_done, self._began, None
        with undisturbed():
            seed_everything(hashed_seed(source.seed, self._index, before // (self._rounds * num_envs), 1))
            columns = zip(*islice(self._steps, self._rounds), strict=True)
            step = Step(*(np.stack(column) for column in columns))
        return Block(
            version=self._version,
            steps=step.rewards.size,
            steps_done=source.steps_done,
            step=step,
            episodes={each.step - before - num_envs + each.env: each for each in source.pop_episodes()},
            began=began,
            seconds=time.perf_counter() - start,
            parts=source.clock.pop(),
        )

    def state_dict(self) -> State:
        return {"source": self._source.state_dict()}

    def __str__(self) -> str:
        return f"after {self._source.steps_done} steps of its own"


class Players(ExperienceSource):
    """Experience source whose environments are stepped by players. It replaces the original source.

    Args:
        source: unused experience source. Its environments are divided among the players and keep their seeds. Its
            agent has a `model`, which is copied to the CPU for each player.
        players: number of players, at most that of environments.
        engine, patience, address: see Fleet.
        batch_size: transitions in an update of the learner, or None if unknown. A learner with small updates, of fewer
            than SMALL_UPDATE transitions, leaves a core to each player.

    Attributes:
        AHEAD: number of blocks that a player may be ahead of the learner.
        ROUNDS: steps of each environment in a block.
        pool: the environments.
        fleet: the players.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "player_fps", "learner_fps")
    AHEAD, ROUNDS = 2, 8
    SMALL_UPDATE = 64  # below, another torch thread slows the player by more than it helps the learner

    def __init__(
        self,
        source: ExperienceSourceFirstLast,
        players: int = 1,
        engine: str = "process",
        patience: float = 60.0,
        address: str | None = None,
        batch_size: int | None = None,
    ):
        super().__init__()
        self.pool = source.pool
        self.frame_skip = source.frame_skip
        self.agent = source.agent
        self._leaves_cores = batch_size is not None and batch_size < self.SMALL_UPDATE
        self._parts = _parts(source, players)
        ranges = [part.env_indices for part in self._parts]
        names = [
            f"Player {index} ({counted('environment', own[0], own[-1])}, seed {source.seed})"
            for index, own in enumerate(ranges)
        ]
        self.fleet: Fleet[Block] = Fleet(
            engine, names, patience=patience, address=address, stop_asked=lambda: self.stop_asked()
        )
        self._transitions: dict[int, Transitions] = {}  # makers of each player's transitions
        # Blocks that have arrived, of each player; the cycle's is the first.
        self._blocks: list[deque[list[Transition]]] = [deque() for _ in range(players)]
        self._steps_at = deque([0], self.AHEAD + 1)  # values of steps_done at the starts of the newest cycles
        self._cycle = 0
        self._place = 0  # number of the cycle's transitions that the learner has taken
        self._marks = (0, since_process_start(), 0.0)  # values at the last call of `metrics`

    def start(self) -> None:
        if not self.fleet.makes:
            for env in self.pool:
                env.close()  # the players make their own, and some games allow one at a time
            for part in self._parts:
                part.traces = self.traces
            self.fleet.start([partial(Player, part, self.ROUNDS) for part in self._parts])
            if self._leaves_cores:
                torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() - len(self._parts))))

    def close(self) -> None:
        self.fleet.close()

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Start the players, and yield transitions forever.

        Raises:
            Stopped: if the run was asked to stop and no block comes.
        """
        self.start()
        with self.clock("wait"):
            while self.fleet.expected():  # a resumed player needs the weights of each cycle
                self._take()
        while True:
            if not self._place:  # a resumed cycle has its blocks
                self._gather()
            played = [each for blocks in self._blocks if blocks for each in blocks[0]]
            for transition, episode in played[self._place :]:
                self._place += 1
                self.steps_done += 1
                if episode is not None:
                    self._episodes.append(episode._replace(step=self.steps_done, clock=since_process_start()))
                self.on_step(1)
                yield transition
            for blocks in self._blocks:
                if blocks:
                    blocks.popleft()
            self._cycle += 1
            self._place = 0
            self._steps_at.append(self.steps_done)

    def _gather(self) -> None:
        """Order blocks, to be played with the current weights, until each player has AHEAD beyond the cycle's.

        Wait until the cycle's block of every player has arrived, except those of lost players.
        """
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.agent.model.state_dict().items()}
        # The numbers of the action selector are settings such as epsilon.
        numbers = {
            name: each for name, each in vars(self.agent.action_selector).items() if isinstance(each, int | float)
        }
        weights = Weights(self._cycle, tensors, numbers)
        players = list(zip(self.fleet.records, self._blocks, strict=True))
        while True:
            for index, (record, blocks) in enumerate(players):
                while record.ready and record.orders + len(blocks) <= self.AHEAD:
                    self.fleet.order(index, weights)
            if any(self._blocks) and all(blocks or not record.ready for record, blocks in players):
                return
            with self.clock("wait"):
                self._take()

    def _take(self) -> None:
        """Convert the blocks that arrive next to transitions."""
        for index, block in self.fleet.take():
            if block.began is not None:
                self._transitions[index] = Transitions(block.began, self._parts[index].stacked)
            played = [each for step in map(Step, *block.step) for each in self._transitions[index].add(step)]
            self._blocks[index].append([(each, block.episodes.get(place)) for place, each in enumerate(played)])

    def metrics(self) -> dict[str, float]:
        """Return policy_lag, player_fps and learner_fps since the last call.

        policy_lag: agent steps by which the weights that chose the newest action are behind the learner's.
        player_fps, learner_fps: agent steps per second that the players and the learner would make without waiting.
        """
        now = (self.steps_done, since_process_start(), self.clock.seconds["wait"])
        steps, seconds, waited = (new - old for new, old in zip(now, self._marks, strict=True))
        self._marks = now
        return {
            "policy_lag": self.steps_done - self._steps_at[0],
            "player_fps": self.fleet.speed(),
            "learner_fps": steps / (seconds - waited) if seconds > waited else math.nan,
        }

    def report(self, folder: Path) -> dict[str, object]:
        return self.fleet.report(folder)

    def state_dict(self) -> State:
        """Wait for all blocks that are ordered. Return them, the state of each player, and the counters."""
        with suppress(Stopped):
            while self.fleet.open_orders:
                self._take()
        return super().state_dict() | {
            "cycle": self._cycle,
            "place": self._place,
            "steps_at": dict(enumerate(self._steps_at)),
            "players": self.fleet.states(),
            "blocks": [_pack(blocks) for blocks in self._blocks],
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._cycle = state["cycle"]
        self._place = state["place"]
        self._steps_at.extend(state["steps_at"].values())
        for record, saved in zip(self.fleet.records, state["players"], strict=True):
            record.restart = saved
        self._blocks = [_unpack(packed) for packed in state["blocks"]]


def _pack(blocks: deque[list[Transition]]) -> State:
    transitions = [each for block in blocks for each in block]
    ended = {place: episode for place, (_, episode) in enumerate(transitions) if episode is not None}
    return {
        "transitions": pack(transition for transition, _ in transitions),
        "lengths": [len(block) for block in blocks],
        "places": list(ended),
        "episodes": pack_episodes(list(ended.values())),
    }


def _unpack(packed: State) -> deque[list[Transition]]:
    ended = dict(zip(packed["places"], unpack_episodes(packed["episodes"]), strict=True))
    transitions = ((each, ended.get(place)) for place, each in enumerate(unpack(packed["transitions"])))
    return deque(list(islice(transitions, length)) for length in packed["lengths"])


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
