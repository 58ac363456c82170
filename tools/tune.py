#!/usr/bin/env python3
"""Search for the hyperparameters with which a script learns fastest.

    ./tune.py ../distributed/02_ppo_fast.py --env-id CartPole-v1 --trials 20 --jobs 2
    ./tune.py ../chapter09/01_baseline.py --stop-after 300000 --space learning_rate=1e-5:1e-3 --space batch_size=16,32

All other options are passed to the script. A trial is a run of the script with values that Optuna proposes. Its value
is the mean return of its training episodes, weighted by their lengths, so that early progress counts. If a trial is
solved early, the mean of its last 100 episodes is used for the remaining steps. Once five trials have finished, a trial
is pruned if its value after 1,000, 2,000, 4,000, ... agent steps is below the median of the others.

runs/tune/<script, options and space>/ holds Optuna's study.db, the runs in trials/, trials.csv, and the best values in
params.json, for --config. Ctrl-C stops a search. The same command continues it and its interrupted runs; a larger
--trials adds trials.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from lib import cli
from lib.analysis.run_data import read_episodes
from lib.errors import Fault, UsageError
from lib.run.folder import read_json
from lib.run.stopping import NOT_FINITE
from lib.system import files, machine
from lib.system.log import install_command
from lib.system.processes import kill_with_parent

import pandas as pd

if find_spec("optuna") is None:
    print(f"error: tune.py needs Optuna, which is not installed; run {install_command('tune')}", file=sys.stderr)
    raise SystemExit(UsageError.exit_code)
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

DEFAULT_SPACE = ["learning_rate=1e-5:1e-2", "gamma=0.95,0.98,0.99,0.995"]
FIRST_COMPARISON = 1000  # agent steps after which a trial is compared with others; then twice as many, and so on


class Search:
    """The study in a folder. A trial runs a command for `limit` agent steps, or for max_steps if it is None."""

    def __init__(self, folder: Path, command: list[str], space: dict[str, BaseDistribution], limit: int | None):
        self.folder, self._command, self._space, self._limit = folder, command, space, limit
        folder.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{folder / 'study.db'}"
        self.study = optuna.create_study(storage=storage, study_name="tune", direction="maximize", load_if_exists=True)
        self.study.sampler = optuna.samplers.TPESampler(seed=len(self.study.trials))
        for trial in self.study.get_trials(states=[TrialState.RUNNING]):  # left by an interrupted search
            self.study.tell(trial.number, state=TrialState.FAIL)
            self.study.enqueue_trial(trial.params, trial.user_attrs)

    def run(self, trials: int, jobs: int) -> None:
        """Run trials, `jobs` at a time, until `trials` have finished. On Ctrl-C or an error, running trials save."""
        running: list[Generator[None, None, None]] = []
        threads = max(1, machine.cores() // jobs)
        try:
            while True:
                finished = self.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])
                running += [self._trial(threads) for _ in range(len(running), min(jobs, trials - len(finished)))]
                if not running:
                    return
                running = [trial for trial in running if next(trial, "ended") != "ended"]
                time.sleep(0.5)
        finally:
            for trial in running:
                trial.close()

    def _trial(self, threads: int) -> Generator[None, None, None]:
        """Run a trial, or resume the run of an interrupted one. Yield while its process runs, then record its end."""
        trial = self.study.ask(self._space)
        trial.set_user_attr("folder", trial.user_attrs.get("folder", str(trial.number)))
        folder = self.folder / "trials" / trial.user_attrs["folder"]
        print(f"Trial {trial.number}: {shlex.join(assigned(trial.params))}", flush=True)
        process = self._start(folder, assigned(trial.params), threads)
        code, run, is_pruned, comparison = None, None, False, FIRST_COMPARISON
        try:
            while code is None and not is_pruned:
                yield
                code, run = process.poll(), run_in(folder)
                if run is None:
                    continue
                episodes = read_episodes(run)
                limit = self._limit or read_json(run / "params.json")["hyperparameters"]["max_steps"]
                while not is_pruned and comparison <= limit and (code == 0 or comparison <= episodes["step"].max()):
                    if episodes["step"].min() <= comparison:
                        trial.report(average_return(episodes, comparison), comparison)
                    comparison *= 2
                    is_pruned = code is None and trial.should_prune()
        finally:
            process.terminate()
            process.wait()
        if code == 0 and run is not None:
            value = average_return(episodes, limit)
            self.study.tell(trial, value)
            print(f"Trial {trial.number}: value {value:.6g} ({episodes['step'].max():,.0f} steps)", flush=True)
        elif is_pruned or (run is not None and read_json(run / "result.json").get("stopped") == NOT_FINITE):
            self.study.tell(trial, state=TrialState.PRUNED)
            print(f"Trial {trial.number} is pruned{'' if is_pruned else f': {NOT_FINITE}'}.", flush=True)
        else:
            if code == UsageError.exit_code:  # otherwise the next search tries again
                self.study.tell(trial, state=TrialState.FAIL)
            output = folder / "output.txt"
            last_line = output.read_text(errors="replace").strip().rpartition("\n")[2]
            raise Fault(f"trial {trial.number} ended with exit code {code}: {last_line} (all output is in {output})")

    def _start(self, folder: Path, values: list[str], threads: int) -> "subprocess.Popen[bytes]":
        """Start the script with a trial's values. If the folder has a run, the script resumes it."""
        folder.mkdir(parents=True, exist_ok=True)
        run = run_in(folder)
        words = [*self._command, *values, *(() if run is None else ("--resume", str(run)))]
        with (folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *words, "--quiet", "--runs-dir", str(folder / "runs")],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C stops the search, which then stops the process once
                preexec_fn=kill_with_parent,
            )


