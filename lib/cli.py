"""Command line of the scripts and tools, and their exit codes."""

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from tqdm import tqdm

from lib.envs import checked_env
from lib.errors import Fault, Interrupted, UsageError, divisors
from lib.hyperparameters import HYPERPARAMS, OWN, RunParameters, Setting, fitted, plain
from lib.run.arguments import DEFAULT_RUNS_DIR, TRACKERS, Parser, RunOptions, resolve, usable_device
from lib.run.folder import find
from lib.run.stopping import EXIT_CODES
from lib.system import files, memory
from lib.system.log import start_console
from lib.system.seeds import seed_everything


def number(kind: type[int] | type[float], **limits: float) -> Callable[[str], object]:
    """Return the type of a numeric option; see hyperparameters.LIMITS. A whole number may be written as 1e5."""

    def parse(text: str) -> object:
        try:
            return fitted(plain(text), Setting((kind,), "", limits))
        except ValueError as allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}") from None

    return parse


positive = number(int, low=1)
seed = number(int, low=0, high=2**31 - 1)
share = number(float, low=0, high=1)
above_zero = number(float, above=0)


def new_file(text: str) -> Path:
    """Parse the path of a file that a tool will write. A file that exists is refused, because it would be lost."""
    path = Path(text)
    if path.exists():
        raise argparse.ArgumentTypeError(f"{path} exists and would be lost; remove it, or give a new file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; give a file in a folder that exists")
    return path


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show the default of an option unless it is None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def parser(doc: str | None, hyperparams: Mapping[str, RunParameters] = HYPERPARAMS, named: str | None = None) -> Parser:
    """Return a parser with the common options. A script adds its own; RunOptions.knobs holds their values.

    `hyperparams` are those of the games, by name. The value of the option `named` is part of the name of every run.
    """
    summary = (doc or "").split("\n\n")[0]
    parser = Parser(description=summary, usage="%(prog)s [options]", allow_abbrev=False, formatter_class=_Help)
    parser.hyperparams, parser.named = hyperparams, named
    group = parser.add_argument_group("options of every script", argument_default=argparse.SUPPRESS)
    add = group.add_argument
    game = "pong; with --env-id: general settings" if OWN in hyperparams else "pong"
    add("--cuda", dest="device", action="store_const", const="cuda", help="same as --device cuda")
    add("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: cpu)")
    add("--game", metavar="G", choices=hyperparams, help=f"hyperparameters: {', '.join(hyperparams)} (default: {game})")
    add("--env-id", metavar="ID", help="gymnasium id of another environment; module:id imports the module first")
    arg_help = "argument of its constructor; channel_axis=N says which axis holds the channels"
    add("--env-arg", metavar="NAME=VALUE", action="append", help=arg_help)
    add("--seed", metavar="N", type=seed, help="seed of all random generators (default: 1)")
    add("--config", metavar="FILE", type=Path, help="JSON file of hyperparameters and options, such as a run's")
    add("--set", metavar="FIELD=VALUE", action="append", help="change a hyperparameter; --set help explains them")
    add("--stop-after", metavar="STEPS", type=positive, help="stop at this agent step (default: max_steps)")
    add("--time-limit", metavar="SECONDS", type=positive, help="stop the process after this time (default: none)")
    add("--resume", metavar="RUN", help="resume a run: its folder, the folder's name, or last")
    add("--new-episodes", action="store_true", help="with --resume: start at once, with new episodes")
    add("--init", metavar="MODEL", help="start with the weights of this run or model; its network must be the same")
    add("--runs-dir", metavar="DIR", type=Path, help="folder of the runs (default: runs/)")
    add("--evaluate-every", metavar="STEPS", type=positive, help="agent steps between evaluations of ten episodes")
    add("--record-every", metavar="N", type=positive, help="film every N-th training episode; the last 20 are kept")
    add("--quiet", action="store_true", help="hide the progress bars and lines about episodes")
    add("--track", choices=TRACKERS, help="send the run to this tracker as well")
    return parser


def add_engine_options(parser: Parser, optional: bool = False) -> None:
    """Add the options of the actors: engine, patience and address; if they are `optional`, also --parallel."""
    add = parser.add_argument
    if optional:
        add("--parallel", action="store_true", help="play in another process; see --engine")
    add("--engine", choices=("inline", "process", "ray"), default="process", help="where actors or players run")
    silence = "restart an actor that is silent for this time, or for three times its last segment's duration if longer"
    add("--patience", type=positive, default=60, metavar="SECONDS", help=silence)
    cluster = "with --engine ray: cluster, HOST:PORT, auto or ray://HOST:PORT (default: RAY_ADDRESS, or a local Ray)"
    add("--address", default=os.environ.get("RAY_ADDRESS"), metavar="ADDRESS", help=cluster)


