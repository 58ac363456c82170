#!/usr/bin/env python3
"""Export a run's policy as ONNX and TorchScript, for programs that do not use this project.

    ./export.py 2026-11-20T1200-pong-01_ppo
    ./export.py RUN --checkpoint last --output ../policy --format onnx

policy.onnx and policy.pt take a batch of states, and return the best actions and the scores of all actions. policy.json
describes them. They are written to export/ in the run folder. First, both are compared with the original on states of
the agent's own episodes: an export that takes another action is not kept. examples/onnx_pong.py plays Pong with
policy.onnx.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis import export
from lib.analysis.trained_agent import TrainedAgent
from lib.system.progress import show_progress


def main() -> None:
    parser = cli.checkpoint_tool(__doc__)
    add = parser.add_argument
    add("--format", choices=tuple(export.FILES), help="write this one, and remove the other (default: both)")
    add("--output", type=Path, metavar="FOLDER", help="output folder (default: export/ in the run folder)")
    add("--states", default=1000, type=cli.positive, metavar="N", help="number of compared states (default: 1000)")
    add("--seed", default=1, type=cli.seed, metavar="N", help="seed of the episodes (default: 1)")
    args = cli.run_args(parser)
    kinds = tuple(export.FILES) if args.format is None else (args.format,)
    export.require_packages(kinds)
    output = args.output or args.run / "export"
    export.require_replaceable(output)
    show_progress(True)
    agent = TrainedAgent(args.run, args.checkpoint, "cpu", args.env_id, args.network)
    states = export.record_states(agent, args.states, args.seed)
    for file, difference in export.export(agent, output, kinds, states).items():
        print(f"{file}: same actions in {len(states):,} states, scores differ by at most {difference:.1e}")


if __name__ == "__main__":
    with cli.exit_codes():
        main()
