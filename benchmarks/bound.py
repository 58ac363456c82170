#!/usr/bin/env python3
"""What parallel playing can give at most on this machine: the learner alone, the players alone, and both together.

    ./bound.py               # about ten minutes on two cores
    ./bound.py --go-on       # after an interruption
    ./chapter09.py tables    # then, for the documents

The learner alone is the rung itself, but its transitions come from a list. The players alone are the rung's, but what
they make is thrown away. However both share the cores, a step cannot take less time than it takes the slower of the two
that has them all to itself: that is the bound.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time

import pandas as pd
from ignite.engine import Events
from lib.actors.parallel import Players
from tqdm import tqdm

import lab
from lib.actors import parallel
from lib.experience import replay_buffer
from lib.experience.replay_buffer import ReplayBuffer
from lib.run.events import TrainingEvents
from lib.run.setup import setup_ignite

RUNGS = ("03_parallel", "04_wrappers --envs 3 --parallel")


class Endless(Players):
    """Players whose first transitions are handed out again and again, at no cost."""

    def __iter__(self):
        recorded = []
        for transition in itertools.islice(super().__iter__(), lab.WARM_UP):
            recorded.append(transition)
            yield transition
        self.close()
        for transition in itertools.cycle(recorded):
            self.steps_done += 1
            yield transition

    def metrics(self):
        return dict.fromkeys(self.METRICS, 0.0)


def measure(rung: str, what: str, steps: int) -> float:
    """Milliseconds an agent step."""
    with tempfile.TemporaryDirectory() as folder:
        module, params, args = lab.load(rung, steps, folder)
        if what == "learner alone":
            parallel.Players = Endless
        if what == "players alone":
            return alone(module, params, args, steps)
        marks = []

        def watch(engine, params, source, *rest, **named):
            run = setup(engine, params, source, *rest, **named)

            def mark(engine):
                marks.append((time.perf_counter(), source.steps_done))

            engine.add_event_handler(TrainingEvents.LEARNING_STARTED, mark)
            engine.add_event_handler(
                Events.ITERATION_COMPLETED(event_filter=lambda *_: source.steps_done >= lab.WARM_UP + steps), mark
            )
            return run

        setup, setup.setup_ignite = setup_ignite, watch
        module.train(params, args)
    return per_step(marks[0], marks[1])


def alone(module, params, args, steps: int) -> float:
    """The rung's players, with a learner that does nothing but take."""

    class Taken(Exception):
        """In place of learning."""

    class Thrown(ReplayBuffer):
        def __init__(self, source, *rest, **named):
            super().__init__(source, *rest, **named)
            marks = []
            for count in (lab.WARM_UP, steps):
                for _ in itertools.islice(self.experience_source_iter, count):
                    pass
                marks.append((time.perf_counter(), source.steps_done))
            source.close()
            raise Taken(per_step(*marks))

    replay_buffer.ReplayBuffer = Thrown
    try:
        module.train(params, args)
    except Taken as taken:
        return taken.args[0]


def per_step(begin: tuple[float, int], end: tuple[float, int]) -> float:
    """Milliseconds an agent step between two (seconds, steps)."""
    return 1000 * (end[0] - begin[0]) / (end[1] - begin[1])


def table(frame: pd.DataFrame) -> str:
    """A row a rung: each side alone, the bound that they set, what was measured, and how near to the bound that is."""
    rows = []
    for rung, own in frame.groupby("rung", sort=False):
        times = lab.rounds(own, "what", "milliseconds")
        bound = times[["learner alone", "players alone"]].max(axis=1)
        medians = [
            f"{column.median():.2f}" for column in (times["learner alone"], times["players alone"], times["together"])
        ]
        rows.append((f"`{rung}`", *medians, lab.spread(bound / times["together"], 2)))
    header = ("ms an agent step", "learner alone", "players alone", "together", "share of the bound")
    return f"{lab.table(header, rows)}\n\nMedians; the share is minimum / median / maximum of {len(times)} rounds."


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
    columns = ("round", "rung", "what", "milliseconds")
    results = lab.Results("chapter09-bound", columns, lab.stamp(steps=args.steps), args.go_on)
    whats = ("learner alone", "players alone", "together")
    turns = itertools.product(range(args.rounds), RUNGS, whats)
    missing = [turn for turn in turns if not results.has(round=turn[0], rung=turn[1], what=turn[2])]
    for number, rung, what in tqdm(missing):
        command = [sys.executable, __file__, "--steps", str(args.steps), "--one", rung, what]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        results.add(round=number, rung=rung, what=what, milliseconds=f"{json.loads(said):.3f}")
    frame, stamped = lab.read("chapter09-bound")
    print(f"{table(frame)} {lab.where(stamped)}")


if __name__ == "__main__":
    main()
