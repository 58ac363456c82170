#!/usr/bin/env python3
"""Where an agent step's milliseconds go, finer than a run's own table tells, and what the replay takes.

./profiles.py             # both, about four minutes on two cores
./chapter09.py tables     # then, for the documents
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ale_py
import numpy as np
import pandas as pd
import psutil
import ptan
import torch
from tqdm import tqdm

import lab
from lib import common, dqn_model
from lib.envs.atari import DirectAtari
from lib.envs.single_env import make_env
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.run import checkpoint, speed
from lib.run.events import TrainingEvents
from lib.run.speed import Speed
from lib.system.clock import Stopwatch

RUNGS = {"01_baseline": 1, "02_n_envs --envs 3": 3, "04_wrappers --envs 3": 3}  # and their environments


def parts(rung: str, steps: int) -> dict[str, float]:
    """Milliseconds an agent step by part; what the network and the emulator do themselves, and what is around them."""
    clock = Stopwatch()

    def timed(part, function):
        def call(*args, **kwargs):
            with clock(part(*args) if callable(part) else part):
                return function(*args, **kwargs)

        return call

    common.unpack_batch = timed("unpack", common.unpack_batch)
    dqn_model.DQN.forward = timed(lambda net, states: f"forward of {len(states)}", dqn_model.DQN.forward)
    torch.Tensor.backward = timed("backward", torch.Tensor.backward)
    torch.optim.Adam.step = timed("optimizer", torch.optim.Adam.step)
    ale_py.AtariEnv.step = timed("emulator", ale_py.AtariEnv.step)
    DirectAtari.step = timed("emulator", DirectAtari.step)  # both in one

    # The seconds of the patched functions begin with learning, as those of the run's own table do.
    before: dict[str, float] = {}
    speed_of_run: list[Speed] = []

    class Watched(Speed):
        def attach(self, engine):
            super().attach(engine)
            speed_of_run.append(self)
            engine.add_event_handler(TrainingEvents.LEARNING_STARTED, lambda: before.update(clock.seconds))

    speed.Speed = Watched
    with tempfile.TemporaryDirectory() as folder:
        module, params, args = lab.load(rung, steps, folder)
        module.train(params, args)

    [run] = speed_of_run
    own = {part: seconds - before.get(part, 0.0) for part, seconds in clock.seconds.items()}
    whole = run.parts
    envs = RUNGS[rung]
    acting = own[f"forward of {envs}"]
    batch = own[f"forward of {params.batch_size * envs}"] + own["backward"] + own["optimizer"]
    seconds = {
        "network: forward, backward, optimizer": batch,
        "network: acting": acting,
        "emulator": own["emulator"],
        "wrappers": whole["environment"] - own["emulator"],
        "agent around the network": whole["act"] - acting,
        "store and sample": whole["sample"],
        "unpack the batch": own["unpack"],
        "loss, target copies": whole["learn"] - own["unpack"] - batch,
    }
    seconds["telemetry, checkpoints, ignite"] = run.seconds - sum(seconds.values())
    return {part: 1000 * spent / run.trained for part, spent in seconds.items()}


def memory(transitions: int) -> None:
    """Resident memory of a full replay of Pong, and what a checkpoint of it costs."""
    process = psutil.Process()
    env = make_env("PongNoFrameskip-v4")

    class Anything(ptan.agent.BaseAgent):
        def __call__(self, states, agent_states):
            return np.random.randint(env.action_space.n, size=len(states)), agent_states

    source = ExperienceSourceFirstLast(env, Anything(), gamma=0.99)
    replay = ReplayBuffer(source, transitions)
    replay.populate(100)
    gc.collect()
    before = process.memory_info().rss
    for _ in tqdm(range(0, transitions, 1000), desc="memory"):
        replay.populate(1000)
    full = process.memory_info().rss
    with tempfile.TemporaryDirectory() as folder:
        saver = checkpoint.VerifiedSaver(Path(folder))
        start = time.perf_counter()
        saver({"net": {}, "replay": replay.state_dict()}, "step-000000000.pt")
        saved = time.perf_counter()
        content = checkpoint.newest(Path(folder))
        replay.load_state_dict(content["replay"])
        loaded = time.perf_counter()
        size = (Path(folder) / "step-000000000.pt").stat().st_size
    results = lab.Results("chapter09-memory", ("what", "value", "unit"))
    results.add(what=f"replay of {transitions:,} stacked states", value=f"{(full - before) / 1e9:.2f}", unit="GB")
    results.add(
        what="its forecast, without the copy made while saving",
        value=f"{ReplayBuffer.forecast(env, transitions, saved=False) / 1e9:.2f}",
        unit="GB",
    )
    results.add(what="a checkpoint of it", value=f"{size / 1e9:.2f}", unit="GB")
    results.add(what="to save it", value=f"{saved - start:.1f}", unit="s")
    results.add(what="to read it back", value=f"{loaded - saved:.1f}", unit="s")


def parts_table(frame: pd.DataFrame) -> str:
    """A row a part, a column a rung; and what of a step is the network's own and the emulator's."""
    times = frame.pivot(index="part", columns="rung", values="milliseconds_per_step")
    times = times.loc[list(dict.fromkeys(frame.part)), list(dict.fromkeys(frame.rung))]
    rows = [(part, *(f"{value:.2f}" for value in row)) for part, row in times.iterrows()]
    rows.append(("all", *(f"{value:.2f}" for value in times.sum())))
    own = times[times.index.str.startswith(("network", "emulator"))].sum() / times.sum()
    rows.append(("share of the network's and the emulator's own", *(f"{share:.1%}" for share in own)))
    bound = times[lab.BASELINE].sum() / times[times.index.str.startswith("network")].sum()
    rows.append(("ratio to 01, were there nothing but the network", *(f"{ratio:.2f}" for ratio in bound)))
    return lab.table(("ms an agent step", *(f"`{rung}`" for rung in times)), rows) + "\n\nOne run a rung."


def memory_table(frame: pd.DataFrame) -> str:
    """A row a figure."""
    rows = [(row.what, f"{row.value:g} {row.unit}") for row in frame.itertuples()]
    return f"{lab.table(('what', 'measured'), rows)}\n\nFilled by random play of Pong."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.experiments(parser, "parts", "memory")
    parser.add_argument("--steps", type=int, default=1200, help="learning steps of `parts` (default: 1200)")
    parser.add_argument("--one", metavar="RUNG", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(parts(args.one, args.steps)))
        return
    chosen = args.what or ("parts", "memory")
    if "parts" in chosen:
        results = lab.Results("chapter09-parts", ("rung", "part", "milliseconds_per_step"))
        for rung in RUNGS:  # each in a process of its own, as measuring changes what it measures
            command = [sys.executable, __file__, "--steps", str(args.steps), "--one", rung]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            for part, milliseconds in json.loads(said).items():
                results.add(rung=rung, part=part, milliseconds_per_step=f"{milliseconds:.3f}")
    if "memory" in chosen:
        memory(100_000)


if __name__ == "__main__":
    main()
