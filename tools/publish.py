#!/usr/bin/env python3
"""Publish a run's best network with a model card, in a folder small enough to share.

    ./publish.py ../runs/2026-11-20T1200-pong-01_ppo ../models/pong

The network first plays greedy episodes, each with its own seed. Their returns are written to the card, README.md. A
model is a reduced run folder, so play.py, evaluate.py, export.py and --init accept it as well.
"""

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.trained_agent import TrainedAgent
from lib.errors import UsageError
from lib.run import checkpoint_reading, evaluation
from lib.run.checkpoint import PLAYABLE
from lib.run.console import env_option
from lib.run.episode_player import MAX_STEPS, count_at_limit
from lib.run.episodes import format_return
from lib.run.folder import read_params, write_json
from lib.system import files
from lib.system.files import PROJECT
from lib.system.log import without_folder

import torch

CARD = """# {name}: {env_id}

Mean return over {episodes} greedy episodes in single environments: **{shown_mean}** (lowest {min:g}, highest {max:g},
{distinct} distinct).{endless}

| | |
|---|---|
| trained by | `{command}`{resumed} |
| saved at agent step | {step:,} |
| commit | `{commit}`{changed} |
| size | {size} |

    tools/play.py {path}{module}
    tools/evaluate.py {path}{module}{options}

To start a new run from these weights, add `--init {path}` to the training command.
"""
ENDLESS = """

{count} of these games were cut at {limit:,} steps."""
EPISODES, SEED = 100, 1  # the defaults of tools/evaluate.py
DEVICE = ("--device", "--cuda")  # a reader of the card may have no such device; params.json keeps it
PRIVATE = ("--runs-dir", "--resume")  # options whose values are paths on the user's machine
LIMITS = ("--time-limit", "--stop-after")  # options that limit one session of a run
FILES = r"params\.json|evaluation\.json|README\.md|checkpoints(/best-\d+\.pt)?"


def main() -> None:
    parser = cli.checkpoint_tool(__doc__)
    parser.add_argument("model", metavar="MODEL", type=Path, help="output folder; a model in it is replaced")
    parser.add_argument(
        "--episodes", default=EPISODES, type=cli.positive, metavar="N", help=f"number of episodes (default: {EPISODES})"
    )
    parser.add_argument(
        "--seed", default=SEED, type=cli.seed, metavar="N", help=f"seed of the episodes (default: {SEED})"
    )
    args = cli.run_args(parser)
    require_replaceable(args.model, args.run)
    agent = TrainedAgent(args.run, args.checkpoint, env_id=args.env_id, network=args.network)
    content = checkpoint_reading.load(agent.file)  # now, because a run that still trains may remove it
    metrics = evaluation.evaluate(agent.policy, agent.make_env, args.episodes, args.seed, progress=True)
    evaluation.log_result(metrics)
    playable = {name: content[name] for name in PLAYABLE if name in content}  # step-* also hold the replay
    write_model(agent, playable, args.model.resolve(), {"seed": args.seed} | metrics)
    print(f"{args.model}: {shown_size(args.model)}")


def require_replaceable(model: Path, run: Path) -> None:
    """Reject a folder that holds anything but a model, or that is the run itself.

    Raises:
        UsageError: if it holds another file, which would be lost, or a link, through which a file elsewhere would be
            replaced; or if it cannot be written.
    """
    if model.resolve() == run.resolve():
        raise UsageError(f"{model} is the folder to publish; give another one")
    if Path.cwd().is_relative_to(model.resolve()):
        raise UsageError(f"{model} is or holds the current folder, which would be replaced; give another folder")
    above = next(folder for folder in model.resolve().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"{model} cannot be written, because {above} is not a writable folder; give another one")
    for path in (model, *model.rglob("*")):
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link; give a new folder")
    if model.exists() and not model.is_dir():
        raise UsageError(f"{model} is a file; give a new folder")
    held = sorted(path.relative_to(model).as_posix() for path in model.rglob("*"))
    others = [name for name in held if "params.json" not in held or not re.fullmatch(FILES, name)]
    if others:
        raise UsageError(
            f"{model} holds {', '.join(others)}, which would be lost; move them away, or give a new folder"
        )


