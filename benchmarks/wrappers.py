#!/usr/bin/env python3
"""What each wrapper costs: microseconds an agent step of Pong, measured by putting one on after the other.

    ./wrappers.py            # about a minute
    ./chapter09.py tables    # then, for the documents

Random play; the stacks take turns. A wrapper's cost is that of the stack with it less that of the stack without it, in
the same round.
"""

import argparse
import time

import ale_py
import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium import wrappers
from tqdm import tqdm

import lab
from lib.envs.atari import DirectAtari
from lib.envs.frames import ContiguousFrameStack, FrameStack

GAME = "PongNoFrameskip-v4"


def emulator() -> gym.Env:
    return gym.make(GAME).unwrapped


class Looked(gym.Wrapper):
    """What a learner does with a state: look at it as one array, twice, as a state and as a last state."""

    def step(self, action):
        state, *rest = self.env.step(action)
        for _ in range(2):
            np.asarray(state)
        return state, *rest


# Each: the stack's name, what the wrapper does, what became of it in the tweaked stack, and how to put it on.
PLAIN = (
    ("AtariEnv", "4 frames, each with its colour screen", "screens in colour dropped: exact", None),
    ("PassiveEnvChecker", "checks what passes", "dropped: exact", wrappers.PassiveEnvChecker),
    ("OrderEnforcing", "reset comes before step", "dropped: exact", wrappers.OrderEnforcing),
    (
        "AtariPreprocessing",
        "no-ops at the start, maximum of two grey screens, 84 x 84",
        "kept, in DirectAtari: exact",
        lambda env: wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84),
    ),
    ("RecordEpisodeStatistics", "return and length", "kept, in DirectAtari: exact", wrappers.RecordEpisodeStatistics),
    (
        "ClipReward",
        "rewards within [-1, 1]",
        "kept, in DirectAtari: exact",
        lambda env: wrappers.ClipReward(env, -1.0, 1.0),
    ),
    (
        "FrameStack",
        "a state is a tuple of 4 frames",
        "replaced by AdjacentFrameStack: exact",
        FrameStack,
    ),
    ("two looks at a state", "stacks the frames, each time", "looks only: exact", Looked),
)
TWEAKED = (
    ("DirectAtari", "the four above, on the emulator itself", "", DirectAtari),
    ("AdjacentFrameStack", "a state is a view of 4 frames", "", ContiguousFrameStack),
    ("two looks at a state", "no copy", "", Looked),
)
# What DeepMind's stack has besides, as stable-baselines3, gymnasium and the book write it; none is in ours.
OTHERS = (
    ("scaling to floats", "float32 in [0, 1], 4 times the memory", "moved into the network: close", "scale"),
    ("stacking by copy", "a state is an array of its own", "a view: exact", "stack"),
    ("EpisodicLifeEnv", "a lost life ends an episode", "left out of all rungs: changes the task", "life"),
    ("FireResetEnv", "FIRE after a reset", "left out of all rungs: changes the task", "fire"),
)


def other(kind: str) -> gym.Env:
    """The plain stack up to ClipReward with one more wrapper."""
    from stable_baselines3.common import atari_wrappers as theirs

    env = emulator()
    for _, _, _, wrap in PLAIN[1:6]:
        env = wrap(env)
    if kind == "scale":
        frames = gym.spaces.Box(0.0, 1.0, (84, 84), np.float32)
        return wrappers.TransformObservation(env, lambda frame: frame.astype(np.float32) / 255.0, frames)
    if kind == "stack":
        return wrappers.FrameStackObservation(env, 4)
    return {"life": theirs.EpisodicLifeEnv, "fire": theirs.FireResetEnv}[kind](env) if kind != "none" else env


def stacks() -> dict[tuple[str, int], gym.Env]:
    """By stack and number of its wrappers: every stack that is measured."""
    made: dict[tuple[str, int], gym.Env] = {}
    for name, steps in (("plain", PLAIN[1:]), ("tweaked", TWEAKED)):
        for count in range(len(steps) + 1):
            env = emulator()
            for _, _, _, wrap in steps[:count]:
                env = wrap(env)
            made[name, count] = env
    for count, kind in enumerate(("none", *(kind for *_, kind in OTHERS))):
        made["others", count] = other(kind)
    return made


def microseconds(env: gym.Env, bare: bool, steps: int) -> float:
    """Of an agent step; an environment without a wrapper that skips frames is stepped four times for one."""
    generator = np.random.default_rng(0)
    actions = generator.integers(env.action_space.n, size=steps)
    env.reset(seed=1)
    spent = 0.0
    for action in actions:
        start = time.perf_counter()
        for _ in range(4 if bare else 1):
            _, _, terminated, truncated, _ = env.step(action)
        spent += time.perf_counter() - start
        if terminated or truncated:
            env.reset(seed=1)
    return 1e6 * spent / steps


def table(frame: pd.DataFrame) -> str:
    """A row a wrapper: its cost, and what became of it."""
    costs = lab.rounds(frame, "stack", "microseconds")
    rows = []
    for name, steps, start in (("plain", PLAIN, 0), ("tweaked", TWEAKED, 1)):
        for count, (wrapper, does, fate, _) in enumerate(steps, start):
            cost = costs[f"{name} {count}"] - (costs[f"{name} {count - 1}"] if count > start else 0)
            rows.append((wrapper, does, lab.spread(cost, 0), fate))
        rows.append((f"**{name} stack**", "", lab.spread(costs[f"{name} {count}"], 0), ""))
    for count, (wrapper, does, fate, _) in enumerate(OTHERS, 1):
        rows.append((wrapper, does, lab.spread(costs[f"others {count}"] - costs["others 0"], 0), fate))
    header = ("wrapper", "what it does", "µs an agent step", "in the tweaked stack")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(costs)} rounds."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="agent steps of each stack in a round (default: 2000)")
    args = parser.parse_args()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    results = lab.Results("chapter09-wrappers", ("round", "stack", "microseconds"))
    made = stacks()
    for number, ((stack, count), env) in tqdm(list(lab.turns(args.rounds, list(made.items())))):
        bare = count < {"plain": 3, "tweaked": 1, "others": 0}[stack]
        spent = microseconds(env, bare, args.steps)
        results.add(round=number, stack=f"{stack} {count}", microseconds=f"{spent:.1f}")
    frame, stamped = lab.read("chapter09-wrappers")
    print(f"{table(frame)} {lab.where(stamped)}")


if __name__ == "__main__":
    main()
