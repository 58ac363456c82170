"""From a command line to the hyperparameters and options of a run: a new run, or one that is resumed."""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lib.envs.preprocessing import without_options
from lib.envs.single_env import reward_threshold
from lib.errors import UsageError
from lib.hyperparameters import HELP, HYPERPARAMS, OWN, RunParameters, assigned, explain, settings_of
from lib.run import tracking
from lib.run.folder import find, read_params, trusted_id
from lib.run.options import CHANGEABLE, DEFAULT_RUNS_DIR, RunOptions, affecting_results, usable_device

Argv = Sequence[str] | None
Resolved = tuple[RunParameters, RunOptions]
Values = dict[str, Any]  # of options or hyperparameters, by name

LONGEST_ID = 60  # characters of an id in a run's name
LONGEST_CHANGES = 150  # characters of the changes in a run's name
WITH_RUN_NAME = 200  # characters of run_name and the changes


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose error messages take one line.

    Attributes:
        common: names of the options that all scripts share. All others are the script's own.
        hyperparams: hyperparameters of the games, by name.
        named: name of the script's own option whose value is appended to the script's name in run names, or None.
    """

    common: frozenset[str] = frozenset()
    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS
    named: str | None = None

    def __init__(self, **options: Any):
        super().__init__(**options)
        # argparse reads -1e1 and -inf as options. This pattern makes them values.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")

    @property
    def kind(self) -> type[RunParameters]:
        """Type of the script's hyperparameters."""
        return type(next(iter(self.hyperparams.values())))

    def parse(self, argv: Sequence[str] | None, namespace: argparse.Namespace | None = None) -> tuple[Values, Values]:
        """Return the common options that were given, and all of the script's own options."""
        values = vars(self.parse_args(argv, namespace))
        common = {name: value for name, value in values.items() if name in self.common}
        return common, {name: value for name, value in values.items() if name not in common}

    def replace_defaults(self, values: Values) -> None:
        """Replace defaults by values from a JSON file. Numbers are read as if they were given as text."""
        types = {action.dest: action.type for action in self._actions}
        numbers = {name for name, value in values.items() if type(value) in (int, float) and types[name] is not None}
        self.set_defaults(**{name: str(value) if name in numbers else value for name, value in values.items()})


class Config(NamedTuple):
    """Content of a --config file: hyperparameters, values of the script's own options, and the file's name."""

    fields: Values
    knobs: Values
    name: str


def resolve(parser: Parser, argv: Argv, script: str) -> Resolved:
    """Return hyperparameters and options from the command line, and from the run that is resumed, if any.

    Raises:
        UsageError: if the command line is wrong, or does not fit the run to resume.
    """
    options, knobs = parser.parse(argv)
    defaults = {name: parser.get_default(name) for name in knobs}
    config = _read_config(options.pop("config"), parser.kind, knobs) if "config" in options else Config({}, {}, "")
    options["device"] = usable_device(options.get("device", "cpu"))
    if "track" in options:
        tracking.require(options["track"])
    for name in ("resume", "init"):
        if name in options:
            options[name] = find(options[name], options.get("runs_dir", DEFAULT_RUNS_DIR))
    resolve_run = _resume if "resume" in options else _new_run
    return resolve_run(parser, argv, script, options, defaults, config)


def _read_config(path: Path, kind: type[RunParameters], knobs: Iterable[str]) -> Config:
    """Read a JSON object of hyperparameters and of the script's own options, or a run's params.json.

    Raises:
        UsageError: if the file cannot be read, or a name is unknown.
    """
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, not an object of names and values")
        if "hyperparameters" in content and "knobs" in content:
            content = content["hyperparameters"] | affecting_results(content["knobs"])
        fields = {name: content.pop(name) for name in settings_of(kind) if name in content}
        values = {name: content.pop(name) for name in knobs if name in content}
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}") from error
    if content:
        names = ", ".join([*settings_of(kind), *knobs])
        raise UsageError(f"--config {path}: {', '.join(sorted(content))} is unknown; the names are {names}")
    return Config(fields, values, path.stem)


