#!/usr/bin/env python3
"""Show runs as one web page: curves, speeds, time by part, differing settings, videos, environment and commit.

    ./report.py 2026-11-20T1200-pong-01_ppo
    ./report.py ../runs/*-pong-* --output ../seeds

The page is self-contained: it needs no network and no other files, so it can be sent to anybody. Runs that differ only
in the seed share one curve with a band: the range for two seeds, the confidence interval for more. A run without
episodes and updates is skipped. The page of one run is written to its folder. The page of several runs is written to
report/ in the current folder, as report.html. compare.py prints the outcomes.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis import report
from lib.analysis.run_data import select_runs


def main() -> None:
    parser = cli.runs_tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or names in --runs-dir")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="output folder (default: run folder, or report/)")
    args = parser.parse_args()
    runs, skipped = select_runs(args.runs, args.runs_dir, with_episodes=True)
    for reason in skipped:
        print(f"Skipped: {reason}.", file=sys.stderr)
    default = runs[0].path if len(args.runs) == 1 else Path("report")
    print(report.write_report(runs, args.output or default))


if __name__ == "__main__":
    with cli.exit_codes():
        main()
