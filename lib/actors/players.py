"""The experience source of chapter 9's parallel scripts: players play transitions ahead of the learner.

Time is divided into cycles. In cycle k the learner learns from block k of every player, while the players play the next
blocks. Block k is played with the weights that the learner had at the start of cycle k - ahead:

    learner   broadcasts weights k, orders block k + ahead, takes block k, learns from it, goes on to cycle k + 1
    player    plays the oldest block that is ordered, sends it, waits if nothing is ordered

The learner waits for a slow player, and a player waits for a slow learner. A waiting process sleeps. As in a run
without players, the learner alone determines the replay ratio. The transitions do not depend on timing, so a run can be
repeated, stopped and resumed bit for bit.
"""

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.actors.contract import Actors, Weights
from lib.actors.engines import start_actors
from lib.actors.player import Block, Player, block_size, weights_of
from lib.errors import UsageError, counted
from lib.experience.episodes import Episode, EpisodeTrace, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.experience.snapshot import Snapshot
from lib.experience.source import ExperienceSourceFirstLast, snapshot_by_episodes
from lib.experience.stream import FrameStep
from lib.experience.transitions import Transitions
from lib.system.clock import Stopwatch, since_process_start
from lib.system.machine import cores, torch_threads


class _Handle:
    """Learner-side handle of one player: snapshots at the start of the cycle, and blocks that have arrived since.

    Args:
        source: the player's experience source, unused, with its agent on the CPU.
    """

    def __init__(self, source: ExperienceSourceFirstLast):
        self.source = source
        self.snapshot = snapshot_by_episodes(source.seed, source.env_range)
        self.snapshot.restart(0)
        self.blocks: deque[tuple[list[ExperienceFirstLast], Block]] = deque()  # the current cycle's block is the first
        self.seconds_per_step = 0.0
        self._transitions: Transitions | None = None

    def add(self, block: Block) -> None:
        """Make transitions of a block that has arrived. Its arrays are copied."""
        block = dataclasses.replace(block, arrays={name: array.copy() for name, array in block.arrays.items()})
        if block.restored is not None:
            self._transitions = Transitions(block.restored["states"].numpy(), self.source.stacked)
            if not self.blocks:  # it differs if an environment could not be restored
                self.snapshot.load_state_dict(block.restored)
        assert self._transitions is not None
        steps = map(FrameStep, *(block.arrays[name] for name in FrameStep._fields))
        transitions = [transition for step in steps for transition in self._transitions.add(step)]
        self.seconds_per_step = block.seconds / len(transitions)
        self.blocks.append((transitions, block))

    def episodes(self) -> dict[int, Episode]:
        """Return the episodes that ended in the cycle's block, by the index of their last transition."""
        traces = _follow(self.snapshot.copy(), *self.blocks[0])
        return {place: each._replace(trace=traces[place]) for place, each in self.blocks[0][1].episodes.items()}

    def finish_block(self) -> None:
        """Drop the cycle's block, and move the snapshot to its end."""
        _follow(self.snapshot, *self.blocks.popleft())
        if self.blocks and self.blocks[0][1].restored is not None:
            self.snapshot.load_state_dict(self.blocks[0][1].restored)

    def newest_snapshot(self) -> dict[str, Any]:
        """Return the snapshot after the last block that has arrived. A replacement starts from it."""
        snapshot = self.snapshot.copy()
        for transitions, block in self.blocks:
            if block.restored is not None:
                snapshot.load_state_dict(block.restored)
            _follow(snapshot, transitions, block)
        return snapshot.state_dict()


