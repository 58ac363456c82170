#!/usr/bin/env python3
"""Runs beside each other, as a table: how far they came, how fast, and in what they differ.

    ./compare.py ../runs/*-pong-*
    ./compare.py 2026-11-20T1200-pong-01_baseline 2026-11-20T1230-pong-02_n_envs --csv table.csv

`mean` is that of the last 100 training episodes, `solved` the minutes until it first reached the run's bound,
`evaluated` the mean that evaluate.py or the end of a solved run found. Settings that all runs share are left out.
report.py shows the same as a page, with curves.
"""

from pathlib import Path

from lib import cli
from lib.analysis import comparison
from lib.system import files

WIDTH = 40  # characters of a run's name


def main() -> None:
    parser = cli.tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=cli.existing_run, help="folders, or names in runs/")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    args = parser.parse_args()
    if args.csv:
        cli.writable(args.csv)
    found = comparison.table(args.runs)
    # A column a run, as there are more properties than fit beside each other.
    shown = found.set_axis([name if len(name) <= WIDTH else f"{name[: WIDTH - 1]}…" for name in found.index])
    print(shown.map(comparison.text).T.to_string())
    if args.csv:
        files.write(args.csv, found.to_csv())


if __name__ == "__main__":
    with cli.exit_codes():
        main()
