"""From a command line to the hyperparameters and options of a run: a new run, or one that is resumed."""

import argparse
import dataclasses
import logging
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lib.actors.ray_package import check_cluster
from lib.envs.preprocessing import without_options
from lib.envs.single_env import module_of, reward_threshold
from lib.errors import UsageError
from lib.hyperparameters import BEST_HYPERPARAMS, HYPERPARAMS, OWN, RunParameters, recorded_fields
from lib.run import config_file, tracking
from lib.run.folder import find, read_params, require_trust
from lib.run.initial_weights import require_same_game
from lib.run.option_types import seed, usable_device
from lib.run.options import ACTOR_OPTIONS, DEFAULT_RUNS_DIR, RunOptions, affecting_results, changeable_on_resume
from lib.run.overrides import HELP, explain, override, parse
from lib.run.run_name import changes_in_name

log = logging.getLogger(__name__)

LONGEST_ID = 60  # characters of an id in a run's name


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose error messages take one line.

    Attributes:
        common: names of the options that all scripts share. All others are the script's own.
        hyperparams: hyperparameters of the games, by name.
        best: hyperparameters of --params best.
        named: name of the script's own option whose value is appended to the script's name in run names, or None.
    """

    common: frozenset[str] = frozenset()
    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS
    best: Mapping[str, RunParameters] = BEST_HYPERPARAMS
    named: str | None = None

    def __init__(self, **options: Any):
        super().__init__(**options)
        # argparse reads -1e1 and -inf as options. This pattern makes them values.
        self._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def resolve(parser: Parser, argv: list[str] | None, script: str) -> tuple[RunParameters, RunOptions]:
    """Return hyperparameters and options from the command line, and from the run that is resumed, if any.

    Raises:
        UsageError: if the command line is wrong, or does not fit the run to resume.
    """
    values = vars(parser.parse_args(argv))
    defaults = {name: parser.get_default(name) for name in values}
    config = config_file.Config({}, {})
    if "config" in values:
        config = config_file.read(values["config"], parser, _kind_of(parser))
        # argparse would append to a list from the file, but the command line decides.
        lists = {name for name, value in config.options.items() if isinstance(value, list)}
        given_lists = {name for name in lists if values[name] != defaults[name]}
        parser.set_defaults(**{name: value for name, value in config.options.items() if name not in given_lists})
        values = vars(parser.parse_args(argv))
    knobs = {name: value for name, value in values.items() if name not in parser.common}
    options = {name: value for name, value in values.items() if name in parser.common}
    if "runs_dir" in options:
        options["runs_dir"] = _runs_dir(options["runs_dir"])
    options["device"] = usable_device(options.get("device", "cpu"))
    overrides = options.pop("set", [])
    _check_overrides(overrides, parser, knobs, script)
    if "track" in options:
        tracking.require(options["track"])
    env_id, module = options.pop("env_id", None), options.pop("env_module", None)
    if "resume" in options:
        if env_id is not None:
            env_id = full_id(env_id, module)
            module = module_of(env_id) if env_id else None
        if "init" in options:
            raise UsageError("--init starts a new run, and a resumed run has its own weights; leave one of them out")
        if "params" in values or "config" in values:
            raise UsageError("a resumed run keeps its hyperparameters; leave out --params and --config")
        options["resume"] = find(options["resume"], options.get("runs_dir", DEFAULT_RUNS_DIR))
        # Parsed a second time with None for each of the script's own options, to tell given values from defaults.
        given = vars(parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(knobs))))
        given_knobs = {name: given[name] for name in knobs}
        params, run_options = _resume(parser, script, options, given_knobs, env_id, module, overrides)
        _explain_and_exit(params, overrides)
    else:
        env_id = full_id(env_id, module)
        params, run_options = _new_run(parser, script, options, knobs, defaults, env_id, config, overrides)
    return params, run_options


def _explain_and_exit(params: RunParameters, overrides: Sequence[str]) -> None:
    """With --set help, show the hyperparameters and exit."""
    if HELP in overrides:
        print(explain(params))
        sys.exit(0)


def _new_run(
    parser: Parser,
    script: str,
    options: dict[str, Any],
    knobs: dict[str, Any],
    defaults: Mapping[str, Any],
    env_id: str | None,
    config: config_file.Config,
    overrides: list[str],
) -> tuple[RunParameters, RunOptions]:
    """Return the hyperparameters and options of a new run.

    Args:
        parser, script, options, env_id, overrides: see _resume.
        knobs: values of the script's own options.
        defaults: defaults of all options.
        config: content of --config.
    """
    options.pop("config", None)
    wants_best = options.pop("params", "common") == "best"
    table = parser.best if wants_best else parser.hyperparams
    if wants_best and table is parser.hyperparams:
        log.warning("--params best has no effect: its values are for chapter 8 and for 00 to 06 of chapter 9.")
    options.setdefault("game", OWN if env_id is not None and OWN in table else "pong")
    usual = _usual_params(table, options["game"], env_id)
    params = _with_values(usual, env_id, config, overrides)
    _explain_and_exit(params, overrides)
    _require_actors(knobs, any(knobs.get(name) != defaults.get(name) for name in ACTOR_OPTIONS))
    _check_engine(knobs)
    if "init" in options:
        options["init"] = find(options["init"], options.get("runs_dir", DEFAULT_RUNS_DIR))
        require_same_game(options["init"], params.env_name, script)
    run_options = RunOptions(**options, knobs=knobs, owns_process=True)
    kinds = {"best": table is not parser.hyperparams, "init": run_options.init is not None}
    changes = changes_in_name(
        affecting_results(knobs),
        defaults,
        parser.named,
        [kind for kind, applies in kinds.items() if applies],
        params,
        usual,
        run_options.seed,
    )
    if run_options.stop_after is not None and run_options.stop_after <= params.warm_up:
        raise UsageError(
            f"--stop-after {run_options.stop_after} lies within the warm-up of {params.warm_up} steps; "
            "give more, or a smaller --set replay_initial=N"
        )
    return params, dataclasses.replace(run_options, changes=changes)


def _check_overrides(overrides: Sequence[str], parser: Parser, knobs: Collection[str], script: str) -> None:
    """Refuse --set for the environment, and for options that are not hyperparameters."""
    fields = {field.name for field in dataclasses.fields(_kind_of(parser))}
    for name in (assignment.partition("=")[0] for assignment in overrides):
        if name == "env_name":
            raise UsageError("--set env_name would keep the goal and the name of another game; use --env-id")
        if name in {*knobs, *parser.common} - fields:
            raise UsageError(f"--set changes hyperparameters, and {name} is an option; see {script}.py --help")


def _require_actors(knobs: Mapping[str, Any], given: bool) -> None:
    """Refuse options of the players, if they are given, in a run of a script with --parallel that lacks it."""
    if "engine" in knobs and knobs.get("parallel") is False and given:
        raise UsageError(
            "--engine, --address and --patience go with --parallel; leave them out, because this process plays"
        )


def _check_engine(knobs: Mapping[str, Any]) -> None:
    """Refuse an --address that is not used, does not answer or rejects this process, before a run folder is made."""
    if "engine" not in knobs or knobs["address"] is None:
        return
    if knobs["engine"] != "ray":
        raise UsageError(f"--address {knobs['address']} needs --engine ray, not {knobs['engine']}")
    check_cluster(knobs["address"])


def _runs_dir(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UsageError(f"--runs-dir {path.absolute()} is not a folder")
    return path.absolute()


def full_id(env_id: str | None, module: str | None) -> str | None:
    """Return gymnasium's "module:id"."""
    if module is None:
        return env_id
    if not module:
        raise UsageError("--env-module is empty; give the name of the module that registers the id")
    if env_id is None:
        raise UsageError(f"--env-module {module} needs --env-id as well, the id that the module registers")
    if ":" in env_id:
        raise UsageError(f"--env-id {env_id} names a module already; leave out --env-module {module}")
    return f"{module}:{env_id}"


