#!/usr/bin/env python3
"""Evaluate a trained agent: play whole episodes, each with its own seed, and report the returns.

    ./evaluate.py ../runs/2026-11-20T1200-pong-01_ppo
    ./evaluate.py 2026-11-20T1200-pong-01_ppo --checkpoint last --episodes 20 --epsilon 0.05

The agent takes the best action it knows. With --sample, a PPO agent draws its actions as it did in training. With
--epsilon E, it takes a random action with probability E. The mean, standard deviation, lowest and highest return and
the number of distinct episodes are printed. Greedy results also go to evaluation.json in the run folder, with the
return and length of every episode; a warning says if the returns are clearly below those of training. --output writes
the result to another file, even if it is not greedy. The evaluation.json of a published model is not overwritten.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.run_data import returns_before
from lib.analysis.trained_agent import TrainedAgent
from lib.run import evaluation
from lib.run.console import tool_command
from lib.run.folder import write_json
from lib.run.policy import EpsilonGreedyPolicy, SampledPolicy


def main() -> None:
    parser = cli.run_tool(__doc__)
    add = parser.add_argument
    add("--episodes", default=100, type=cli.positive, metavar="N", help="number of episodes (default: 100)")
    add("--output", type=cli.new_file, metavar="FILE", help="new file to write instead of evaluation.json")
    args = cli.run_args(parser)
    is_run = (args.run / "episodes.csv").exists()  # a published model's card quotes its evaluation.json, which stays
    is_greedy = not args.sample and not args.epsilon
    output = args.output or (args.run / "evaluation.json" if is_run and is_greedy else None)
    agent = TrainedAgent(args.run, args.checkpoint, args.device, args.env_id, args.network)
    own = SampledPolicy(agent.policy.net) if args.sample else agent.policy
    policy = EpsilonGreedyPolicy(own, agent.random, args.epsilon)
    metrics = evaluation.evaluate(policy, agent.make_env, args.episodes, args.seed, progress=True)
    advice = tool_command("evaluate", args.run, agent.env_id, *agent.policy.less_greedy, which=args.checkpoint)
    if is_greedy and (training := returns_before(args.run, agent.step)):
        metrics |= evaluation.comparison(metrics, training)
    evaluation.log_result(metrics, advice)
    if output is not None:
        settings = {"epsilon": args.epsilon, "sample": args.sample, "seed": args.seed}
        write_json(output, {"checkpoint": agent.file.name, "step": agent.step} | settings | metrics)


if __name__ == "__main__":
    with cli.exit_codes():
        main()