def write_model(agent: TrainedAgent, checkpoint: dict[str, Any], model: Path, metrics: dict[str, Any]) -> None:
    """Write the folder of a model: params.json, the checkpoint, evaluation.json and the card."""
    params = read_params(agent.run)
    params["sessions"] = [session | {"argv": without(PRIVATE, session["argv"])} for session in params["sessions"]]
    params["init"] = params.get("init") and without_folder(params["init"])
    if builder := params.get("network", {}).get("builder"):
        params["network"]["builder"] = without_folder(builder)
    # Complete before it takes the place of an old model, because network, card and parameters belong together.
    new, old = (model.with_name(f".{model.name}.{os.getpid()}.{kind}") for kind in ("tmp", "old"))
    target = new / "checkpoints" / f"best-{agent.step:09d}.pt"
    try:
        target.parent.mkdir(parents=True)
        saved = io.BytesIO()
        torch.save(checkpoint, saved)
        files.write(target, saved.getvalue())
        write_json(new / "params.json", params)
        write_json(new / "evaluation.json", {"checkpoint": target.name, "step": agent.step} | metrics)
        files.write(new / "README.md", card(agent, model, shown_size(new), params, metrics))
        if model.exists():
            model.rename(old)
        new.rename(model)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists() and not model.exists():
            old.rename(model)
    shutil.rmtree(old, ignore_errors=True)


def without(options: Sequence[str], argv: list[str]) -> list[str]:
    """Return a command line without some options and their values. The script and absolute paths have no folder."""
    words, skipped = [Path(argv[0]).name], False
    for word in map(without_folder, argv[1:]):
        if word.split("=")[0] in options:
            skipped = "=" not in word and word != "--cuda"
        elif skipped:
            skipped = False
        else:
            words.append(word)
    return words


def card(agent: TrainedAgent, model: Path, size: str, params: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Return the text of a model's README.md. Its commands are those of the project folder."""
    shown = shlex.quote(str(model.relative_to(PROJECT)) if model.is_relative_to(PROJECT) else f"path/to/{model.name}")
    endless = count_at_limit(metrics["lengths"])
    sessions = params["sessions"]
    first, *later = sessions
    builder = params.get("network", {}).get("builder")
    network = ["--network", builder] if builder else []
    devices = " and ".join(dict.fromkeys(session["machine"]["device"] for session in sessions))
    resumed = f" in {len(sessions)} sessions" if later else ""
    if later or devices != "cpu":
        resumed += f", on {devices.replace('cpu', 'CPU')}"
    evaluation_options = (("--seed", SEED, metrics["seed"]), ("--episodes", EPISODES, metrics["episodes"]))
    return CARD.format(
        name=model.name,
        env_id=agent.env_id,
        command=shlex.join(without((*DEVICE, *LIMITS) if later else DEVICE, first["argv"])),
        resumed=resumed,
        step=agent.step,
        commit=(commits := "`, `".join(dict.fromkeys(short_commit(session["commit"]) for session in sessions))),
        changed=" (+: with changes that were not committed)" if "+" in commits else "",
        size=size,
        path=shown,
        module="".join(f" {word}" for word in (*env_option(agent.env_id), *network)),
        options="".join(f" {name} {value}" for name, default, value in evaluation_options if value != default),
        endless=ENDLESS.format(count=endless, limit=MAX_STEPS) if endless else "",
        shown_mean=format_return(metrics["mean"]),
        **metrics,
    )


def short_commit(commit: str | None) -> str:
    """Return the start of a commit, with its "+" if the code differed from it."""
    return "unknown" if commit is None else commit[:12] + "+" * ("+" in commit)


def shown_size(model: Path) -> str:
    """Return the size of a folder, such as "2.8 MB"."""
    size = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


if __name__ == "__main__":
    with cli.exit_codes():
        main()
