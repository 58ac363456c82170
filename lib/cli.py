"""Command line of the scripts and tools, and their exit codes."""

import argparse
import contextlib
import dataclasses
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from ignite.engine import State
from tqdm import tqdm

from lib.actors.engines import ENGINES
from lib.actors.ray_cluster import require_listener
from lib.errors import Fault, UsageError
from lib.hyperparameters import BEST_HYPERPARAMS, HYPERPARAMS, RunParameters
from lib.run import config_file, run_folder, search
from lib.run.option_types import (
    above_zero,
    existing_run,
    positive,
    quotient,
    seed,
    share,
    usable_device,
    whole,
    writable,
)
from lib.run.options import DEFAULT_RUNS_DIR, RunOptions
from lib.run.overrides import override
from lib.run.run_name import changes_in_name
from lib.run.stopping import EXIT_CODES, Interrupted
from lib.system import memory
from lib.system.console_log import start_console
from lib.system.seeds import seed_everything

__all__ = [
    "Parser",
    "above_zero",
    "add_engine_options",
    "existing_run",
    "exit_codes",
    "main",
    "override",
    "parser",
    "positive",
    "prepare",
    "quotient",
    "resolve",
    "run_tool",
    "seed",
    "share",
    "tool",
    "usable_device",
    "whole",
    "writable",
]

Train = Callable[[Any, RunOptions], State]


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show the default of an option unless it is None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose error messages take one line.

    Attributes:
        common: names of the options that all scripts share. All others are the script's own.
        hyperparams: hyperparameters of the games, by name.
        best: hyperparameters of --params best.
        free: names of the script's own options that a resumed run may change, because no result depends on them.
        named: name of the script's own option whose value is appended to the script's name in run names, or None.
    """

    common: frozenset[str] = frozenset()
    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS
    best: Mapping[str, RunParameters] = BEST_HYPERPARAMS
    free: tuple[str, ...] = ()
    named: str | None = None

    def __init__(self, **options: Any):
        super().__init__(**options)
        # argparse reads -1e1 and -inf as options. This pattern makes them values.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def parser(
    doc: str | None,
    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS,
    free: tuple[str, ...] = (),
    named: str | None = None,
) -> Parser:
    """Return a parser with the common options. A script adds its own; RunOptions.knobs holds their values.

    Args:
        doc: docstring of the script.
        hyperparams: hyperparameters of the games, by name. With any table other than HYPERPARAMS, --params best selects
            the same values.
        free: names of the script's own options that a resumed run may change.
        named: name of the script's own option whose value is appended to the script's name in run names.
    """
    summary = (doc or "").split("\n\n")[0]
    parser = Parser(description=summary, allow_abbrev=False, formatter_class=_Help)
    parser.hyperparams = hyperparams
    parser.best = BEST_HYPERPARAMS if hyperparams is HYPERPARAMS else hyperparams
    parser.free = free
    parser.named = named
    group = parser.add_argument_group("options of every script", argument_default=argparse.SUPPRESS)
    add = group.add_argument
    options = (
        add("--cuda", dest="device", action="store_const", const="cuda", help="same as --device cuda"),
        add("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: cpu)"),
        add("--game", metavar="G", help=f"hyperparameters: {', '.join(hyperparams)} (default: pong)"),
        add("--env-id", metavar="ID", help="another gymnasium id, with --game's hyperparameters"),
        add("--env-module", metavar="M", help="module that registers the id when imported"),
        add("--seed", metavar="N", type=seed, help="seed of all random generators (default: 1)"),
        add("--params", choices=("common", "best"), help="the book's hyperparameters, or tuned ones (default: common)"),
        add(
            "--config",
            metavar="FILE",
            type=Path,
            help="JSON file with hyperparameters and options, such as params.json of --tune",
        ),
        add("--set", metavar="FIELD=VALUE", action="append", help="change a hyperparameter; may be repeated"),
        add("--stop-after", metavar="STEPS", type=positive, help="stop at this agent step (default: max_steps)"),
        add("--time-limit", metavar="SECONDS", type=positive, help="stop this process after this time (default: none)"),
        add("--resume", metavar="RUN", help="resume a run, given by its folder or the folder's name"),
        add("--runs-dir", metavar="DIR", type=Path, help="folder of the runs (default: runs/)"),
        add("--evaluate-every", metavar="STEPS", type=positive, help="agent steps between evaluations of ten episodes"),
        add("--record-every", metavar="N", type=positive, help="record every N-th training episode as a video"),
        add("--quiet", action="store_true", help="hide the progress bars and the line for each episode"),
        add("--tune", metavar="N", type=positive, help="search for hyperparameters with N runs; needs Ray Tune"),
    )
    parser.common = frozenset(option.dest for option in options)
    return parser


def add_engine_options(parser: Parser, role: str, unit: str) -> None:
    """Add the options of the actors: engine, patience and address.

    A resumed run may change them, because no result depends on them.

    Args:
        parser: parser of a script.
        role: name of the actors in the help texts, such as "players".
        unit: name of an actor's segment in the help texts, such as "block".
    """
    parser.free = (*parser.free, "engine", "patience", "address")
    add = parser.add_argument
    add("--engine", choices=ENGINES, default="process", help=f"where the {role} run")
    add(
        "--patience",
        type=positive,
        default=60,
        metavar="SECONDS",
        help=f"replace {role} that send no {unit} within this time",
    )
    add("--address", metavar="HOST:PORT", help="Ray cluster to join (default: start a local one)")


def tool(doc: str | None) -> Parser:
    """Return the parser of a tool, whose docstring is the help. The tool adds its options."""
    return Parser(description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_tool(doc: str | None) -> Parser:
    """Return the parser of a tool that plays a run's agent: run, checkpoint, device, epsilon, seed."""
    parser = tool(doc)
    add = parser.add_argument
    add("run", metavar="RUN", type=existing_run, help="the run's folder, or its name in runs/")
    add("--checkpoint", default="best", metavar="best|last|STEP", help="checkpoint to play (default: best)")
    add("--device", default="cpu", type=usable_device, metavar="D", help="cpu, cuda, ... (default: cpu)")
    add("--epsilon", default=0.0, type=share, metavar="E", help="probability of a random action (default: 0)")
    add("--seed", default=1, type=seed, metavar="N", help="seed of the episodes (default: 1)")
    return parser