def _new_run(parser: Parser, argv: Argv, script: str, options: Values, defaults: Values, config: Config) -> Resolved:
    """Return the hyperparameters and options of a new run.

    Args:
        parser, argv, script: see resolve.
        options: common options that were given, apart from --config.
        defaults: defaults of the script's own options.
        config: content of --config.
    """
    parser.replace_defaults(config.knobs)
    knobs = parser.parse(argv)[1]
    assignments, env_id = options.pop("set", []), options.pop("env_id", None)
    options.setdefault("game", OWN if env_id is not None and OWN in parser.hyperparams else "pong")
    usual = _usual_params(parser.hyperparams, options["game"], env_id)
    usual_fields = dataclasses.asdict(usual) | _fields_for(usual.env_name, config, env_id)
    params = _params(parser.kind, usual_fields, assignments)
    run_options = RunOptions(**options, knobs=knobs, owns_process=True)
    if run_options.stop_after is not None and run_options.stop_after <= params.warm_up:
        raise UsageError(
            f"--stop-after {run_options.stop_after} lies within the warm-up of {params.warm_up} steps; "
            "give more, or a smaller --set replay_initial=N"
        )
    words = [config.name, "init" if run_options.init else ""]
    changes = changes_in_name(parser.named, defaults, usual_fields, words, params, run_options)
    return params, dataclasses.replace(run_options, changes=changes)


def _resume(parser: Parser, argv: Argv, script: str, options: Values, defaults: Values, config: Config) -> Resolved:
    """Take the settings from a recorded run, and refuse settings that differ from them; see _new_run."""
    run = options["resume"]
    recorded = read_params(run)
    params = _recorded_params(parser.kind, run, recorded, script)
    env_id = trusted_id(run, params.env_name, options.pop("env_id", None))
    fields = dataclasses.asdict(params) | _fields_for(params.env_name, config, env_id)
    requested = _params(parser.kind, fields, options.pop("set", []))
    of_run = {name: recorded["knobs"].get(name, default) for name, default in defaults.items()}
    if "address" in of_run:
        of_run["address"] = None  # the nodes of a cluster run code here, so the user has to name it again
    # None stands for the options that this command line leaves out.
    on_command_line = parser.parse(argv, argparse.Namespace(**dict.fromkeys(defaults)))[1]
    given = config.knobs | {name: value for name, value in on_command_line.items() if value is not None}
    parser.replace_defaults(of_run)
    knobs = parser.parse(argv)[1] | {name: of_run[name] for name in given if isinstance(of_run[name], list)}
    others = ("game", "seed", "init")
    before = dataclasses.asdict(params) | of_run | {name: recorded.get(name) for name in others}
    after = dataclasses.asdict(requested) | {name: options[name] for name in others if name in options}
    after |= {name: value for name, value in given.items() if name not in CHANGEABLE}
    after = json.loads(json.dumps(after, default=str))  # as params.json has them
    changes = [f"{name} is {before[name]!r}, not {value!r}" for name, value in after.items() if before[name] != value]
    if changes:
        raise UsageError(f"{run} has other settings: {'; '.join(changes)}. Leave them out, or start a new run")
    options |= {name: recorded.get(name) for name in others}
    return params, RunOptions(**options, knobs=knobs, owns_process=True)


def _recorded_params(kind: type[RunParameters], run: Path, recorded: Values, script: str) -> RunParameters:
    """Return the hyperparameters in a run's params.json.

    Raises:
        UsageError: if the run is one of another script or of another version of this project.
    """
    if recorded["script"] != script:
        raise UsageError(f"{run} is a run of {recorded['script']}.py; resume it with that script, not {script}.py")
    try:
        return kind(**recorded["hyperparameters"])
    except (TypeError, ValueError) as error:
        commit = recorded["sessions"][0]["commit"]
        raise UsageError(f"{run} is a run of another version of this project ({commit}): {error}") from error


