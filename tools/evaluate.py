#!/usr/bin/env python3
"""How good a trained agent is: whole episodes of the plain environment, each from a seed of its own.

    ./evaluate.py ../runs/2026-11-20T1200-pong-01_ppo
    ./evaluate.py 2026-11-20T1200-pong-01_ppo --checkpoint last --episodes 20 --epsilon 0.05

The agent does what it thinks best, or, with --epsilon, anything now and then. The mean, the standard deviation, the
worst and the best return, and how many of the episodes were distinct are shown, and written with every return and
length into evaluation.json in the run's folder.
"""

import json
from pathlib import Path

from lib import cli
from lib.analysis.trained_agent import TrainedAgent
from lib.run import console, evaluation
from lib.run.policy import EpsilonGreedyPolicy
from lib.system import files


def main():
    parser = cli.run_tool(__doc__)
    parser.add_argument("--episodes", default=100, type=cli.positive, metavar="N", help="(default: 100)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="in place of evaluation.json")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args()
    output = cli.writable(args.output or args.run / "evaluation.json")
    trained = TrainedAgent(args.run, args.checkpoint, args.device)
    policy = EpsilonGreedyPolicy(trained.policy, trained.n_actions, args.epsilon, args.seed)
    env = trained.make_env()
    found = evaluation.evaluate(policy, env, args.episodes, args.seed, progress=not args.quiet)
    env.close()
    played = {"checkpoint": trained.file.name, "step": trained.step, "epsilon": args.epsilon, "seed": args.seed}
    console.log_evaluation(found)
    files.write(output, json.dumps(played | found, indent=2) + "\n")


if __name__ == "__main__":
    with cli.exit_codes():
        main()