def run_in(folder: Path) -> Path | None:
    """Return the run folder of a trial; None if it has not begun."""
    return next((file.parent for file in folder.glob("runs/*/params.json")), None)


def searched(text: str) -> tuple[str, BaseDistribution]:
    """Parse FIELD=low:high or FIELD=a,b,c into the field's name and its distribution; UsageError if it is neither."""
    name, _, values = text.partition("=")
    try:
        if ":" not in values:
            return name, CategoricalDistribution([json.loads(value) for value in values.split(",")])
        low, high = map(json.loads, values.split(":"))
        kind = IntDistribution if isinstance(low, int) and isinstance(high, int) else FloatDistribution
        return name, kind(low, high, log=0 < 10 * low <= high)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--space {text} is not FIELD=low:high or FIELD=a,b,c with numbers: {error}") from error


def assigned(values: dict[str, object]) -> list[str]:
    """Return the options that set a trial's hyperparameters."""
    texts = {name: "none" if value is None else json.dumps(value) for name, value in values.items()}
    return [word for name, text in texts.items() for word in ("--set", f"{name}={text}")]


def average_return(episodes: pd.DataFrame, steps: int) -> float:
    """Return the mean return of the episodes in the first `steps` agent steps, weighted by their lengths.

    Steps after the last episode count with the mean of the last 100 episodes. UsageError if no episode has ended.
    """
    first = episodes[episodes["step"] <= steps]
    if first.empty:
        raise UsageError(f"no episode ended within {steps} agent steps; give more, by --stop-after")
    played = first["length"].sum()
    rest = max(0, steps - played)
    total = (first["return"] * first["length"]).sum() + rest * first["return"].tail(100).mean()
    return float(total / (played + rest))


def main() -> None:
    parser = cli.runs_tool(__doc__)
    parser.usage = "%(prog)s SCRIPT [options of the script] [--trials N] [--jobs K] [--space FIELD=VALUES]"
    space_help = (
        "values of a hyperparameter: low:high or a,b,c; repeatable. A range between integers contains only integers. "
        f"A range is logarithmic if high is at least ten times low (default: {' '.join(DEFAULT_SPACE)})"
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", type=Path, help="path of the script")
    add("--trials", metavar="N", type=cli.positive, default=20, help="number of trials (default: 20)")
    add("--jobs", metavar="K", type=cli.positive, default=1, help="trials that run at the same time (default: 1)")
    add("--stop-after", metavar="STEPS", type=cli.positive, help="agent steps of a trial (default: max_steps)")
    add("--space", metavar="FIELD=VALUES", action="append", help=space_help)
    args, options = parser.parse_known_args()
    options += ["--stop-after", str(args.stop_after)] if args.stop_after else []
    space = args.space or DEFAULT_SPACE
    name = re.sub(r"[^A-Za-z0-9.=_]+", "-", "-".join([args.script.stem, *options, *space]))
    command = [str(args.script), *options]
    search = Search(args.runs_dir.absolute() / "tune" / name, command, dict(map(searched, space)), args.stop_after)
    print(f"Trials are recorded in {search.folder}.")
    search.run(args.trials, args.jobs)
    trials = search.study.trials_dataframe(("number", "state", "value", "params"))
    table = trials.dropna(subset="value").sort_values("value", ascending=False)
    files.write(search.folder / "trials.csv", table.to_csv(index=False))
    print(table.to_string(index=False))
    best = search.study.best_trial
    files.write(search.folder / "params.json", json.dumps(best.params, indent=2) + "\n")
    print(f"Best: trial {best.number}. To train with its values: {shlex.join([*command, *assigned(best.params)])}")


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with cli.exit_codes():
        main()
