"""The command line that every script shares, and the one place where errors become exit codes."""

import argparse
import contextlib
import dataclasses
import math
import os
import re
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from ignite.engine import State
from tqdm import tqdm

from lib.errors import Fault, UsageError, divisors
from lib.hyperparameters import HYPERPARAMS, RunParameters
from lib.run import run_folder
from lib.run.options import DEFAULT_RUNS_DIR, RunOptions
from lib.run.stopping import EXIT_CODES, Interrupted
from lib.system import memory
from lib.system.console_log import start_console
from lib.system.seeds import seed_everything

Train = Callable[[Any, RunOptions], State]


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, but for those that stand for something which the help itself says."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line.

    Attributes:
        common: names of the options that every script has; all others are the script's own knobs.
        hyperparams: those of the games, by name.
        free: names of own options that a resumed run may change, as no number depends on them.
    """

    common: frozenset[str] = frozenset()
    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS
    free: tuple[str, ...] = ()

    def __init__(self, **options: Any):
        super().__init__(**options)
        # What argparse takes for a value and not for an option: to it only -10 and -1.5 are, not -1e1 and -inf.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def parser(
    doc: str | None, hyperparams: Mapping[str, RunParameters] = HYPERPARAMS, free: tuple[str, ...] = ()
) -> Parser:
    """The common options; a script adds its own to what this returns, and they reach it as `options.knobs`.

    Args:
        doc: the script's docstring.
        hyperparams, free: see Parser.
    """
    summary = (doc or "").split("\n\n")[0]
    made = Parser(description=summary, allow_abbrev=False, formatter_class=_Help)
    group = made.add_argument_group("options of every script", argument_default=argparse.SUPPRESS)
    options = (
        group.add_argument("--cuda", dest="device", action="store_const", const="cuda", help="same as --device cuda"),
        group.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: cpu)"),
        group.add_argument("--game", metavar="G", help=f"hyperparameters: {', '.join(hyperparams)} (default: pong)"),
        group.add_argument("--env-id", metavar="ID", help="another gymnasium id, with --game's hyperparameters"),
        group.add_argument("--env-module", metavar="M", help="module that registers the id when imported"),
        group.add_argument("--seed", metavar="N", type=seed, help="seed of everything random (default: 1)"),
        group.add_argument("--set", metavar="FIELD=VALUE", action="append", help="a hyperparameter; may be repeated"),
        group.add_argument("--stop-after", metavar="STEPS", type=positive, help="agent steps (default: max_steps)"),
        group.add_argument("--time-limit", metavar="SECONDS", type=positive, help="of this process (default: none)"),
        group.add_argument("--resume", metavar="RUN", help="go on with a run: its folder, or the folder's name"),
        group.add_argument("--runs-dir", metavar="DIR", type=Path, help="where runs are written (default: runs/)"),
        group.add_argument(
            "--evaluate-every", metavar="STEPS", type=positive, help="so often play ten greedy episodes"
        ),
        group.add_argument("--record-every", metavar="N", type=positive, help="a video of each N-th training episode"),
        group.add_argument("--quiet", action="store_true", help="no progress bar and no line an episode"),
    )
    made.hyperparams = hyperparams
    made.free = free
    made.common = frozenset(option.dest for option in options)
    return made


def tool(doc: str | None) -> Parser:
    """The command line of a tool, whose help is its docstring; the tool adds its options to what this returns."""
    return Parser(description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_tool(doc: str | None) -> Parser:
    """The command line of a tool that has to do with a run's agent: run, checkpoint, device, epsilon, seed."""
    made = tool(doc)
    made.add_argument("run", metavar="RUN", type=existing_run, help="the run's folder, or its name in runs/")
    made.add_argument("--checkpoint", default="best", metavar="best|last|STEP", help="which of it (default: best)")
    made.add_argument("--device", default="cpu", type=usable_device, metavar="D", help="cpu, cuda, ... (default: cpu)")
    made.add_argument("--epsilon", default=0.0, type=share, metavar="E", help="(default: 0, greedy)")
    made.add_argument("--seed", default=1, type=seed, metavar="N", help="what is played is derived from (default: 1)")
    return made


def existing_run(name: str) -> Path:
    """argparse type: the folder of a run, given by path or by its name in runs/."""
    return run_folder.find(name, DEFAULT_RUNS_DIR)


