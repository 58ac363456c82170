#!/usr/bin/env python3
"""What parallel playing can give at most on this machine: the learner alone, the players alone, and both together.

    ./bound.py               # about ten minutes on two cores
    ./bound.py --go-on       # after an interruption

The learner alone is the rung itself, but its transitions come from a list. The players alone are the rung's, but what
they make is thrown away. Per agent step, the learner takes L seconds and the players P, in C_L and C_P seconds of
the processors; on n cores no way of running both can take less than the largest of L, P and (C_L + C_P) / n.
"""

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
import time

import pandas as pd
import psutil
from tqdm import tqdm

import lab
from lib import common, experience, options, parallel, runs

RUNGS = ("03_parallel", "04_wrappers --envs 3 --parallel")
WARM_UP = 2000


class Endless(parallel.Players):
    """Players whose first transitions are handed out again and again, at no cost."""

    def __iter__(self):
        recorded = list(itertools.islice(super().__iter__(), WARM_UP))
        self.close()
        for transition in itertools.chain(recorded, itertools.cycle(recorded)):
            self.steps_done += 1
            yield transition

    def metrics(self):
        return {}


def load(rung: str):
    """A rung's module, and what its command line says of Pong with a short warm-up."""
    script, *own = rung.split()
    spec = importlib.util.spec_from_file_location("rung", lab.PROJECT / "chapter09" / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, own


def measure(rung: str, what: str, steps: int) -> dict[str, float]:
    """Seconds and processor seconds an agent step, in this process."""
    module, own = load(rung)
    script = rung.split()[0]
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--set", f"replay_initial={WARM_UP}", "--stop-after", str(WARM_UP + steps), "--quiet"]
        parser = options.parser(module.__doc__)
        parser.add_argument("--envs", type=int, default=3)
        parser.add_argument("--players", type=int, default=1)
        parser.add_argument("--replay-ratio", type=int, default=32)
        parser.add_argument("--parallel", action="store_true")
        params, args = options.resolve(parser, [*own, *flags, "--runs-dir", folder], script)
        options.prepare(args.seed)
        if what == "learner alone":
            parallel.Players = Endless
        if what == "players alone":
            return alone(module, params, args, steps)
        state = {}

        def watch(engine, *rest, **named):
            @engine.on(common.telemetry.TrainingEvents.LEARNING_STARTED)
            def begin(engine):
                state["begin"] = (seconds_used(), time.perf_counter(), rest[1].steps_done)

            run = setup(engine, *rest, **named)

            @engine.on(common.Events.ITERATION_COMPLETED)
            def end(engine):
                state["end"] = (seconds_used(), time.perf_counter(), rest[1].steps_done)

            return run

        setup, common.setup_ignite = common.setup_ignite, watch
        module.train(params, args)
    return per_step(state["begin"], state["end"])


def alone(module, params, args, steps: int) -> dict[str, float]:
    """The rung's players, with a learner that does nothing but take."""
    taken = {}

    class Thrown(experience.ReplayBuffer):
        def __init__(self, source, *rest, **named):
            super().__init__(source, *rest, **named)
            stream = self.experience_source_iter
            for _ in itertools.islice(stream, WARM_UP):
                pass
            begin = (seconds_used(), time.perf_counter(), source.steps_done)
            for _ in itertools.islice(stream, steps):
                pass
            taken.update(per_step(begin, (seconds_used(), time.perf_counter(), source.steps_done)))
            source.close()
            raise StopIteration

    experience.ReplayBuffer = Thrown
    try:
        module.train(params, args)
    except StopIteration:
        return taken


def seconds_used() -> float:
    """Processor seconds of this process and of all that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def per_step(begin: tuple, end: tuple) -> dict[str, float]:
    """The differences of (processor seconds, seconds, steps) in milliseconds a step."""
    used, seconds, steps = (new - old for new, old in zip(end, begin, strict=True))
    return {"milliseconds": 1000 * seconds / steps, "processor_milliseconds": 1000 * used / steps}


def table(frame: pd.DataFrame, cores: int) -> str:
    """A row a rung: its parts alone, the bound that they set, what was measured, and its share of the bound."""
    rows = []
    for rung, own in frame.groupby("rung", sort=False):
        wall = lab.rounds(own, "what", "milliseconds")
        used = lab.rounds(own, "what", "processor_milliseconds")
        bounds = pd.concat(
            [wall["learner alone"], wall["players alone"], (used["learner alone"] + used["players alone"]) / cores],
            axis=1,
        ).max(axis=1)
        share = bounds / wall["together"]
        parts = [
            f"{wall[what].median():.2f} ({used[what].median():.2f})" for what in ("learner alone", "players alone")
        ]
        together = f"{wall['together'].median():.2f}"
        rows.append((f"`{rung}`", *parts, f"{bounds.median():.2f}", together, lab.spread(share, 2)))
    header = (
        "ms an agent step (of a processor)",
        "learner alone",
        "players alone",
        "bound",
        "together",
        "bound / together",
    )
    return f"{lab.table(header, rows)}\n\nMedians; the last column minimum / median / maximum of {len(share)} rounds."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1200, help="agent steps of each measurement (default: 1200)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has left")
    parser.add_argument("--one", nargs=2, metavar=("RUNG", "WHAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one, args.steps)))
        return
    columns = ("round", "rung", "what", "milliseconds", "processor_milliseconds")
    results = lab.Results("chapter09-bound", columns, go_on=args.go_on)
    whats = ("learner alone", "players alone", "together")
    turns = itertools.product(range(args.rounds), RUNGS, whats)
    missing = [turn for turn in turns if not results.has(round=turn[0], rung=turn[1], what=turn[2])]
    for number, rung, what in tqdm(missing):
        command = [sys.executable, __file__, "--steps", str(args.steps), "--one", rung, what]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        values = {name: f"{value:.3f}" for name, value in json.loads(said).items()}
        results.add(round=number, rung=rung, what=what, **values)
    frame, stamped = lab.read("chapter09-bound")
    lab.put("docs/chapter09.md", "bound", f"{table(frame, runs.machine()['cores'])} {lab.where(stamped)}")


if __name__ == "__main__":
    main()
