"""Options of a run, from the command line and from the run that is resumed."""

import argparse
import dataclasses
import difflib
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from lib.envs.single_env import SPACES, EnvId, has_vectors, is_atari_id, reward_threshold
from lib.errors import UsageError
from lib.hyperparameters import ATARI, HYPERPARAMS, OWN, VECTORS, RunParameters, explain, plain
from lib.run.folder import FORMAT, describe_network, find, read_params, session, trusted_id
from lib.system.files import PROJECT

DEFAULT_RUNS_DIR = PROJECT / "runs"
TRACKERS = ("wandb", "mlflow")
CPU = torch.device("cpu")

# Options of scripts on which no result depends, so that a resumed run may change them.
CHANGEABLE = frozenset({"async_envs", "engine", "patience", "address", "actor_cpus"})

Values = dict[str, Any]  # of options or hyperparameters, by name


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Values of the common command line options, with their defaults. See `--help` of any script.

    Attributes:
        stop_after: agent steps at which the run stops, warm-up included; None for the game's max_steps.
        time_limit: seconds after which the run stops; None for no limit. They count from the start of the process, or
            from setup_ignite if the script has no cli.main.
        knobs: the script's own options by name. Each can be read as an attribute, too.
        owns_process: whether cli.main runs the script: the process does nothing else, and takes --resume. A book's
            script or a notebook may do other work before and after the run.
        changes: suffix that follows the script's name in a new run's name, such as "-huber-seed2".
    """

    seed: int = 1
    device: torch.device = CPU
    stop_after: int | None = None
    time_limit: int | None = None
    resume: Path | None = None
    new_episodes: bool = False
    init: Path | None = None
    runs_dir: Path = DEFAULT_RUNS_DIR
    quiet: bool = False
    evaluate_every: int | None = None
    record_every: int | None = None
    track: str | None = None
    game: str = "pong"
    knobs: Values = dataclasses.field(default_factory=dict)
    owns_process: bool = False
    changes: str = ""

    def __getattr__(self, name: str) -> Any:
        knobs = self.__dict__.get("knobs", {})  # which is not set yet when the options are unpickled
        if name not in knobs:
            raise AttributeError(f"no option {name!r}; the script's own options are {', '.join(knobs) or 'none'}")
        return knobs[name]


# Options that all scripts share. All others are the script's own.
COMMON = {"set", "config", "env_id", "env_arg", *(field.name for field in dataclasses.fields(RunOptions))}
RECORDED = ("game", "seed", "init")  # common options that a resumed run takes from params.json
LONGEST_RUN_NAME, LONGEST_CHANGES = 60, 130  # characters of an id, and of the changes, in a run's name


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose error messages take one line. See cli.parser for the attributes."""

    hyperparams: Mapping[str, RunParameters] = HYPERPARAMS
    named: str | None = None

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")

    def parse(self, argv: Sequence[str] | None) -> tuple[Values, Values]:
        """Return the common options that were given, and all of the script's own options."""
        values = vars(self.parse_args(argv))
        return {name: values.pop(name) for name in COMMON & values.keys()}, values


