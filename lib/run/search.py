"""--tune N: search for a script's hyperparameters with Ray Tune.

A trial is a run of the script in its own process, with --set and tuner_mode. runs/tune/<name>/ holds Ray Tune's
state, from which an interrupted search continues, and:

    search.json    number of trials and options of the search
    trials.csv     a row per trial
    trials.png     mean returns against learning rates
    params.json    best hyperparameters, for --config
"""

import argparse
import csv
import io
import itertools
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lib.actors.ray_package import import_ray
from lib.errors import Fault, UsageError
from lib.hyperparameters import Hyperparameters, RunParameters
from lib.run.console import command
from lib.run.folder import current_commit, read_json, write_json
from lib.run.options import DEFAULT_RUNS_DIR, RunOptions
from lib.run.stopping import EXIT_CODES, NOT_FINITE, SOLVED, handled_signals
from lib.run.tuning import UNSOLVED, base_space, ray_tune, start_ray, trial_resources
from lib.system import files
from lib.system.parent import kill_with_parent
from lib.system.processes import handling

log = logging.getLogger(__name__)

SEARCH_FILE = "search.json"
COLUMNS = ("trial", "stopped", "episodes", "best_mean", "steps", "seconds")


def search(params: RunParameters, args: RunOptions, script: str, argv: Sequence[str]) -> int:
    """Run args.tune trials of the script, or the remaining trials of an interrupted search.

    Args:
        params: hyperparameters of the script.
        args: options of the script.
        script: name of the script.
        argv: command line of the script.

    Returns:
        Exit code: 0 if all trials have ended, 128 + n if signal n has interrupted the search.

    Raises:
        UsageError: if the script is no DQN, there is no goal, Ray Tune is not installed, or a search with other options
            is in the folder.
        Fault: if a trial failed.
    """
    if not isinstance(params, Hyperparameters):
        raise UsageError(
            "--tune searches the hyperparameters of a DQN; this script has others; use --set for single values"
        )
    if params.stop_reward is None:
        raise UsageError("--tune needs a goal, because it searches for the fewest episodes; give --set stop_reward=...")
    tune = ray_tune()
    resources = trial_resources(args.device)
    folder = args.runs_dir.absolute() / "tune" / f"{params.run_name}-{script}{args.changes}"
    folder.mkdir(parents=True, exist_ok=True)
    trainable = tune.with_resources(
        tune.with_parameters(
            run_trial,
            folder=folder,
            command=_trial_command(argv, args.init),
            started_in=os.getcwd(),
            threads=resources.get("cpu"),
        ),
        resources,
    )
    space = base_space(tune, params)
    options = _without(argv, "--tune", "--runs-dir")
    goes_on = tune.Tuner.can_restore(folder / "ray")
    if goes_on:
        _require_same_search(folder, args.tune or 0, options)
    start_ray()
    if goes_on:
        log.info("The search in %s continues.", folder)
        tuner = tune.Tuner.restore(str(folder / "ray"), trainable, resume_errored=True, param_space=space)
    else:
        write_json(folder / SEARCH_FILE, {"samples": args.tune, "options": options, "commit": current_commit()})
        log.info("Search: %d trials. They are recorded in %s.", args.tune, folder)
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                num_samples=args.tune, search_alg=tune.search.BasicVariantGenerator(random_state=args.seed)
            ),
            run_config=tune.RunConfig(
                name="ray", storage_path=str(folder), verbose=0, callbacks=[_report_trials(tune.Callback)]
            ),
        )
    with _as_ctrl_c() as received:
        results = tuner.fit()
    import_ray(local_only=True).shutdown()
    trials = [dict(each.metrics, **each.config) for each in results if each.metrics and "episodes" in each.metrics]
    if trials:
        title = f"{params.env_name} · {script} · seed {args.seed}"
        trials.sort(key=_rank)
        _write_results(folder, trials, list(space), title)
        where = [] if args.runs_dir == DEFAULT_RUNS_DIR else ["--runs-dir", str(args.runs_dir)]
        _log_best(folder, trials[0], list(space), [sys.argv[0], *options, *where])
    if results.num_errors:
        raise Fault(
            f"{results.num_errors} trials failed; their output is in {folder / 'trials'}. The same command retries"
        )
    if len(trials) < len(results):
        log.info("Interrupted after %d of %d trials. The same command continues.", len(trials), len(results))
        return 128 + (received or [signal.SIGINT])[0]
    return 0