def _usual_params(hyperparams: Mapping[str, RunParameters], game: str, env_id: str | None) -> RunParameters:
    """Return the hyperparameters of a game, or those for another environment, without --config and --set."""
    if hyperparams is BEST_HYPERPARAMS and game not in hyperparams and game in HYPERPARAMS:
        raise UsageError(f"--params best has no values for {game!r}, only for {', '.join(hyperparams)}")
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


def _with_values(
    params: RunParameters, env_id: str | None, given: config_file.Config, overrides: list[str]
) -> RunParameters:
    """Return hyperparameters with the values of --config and --set."""
    config: Mapping[str, Any] = given.hyperparameters
    if env_id is not None:
        # A run on another environment says nothing about the goal of this one.
        is_other = given.of_run and config.get("env_name") != without_options(env_id)
        left_out = {"env_name", *(("run_name", "stop_reward", "milestone") if is_other else ())}
        config = {name: value for name, value in config.items() if name not in left_out}
    elif without_options(config.get("env_name", params.env_name)) != without_options(params.env_name):
        raise UsageError(
            f"--config: its env_name is {config['env_name']!r}, and this run plays {params.env_name}; give --game or "
            "--env-id, which decide about the environment"
        )
    values = parse(type(params), overrides)
    try:
        return dataclasses.replace(params, **{**config, **values})
    except ValueError as error:
        options = " and ".join(option for option, fields in (("--config", config), ("--set", values)) if fields)
        raise UsageError(f"{options}: {error}") from error