def main(train: Train, parser: Parser, script: str, argv: list[str] | None = None) -> None:
    """Parse the command line, seed, train, and exit.

    The exit code is 0 if the run was solved, reached a limit or was ended by its script. It is 2 for a UsageError, 1
    for a Fault or a loss that is not finite, and 128 + n for signal n.

    Args:
        train: function (params, args) -> final state of the engine that setup_ignite was called with.
        parser: result of `parser`, with the script's own options.
        script: name of the script, such as "01_baseline".
        argv: arguments without the script's name; None for sys.argv[1:].
    """
    with exit_codes(
        "Stopped at once. Earlier checkpoints are kept; --resume with the run's folder continues from the newest."
    ):
        params, args = resolve(parser, argv, script)
        if args.tune is not None:
            complete = search.search(params, args, script, sys.argv[1:] if argv is None else argv)
            sys.exit(0 if complete else EXIT_CODES["SIGINT"])
        prepare(args.seed)
        state: Any = train(params, args)
        sys.exit(EXIT_CODES[state.stopped])


@contextlib.contextmanager
def exit_codes(stopped: str = "Stopped.") -> Iterator[None]:
    """Turn usage errors, faults and signals into one line on standard error and an exit code.

    Args:
        stopped: message after Ctrl-C.
    """
    start_console()
    try:
        yield
    except (UsageError, Fault) as error:
        _exit(f"error: {error}", error.exit_code)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        _exit(f"error: {error.strerror or error}{place}. Files that were saved before are kept", Fault.exit_code)
    except Interrupted as error:
        _exit("Interrupted before learning began; --resume with the run's folder restarts the run.", error.exit_code)
    except KeyboardInterrupt:
        _exit(stopped, EXIT_CODES["SIGINT"])


def prepare(seed: int) -> None:
    """Prepare the process before anything is built in it: memory, determinism, seeds."""
    memory.keep_freed_memory()
    # TensorBoard's writer thread stores an OSError, and the next write raises it. So it is not printed here.
    threading.excepthook = lambda args: None if isinstance(args.exc_value, OSError) else threading.__excepthook__(args)
    # A resumed run has to equal the uninterrupted one.
    torch.backends.cudnn.deterministic = True
    seed_everything(seed)


def resolve(parser: Parser, argv: list[str] | None, script: str) -> tuple[RunParameters, RunOptions]:
    """Return hyperparameters and options from the command line, and from the run that is resumed, if any.

    Raises:
        UsageError: if the command line is wrong, or does not fit the run to resume.
    """
    values = vars(parser.parse_args(argv))
    defaults = {name: parser.get_default(name) for name in values}
    config: dict[str, Any] = {}
    if "config" in values:
        config, own = config_file.read(values["config"], parser, next(iter(parser.hyperparams.values())))
        parser.set_defaults(**own)
        values = vars(parser.parse_args(argv))
    knobs = {name: value for name, value in values.items() if name not in parser.common}
    options = {name: value for name, value in values.items() if name in parser.common}
    if "runs_dir" in options:
        options["runs_dir"] = _runs_dir(options["runs_dir"])
    options["device"] = usable_device(options.get("device", "cpu"))
    overrides = options.pop("set", [])
    tuned = options.pop("params", "common") == "best"
    options.pop("config", None)
    _check_engine(knobs)
    env_id = _full_id(options.pop("env_id", None), options.pop("env_module", None))
    if "resume" in options:
        if tuned or config or "tune" in options:
            raise UsageError("a resumed run keeps its hyperparameters; leave out --params, --config and --tune")
        options["resume"] = run_folder.find(options["resume"], options.get("runs_dir", DEFAULT_RUNS_DIR))
        # Parsed a second time with None for each of the script's own options, to tell given values from defaults.
        given = vars(parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(knobs))))
        return _resume(parser, script, options, {name: given[name] for name in knobs}, env_id, overrides)
    table = parser.best if tuned else parser.hyperparams
    params = _new_params(table, options.setdefault("game", "pong"), env_id, config, overrides)
    run_options = RunOptions(**options, knobs=knobs)
    shown = {name: value for name, value in knobs.items() if name not in parser.free}
    changes = changes_in_name(
        shown,
        defaults,
        parser.named,
        params,
        table[options["game"]],
        run_options.seed,
        RunOptions.seed,
    )
    run_options = dataclasses.replace(run_options, changes=f"{'-best' if tuned else ''}{changes}")
    if run_options.stop_after is not None and run_options.stop_after <= params.warm_up:
        raise UsageError(
            f"--stop-after {run_options.stop_after} lies within the warm-up of {params.warm_up} steps; "
            "give more, or a smaller --set replay_initial=N"
        )
    return params, run_options