def resolve(parser: Parser, argv: Sequence[str] | None, script: str) -> tuple[RunParameters, RunOptions]:
    """Return hyperparameters and options from the command line, and from the run that is resumed, if any.

    A resumed run has the settings of its params.json. The command line and --config may repeat, but not change them. A
    UsageError names a setting that is wrong, or that differs from the run to resume.
    """
    options, knobs = parser.parse(argv)
    kind = type(next(iter(parser.hyperparams.values())))  # of hyperparameters
    defaults = {name: parser.get_default(name) for name in knobs}
    config: Path | None = options.pop("config", None)
    config_fields, config_knobs = _read_config(config, kind, knobs) if config else ({}, {})
    assignments, env_id, arguments = options.pop("set", []), options.pop("env_id", None), options.pop("env_arg", [])
    if arguments and env_id is None:
        raise UsageError("--env-arg needs --env-id, whose constructor gets the argument")
    if arguments:
        env_id = str(EnvId.of(env_id, arguments))
    options["device"] = usable_device(options.get("device", "cpu"))
    for name in ("resume", "init"):
        if name in options:
            options[name] = find(options[name], options.get("runs_dir", DEFAULT_RUNS_DIR))
    run: Path | None = options.get("resume")
    if run is None:
        usual = "pong"  # the entry from which a run starts if no --game is given
        if env_id is not None and OWN in parser.hyperparams and "game" not in options:
            usual = ATARI if ATARI in parser.hyperparams and is_atari_id(env_id) else OWN
            if VECTORS in parser.hyperparams and not is_atari_id(env_id) and has_vectors(env_id):
                usual = VECTORS
        options.setdefault("game", usual)
        fields = before = _usual_fields(parser.hyperparams, options["game"], env_id, config_fields)
    else:
        recorded = _read_settings(run, script, kind, env_id)
        before = recorded["hyperparameters"]
        fields = before | config_fields | {"env_name": before["env_name"]}
        # The nodes of a cluster run code here, so the user has to give its address again.
        defaults |= {name: value for name, value in recorded["knobs"].items() if name in knobs and name != "address"}
    before = defaults | before

    # As text, a number of the file is checked like one on the command line.
    texts = {name: str(value) for name, value in config_knobs.items() if type(value) in (int, float)}
    parser.set_defaults(**defaults | config_knobs | texts)
    knobs = parser.parse(argv)[1]
    # An option that may be repeated adds to its default.
    knobs |= {name: list(dict.fromkeys(value)) for name, value in knobs.items() if isinstance(value, list)}
    params = _params(kind, fields, assignments)
    after = affecting_results(knobs) | dataclasses.asdict(params)
    if run is not None:
        given = {name: options[name] for name in RECORDED if name in options}
        options |= {name: recorded[name] for name in RECORDED}
        _require_equal(run, before | options, after | given)
        options["init"] = options["init"] and Path(options["init"])
    else:
        words = [*([config.stem] if config else []), *(["init"] if "init" in options else [])]
        options["changes"] = _changes(parser.named, words, before, after, options.get("seed", RunOptions.seed))
    return params, RunOptions(**options, knobs=knobs, owns_process=True)


def _read_config(path: Path, kind: type[RunParameters], knobs: Iterable[str]) -> tuple[Values, Values]:
    """Read hyperparameters and the script's own options from a JSON object, or from a run's params.json."""
    try:
        content = json.loads(path.read_bytes())
        if "hyperparameters" in content and "knobs" in content:
            content = content["hyperparameters"] | affecting_results(content["knobs"])
    except (OSError, ValueError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}") from error
    names = [field.name for field in dataclasses.fields(kind)]
    fields, values = ({name: content.pop(name) for name in known if name in content} for known in (names, knobs))
    if content:
        raise UsageError(
            f"--config {path}: {', '.join(content)} is unknown; the names are {', '.join([*names, *knobs])}"
        )
    return fields, values


def affecting_results(knobs: Values) -> Values:
    """Return the script's own options on which results depend."""
    return {name: value for name, value in knobs.items() if name not in CHANGEABLE}


def _usual_fields(hyperparams: Mapping[str, RunParameters], game: str, env_id: str | None, config: Values) -> Values:
    """Return the hyperparameters of a game, or those for another environment, with those of --config."""
    if game in (OWN, ATARI, VECTORS) and env_id is None:
        raise UsageError(f"--game {game} needs --env-id, the id of your environment")
    usual = dataclasses.asdict(hyperparams[game])
    if env_id is not None:  # the game's own goal means nothing in another environment
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", env_id).rstrip("-")[:LONGEST_RUN_NAME]
        usual |= {"env_name": env_id, "run_name": name, "stop_reward": reward_threshold(env_id), "milestone": None}
    of_config = config.get("env_name", usual["env_name"])
    if of_config == usual["env_name"]:
        return usual | config
    if env_id is None:
        raise UsageError(
            f"--config: its env_name is {of_config!r}, and this run plays {usual['env_name']}; give --game or --env-id"
        )
    return usual | config | {name: usual[name] for name in ("env_name", "run_name", "stop_reward", "milestone")}


