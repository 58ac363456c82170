#!/usr/bin/env python3
"""Compare runs in a table: their mean returns, their speeds, and the settings in which they differ.

    ./compare.py ../runs/*-pong-*
    ./compare.py 2026-11-20T1200-pong-01_baseline 2026-11-20T1230-pong-02_n_envs --csv table.csv

mean is the mean return of the last 100 training episodes. solved is the number of minutes until that mean reached
stop_reward. evaluated is the mean return without exploration, from evaluate.py with the best or last checkpoint, or
from the evaluation at the end of a run that was solved or reached max_steps.
Settings that all runs share are left out. Below the table, runs that differ only in --seed, --patience or --address are
summarised. The summary of two runs is their mean and range; that of more runs is their interquartile mean and its
bootstrap interval. report.py makes a page with curves and the time by part.
"""

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis import comparison
from lib.analysis.run_data import select_runs
from lib.system import files

import pandas as pd

MIN_NAME_WIDTH, MAX_NAME_WIDTH = 11, 32


def main() -> None:
    parser = cli.runs_tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or names in --runs-dir")
    parser.add_argument("--csv", type=cli.new_file, metavar="FILE", help="also write the table to this new file")
    args = parser.parse_args()
    runs, skipped = select_runs(args.runs, args.runs_dir)
    for reason in skipped:
        print(f"Skipped: {reason}.", file=sys.stderr)
    table = pd.concat([comparison.settings_table(runs), comparison.outcome_table(runs)], axis=1).rename_axis("run")
    # One column per run, because there are more properties than fit in a line. A terminal shows as many as fit.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    room = MAX_NAME_WIDTH if width is None else (width - max(map(len, table))) // len(runs) - 2
    name_width = min(MAX_NAME_WIDTH, max(MIN_NAME_WIDTH, room))
    names = [comparison.shorten(name, name_width) for name in comparison.short_names(runs)]
    print(table.set_axis(names).map(comparison.format_value).T.to_string(line_width=width))
    for group in comparison.group_runs(runs):
        if len(group.runs) > 1:
            print(f"\n{group.label}, {len(group.runs)} runs: {comparison.summarise(group)}")
    if args.csv:
        files.write(args.csv, table.to_csv())


if __name__ == "__main__":
    with cli.exit_codes():
        main()
