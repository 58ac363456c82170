#!/usr/bin/env python3
"""Compare runs in a table: how far they came, how fast they were, and in which settings they differ.

    ./compare.py ../runs/*-pong-*
    ./compare.py 2026-11-20T1200-pong-01_baseline 2026-11-20T1230-pong-02_n_envs --csv table.csv

mean is the mean return of the last 100 training episodes. solved is the number of minutes until it first reached the
run's stop_reward. evaluated is the mean return without exploration, from evaluate.py or from the end of a solved run.
Settings that all runs share are left out. report.py shows the same numbers as a page, with curves.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis import comparison
from lib.system import files

NAME_WIDTH = 40


def main() -> None:
    parser = cli.runs_tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=cli.existing_run, help="run folders, or names in runs/")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the table to this file")
    args = parser.parse_args()
    if args.csv:
        cli.writable(args.csv)
    table = comparison.comparison_table(args.runs)
    names = [name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…" for name in table.index]
    # One column per run, because there are more properties than fit in a line.
    print(table.set_axis(names).map(comparison.format_value).T.to_string())
    if args.csv:
        files.write(args.csv, table.to_csv())


if __name__ == "__main__":
    with cli.exit_codes():
        main()
