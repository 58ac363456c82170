#!/usr/bin/env python3
"""Measure the cost of each wrapper: microseconds per agent step of Pong, with one wrapper added after the other.

    ./wrappers.py            # about a minute
    ./chapter09.py tables    # then put the table into the pages

The games are played at random, and the stacks take turns. The cost of a wrapper is the time of the stack with it less
the time of the stack without it, in the same round.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import lab
import markup
from lib import cli
from lib.envs.atari import DirectAtari
from lib.envs.frames import FrameStack

import ale_py
import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium import wrappers
from stable_baselines3.common import atari_wrappers as baselines_wrappers
from tqdm import tqdm

NAME = "chapter09/wrappers"
GAME = "PongNoFrameskip-v4"

Wrap = Callable[[gym.Env], gym.Env]


def emulator() -> gym.Env:
    """Return the emulator without a wrapper."""
    return gym.make(GAME).unwrapped


class ReadTwice(gym.Wrapper):
    """Wrapper that reads a state as an array twice, as a learner does: as a state and as a last state."""

    def step(self, action: Any) -> Any:
        state, *rest = self.env.step(action)
        for _ in range(2):
            np.asarray(state)
        return state, *rest


def preprocess(env: gym.Env) -> gym.Env:
    return wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)


def clip_reward(env: gym.Env) -> gym.Env:
    return wrappers.ClipReward(env, -1.0, 1.0)


def scale(env: gym.Env) -> gym.Env:
    frames = gym.spaces.Box(0.0, 1.0, (84, 84), np.float32)
    return wrappers.TransformObservation(env, lambda frame: frame.astype(np.float32) / 255.0, frames)


def stack_by_copy(env: gym.Env) -> gym.Env:
    return wrappers.FrameStackObservation(env, 4)


class Layer(NamedTuple):
    """One layer of a stack.

    Attributes:
        name: name of the wrapper.
        purpose: what the wrapper does.
        fate: what became of it in the tweaked stack.
        wrap: function that adds the wrapper.
    """

    name: str
    purpose: str
    fate: str
    wrap: Wrap


EMULATOR = ("AtariEnv", "4 frames, each with its colour screen", "colour screens dropped: exact")
PLAIN = (
    Layer("PassiveEnvChecker", "checks actions and observations", "dropped: exact", wrappers.PassiveEnvChecker),
    Layer("OrderEnforcing", "checks that reset comes before step", "dropped: exact", wrappers.OrderEnforcing),
    Layer(
        "AtariPreprocessing",
        "no-ops at the start, maximum of two grey screens, 84 x 84",
        "kept, in DirectAtari: exact",
        preprocess,
    ),
    Layer(
        "RecordEpisodeStatistics", "return and length", "kept, in DirectAtari: exact", wrappers.RecordEpisodeStatistics
    ),
    Layer("ClipReward", "rewards within [-1, 1]", "kept, in DirectAtari: exact", clip_reward),
    Layer("FrameStackObservation", "a state is a copy of 4 frames", "replaced by FrameStack: exact", stack_by_copy),
    Layer("two reads of a state", "no copy", "reads only: exact", ReadTwice),
)
BEFORE_STACKING = 5  # layers of PLAIN before the frames are stacked
TWEAKED = (
    Layer("DirectAtari", "emulator, preprocessing, statistics and clipping in one", "", DirectAtari),
    Layer("FrameStack", "a state is a view of 4 frames", "", FrameStack),
    Layer("two reads of a state", "no copy", "", ReadTwice),
)
# Wrappers of other libraries' stacks. The numbered scripts use none of them.
OTHERS = (
    Layer("scaling to floats", "float32 in [0, 1], 4 times the memory", "moved into the network: close", scale),
    Layer(
        "EpisodicLifeEnv",
        "a lost life ends an episode",
        "not used: changes the task",
        baselines_wrappers.EpisodicLifeEnv,
    ),
    Layer("FireResetEnv", "FIRE after a reset", "not used: changes the task", baselines_wrappers.FireResetEnv),
)


def build(layers: tuple[Layer, ...]) -> gym.Env:
    """Return the emulator with some wrappers."""
    env = emulator()
    for layer in layers:
        env = layer.wrap(env)
    return env


def stacks() -> dict[tuple[str, int], gym.Env]:
    """Return every measured stack by its kind and number."""
    built: dict[tuple[str, int], gym.Env] = {}
    for kind, layers in (("plain", PLAIN), ("tweaked", TWEAKED)):
        for count in range(len(layers) + 1):
            built[kind, count] = build(layers[:count])
    built["others", 0] = build(PLAIN[:BEFORE_STACKING])
    for number, layer in enumerate(OTHERS, 1):
        built["others", number] = build((*PLAIN[:BEFORE_STACKING], layer))
    return built


def skips_frames(kind: str, count: int) -> bool:
    """Return whether one step of a stack is a whole agent step of four frames."""
    return count >= {"plain": 3, "tweaked": 1, "others": 0}[kind]


def microseconds(env: gym.Env, repeat: int, steps: int) -> float:
    """Return the microseconds of an agent step.

    Args:
        env: environment.
        repeat: calls of step for one agent step.
        steps: number of agent steps.
    """
    actions = np.random.default_rng(0).integers(env.action_space.n, size=steps)  # type: ignore[attr-defined]
    env.reset(seed=1)
    spent = 0.0
    for action in actions:
        start = time.perf_counter()
        for _ in range(repeat):
            _, _, terminated, truncated, _ = env.step(action)
        spent += time.perf_counter() - start
        if terminated or truncated:
            env.reset(seed=1)
    return 1e6 * spent / steps


def table(frame: pd.DataFrame) -> str:
    """Return a row per wrapper: its cost, and what became of it."""
    costs = lab.rounds(frame, "stack", "microseconds")
    rows = [(*EMULATOR[:2], markup.spread(costs["plain 0"], 0), EMULATOR[2])]
    for count, layer in enumerate(PLAIN, 1):
        cost = costs[f"plain {count}"] - costs[f"plain {count - 1}"]
        rows.append((layer.name, layer.purpose, markup.spread(cost, 0), layer.fate))
    rows.append(("**plain stack**", "", markup.spread(costs[f"plain {len(PLAIN)}"], 0), ""))
    for count, layer in enumerate(TWEAKED, 1):
        cost = costs[f"tweaked {count}"] - (costs[f"tweaked {count - 1}"] if count > 1 else 0)
        rows.append((layer.name, layer.purpose, markup.spread(cost, 0), layer.fate))
    rows.append(("**tweaked stack**", "", markup.spread(costs[f"tweaked {len(TWEAKED)}"], 0), ""))
    for count, layer in enumerate(OTHERS, 1):
        rows.append(
            (layer.name, layer.purpose, markup.spread(costs[f"others {count}"] - costs["others 0"], 0), layer.fate)
        )
    return markup.table(("wrapper", "what it does", "µs per agent step", "in the tweaked stack"), rows)


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("--rounds", type=cli.positive, default=5, help="number of rounds (default: 5)")
    parser.add_argument(
        "--steps", type=cli.positive, default=2000, help="agent steps of each stack in a round (default: 2000)"
    )
    args = parser.parse_args()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    results = lab.Results(NAME, ("round", "stack", "microseconds"), replace=True)
    for number, ((kind, count), env) in tqdm(list(lab.turns(args.rounds, list(stacks().items())))):
        spent = microseconds(env, 1 if skips_frames(kind, count) else 4, args.steps)
        results.add(round=number, stack=f"{kind} {count}", microseconds=f"{spent:.1f}")
    print(table(lab.read(NAME)[0]))


if __name__ == "__main__":
    main()
