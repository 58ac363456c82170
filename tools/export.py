#!/usr/bin/env python3
"""Export a run's policy as ONNX, for programs that do not use this project.

    ./export.py 2026-11-20T1200-pong-01_ppo
    ./export.py RUN --checkpoint last --output ../policy

policy.onnx takes a batch of states, and returns the best actions and the scores of all actions. policy.json describes
states and actions. Both are written to export/ in the run folder; existing files are not overwritten. The export is
compared with the original policy in 1,000 states of the agent's own episodes, and is not kept if it chooses another
action in one of them. examples/onnx_pong.py plays Pong with policy.onnx.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis import export
from lib.analysis.trained_agent import TrainedAgent
from lib.errors import UsageError
from lib.system.log import install_command


def main() -> None:
    parser = cli.run_tool(__doc__, plays=False)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="output folder (default: export/ in the run)")
    args = cli.run_args(parser)
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UsageError(f"an ONNX file needs {', '.join(missing)}; run {install_command('export')}")
    folder = args.output or args.run / "export"
    for path in (folder / export.ONNX, folder / export.DESCRIPTION):
        if path.exists():
            raise UsageError(f"{path} exists; remove it, or give another folder by --output")
    agent = TrainedAgent(args.run, args.checkpoint, "cpu", args.env_id, args.network)
    if agent.policy.has_memory:
        raise UsageError("a policy with a memory cannot be exported, because its actions depend on more than a state")
    states = export.record_states(agent)
    difference = export.export(agent, folder, states)
    print(f"{folder / export.ONNX}: same actions in {len(states):,} states, scores differ by at most {difference:.1e}")


if __name__ == "__main__":
    with cli.exit_codes():
        main()