def main(train: Train, parser: Parser, script: str, argv: list[str] | None = None) -> None:
    """Parse, seed, train, and exit: 0 solved or a limit reached, 2 wrong use, 1 a fault, 128 + n on signal n.

    Args:
        train: (params, args) -> the engine's final state, as setup_ignite leaves it.
        parser: what `parser` made, with the script's own options.
        script: the script's name, "01_baseline".
        argv: the arguments, without the script's name; None for the process's.
    """
    with exit_codes(
        "Stopped at once. What was saved before is kept; --resume with the run's folder goes on from there."
    ):
        params, args = resolve(parser, argv, script)
        prepare(args.seed)
        state: Any = train(params, args)
        sys.exit(EXIT_CODES[state.stopped])


@contextlib.contextmanager
def exit_codes(stopped: str = "Stopped.") -> Iterator[None]:
    """Within it, errors that are nobody's bug here end the process with a line and their exit code.

    Args:
        stopped: what is said when it was stopped by Ctrl-C.
    """
    start_console()
    try:
        yield
    except (UsageError, Fault) as error:
        _exit(f"error: {error}", error.exit_code)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _exit(f"error: {error.strerror or error}{place}. What was saved before is kept", Fault.exit_code)
    except Interrupted as error:
        _exit("Interrupted before learning began; --resume with the run's folder starts it again.", error.exit_code)
    except KeyboardInterrupt:
        _exit(stopped, EXIT_CODES["SIGINT"])


def prepare(seed: int) -> None:
    """What has to be set in a process before anything is built in it."""
    memory.keep_freed_memory()
    # TensorBoard's writing thread hands an error on to the next writer, who reports it.
    threading.excepthook = lambda args: None if isinstance(args.exc_value, OSError) else threading.__excepthook__(args)
    torch.backends.cudnn.deterministic = True  # a resumed run has to repeat the uninterrupted one
    seed_everything(seed)


def resolve(parser: Parser, argv: list[str] | None, script: str) -> tuple[Any, RunOptions]:
    """Hyperparameters and options from the command line, and from the run where one is resumed.

    Raises:
        UsageError: the command line is wrong, or does not fit the run to resume.
    """
    given = vars(parser.parse_args(argv))
    knobs = {name: given.pop(name) for name in list(given) if name not in parser.common}
    if "runs_dir" in given:
        given["runs_dir"] = given["runs_dir"].absolute()
        if given["runs_dir"].exists() and not given["runs_dir"].is_dir():
            raise UsageError(f"--runs-dir {given['runs_dir']} is no folder")
    given["device"] = usable_device(given.get("device", "cpu"))
    overrides = given.pop("set", [])
    env_id = _full_id(given.pop("env_id", None), given.pop("env_module", None))
    if "resume" in given:
        given["resume"] = run_folder.find(given["resume"], given.get("runs_dir", DEFAULT_RUNS_DIR))
        # Parsed again on top of None for each knob, to learn which were asked for and which are defaults.
        asked = vars(parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(knobs))))
        knobs = {name: asked[name] for name in knobs}
        params = _resumed(parser, given, env_id, overrides, knobs, script)
    else:
        params = _new(parser.hyperparams, given.setdefault("game", "pong"), env_id, overrides)
        if "stop_after" in given and given["stop_after"] <= params.warm_up:
            raise UsageError(
                f"--stop-after {given['stop_after']} lies within the warm-up of {params.warm_up} steps; "
                "give more, or a smaller --set replay_initial=N"
            )
    return params, RunOptions(**given, knobs=knobs)


def writable(path: Path) -> Path:
    """The path of a file that is written once the work is done, if it can be.

    Raises:
        UsageError: its folder is not there, or not to be written into, or the path is a folder's.
    """
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written; give a file in a folder that is there and can be written into")
    return path