def _usual_params(hyperparams: Mapping[str, RunParameters], game: str, env_id: str | None) -> RunParameters:
    """Return the hyperparameters of a game, or those for another environment, without --config and --set."""
    if game not in hyperparams:
        raise UsageError(f"unknown game {game!r}; choose one of {', '.join(hyperparams)}, or use --env-id")
    if game == OWN and env_id is None:
        raise UsageError(f"--game {OWN} needs --env-id, the id of your environment")
    if env_id is None:
        return hyperparams[game]
    # The game's own goal means nothing in another environment.
    name, goal = re.sub(r"[^A-Za-z0-9._-]+", "-", env_id)[:LONGEST_ID], reward_threshold(env_id)
    try:
        return dataclasses.replace(hyperparams[game], env_name=env_id, run_name=name, stop_reward=goal, milestone=None)
    except ValueError as error:
        raise UsageError(f"--env-id {env_id!r} names no environment: {error}") from error


def _fields_for(env_name: str, config: Config, env_id: str | None) -> Values:
    """Return the hyperparameters of a file without its environment, and without the goal of another one."""
    fields = dict(config.fields)
    of_config = without_options(fields.pop("env_name", env_name))
    if of_config != without_options(env_name):
        if env_id is None:
            raise UsageError(
                f"--config: its env_name is {of_config!r}, and this run plays {env_name}; give --game or --env-id"
            )
        fields = {name: value for name, value in fields.items() if name not in ("run_name", "stop_reward", "milestone")}
    return fields


def _params(kind: type[RunParameters], fields: Values, assignments: Sequence[str]) -> RunParameters:
    """Return hyperparameters with the values of --set. With --set help, show them and exit.

    Raises:
        UsageError: if a value is wrong.
    """
    values = assigned(kind, assignments)
    if "env_name" in values:
        raise UsageError("--set env_name would keep the goal and the name of another game; use --env-id")
    try:
        params = kind(**{**fields, **values})
    except ValueError as error:
        raise UsageError(f"{'--set' if assignments else '--config'}: {error}") from error
    if HELP in assignments:
        print(explain(params))
        sys.exit(0)
    return params


def changes_in_name(
    named: str | None,
    defaults: Values,
    usual: Values,
    words: Iterable[str],
    params: RunParameters,
    options: RunOptions,
) -> str:
    """Return the suffix of a run's name after the script's name, such as "=3-learning_rate=0.0003-seed2".

    Args:
        named: name of the option whose value always follows the script's name, or None.
        defaults: defaults of the script's own options.
        usual: hyperparameters without --set. A difference in run_name is not shown.
        words: words after that, such as the name of --config; empty ones are left out.
        params, options: hyperparameters and options of the run.
    """
    text = "" if named is None else f"={_text(options.knobs[named])}"
    text += "".join(f"-{word}" for word in words if word)
    changed = [
        (name, value, defaults[name]) for name, value in affecting_results(options.knobs).items() if name != named
    ]
    changed += [(name, value, usual[name]) for name, value in dataclasses.asdict(params).items() if name != "run_name"]
    for name, value, before in changed:
        if value != before and isinstance(value, bool):
            text += f"-{name}" if value else f"-no-{name}"
        elif value != before:
            text += f"-{name}={_text(value)}"
    changes = re.sub(r"[^A-Za-z0-9._=+-]+", "_", text)
    end = "" if options.seed == RunOptions.seed else f"-seed{options.seed}"
    room = min(LONGEST_CHANGES, WITH_RUN_NAME - len(params.run_name)) - len(end)
    return changes[:room] + end


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_text, value))
    return short_number(value) if isinstance(value, float) else str(value)


def short_number(value: float) -> str:
    """Format a number with six significant digits if that is exact, otherwise with all."""
    return short if float(short := f"{value:g}") == value else str(value)
