#!/usr/bin/env python3
"""Measure scripts of the book's third edition on the book's own lib and on ours.

    ./book.py ~/Deep-Reinforcement-Learning-Hands-On-3E           # its git clone; about fifteen minutes on two cores
    ./book.py ~/Deep-Reinforcement-Learning-Hands-On-3E --go-on   # after an interruption
    ./book.py --tables                                            # only the table of the notes

The scripts are run as they are, with this project's packages. The book's lib of chapter 8 needs Ray Tune:
`pip install 'ray[tune]'`. The two libs take turns, in reverse order in every second round.
"""

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lab
import markup
from lib import cli

import pandas as pd
from tqdm import tqdm

REPOSITORY = "https://github.com/PacktPublishing/Deep-Reinforcement-Learning-Hands-On-3E"
SCRIPTS = ("Chapter08/01_dqn_basic.py", "Chapter09/02_n_envs.py --envs 3")
OWN, BOOK = "this project", "the book"
LIBS = (OWN, BOOK)
NAME = "book/speed"
FIRST, LAST = 50, 350  # updates; timed from the end of the first to the end of the last
COLUMNS = ("round", "script", "lib", "updates_per_second")
SPEED = re.compile(r"updates_per_second=([\d.]+)")


def measure(checkout: Path, rounds: int, go_on: bool) -> None:
    """Run every script with both libs, one after another.

    Args:
        checkout: folder of the book's repository.
        rounds: number of rounds.
        go_on: keep the rows of an interrupted measurement.

    Raises:
        SystemExit: if a script is missing or fails.
    """
    missing = [name for name in SCRIPTS if not (checkout / name.split()[0]).is_file()]
    if missing:
        raise SystemExit(f"{checkout} has no {missing[0].split()[0]}; give the folder of a git clone of {REPOSITORY}")
    stamped = lab.stamp(updates=[FIRST, LAST], book=lab.commit_of(checkout))
    results = lab.Results(NAME, COLUMNS, stamped, go_on)
    for number, (script, lib) in tqdm(list(lab.turns(rounds, list(itertools.product(SCRIPTS, LIBS))))):
        if not results.has(round=number, script=script, lib=lib):
            results.add(round=number, script=script, lib=lib, updates_per_second=timed(checkout, script, lib))


def timed(checkout: Path, script: str, lib: str) -> float:
    """Run a script with a lib, in an empty working directory, and return its updates a second."""
    name, *options = script.split()
    path = checkout.resolve() / name
    folder = lab.PROJECT if lib == OWN else path.parent
    runner = Path(__file__).with_name("peers") / "run_book.py"
    words = [sys.executable, *map(str, (runner, folder, FIRST, LAST, path)), *options]
    with tempfile.TemporaryDirectory() as runs:
        run = subprocess.run(words, capture_output=True, text=True, cwd=runs, check=False)
    speed = SPEED.search(run.stdout)
    if not speed:
        raise SystemExit(f"{script} failed with the lib of {lib}:\n{run.stderr[-2000:]}")
    return float(speed[1])


def table(frame: pd.DataFrame) -> str:
    """Return a row per script: its updates a second with both libs, and the ratio of ours to the book's."""
    rows = []
    for script, own in frame.groupby("script", sort=False):
        speeds = lab.rounds(own, "lib", "updates_per_second")
        ratios = lab.ratios(speeds, BOOK)[OWN]
        rows.append((f"`{script}`", markup.spread(speeds[BOOK]), markup.spread(speeds[OWN]), markup.spread(ratios, 2)))
    return markup.table(("script", "updates/s, the book's lib", "our lib", "ratio"), rows)


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the notes, if there are results."""
    if lab.path_of(NAME).exists():
        frame, stamped = lab.read(NAME)
        where = markup.measured_on([stamped], lab.count_rounds(frame))
        yield markup.Block(markup.MEASUREMENTS, "book", f"{table(frame)}\n\n{where}")


def main() -> None:
    parser = lab.parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("checkout", nargs="?", type=Path, help="folder of the book's repository")
    what.add_argument("--tables", action="store_true", help="only put the table into the notes")
    parser.add_argument("--rounds", type=cli.positive, default=3, help="rounds of the measurement (default: 3)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    if args.checkout:
        measure(args.checkout, args.rounds, args.go_on)
    markup.write(blocks())


if __name__ == "__main__":
    main()
