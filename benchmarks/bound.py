#!/usr/bin/env python3
"""Measure the upper bound of parallel playing: the learner alone, the players alone, and both together.

    ./bound.py               # about ten minutes on two cores
    ./bound.py --go-on       # after an interruption
    ./chapter09.py tables    # then put the table into the pages

The learner alone runs the script with transitions from a list. The players alone run the script without learning.
A step of both together cannot take less time than the slower side needs with the machine to itself.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import lab
import launch
import markup
from lib import cli, common
from lib.experience import replay_buffer
from lib.experience.replay_buffer import ReplayBuffer
from lib.run.events import TrainingEvents

import pandas as pd
from ignite.engine import Engine, Events
from tqdm import tqdm

NAME = "chapter09/bound"
RUNGS = ("03_parallel", "04_wrappers --envs 3 --parallel")
LEARNER, PLAYERS, TOGETHER = "learner alone", "players alone", "together"

Mark = tuple[float, int]  # seconds, and agent steps so far


class PlayersMeasured(Exception):
    """Raised in place of learning, with the milliseconds of a step as its argument."""


def measure(rung: str, what: str, steps: int) -> float:
    """Return the milliseconds of an agent step.

    Args:
        rung: name and options of the script.
        what: LEARNER, PLAYERS or TOGETHER.
        steps: agent steps to time, after the warm-up.
    """
    with tempfile.TemporaryDirectory() as folder:
        train, _ = launch.load(rung, steps, folder)
        if what == PLAYERS:
            return players_alone(train, steps)
        if what == LEARNER:
            replay_buffer.ReplayBuffer = endless_buffer()  # type: ignore[misc]
        marks: list[Mark] = []
        common.setup_ignite = watch(common.setup_ignite, marks, steps)
        train()
    return per_step(marks[0], marks[1])


def watch(setup_ignite: Callable[..., Any], marks: list[Mark], steps: int) -> Callable[..., Any]:
    """Return a setup_ignite that also records a mark when learning begins and one `steps` agent steps later."""

    def setup(engine: Engine, params: Any, source: Any, *rest: Any, **options: Any) -> Any:
        run = setup_ignite(engine, params, source, *rest, **options)

        def mark(engine: Engine) -> None:
            marks.append((time.perf_counter(), source.steps_done))

        def learnt_enough(engine: Engine, event: int) -> bool:
            return bool(source.steps_done >= launch.WARM_UP + steps)

        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, mark)
        engine.add_event_handler(Events.ITERATION_COMPLETED(event_filter=learnt_enough), mark)
        return run

    return setup


def endless_buffer() -> type[ReplayBuffer]:
    """Return a replay buffer class that repeats the first transitions of its source, at no cost."""

    def repeat(source: Any, transitions: Iterator[Any]) -> Iterator[Any]:
        recorded = list(itertools.islice(transitions, launch.WARM_UP))
        yield from recorded
        source.close()
        source.metrics = lambda: dict.fromkeys(source.METRICS, 0.0)
        for transition in itertools.cycle(recorded):
            source.steps_done += 1
            yield transition

    class EndlessBuffer(ReplayBuffer):
        def __init__(self, source: Any, *rest: Any, **options: Any):
            super().__init__(source, *rest, **options)
            buffer: Any = self  # ptan has no types
            buffer.experience_source_iter = repeat(source, buffer.experience_source_iter)

    return EndlessBuffer


def players_alone(train: Callable[[], object], steps: int) -> float:
    """Return the milliseconds of a step of the players that `train` starts; their transitions are dropped."""

    class DroppingBuffer(ReplayBuffer):
        def __init__(self, source: Any, *rest: Any, **options: Any):
            super().__init__(source, *rest, **options)
            marks: list[Mark] = []
            for count in (launch.WARM_UP, steps):
                for _ in itertools.islice(self.experience_source_iter, count):
                    pass
                marks.append((time.perf_counter(), source.steps_done))
            source.close()
            raise PlayersMeasured(per_step(marks[0], marks[1]))

    replay_buffer.ReplayBuffer = DroppingBuffer  # type: ignore[assignment,misc]
    try:
        train()
    except PlayersMeasured as measured:
        return float(measured.args[0])
    raise RuntimeError("the run ended without filling a replay buffer")


def per_step(start: Mark, end: Mark) -> float:
    """Return the milliseconds of an agent step between two marks."""
    return 1000 * (end[0] - start[0]) / (end[1] - start[1])


def table(frame: pd.DataFrame) -> str:
    """Return a row per rung: each side alone, both together, and how near to the bound they come."""
    rows = []
    for rung, own in frame.groupby("rung", sort=False):
        times = lab.rounds(own, "what", "milliseconds")
        bound = times[[LEARNER, PLAYERS]].max(axis=1)
        medians = [f"{times[what].median():.2f}" for what in (LEARNER, PLAYERS, TOGETHER)]
        rows.append((f"`{rung}`", *medians, markup.spread(bound / times[TOGETHER], 2)))
    return markup.table(("median ms per agent step", LEARNER, PLAYERS, TOGETHER, "slower side / together"), rows)


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("--rounds", type=cli.positive, default=5, help="number of rounds (default: 5)")
    parser.add_argument(
        "--steps", type=cli.positive, default=1200, help="agent steps of each measurement (default: 1200)"
    )
    lab.add_go_on(parser)
    parser.add_argument("--one", nargs=2, metavar=("RUNG", "WHAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        rung, what = args.one
        print(json.dumps(measure(rung, what, args.steps)))
        return
    columns = ("round", "rung", "what", "milliseconds")
    results = lab.Results(NAME, columns, lab.stamp(steps=args.steps), args.go_on)
    groups = list(itertools.product(RUNGS, (LEARNER, PLAYERS, TOGETHER)))
    for number, (rung, what) in tqdm(list(lab.turns(args.rounds, groups))):
        if results.has(round=number, rung=rung, what=what):
            continue
        command = [sys.executable, __file__, "--steps", str(args.steps), "--one", rung, what]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        milliseconds = json.loads(output.splitlines()[-1])
        results.add(round=number, rung=rung, what=what, milliseconds=f"{milliseconds:.3f}")
    print(table(lab.read(NAME)[0]))


if __name__ == "__main__":
    main()