def usable_device(name: str) -> torch.device:
    """The device of that name, if this machine has it.

    Raises:
        UsageError: it has not.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"unknown device {name!r}; use cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"{name} asks for a GPU, and PyTorch {torch.__version__} sees {torch.cuda.device_count()} of them here; "
            "leave --cuda out or use --device cpu"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("mps asks for an Apple GPU, and there is none here; use --device cpu")
    return device


def override(params: RunParameters, assignments: list[str]) -> Any:
    """Apply "field=value" strings.

    Raises:
        UsageError: a field is unknown, or a value is not of its type or range.
    """
    fields = typing.get_type_hints(type(params))
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in fields:
            problem = f"--set has no field {name!r}" if equals else f"--set takes FIELD=VALUE, not {assignment!r}"
            raise UsageError(f"{problem}; the fields are {', '.join(fields)}")
        values[name] = _typed(name, fields[name], text)
    try:
        return dataclasses.replace(params, **values)
    except ValueError as error:
        raise UsageError(f"--set: {error}") from error


def whole(text: str) -> int:
    """argparse type: a whole number, which 1e5 is too."""
    try:
        return _whole(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 64 bits") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error


def seed(text: str) -> int:
    """argparse type: a whole number that every generator takes as its seed, 0 to 2**32 - 1."""
    value = whole(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {2**32 - 1}")
    return value


def share(text: str) -> float:
    """argparse type: a number from 0 to 1."""
    value = _number(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def positive(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def above_zero(text: str) -> float:
    """argparse type: a finite number above 0."""
    value = _number(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def quotient(option: str, whole: int, part: int) -> int:
    """whole / part, for an option that has to divide a number.

    Raises:
        UsageError: it does not.
    """
    if whole % part:
        raise UsageError(f"{option} {part} does not divide the batch of {whole}; give one of {divisors(whole)}")
    return whole // part


def _typed(name: str, kind: Any, text: str) -> Any:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if types.NoneType in kinds and text.lower() == "none":
        return None
    readers: dict[Any, tuple[Callable[[str], Any], str]] = {
        bool: (_boolean, "true or false"),
        int: (_whole, "a whole number of 64 bits"),
        float: (float, "a number"),
        str: (str, "text"),
    }
    read, wanted = readers[kinds[0]]
    try:
        return read(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--set {name}={text}: {name} takes {wanted}") from error


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError as error:
        raise ValueError(text) from error


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        number = float(text)  # 1e5 is a whole number too
        if not number.is_integer():
            raise
        value = int(number)
    if abs(value) >= 2**63:
        raise OverflowError(text)
    return value


def _new(
    hyperparams: Mapping[str, RunParameters], game: str, env_id: str | None, overrides: list[str]
) -> RunParameters:
    if game not in hyperparams:
        raise UsageError(f"unknown game {game!r}; choose one of {', '.join(hyperparams)}, or use --env-id")
    params = hyperparams[game]
    if env_id is not None:
        # Another environment has another bound; until --set stop_reward names it, only a limit ends the run.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", env_id)
        try:
            params = dataclasses.replace(params, env_name=env_id, run_name=name, stop_reward=None, milestone=None)
        except ValueError as error:
            raise UsageError(f"--env-id {env_id!r} names no environment: {error}") from error
    return override(params, overrides)


def _full_id(env_id: str | None, module: str | None) -> str | None:
    """The id with its module before a colon, as gymnasium writes it."""
    if module is None:
        return env_id
    if env_id is None or ":" in env_id:
        raise UsageError(
            f"--env-module {module} registers an environment, and --env-id says which; "
            + ("give it as well" if env_id is None else f"{env_id} names a module already")
        )
    return f"{module}:{env_id}"


def _resumed(
    parser: Parser,
    given: dict[str, Any],
    env_id: str | None,
    overrides: list[str],
    knobs: dict[str, Any],
    script: str,
) -> RunParameters:
    """The run's hyperparameters; completes `given` and `knobs` from it, and refuses whatever differs."""
    run = given["resume"]
    recorded = run_folder.read_params(run)
    if recorded["script"] != script:
        raise UsageError(f"{run} was made by {recorded['script']}.py; resume it with that script, not {script}.py")
    try:
        kind = type(next(iter(parser.hyperparams.values())))
        params = kind(**recorded["hyperparameters"])
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{run} was made by another version of this project ({recorded['sessions'][0]['commit']}): {error}"
        ) from error
    asked = override(params, overrides)
    if env_id is not None:
        asked = dataclasses.replace(asked, env_name=env_id)
    differing = {
        field.name: (getattr(params, field.name), getattr(asked, field.name))
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != getattr(asked, field.name)
    }
    for name in ("game", "seed"):
        if given.setdefault(name, recorded[name]) != recorded[name]:
            differing[name] = (recorded[name], given[name])
    for name, value in knobs.items():
        knobs[name] = recorded["knobs"].get(name, parser.get_default(name))  # an older script had not all of them
        if value not in (None, knobs[name]) and name in parser.free:
            knobs[name] = value
        elif value not in (None, knobs[name]):
            differing[name] = (knobs[name], value)
    if differing:
        changes = "; ".join(f"{name} is {old!r}, asked for {new!r}" for name, (old, new) in differing.items())
        raise UsageError(f"{run} has other settings: {changes}. Leave them out, or start a new run")
    return params


def _exit(message: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # the terminal may be what has gone
        tqdm.write(message, file=sys.stderr)
    sys.exit(code)