def _check_engine(knobs: Mapping[str, Any]) -> None:
    """Refuse an --address that is not used or does not answer, before a run folder is made."""
    if knobs.get("address") is None:
        return
    if knobs["engine"] != "ray":
        raise UsageError(f"--address {knobs['address']} needs --engine ray, not {knobs['engine']}")
    require_listener(knobs["address"])


def _runs_dir(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--runs-dir {path.absolute()} is not a folder")
    return path.absolute()


def _full_id(env_id: str | None, module: str | None) -> str | None:
    """Return gymnasium's "module:id"."""
    if module is None:
        return env_id
    if env_id is None:
        raise UsageError(f"--env-module {module} needs --env-id as well, the id that the module registers")
    if ":" in env_id:
        raise UsageError(f"--env-id {env_id} names a module already; leave out --env-module {module}")
    return f"{module}:{env_id}"


def _new_params(
    hyperparams: Mapping[str, RunParameters],
    game: str,
    env_id: str | None,
    config: Mapping[str, Any],
    overrides: list[str],
) -> RunParameters:
    if game not in hyperparams:
        raise UsageError(f"unknown game {game!r}; choose one of {', '.join(hyperparams)}, or use --env-id")
    params = dataclasses.replace(hyperparams[game], **config)
    if env_id is not None:
        # The game's stop_reward means nothing in another environment. Without --set stop_reward, only a limit ends
        # the run.
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", env_id)
        try:
            params = dataclasses.replace(params, env_name=env_id, run_name=name, stop_reward=None, milestone=None)
        except ValueError as error:
            raise UsageError(f"--env-id {env_id!r} names no environment: {error}") from error
    return override(params, overrides)


def _resume(
    parser: Parser,
    script: str,
    options: dict[str, Any],
    given_knobs: dict[str, Any],
    env_id: str | None,
    overrides: list[str],
) -> tuple[RunParameters, RunOptions]:
    """Take the settings from a recorded run, and refuse settings on the command line that differ from them.

    Args:
        parser: parser of the script.
        script: name of the script.
        options: common options that were given.
        given_knobs: the script's own options; None for those that were not given.
        env_id: value of --env-id.
        overrides: values of --set.
    """
    run = options["resume"]
    recorded = run_folder.read_params(run)
    params = _recorded_params(parser, run, recorded, script)
    requested = override(params, overrides)
    if env_id is not None:
        requested = dataclasses.replace(requested, env_name=env_id)
    recorded_fields, requested_fields = dataclasses.asdict(params), dataclasses.asdict(requested)
    settings = [(name, value, requested_fields[name]) for name, value in recorded_fields.items()]
    settings += [(name, recorded[name], options.get(name, recorded[name])) for name in ("game", "seed")]
    knobs = {}
    for name, value in given_knobs.items():
        # A run of an earlier version of the script lacks the options that were added since.
        knobs[name] = recorded["knobs"].get(name, parser.get_default(name))
        if value is not None and name in parser.free:
            knobs[name] = value
        elif value is not None:
            settings.append((name, knobs[name], value))
    changes = [f"{name} is {old!r}, not {new!r}" for name, old, new in settings if old != new]
    if changes:
        raise UsageError(f"{run} has other settings: {'; '.join(changes)}. Leave them out, or start a new run")
    return params, RunOptions(**(options | {"game": recorded["game"], "seed": recorded["seed"]}), knobs=knobs)


def _recorded_params(parser: Parser, run: Path, recorded: dict[str, Any], script: str) -> RunParameters:
    if recorded["script"] != script:
        raise UsageError(f"{run} is a run of {recorded['script']}.py; resume it with that script, not {script}.py")
    kind = type(next(iter(parser.hyperparams.values())))
    try:
        return kind(**recorded["hyperparameters"])
    except (TypeError, ValueError) as error:
        commit = recorded["sessions"][0]["commit"]
        raise UsageError(f"{run} is a run of another version of this project ({commit}): {error}") from error


def _exit(message: str, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # the terminal may be closed
        tqdm.write(message, file=sys.stderr)
    sys.exit(code)