class Players(ExperienceSource):
    """Experience source whose environments are stepped by players. It replaces the original source.

    Args:
        source: unused experience source. Its environments are divided among the players and keep their seeds. Its
            agent has a `model`, which is copied to the CPU for each player.
        players: number of players.
        engine: engine that runs the players; see actors.engines.ENGINES.
        patience: seconds to wait for a block before the player is replaced.
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
        actors: engine with the players; None until the first transition is requested.

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
        self.actors: Actors | None = None
        self._engine = engine
        self._patience = patience
        self._address = address
        self._ahead = ahead
        self._rounds = rounds
        self._leaves_cores = batch_size is not None and batch_size < self.SMALL_UPDATE
        self._while_playing = ExitStack()
        self._handles = [_Handle(part) for part in _parts(source, players)]
        self._weights: dict[int, Weights] = {}  # weights of orders that may be open, by version
        self._steps_at: dict[int, int] = {}  # value of steps_done at the start of a cycle, by version
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
            UsageError: see start_actors.
        """
        if self.actors is None:
            self._publish()
            self.actors = self._start()
            if self._leaves_cores:
                threads = max(1, min(torch.get_num_threads(), cores() - len(self._handles)))
                self._while_playing.enter_context(torch_threads(threads))

    def close(self) -> None:
        """End the players."""
        if self.actors is not None:
            self.actors.close()
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
        actors = self.actors
        assert actors is not None
        for block in range(self._cycle, self._cycle + self._ahead + 1):
            self._order(actors, block)
        while True:
            with self.clock("wait"):
                self._wait(actors)
            yield from self._transitions()
            for handle in self._handles:
                handle.finish_block()
            self._cycle += 1
            self._place = 0
            self._publish()
            self._order(actors, self._cycle + self._ahead)

    def _start(self) -> Actors:
        env, envs = self.pool[0], max(len(handle.source.pool) for handle in self._handles)
        return start_actors(
            self._engine,
            partial(Player, rounds=self._rounds),
            len(self._handles),
            self._weights[self._version(self._cycle)],
            self._state_of,
            patience=self._patience,
            delay_of=self._delay_of,
            name_of=self._name_of,
            stop_asked=self.stop_asked,
            depth=self._ahead + 1,
            room=block_size(env, self._rounds * envs, envs),
            address=self._address,
        )

    def _state_of(self, index: int) -> tuple[ExperienceSourceFirstLast, int, dict[str, Any]]:
        handle = self._handles[index]
        return handle.source, self._cycle + len(handle.blocks), handle.newest_snapshot()

    def _name_of(self, index: int) -> str:
        source = self._handles[index].source
        envs = source.env_range.indices
        return f"player {index} ({counted('environment', envs[0], envs[-1])}, seed {source.seed})"

    def _delay_of(self, index: int) -> float:
        """Return twice the seconds that a player probably needs to replay the actions of its unfinished episodes."""
        handle = self._handles[index]
        return 2.0 * handle.seconds_per_step * int(handle.snapshot.steps_since_reset.sum())

    def _publish(self) -> None:
        """Store the weights at the start of this cycle, and drop old ones. A resumed cycle has them already."""
        if self._cycle not in self._weights:
            self._weights[self._cycle] = weights_of(self.agent, self._cycle)
            self._steps_at[self._cycle] = self.steps_done
        for version in [version for version in self._weights if version < self._version(self._cycle)]:
            del self._weights[version], self._steps_at[version]

    def _order(self, actors: Actors, block: int) -> None:
        weights = self._weights[self._version(block)]
        if weights.version != actors.weights.version:
            actors.broadcast(weights)
        for index in range(len(self._handles)):
            actors.order(index)

    def _version(self, block: int) -> int:
        """Return the version of the weights with which a block is played."""
        return max(0, block - self._ahead)

    def _wait(self, actors: Actors) -> None:
        """Wait until the cycle's block of every player has arrived."""
        while not all(handle.blocks for handle in self._handles):
            for index, block in actors.take():
                self._handles[index].add(block)
                self._played += block.arrays["actions"].size
                self._busy += block.seconds

    def _transitions(self) -> Iterator[ExperienceFirstLast]:
        """Yield the cycle's transitions, except those that the learner took before a resume."""
        for transition, episode in list(self._cycle_content())[self._place :]:
            self._place += 1
            self.steps_done += 1
            if episode is not None:
                self._episodes.append(episode._replace(step=self.steps_done, clock=since_process_start()))
            self.on_step(1)
            yield transition

    def _cycle_content(self) -> Iterator[tuple[ExperienceFirstLast, Episode | None]]:
        """Yield each transition of the cycle, and the episode that it ends."""
        for handle in self._handles:
            episodes = handle.episodes()
            for place, transition in enumerate(handle.blocks[0][0]):
                yield transition, episodes.get(place)

    def metrics(self) -> dict[str, float]:
        """Return policy_lag, player_fps and learner_fps since the last call.

        policy_lag: agent steps by which the weights that chose the newest action are behind the learner's.
        player_fps, learner_fps: agent steps per second that the players and the learner would make without waiting.
        """
        now = (self.steps_done, since_process_start(), self.clock.seconds["wait"], self._played, self._busy)
        steps, seconds, waited, played, busy = (new - old for new, old in zip(now, self._marks, strict=True))
        self._marks = now
        at_once = 1 if self._engine == "inline" else len(self._handles)
        return {
            "policy_lag": self.steps_done - self._steps_at[self._version(self._cycle)],
            "player_fps": at_once * played / busy if busy else math.nan,
            "learner_fps": steps / (seconds - waited) if seconds > waited else math.nan,
        }

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes whose last transition was taken since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshots at the start of the cycle, and the number of its transitions that were taken.

        Later blocks are not saved; a resumed run plays them again. The state is available at any time, even after
        players have died.
        """
        return {
            "steps_done": self.steps_done,
            "cycle": self._cycle,
            "place": self._place,
            "players": [handle.snapshot.state_dict() for handle in self._handles],
            "models": {version: weights.tensors for version, weights in self._weights.items()},
            "steps_at": dict(self._steps_at),
            "seconds_per_step": [handle.seconds_per_step for handle in self._handles],
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. Call this before the first transition is requested."""
        self.steps_done = state["steps_done"]
        self._cycle = state["cycle"]
        self._place = state["place"]
        self._weights = {version: Weights(version, tensors) for version, tensors in state["models"].items()}
        self._steps_at = dict(state["steps_at"])
        self._episodes = unpack_episodes(state["episodes"])
        for handle, snapshot, seconds in zip(self._handles, state["players"], state["seconds_per_step"], strict=True):
            handle.snapshot.load_state_dict(snapshot)
            handle.seconds_per_step = seconds


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


def _follow(
    snapshot: Snapshot, transitions: Sequence[ExperienceFirstLast], block: Block
) -> dict[int, Callable[[], EpisodeTrace]]:
    """Advance a snapshot to the end of a block.

    Returns:
        Functions that assemble the traces of the episodes that ended in it, by the index of their last transition.
    """
    assert snapshot.resets is not None
    traces = {}
    ends = block.arrays["terminated"] | block.arrays["truncated"]
    for step, (actions, ended) in enumerate(zip(block.arrays["actions"], ends, strict=True)):
        snapshot.append(actions)
        for env in np.flatnonzero(ended).tolist():
            place = step * len(ended) + env
            traces[place] = snapshot.trace(env, int(snapshot.steps_since_reset[env]), transitions[place].state)
        if ended.any():
            snapshot.restart(snapshot.resets[ended] + 1, ended)
    snapshot.states = block.arrays["states"]
    return traces
