#!/usr/bin/env python3
"""Publish a run's best network with a model card, in a folder small enough to share.

    ./publish.py ../runs/2026-11-20T1200-pong-01_ppo ../models/pong

The network first plays greedy episodes, each with its own seed. Their returns are written to the card, README.md. A
model is a reduced run folder, so play.py, evaluate.py, export.py and --init accept it as well. params.json and the card
show the command lines of the run, including all paths.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.trained_agent import TrainedAgent
from lib.errors import UsageError
from lib.run import checkpoint, evaluation
from lib.run.console import env_option
from lib.run.episode_player import MAX_STEPS, count_at_limit
from lib.run.episodes import format_return
from lib.run.folder import read_params, write_json
from lib.system import files
from lib.system.files import PROJECT

import torch


def main() -> None:
    parser = cli.run_tool(__doc__, plays=False)
    add = parser.add_argument
    add("model", metavar="MODEL", type=Path, help="new folder")
    add("--episodes", default=100, type=cli.positive, metavar="N", help="number of episodes (default: 100)")
    args = cli.run_args(parser)
    if args.model.exists():
        raise UsageError(f"{args.model} exists; remove it, or give a new folder")
    agent = TrainedAgent(args.run, args.checkpoint, env_id=args.env_id, network=args.network)
    content = checkpoint.load(agent.file)  # now, because a run that still trains may remove it
    metrics = evaluation.evaluate(agent.policy, agent.make_env, args.episodes, seed=1, progress=True)
    evaluation.log_result(metrics)
    model = args.model.resolve()
    target = model / "checkpoints" / f"best-{agent.step:09d}.pt"
    target.parent.mkdir(parents=True)
    torch.save({"net": content["net"]}, target)  # without the replay
    params = read_params(args.run)
    write_json(model / "params.json", params)
    write_json(model / "evaluation.json", {"checkpoint": target.name, "step": agent.step} | metrics)
    files.write(model / "README.md", card(agent, model, params, metrics, target.stat().st_size / 1e6))
    print(args.model)


def card(agent: TrainedAgent, model: Path, params: dict[str, Any], metrics: dict[str, Any], size: float) -> str:
    """Return the text of a model's README.md. Its commands are for the project folder."""
    path = shlex.quote(str(model.relative_to(PROJECT)) if model.is_relative_to(PROJECT) else f"path/to/{model.name}")
    builder, sessions = params["network"].get("builder"), params["sessions"]
    words = " ".join([path, *env_option(agent.env_id), *(["--network", builder] if builder else [])])
    script, *options = sessions[0]["argv"]
    commits = "`, `".join(dict.fromkeys(str(session["commit"]) for session in sessions))
    return f"""# {model.name}: {agent.env_id}

Mean return over {metrics["episodes"]} greedy episodes in single environments: **{format_return(metrics["mean"])}**
(lowest {metrics["min"]:g}, highest {metrics["max"]:g}, {metrics["distinct"]} distinct,
{count_at_limit(metrics["lengths"])} cut at {MAX_STEPS:,} steps).

| | |
|---|---|
| trained by | `{shlex.join([Path(script).name, *options])}` |
| saved at agent step | {agent.step:,} |
| commit | `{commits}` (with a "+" if the code differed from it) |
| size | {size:.1f} MB |

    tools/play.py {words}
    tools/evaluate.py {words}

To start a new run from these weights, add `--init {path}` to the training command.
"""


if __name__ == "__main__":
    with cli.exit_codes():
        main()