def _read_settings(run: Path, script: str, kind: type[RunParameters], env_id: str | None) -> Values:
    """Return the params.json of a run to resume, with checked hyperparameters and the environment that is trusted."""
    recorded = read_params(run)
    if recorded["script"] != script:
        raise UsageError(f"{run} is a run of {recorded['script']}.py; resume it with that script, not {script}.py")
    if any(run.glob("checkpoints/best-*.pt")) and not any(run.glob("checkpoints/step-*.pt")):
        raise UsageError(
            f"{run} has no step-* checkpoint, like a published model, so it cannot be resumed. Start a new run from "
            f"its network with --init {shlex.quote(str(run))}"
        )
    fields = recorded["hyperparameters"]
    fields["env_name"] = trusted_id(run, fields["env_name"], env_id)
    try:
        recorded["hyperparameters"] = dataclasses.asdict(kind(**fields))
    except (TypeError, ValueError) as error:
        commit = recorded["sessions"][0]["commit"]
        raise UsageError(f"{run} is a run of another version of this project ({commit}): {error}") from error
    return recorded


def _require_equal(run: Path, before: Values, after: Values) -> None:
    """Refuse settings of a resumed run that differ from the recorded ones."""
    before, after = (json.loads(json.dumps(each, default=str)) for each in (before, after))
    changes = [f"{name} is {before[name]!r}, not {value!r}" for name, value in after.items() if before[name] != value]
    if changes:
        raise UsageError(f"{run} has other settings: {'; '.join(changes)}. Leave them out, or start a new run")


def describe(script: str, params: RunParameters, options: RunOptions, net: nn.Module | None = None) -> Values:
    """Return the content of params.json: the run's settings, spaces, network and first session."""
    return {
        "format": FORMAT,
        "script": script,
        "game": options.game,
        "seed": options.seed,
        "hyperparameters": dataclasses.asdict(params),
        "knobs": options.knobs,
        "init": options.init,
        "spaces": SPACES.get(params.env_name, {}),
        "network": {} if net is None else describe_network(net),
        "sessions": [session(options.device)],
    }


def _params(kind: type[RunParameters], fields: Values, assignments: Sequence[str]) -> RunParameters:
    """Return hyperparameters with the values of --set. With --set help, show them and exit."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if name == "env_name":
            raise UsageError("--set env_name would keep the goal and the name of another game; use --env-id")
        if equals and name in fields:
            values[name] = text if isinstance(fields[name], str) else plain(text)
        elif assignment != "help":
            initials = {"".join(word[0] for word in field.split("_")): field for field in fields}  # lr: learning_rate
            close = [initials[name]] if name in initials else difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {close[0]}=...?" if close else f"the fields are {', '.join(fields)}"
            raise UsageError(f"--set takes FIELD=VALUE (see --set help), not {assignment!r}; {hint}")
    try:
        params = kind(**{**fields, **values})
    except ValueError as error:
        raise UsageError(f"{error} (see --set help)") from error
    if "help" in assignments:
        print(explain(params))
        sys.exit(0)
    return params


def _changes(named: str | None, words: Iterable[str], before: Values, after: Values, seed: int) -> str:
    """Return what follows the script's name in a run's name, such as "=3-learning_rate=0.0003-seed2".

    They are the value of the option `named`, if any, `words`, such as the name of --config, and the changes from the
    usual values of options and hyperparameters, `before`, to those of this run, `after`.
    """
    text = "" if named is None else f"={_text(after[named])}"
    text += "".join(f"-{word}" for word in words)
    for name, value in after.items():
        if value == before[name] or name in (named, "run_name"):
            continue
        if isinstance(value, bool):
            text += f"-{name}" if value else f"-no-{name}"
        else:
            text += f"-{name}={_text(value)}"
    end = "" if seed == RunOptions.seed else f"-seed{seed}"
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", text)[: LONGEST_CHANGES - len(end)] + end


def _text(value: object) -> str:
    return "+".join(map(_text, value)) if isinstance(value, list | tuple) else str(value).removesuffix(".0")


def options_of_book() -> RunOptions:
    """Return the options of a script without our command line: torch's seed, and the GPU if CUDA is initialised."""
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    return RunOptions(seed=torch.initial_seed() % 2**63, device=device, runs_dir=Path("runs"))


def usable_device(name: str) -> torch.device:
    """Return a device of this machine. A UsageError lists the devices if it does not have this one."""
    available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    available += ["mps"] if torch.backends.mps.is_available() else []
    if ("cuda:0" if name == "cuda" else name) not in available:
        raise UsageError(
            f"PyTorch {torch.__version__} finds no device {name!r} on this machine; use one of {', '.join(available)}"
        )
    return torch.device(name)
