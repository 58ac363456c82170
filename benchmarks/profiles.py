#!/usr/bin/env python3
"""Measure the parts of an agent step in more detail than a run reports them, and the size of the replay.

./profiles.py             # both, about four minutes on two cores
./chapter09.py tables     # then put the tables into the pages
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab
import launch
import markup
from lib import cli, common, dqn_model
from lib.envs.atari import DirectAtari
from lib.envs.single_env import make_env
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.run import checkpoint, setup
from lib.run.events import TrainingEvents
from lib.run.speed import Speed
from lib.system.clock import Stopwatch

import ale_py
import numpy as np
import pandas as pd
import psutil
import ptan
import torch
from ignite.engine import Engine
from tqdm import tqdm

PARTS, MEMORY = "chapter09/parts", "chapter09/memory"
RUNGS = {"01_baseline": 1, "02_n_envs --envs 3": 3, "04_wrappers --envs 3": 3}  # number of environments of each


def timed(clock: Stopwatch, part: str | Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose time is added to a part of the clock.

    Args:
        clock: stopwatch.
        part: name of the part, or a function from the call's arguments to the name.
        function: timed function.
    """

    def call(*args: Any, **options: Any) -> Any:
        with clock(part if isinstance(part, str) else part(*args)):
            return function(*args, **options)

    return call


def parts(rung: str, steps: int) -> dict[str, float]:
    """Return the milliseconds of an agent step by part, inside and around the network and the emulator."""
    clock = Stopwatch()

    def forward_name(net: torch.nn.Module, states: torch.Tensor) -> str:
        return f"forward of {len(states)}"

    common.unpack_batch = timed(clock, "unpack", common.unpack_batch)
    for owner, method, part in (
        (dqn_model.DQN, "forward", forward_name),
        (torch.Tensor, "backward", "backward"),
        (torch.optim.Adam, "step", "optimizer"),
        (ale_py.AtariEnv, "step", "emulator"),
        (DirectAtari, "step", "emulator"),  # with the preprocessing of its screens
    ):
        setattr(owner, method, timed(clock, part, getattr(owner, method)))

    # The run's own times begin with learning, so the times of the patched functions have to as well.
    before: dict[str, float] = {}
    attached: list[Speed] = []

    class WatchedSpeed(Speed):
        def attach(self, engine: Engine) -> None:
            super().attach(engine)
            attached.append(self)
            engine.add_event_handler(TrainingEvents.LEARNING_STARTED, lambda: before.update(clock.seconds))

    setup.Speed = WatchedSpeed  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        train, params = launch.load(rung, steps, folder)
        train()

    [run_speed] = attached
    inner = {part: seconds - before.get(part, 0.0) for part, seconds in clock.seconds.items()}
    outer = run_speed.parts
    envs = RUNGS[rung]
    acting = inner[f"forward of {envs}"]
    learning = inner[f"forward of {params.batch_size * envs}"] + inner["backward"] + inner["optimizer"]
    seconds = {
        "network: forward, backward, optimizer": learning,
        "network: acting": acting,
        "emulator": inner["emulator"],
        "wrappers": outer["environment"] - inner["emulator"],
        "agent around the network": outer["act"] - acting,
        "store and sample": outer["sample"],
        "unpack the batch": inner["unpack"],
        "loss, target copies": outer["learn"] - inner["unpack"] - learning,
    }
    seconds["telemetry, checkpoints, ignite"] = run_speed.training.seconds - sum(seconds.values())
    return {part: 1000 * spent / run_speed.training.steps for part, spent in seconds.items()}


class RandomAgent(ptan.agent.BaseAgent):
    """Agent that draws actions uniformly."""

    def __init__(self, n_actions: int):
        super().__init__()
        self.n_actions = n_actions

    def __call__(self, states: Any, agent_states: Any) -> tuple[np.ndarray, Any]:
        return np.random.randint(self.n_actions, size=len(states)), agent_states


def memory(transitions: int) -> None:
    """Measure the resident memory of a full replay of Pong, and the cost of a checkpoint of it."""
    process = psutil.Process()
    env = make_env("PongNoFrameskip-v4")
    agent = RandomAgent(6)  # the number of actions of Pong
    source = ExperienceSourceFirstLast(env, agent, gamma=0.99)
    replay = ReplayBuffer(source, transitions)
    replay.populate(100)
    gc.collect()
    before = process.memory_info().rss
    for _ in tqdm(range(0, transitions, 1000), desc="memory"):
        replay.populate(1000)
    gigabytes = (process.memory_info().rss - before) / 1e9
    forecast = ReplayBuffer.forecast(env, transitions, saved=False) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        checkpoint.save({"net": {}, "replay": replay.state_dict()}, Path(folder) / "step-000000000.pt")
        saved = time.perf_counter()
        content = checkpoint.newest(Path(folder))
        replay.load_state_dict(content["replay"])
        loaded = time.perf_counter()
        size = (Path(folder) / "step-000000000.pt").stat().st_size / 1e9
    results = lab.Results(MEMORY, ("what", "value", "unit"), replace=True)
    results.add(what=f"replay of {transitions:,} stacked states", value=f"{gigabytes:.2f}", unit="GB")
    results.add(what="its forecast, without the copy made while saving", value=f"{forecast:.2f}", unit="GB")
    results.add(what="a checkpoint of it", value=f"{size:.2f}", unit="GB")
    results.add(what="to save it", value=f"{saved - start:.1f}", unit="s")
    results.add(what="to read it back", value=f"{loaded - saved:.1f}", unit="s")


def parts_table(frame: pd.DataFrame) -> str:
    """Return a row per part and a column per rung, with the share of the network and the emulator."""
    times = frame.pivot(index="part", columns="rung", values="milliseconds_per_step")
    times = times.loc[list(dict.fromkeys(frame.part)), list(dict.fromkeys(frame.rung))]
    rows = [(part, *(f"{value:.2f}" for value in row)) for part, row in times.iterrows()]
    rows.append(("all", *(f"{value:.2f}" for value in times.sum())))
    own = times[times.index.str.startswith(("network", "emulator"))].sum() / times.sum()
    rows.append(("share of the network and the emulator", *(f"{share:.1%}" for share in own)))
    bound = times[launch.BASELINE].sum() / times[times.index.str.startswith("network")].sum()
    rows.append(("speed relative to 01 if only the network took time", *(f"{ratio:.2f}" for ratio in bound)))
    return markup.table(("ms per agent step, one run each", *(f"`{rung}`" for rung in times)), rows)


def memory_table(frame: pd.DataFrame) -> str:
    """Return a row per measured value."""
    rows = [(row.what, f"{row.value:g} {row.unit}") for row in frame.itertuples()]
    return markup.table(("filled by random play of Pong", "measured"), rows)


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "parts", "memory")
    parser.add_argument("--steps", type=cli.positive, default=1200, help="learning steps of `parts` (default: 1200)")
    parser.add_argument("--one", metavar="RUNG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(parts(args.one, args.steps)))
        return
    chosen = args.what or ("parts", "memory")
    if "parts" in chosen:
        results = lab.Results(PARTS, ("rung", "part", "milliseconds_per_step"), replace=True)
        for rung in RUNGS:  # each in its own process, because the timers change the library
            command = [sys.executable, __file__, "--steps", str(args.steps), "--one", rung]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            for part, milliseconds in json.loads(output.splitlines()[-1]).items():
                results.add(rung=rung, part=part, milliseconds_per_step=f"{milliseconds:.3f}")
    if "memory" in chosen:
        memory(100_000)


if __name__ == "__main__":
    main()