@contextmanager
def _as_ctrl_c() -> Iterator[list[int]]:
    """Turn SIGTERM and SIGHUP into SIGINT, which Ray Tune handles. Yield the received signals."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    with handling([number for number in handled_signals() if number != signal.SIGINT], interrupt):
        yield received


def run_trial(
    config: dict[str, Any], folder: Path, command: Sequence[str], started_in: str, threads: int | None
) -> dict[str, Any]:
    """Run the script with a trial's hyperparameters, or resume the trial's run, and return its result.

    Args:
        config: hyperparameters of the trial.
        folder: folder of the search. It holds a folder per trial, because Ray Tune loses its own trial folders when the
            search is interrupted.
        command: command line without the trial's hyperparameters.
        started_in: folder in which the search was started, to which paths in the command refer.
        threads: threads of the process, or None.

    Raises:
        Fault: if the script fails.
    """
    from ray import tune

    trial_id = tune.get_context().get_trial_id()
    folder = _folder_of(config, folder / "trials", _number(trial_id))
    folder.mkdir(parents=True, exist_ok=True)
    if result := _complete(folder):
        return _outcome(result, trial_id)
    runs = sorted((folder / "runs").glob("*/params.json"))
    if runs:
        # The run has recorded its hyperparameters, which the script may have changed, but not --device and the like.
        words = ["--resume", str(runs[-1].parent), *_without(command[2:], "--params", "--init", "--set", "--game")]
    else:
        words = list(command[2:])
    for name, value in config.items():
        words += ["--set", f"{name}={json.dumps(value)}"]  # the last --set wins over the user's
    environment = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    with (folder / "output.txt").open("a") as output:
        process = subprocess.Popen(
            [*command[:2], *words, "--quiet", "--runs-dir", str(folder / "runs")],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=started_in,  # Ray Tune changes it
            preexec_fn=kill_with_parent,
        )
        code = process.wait()
    result = _complete(folder)
    if not result or (code and result["stopped"] != NOT_FINITE):
        raise Fault(f"the trial ended with exit code {code}; its output is in {folder / 'output.txt'}")
    return _outcome(result, trial_id)


def _folder_of(config: Mapping[str, Any], trials: Path, number: str) -> Path:
    """Return a trial's folder. A folder of an earlier search, whose hyperparameters differ, is passed over."""
    names = itertools.chain([number], (f"{number}-{count}" for count in itertools.count(2)))
    return next(trials / name for name in names if _runs_have(trials / name, config))