def _resume(
    parser: Parser,
    script: str,
    options: dict[str, Any],
    given_knobs: dict[str, Any],
    env_id: str | None,
    module: str | None,
    overrides: list[str],
) -> tuple[RunParameters, RunOptions]:
    """Take the settings from a recorded run, and refuse settings on the command line that differ from them.

    Args:
        parser: parser of the script.
        script: name of the script.
        options: common options that were given.
        given_knobs: the script's own options; None for those that were not given.
        env_id: value of --env-id.
        module: module that the command line names.
        overrides: values of --set.
    """
    run = options["resume"]
    recorded = read_params(run)
    params = _recorded_params(parser, run, recorded, script)
    require_trust(run, params.env_name, module)
    requested = override(params, overrides)
    if env_id is not None:
        requested = dataclasses.replace(requested, env_name=env_id)
    recorded_values, requested_values = dataclasses.asdict(params), dataclasses.asdict(requested)
    if without_options(requested.env_name) == without_options(params.env_name):  # 04_wrappers.py adds its options
        requested_values["env_name"] = params.env_name
    settings = [(name, value, requested_values[name]) for name, value in recorded_values.items()]
    settings += [(name, recorded[name], options.get(name, recorded[name])) for name in ("game", "seed")]
    knobs, changeable = {}, changeable_on_resume(given_knobs)
    for name, value in given_knobs.items():
        # A run of an earlier version of the script lacks the options that were added since.
        knobs[name] = _recorded_option(parser, run, name, recorded["knobs"].get(name, parser.get_default(name)))
        if name == "address" and name in changeable:
            _require_own_address(run, knobs[name], value, given_knobs["engine"])
            knobs[name] = value
        elif value is not None and name in changeable:
            knobs[name] = value
        elif value is not None and not _are_same_repeated(parser, name, knobs[name], value):
            settings.append((_action(parser, name).option_strings[0], knobs[name], value))
    changes = [f"{name} is {old!r}, not {new!r}" for name, old, new in settings if old != new]
    if changes:
        raise UsageError(f"{run} has other settings: {'; '.join(changes)}. Leave them out, or start a new run")
    _require_actors(knobs, any(given_knobs.get(name) is not None for name in ACTOR_OPTIONS))
    _check_engine(knobs)
    init = recorded.get("init")
    options |= {"game": recorded["game"], "seed": recorded["seed"], "init": None if init is None else Path(init)}
    return params, RunOptions(**options, knobs=knobs, owns_process=True)


def _are_same_repeated(parser: Parser, name: str, recorded: Any, given: Any) -> bool:
    """Return whether an option that may be repeated, such as --without, has the same values, in any order."""
    if not isinstance(_action(parser, name), argparse._AppendAction) or recorded is None:
        return False
    return set(map(repr, recorded)) == set(map(repr, given))


def _require_own_address(run: Path, recorded: str | None, given: str | None, engine: str | None) -> None:
    """Refuse to join a Ray cluster that a run names and the user does not, because its nodes run code here.

    Raises:
        UsageError: if neither --address nor another --engine is given.
    """
    if recorded is not None and given is None and engine in (None, "ray"):
        raise UsageError(
            f"{run} was played on the Ray cluster at {recorded}. To join it again, add --address {recorded}; or "
            "take another --engine, such as process"
        )


def _action(parser: Parser, name: str) -> argparse.Action:
    """Return the option of a parser with this name in its results."""
    return next(action for action in parser._actions if action.dest == name)


def _recorded_option(parser: Parser, run: Path, name: str, value: Any) -> Any:
    """Return the recorded value of an option, as the command line would read it."""
    try:
        return value if value is None else config_file.option_value(_action(parser, name), value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{run / 'params.json'} has a wrong {name}: {error}. It was edited; restore it") from error


def _kind_of(parser: Parser) -> type[RunParameters]:
    """Return the type of the script's hyperparameters."""
    return type(next(iter(parser.hyperparams.values())))


def _recorded_params(parser: Parser, run: Path, recorded: dict[str, Any], script: str) -> RunParameters:
    try:
        seed(str(recorded["seed"]))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{run / 'params.json'} has a wrong seed: {error}. It was edited; restore it") from error
    if recorded["script"] != script:
        raise UsageError(f"{run} is a run of {recorded['script']}.py; resume it with that script, not {script}.py")
    kind = _kind_of(parser)
    try:
        return kind(**recorded_fields(recorded["hyperparameters"]))
    except (TypeError, ValueError) as error:
        commit = recorded["sessions"][0]["commit"]
        unknown = set(recorded["hyperparameters"]) - {field.name for field in dataclasses.fields(kind)}
        reason = f"this version of {script}.py does not have {', '.join(sorted(unknown))}" if unknown else error
        raise UsageError(f"{run} is a run of another version of this project ({commit}): {reason}") from error
