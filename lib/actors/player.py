"""Players: actors that play blocks of transitions for chapter 9's parallel scripts."""

import dataclasses
import itertools
import time

import numpy as np
import ptan

from lib.actors.worker import Played, Weights
from lib.experience.interface import Episode, State
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import Step
from lib.system.seeds import hashed_seed, seed_everything, undisturbed


@dataclasses.dataclass
class Block(Played):
    """Segment of a player.

    Attributes:
        step: the arrays of the steps, each (rounds, num_envs, ...).
        episodes: episodes that ended, by the index of their last transition.
        began: (num_envs, ...) states before the first block of a new player; None in later blocks.
    """

    step: Step
    episodes: dict[int, Episode]
    began: np.ndarray | None


class Player:
    """Actor that plays blocks in the environments of an experience source; see actors.worker.Actor.

    Args:
        source: the source, which must be unused.
        rounds: steps of each environment in a block.
        index: index of the player.
        state: what `state_dict` or Block.restart returned, or None for a new run.
    """

    def __init__(self, source: ExperienceSourceFirstLast, rounds: int, index: int, state: State | None):
        self._index, self._source, self._rounds = index, source, rounds
        self._block, self._version = 0, -1
        if state is not None:
            self._block = state["block"]
            if "source" in state:
                source.load_state_dict(state["source"])
            else:
                source.skip_episodes(np.array(state["episodes"]))
        source.begin()
        self._began: np.ndarray | None = source.states.copy()
        self._steps = source.steps()

    def set_model(self, model: Weights) -> None:
        """Act with these weights, and with these values of the action selector."""
        self._source.agent.model.load_state_dict(model.tensors)
        vars(self._source.agent.action_selector).update(model.numbers)
        self._version = model.version

    def get_trajectory_segment(self) -> Block:
        start, source, steps_before = time.perf_counter(), self._source, self._source.steps_done
        with undisturbed():
            seed_everything(block_seed(source.seed, self._index, self._block))
            columns = zip(*itertools.islice(self._steps, self._rounds), strict=True)
            step = Step(*(np.stack(column) for column in columns))
        began, self._began = self._began, None
        episodes = {}
        for episode in source.pop_episodes():
            rounds = (episode.step - steps_before) // len(source.pool) - 1
            episodes[rounds * len(source.pool) + episode.env] = episode
        self._block += 1
        assert source.last_resets is not None
        restart = {"block": self._block, "episodes": source.last_resets.tolist()}
        seconds = time.perf_counter() - start
        parts = source.clock.pop()
        return Block(self._version, step.rewards.size, seconds, parts, restart, step, episodes, began)

    def state_dict(self) -> State:
        """Return the number of the next block, and the state of the source."""
        return {"block": self._block, "source": self._source.state_dict()}

    def __str__(self) -> str:
        return f"in block {self._block}"


def block_seed(seed: int, player: int, block: int) -> int:
    """Return the seed of the random numbers that a player draws in a block."""
    return hashed_seed(seed, player, block, 1)


def weights_of(agent: ptan.agent.DQNAgent, version: int) -> Weights:
    """Return a copy of the model's weights, and the numbers among the action selector's attributes, such as epsilon."""
    tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in agent.model.state_dict().items()}
    numbers = {name: each for name, each in vars(agent.action_selector).items() if isinstance(each, int | float)}
    return Weights(version, tensors, numbers)
