#!/usr/bin/env python3
"""Runs as one web page: curves, speeds, where the seconds went, what differs, videos, environment and commit.

    ./report.py 2026-11-20T1200-pong-01_ppo
    ./report.py ../runs/*-pong-* --output ../seeds

The page has everything in itself and needs neither a network nor a display: send it to whom you like. Runs that
differ in nothing but the seed are one curve with a band from the lowest to the highest. The page of one run is written
into its folder, that of several into report/ here, as report.html, and its pictures beside it as report-*.png.
compare.py shows the same numbers in the terminal.
"""

from pathlib import Path

from lib import cli
from lib.analysis import report


def main() -> None:
    parser = cli.tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=cli.existing_run, help="folders, or names in runs/")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="(default: the run's own, of several report/)")
    args = parser.parse_args()
    paths = list(dict.fromkeys(args.runs))
    print(report.write(paths, args.output or (paths[0] if len(paths) == 1 else Path("report"))))


if __name__ == "__main__":
    with cli.exit_codes():
        main()
