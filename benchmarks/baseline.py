#!/usr/bin/env python3
"""Where the baseline's seconds go, finer than its own table tells, and what its replay takes.

./baseline.py            # both, about four minutes on two cores
./baseline.py tables     # only make docs/chapter09.md's tables anew from the CSV files
"""

import argparse
import dataclasses
import gc
import importlib.util
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
from lib import atari_wrappers, checkpoint, common, dqn_model, experience, options, runs, timing

BASELINE = "01_baseline"
WARM_UP = 2000


def parts(steps: int) -> None:
    """Where 01_baseline's seconds go, finer than its own table: what is the network's and the emulator's own."""
    clock = timing.Stopwatch()

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

    # The seconds of the patched functions begin with learning, as those of the run's own table do.
    before: dict[str, float] = {}
    speed_of_run: list[timing.Speed] = []

    class Watched(timing.Speed):
        def attach(self, engine):
            super().attach(engine)
            speed_of_run.append(self)
            engine.add_event_handler(timing.TrainingEvents.LEARNING_STARTED, lambda: before.update(clock.seconds))

    timing.Speed = Watched
    spec = importlib.util.spec_from_file_location(BASELINE, lab.PROJECT / "chapter09" / f"{BASELINE}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    params = dataclasses.replace(common.HYPERPARAMS["pong"], replay_initial=WARM_UP)
    options.prepare(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        args = runs.RunOptions(runs_dir=Path(folder), stop_after=WARM_UP + steps, quiet=True)
        script.train(params, args)

    [run] = speed_of_run
    own = {part: seconds - before.get(part, 0.0) for part, seconds in clock.seconds.items()}
    whole = run.parts
    batch = own[f"forward of {params.batch_size}"] + own["backward"] + own["optimizer"]
    seconds = {
        "network: forward, backward, optimizer": batch,
        "network: acting": own["forward of 1"],
        "emulator": own["emulator"],
        "wrappers": whole["environment"] - own["emulator"],
        "agent around the network": whole["act"] - own["forward of 1"],
        "store and sample": whole["sample"],
        "unpack the batch": own["unpack"],
        "loss, target copies": whole["learn"] - own["unpack"] - batch,
    }
    seconds["telemetry, checkpoints, ignite"] = run.seconds - sum(seconds.values())
    results = lab.Results("chapter09-parts", ("part", "milliseconds_per_step", "share"))
    for part, spent in seconds.items():
        results.add(part=part, milliseconds_per_step=f"{1000 * spent / steps:.3f}", share=f"{spent / run.seconds:.4f}")


def memory(transitions: int) -> None:
    """Resident memory of a full replay of Pong, and what a checkpoint of it costs."""
    process = psutil.Process()
    env = atari_wrappers.make_env("PongNoFrameskip-v4")

    class Anything(ptan.agent.BaseAgent):
        def __call__(self, states, agent_states):
            return np.random.randint(env.action_space.n, size=len(states)), agent_states

    source = experience.ExperienceSourceFirstLast(env, Anything(), gamma=0.99)
    replay = experience.ReplayBuffer(source, transitions)
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
        value=f"{experience.ReplayBuffer.forecast(env, transitions, saved=False) / 1e9:.2f}",
        unit="GB",
    )
    results.add(what="a checkpoint of it", value=f"{size / 1e9:.2f}", unit="GB")
    results.add(what="to save it", value=f"{saved - start:.1f}", unit="s")
    results.add(what="to read it back", value=f"{loaded - saved:.1f}", unit="s")


def parts_table(frame: pd.DataFrame) -> str:
    """A row a part, and the share of what is the network's own and the emulator's."""
    rows = [(row.part, f"{row.milliseconds_per_step:.2f}", f"{row.share:.1%}") for row in frame.itertuples()]
    own = frame[frame.part.str.startswith(("network", "emulator"))].share.sum()
    return f"{lab.table(('part', 'ms a step', 'share'), rows)}\n\nThe network's own and the emulator's: {own:.1%}."


def memory_table(frame: pd.DataFrame) -> str:
    """A row a figure."""
    rows = [(row.what, f"{row.value:g} {row.unit}") for row in frame.itertuples()]
    return f"{lab.table(('what', 'measured'), rows)}\n\nFilled by random play of Pong."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=("parts", "memory"), help="default: everything")
    parser.add_argument("--steps", type=int, default=1100, help="learning steps of `parts` (default: 1100)")
    args = parser.parse_args()
    chosen = args.what or ("parts", "memory")
    if "parts" in chosen:
        parts(args.steps)
    if "memory" in chosen:
        memory(100_000)


if __name__ == "__main__":
    main()