def add_env_options(parser: Parser, envs: int | None = None) -> None:
    """Add --async-envs for scripts whose environments step together, and --envs if a default is given."""
    if envs:
        parser.add_argument("--envs", type=positive, default=envs, metavar="N", help="number of environments")
    help_text = "step each environment in a process of its own, for games whose step takes more than a millisecond"
    parser.add_argument("--async-envs", action=argparse.BooleanOptionalAction, default=False, help=help_text)


def tool(doc: str | None) -> Parser:
    """Return a tool's parser. The tool's docstring is its help text; the tool adds its options."""
    return Parser(description=doc, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)


def runs_tool(doc: str | None) -> Parser:
    """Return the parser of a tool that takes runs, which may be names in --runs-dir; see `tool`."""
    parser = tool(doc)
    folder = "folder of the runs (default: runs/)"
    parser.add_argument("--runs-dir", metavar="DIR", type=Path, default=DEFAULT_RUNS_DIR, help=folder)
    return parser


def run_tool(doc: str | None, plays: bool = True) -> Parser:
    """Return the parser of a tool that reads a run's checkpoint, and that `plays` its agent; see `run_args`."""
    parser = runs_tool(doc)
    add = parser.add_argument
    add("run", metavar="RUN", help="the run's folder, its name in --runs-dir, or last")
    add("--env-id", metavar="ID", help="id of the run's environment, needed if it has a module, which is imported")
    network = "class or function that builds the run's own network from observation space and number of actions"
    add("--network", metavar="FILE.py:NAME", help=network)
    add("--checkpoint", default="best", metavar="best|last|STEP", help="checkpoint to load (default: best)")
    if plays:
        add("--device", default="cpu", type=usable_device, metavar="D", help="cpu, cuda, ... (default: cpu)")
        add("--epsilon", default=0.0, type=share, metavar="E", help="probability of a random action (default: 0)")
        add("--sample", action="store_true", help="draw actions from PPO's probabilities instead of the best one")
        add("--seed", default=1, type=seed, metavar="N", help="seed of the episodes (default: 1)")
    return parser


def run_args(parser: Parser) -> argparse.Namespace:
    """Parse the command line of a `run_tool`, and replace the run's name by its folder."""
    args = parser.parse_args()
    args.run = find(args.run, args.runs_dir)
    return args


def quotient(option: str, whole: int, part: int) -> int:
    """Return whole / part, for an option that has to divide a batch. It is a UsageError if it does not."""
    if whole % part:
        raise UsageError(f"{option} {part} does not divide the batch of {whole}; give one of {divisors(whole)}")
    return whole // part


def main(train: Callable[[Any, RunOptions], Any], parser: Parser, script: str) -> None:
    """Parse the command line, seed, train, and exit.

    The exit code is 0 if the run was solved, reached a limit or was ended by its script. It is 2 for a UsageError, 1
    for a Fault or a loss that is not finite, and 128 + n for signal n.

    `train` is a function of params and args that returns the final state of setup_ignite's engine.
    """
    with exit_codes("Stopped at once. --resume with the run's folder continues from its newest checkpoint, if any."):
        params, args = resolve(parser, None, script)
        prepare(args.seed)
        state = train(params, args)
        sys.exit(EXIT_CODES[state.stopped])  # see setup_ignite


@contextlib.contextmanager
def exit_codes(stopped: str = "Stopped.") -> Iterator[None]:
    """Turn usage errors, faults and Ctrl-C into a short message on standard error and an exit code.

    Close all environments that are still open. After Ctrl-C, the message is `stopped`.
    """
    start_console()
    try:
        with checked_env.closing():
            yield
    except (UsageError, Fault) as error:
        _exit(f"error: {error}", error.exit_code, error)
    except (MemoryError, OSError, RuntimeError, ImportError) as error:
        if fault := memory.shortage(error):
            _exit(f"error: {fault}", fault.exit_code, error)
        if not isinstance(error, OSError):
            raise
        what = str(error.strerror or error) + (f": {error.filename}" if error.filename else "")
        advice = "To go on, make room; then resume the run, or start again" if error.errno in files.FULL_DISK else ""
        _exit(f"error: {what}. Files that were saved before are kept. {advice}".rstrip(". "), Fault.exit_code, error)
    except (KeyboardInterrupt, Interrupted) as error:
        _exit(stopped, getattr(error, "code", EXIT_CODES["SIGINT"]))


def prepare(seed: int) -> None:
    """Prepare the process before anything is built in it: memory, determinism, seeds."""
    memory.keep_freed_memory()
    threading.excepthook = _report_thread
    torch.backends.cudnn.deterministic = True  # a resumed run has to equal the uninterrupted one
    seed_everything(seed)


def _report_thread(args: threading.ExceptHookArgs) -> None:
    """Print the error of a thread, except TensorBoard's writer: the next write raises the error again."""
    if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
        threading.__excepthook__(args)


def _exit(message: str, code: int, error: BaseException | None = None) -> NoReturn:
    """Print a message and the notes of the error, and exit with a code."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        tqdm.write("\n".join((message, *getattr(error, "__notes__", ()))), file=sys.stderr)
    sys.exit(code)
