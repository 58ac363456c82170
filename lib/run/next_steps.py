"""Commands to copy at the end of a run: play its agent, see its report, and go on."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lib.envs.single_env import module_of
from lib.errors import UsageError
from lib.run.checkpoint_files import BEST
from lib.run.options import RunOptions, changeable_on_resume
from lib.run.run_json import read_params
from lib.system.console_log import quoted
from lib.system.files import PROJECT


def next_steps(
    run: Path,
    env_id: str,
    options: RunOptions,
    *,
    saved: bool,
    solved: bool,
    cannot_improve: bool,
    steps: int,
    reached_max_steps: bool,
    has_episode: bool,
    lacks_evaluation: bool,
) -> dict[str, str]:
    """Return commands by their purpose, as a shell in the current folder reads them.

    Args:
        run: run folder.
        env_id: id of the environment.
        options: options of the run.
        saved: whether the run has a checkpoint. Without one, only its report can be shown.
        solved: whether the run was solved. A solved run is not trained any further, so its evaluation is repeated with
            more episodes instead.
        cannot_improve: whether more steps would not help, because the learning rate is 0 or the loss was not finite.
        steps: agent steps so far.
        reached_max_steps: whether they have reached the step limit of the hyperparameters.
        has_episode: whether an episode has ended. Without one, there is nothing to report.
        lacks_evaluation: whether the final evaluation was stopped, has failed or was left out. A run that is resumed
            without --stop-after plays it.
    """
    commands = {"create a report": command(PROJECT / "tools/report.py", shown(run))} if has_episode else {}
    if not saved:
        return commands
    commands = {"watch it play": tool_command("play", run, env_id), **commands}
    if lacks_evaluation and has_episode and options.owns_process:
        commands["play the final evaluation"] = continue_command(run, env_id, options)
    if solved:
        commands["play 100 episodes"] = tool_command("evaluate", run, env_id)
    elif not cannot_improve and options.owns_process:
        stop_after = options.stop_after
        if stop_after is None or steps >= stop_after:
            stop_after = 2 * steps if reached_max_steps else None
        commands["continue the run"] = continue_command(run, env_id, options, stop_after)
    return commands


def continue_command(run: Path, env_id: str, options: RunOptions, stop_after: int | None = None) -> str:
    """Return the command that continues a run, or its options for a program without our command line.

    Args:
        run: run folder.
        env_id: id of the environment.
        options: options of the run.
        stop_after: agent steps at which the run stops; None for max_steps.
    """
    words = ["--resume", shown(run), *module_option(env_id)]
    if not options.owns_process:
        return " ".join(map(quoted, words))
    limit = [] if stop_after is None else ["--stop-after", str(stop_after)]
    return command(Path(sys.argv[0]), *words, *_again(run, options), *limit)


def tool_command(tool: str, run: Path, env_id: str, *options: str, which: str = BEST) -> str:
    """Return the command of a tool that plays a run's agent, such as "play" or "evaluate".

    Args:
        tool: name of the tool.
        run: run folder.
        env_id: id of the environment.
        options: further words of the command.
        which: checkpoint that the tool loads; see TrainedAgent.
    """
    checkpoint = [] if which == BEST else ["--checkpoint", which]
    words = [*module_option(env_id), *network_option(run), *checkpoint, *options]
    return command(PROJECT / "tools" / f"{tool}.py", shown(run), *words)


def module_option(env_id: str) -> list[str]:
    """Return the option that allows the import of an environment's module; none for gymnasium's own environments."""
    module = module_of(env_id)
    return ["--env-module", module] if module else []


def network_option(run: Path) -> list[str]:
    """Return the option that names the file of a script's own network; none for the project's networks."""
    builder = _recorded(run).get("network", {}).get("builder")
    if builder is None:
        return []
    file, _, name = builder.rpartition(":")
    return ["--network", f"{shown(Path(file))}:{name}"]


def _recorded(run: Path) -> dict[str, Any]:
    """Return the content of params.json, or {} if it was damaged while the run trained."""
    try:
        return read_params(run)
    except (UsageError, OSError):
        return {}


def command(script: Path, *words: str) -> str:
    """Return the command that runs a script with this Python, which is left out if the shell finds it by itself."""
    path = shown(script)
    path = path if os.sep in path else f".{os.sep}{path}"
    first = shutil.which("python3")
    is_first = first is not None and Path(first).parent == Path(sys.executable).parent
    finds_python = is_first and os.access(script, os.X_OK)
    return " ".join(map(quoted, [*([] if finds_python else [shown(Path(sys.executable))]), path, *words]))


def shown(path: Path) -> str:
    """Return a path relative to the current folder, or the absolute one if that is shorter."""
    absolute = os.path.abspath(path)
    try:
        return min(os.path.relpath(absolute), absolute, key=len)
    except OSError:  # the current folder was deleted
        return absolute


def _again(run: Path, options: RunOptions) -> list[str]:
    """Return the options of this process that a resumed run would not take from params.json.

    --time-limit, --quiet and --verbose are left out: they are about a process, not about the run. --stop-after is left
    out, too; `continue_command` adds it.
    """
    recorded = _recorded(run).get("knobs", {})
    both = sorted(changeable_on_resume(options.knobs) & recorded.keys())
    changed = {name: options.knobs[name] for name in both if options.knobs[name] != recorded[name]}
    given = {
        "evaluate_every": options.evaluate_every,
        "record_every": options.record_every,
        "track": options.track,
        "address": options.knobs.get("address"),  # has to be given again, because the cluster's nodes run code here
        **changed,
    }
    words = ["--device", str(options.device)] if options.device.type != "cpu" else []
    for name, value in given.items():
        option = name.replace("_", "-")
        if value is False:
            words.append(f"--no-{option}")
        elif value is not None:
            words += [f"--{option}", *([] if value is True else [str(value)])]
    return words