def _runs_have(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether all runs of a trial's folder have these hyperparameters."""
    runs = [read_json(file)["hyperparameters"] for file in folder.glob("runs/*/params.json")]
    return all(run.get(name) == value for run in runs for name, value in config.items())


def _complete(folder: Path) -> dict[str, Any]:
    """Return the result of a trial's run, or {} if no run of it has finished. A diverged run would diverge again."""
    for file in sorted((folder / "runs").glob("*/result.json")):
        result = read_json(file)
        if EXIT_CODES.get(result["stopped"]) == 0 or result["stopped"] == NOT_FINITE:
            return result
    return {}


def _outcome(result: Mapping[str, Any], trial_id: str) -> dict[str, Any]:
    return {
        "trial": _number(trial_id),
        "stopped": result["stopped"],
        "episodes": result["episodes"] if result["stopped"] == SOLVED else UNSOLVED,
        "best_mean": result["best_mean"],
        "steps": result["steps"],
        "seconds": result["seconds"],
    }


def _report_trials(callback: Any) -> Any:
    """Return a callback of Ray Tune, given its base class, that logs each trial as it starts and ends."""

    class Report(callback):
        def on_trial_start(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
            log.info("Trial %s: %s", _number(trial.trial_id), _text(trial.config))

        def on_trial_complete(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
            result = trial.last_result
            log.info(
                "Trial %s: %s after %s steps, best mean %s.",
                _number(trial.trial_id),
                result["stopped"],
                f"{result['steps']:,}",
                result["best_mean"],
            )

        def on_trial_error(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
            log.warning("Trial %s failed", _number(trial.trial_id))

    return Report()


def _number(trial_id: str) -> str:
    """Return the number of a trial from Ray Tune's id, which is <search>_<number>."""
    return trial_id.partition("_")[2]


def _text(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in config.items())


def _trial_command(argv: Sequence[str], init: Path | None = None) -> list[str]:
    """Return the command line of a trial: the script's own, without --tune. Trials are quiet.

    Args:
        argv: options of the script.
        init: folder that --init names. A trial would look for a bare name in its own folder.
    """
    words = [word for word in _without(argv, "--tune", "--init") if word != "--quiet"]
    words += ["--init", str(init.absolute())] if init else []
    return [sys.executable, str(Path(sys.argv[0]).absolute()), *words, "--set", "tuner_mode=true"]


def _without(words: Sequence[str], *options: str) -> list[str]:
    """Return a command line without some options and their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option)
    return parser.parse_known_args(words)[1]


def _require_same_search(folder: Path, samples: int, words: Sequence[str]) -> None:
    """Refuse to continue a search with another number of trials or other options. Warn if the code has changed.

    Raises:
        UsageError: if they differ.
    """
    file = folder / SEARCH_FILE
    if not file.exists():  # a search of an earlier version
        return
    recorded = read_json(file)
    if (recorded["samples"], _by_option(recorded["options"])) != (samples, _by_option(words)):
        before = shlex.join(["--tune", str(recorded["samples"]), *recorded["options"]])
        raise UsageError(
            f"{folder} holds a search that was started with {before}. Give the same options to continue it, or another "
            "--runs-dir for a new search"
        )
    if (started_at := recorded.get("commit")) not in (None, current := current_commit()):
        log.warning("The search was started at commit %s; the code is at %s now.", started_at, current)


def _by_option(words: Sequence[str]) -> list[list[str]]:
    """Return the words of a command line, sorted by option; an option stays with its value."""
    starts = [index for index, word in enumerate(words) if re.match("--?[a-z]", word)]
    return sorted(list(words[start:end]) for start, end in itertools.pairwise([0, *starts, len(words)]) if start < end)


def _rank(trial: Mapping[str, Any]) -> tuple[float, bool, float]:
    """Return a key that sorts the best trial first: fewest episodes, or the highest mean if none was solved.

    Trials whose loss became infinite or NaN come last.
    """
    best = trial["best_mean"] if trial["best_mean"] is not None else float("-inf")
    return trial["episodes"], trial["stopped"] == NOT_FINITE, -best


def _write_results(folder: Path, trials: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, [*COLUMNS, *names], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        writer.writerow({**trial, "episodes": "" if trial["episodes"] == UNSOLVED else trial["episodes"]})
    files.write(folder / "trials.csv", table.getvalue())
    files.write(folder / "params.json", json.dumps({name: trials[0][name] for name in names}, indent=2) + "\n")
    log.info("Trials, best first:\n%s", table.getvalue().rstrip())
    compared = [trial for trial in trials if trial["best_mean"] is not None]
    if compared:
        _draw(folder / "trials.png", compared, title)
    else:
        log.warning("No trial has played 10 episodes, so nothing is compared. Give more steps by --stop-after.")


def _log_best(folder: Path, best: Mapping[str, Any], names: Sequence[str], words: Sequence[str]) -> None:
    """Log how to train with the best hyperparameters; `words` are the command line of the search without --tune."""
    if best["stopped"] != SOLVED:
        log.info("No trial has solved the game.")
    log.info("Best hyperparameters: --config %s", shlex.quote(str(folder / "params.json")))
    fields = [word for name in names for word in ("--set", f"{name}={json.dumps(best[name])}")]
    log.info("To train with them: %s", command(Path(words[0]), *words[1:], *fields))


def _draw(path: Path, trials: Sequence[Mapping[str, Any]], title: str) -> None:
    from matplotlib.figure import Figure  # imported late, because it takes a second

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for solved, marker, label in ((True, "o", "solved"), (False, "x", "not solved")):
        shown = [trial for trial in trials if (trial["stopped"] == SOLVED) == solved]
        rates, means = [trial["learning_rate"] for trial in shown], [trial["best_mean"] for trial in shown]
        axes.scatter(rates, means, marker=marker, label=label)
    axes.set(xscale="log", xlabel="learning rate", ylabel="best mean return of 10 to 100 episodes")
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=110)
