#!/usr/bin/env python3
"""Search for a script's hyperparameters with Ray Tune; the same as the script's own --tune.

    ./tune.py ../chapter08/01_dqn_basic.py --samples 8
    ./tune.py ../chapter09/06_fast_learner.py --samples 8 --params best --envs 8

The learning rate is drawn log-uniformly from r / 10 to r, but at least learning_rate_final; r is the script's own rate
or that of --set. gamma is 0.9, 0.92, 0.95, 0.98, 0.99 or 0.995. A trial stops early if it learns too little or too
slowly. All further options go to the script. The results are in runs/tune/, and the same command continues an
interrupted search.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.run.watchdog import Watchdog


def main() -> None:
    parser = cli.tool(__doc__)
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="script of a DQN")
    parser.add_argument("--samples", metavar="N", type=cli.positive, default=10, help="number of trials (default: 10)")
    args, options = parser.parse_known_args()
    if not args.script.is_file():
        parser.error(f"there is no script {args.script}; give the script before its own options")
    command = [sys.executable, str(args.script), "--tune", str(args.samples), *options]
    Watchdog.stop()
    os.execv(sys.executable, command)  # so that signals reach the search


if __name__ == "__main__":
    with cli.exit_codes():
        main()
