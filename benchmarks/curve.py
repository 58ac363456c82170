#!/usr/bin/env python3
"""Keep the learning curve of a run as CSV in benchmarks/results/curves; compared by learning rate in the notes.

    ./curve.py ../runs/2026-11-20T0827-pong-01_baseline
    ./curve.py --beside 13 RUN       # if 13 other runs shared the machine

`./chapter09.py tables` makes the table of notes/measurements.md.
"""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import lab
import launch
import markup
from lib.hyperparameters import HYPERPARAMS
from lib.run.arguments import affecting_results
from lib.run.curve import rolling_mean
from lib.run.folder import read_params

import pandas as pd

# Values that are left out of a rung's name, as are the options on which no result depends.
DEFAULT_OPTIONS = {
    "players": 1,
    "replay_ratio": 32,
    "stack": 4,
    "noop_max": 30,
    "max_frames": 1,
}
COLUMNS = ("episode", "step", "length", "return", "seconds", "mean_100")


class Curve(NamedTuple):
    """Kept learning curve of a run.

    Attributes:
        frame: its episodes.
        stamped: its stamp, with the rung, the seed and the changed hyperparameters.
    """

    frame: pd.DataFrame
    stamped: lab.Stamp


def keep(run: Path, beside: int = 0) -> str:
    """Copy a run's episodes with the mean of the last 100 into benchmarks/results, and return the file's name.

    Args:
        run: run folder. A killed run has no result, and is kept, too.
        beside: number of other runs that shared the machine.

    Raises:
        SystemExit: if it is not a run of a DQN.
    """
    params = read_params(run)
    if "replay_size" not in params["hyperparameters"]:
        raise SystemExit(f"{run} is a run of {params['script']}; use time_to_solve.py to keep curves of PPO")
    rung, changed = rung_of(params), changed_fields(params)
    name = "-".join(
        [
            rung.replace(" --", "-").replace(" ", ""),
            *(f"{field}{short(value)}" for field, value in changed.items()),
            params["hyperparameters"]["run_name"],
            f"seed{params['seed']}",
            *([f"beside{beside}"] if beside else []),
        ]
    )
    write(run, f"curves/{name}", rung, beside)
    return name


def write(run: Path, name: str, rung: str, beside: int = 0) -> None:
    """Copy a run's episodes with the mean of the last 100 into a results file.

    Args:
        run: run folder.
        name: name of the results file.
        rung: name of the run's script with its own options.
        beside: number of other runs that shared the machine.
    """
    params = read_params(run)
    end = run / "result.json"
    result = json.loads(end.read_text()) if end.exists() else {"stopped": "killed", "reached": {}}
    stamped = {
        **origin(params),
        "rung": rung,
        "seed": params["seed"],
        "changed": changed_fields(params),
        "beside": beside,
        "sessions": len(params["sessions"]),
        "result": {key: result.get(key) for key in ("stopped", "steps", "episodes", "seconds", "reached")},
        "steps_per_second": result.get("this_process", {}).get("steps_per_second"),
    }
    episodes = pd.read_csv(run / "episodes.csv")
    episodes["mean_100"] = rolling_mean(episodes["return"]).map("{:.3f}".format)
    results = lab.Results(name, COLUMNS, stamped, replace=True)
    for row in episodes[list(COLUMNS)].to_dict("records"):
        results.add(**row)


def origin(params: lab.Stamp) -> lab.Stamp:
    """Return the start, the commit, the versions and the machine of a run's first session, for a stamp.

    "later" has the same of its other sessions, which may have been on other machines.
    """
    first, *later = (
        {"measured": session["started"]} | {name: session[name] for name in ("commit", "versions", "machine")}
        for session in params["sessions"]
    )
    return first | {"later": later}


def rung_of(params: lab.Stamp) -> str:
    """Return the name of a run's script with its own options."""
    words = [params["script"]]
    for name, value in affecting_results(params["knobs"]).items():
        if value is None or value is False or value == DEFAULT_OPTIONS.get(name):
            continue
        option = f"--{name.replace('_', '-')}"
        words.append(option if value is True else f"{option} {value}")
    return " ".join(words)


def changed_fields(params: lab.Stamp) -> dict[str, object]:
    """Return the hyperparameters of a run that differ from its game's."""
    default = dataclasses.asdict(HYPERPARAMS[params["game"]])
    ignored = ("checkpoint", "env_name", "run_name")
    return {
        name: value
        for name, value in params["hyperparameters"].items()
        if value != default[name] and not name.startswith(ignored)
    }


def short(value: object) -> str:
    """Return a value as part of a file name."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def kept(game: str) -> list[Curve]:
    """Return all kept curves of a game."""
    paths = sorted((lab.RESULTS / "curves").glob(f"*-{game}-seed*.csv"))
    return [Curve(*lab.read(f"curves/{path.stem}")) for path in paths]


def rates_table(curves: list[Curve]) -> str:
    """Return a row per run of the baseline and of rungs with several learning rates: mean return per 20,000 steps."""
    tried = {own.stamped["rung"] for own in curves if "learning_rate" in own.stamped["changed"]}
    default = HYPERPARAMS["pong"].learning_rate
    bins = range(2, 8)
    rows = []
    for frame, stamped in curves:
        if stamped["rung"] not in tried | {launch.BASELINE}:
            continue
        means = frame["return"].groupby((frame.step - 1) // 20_000).mean()
        complete = [number in means and frame.step.max() > 20_000 * number + 15_000 for number in bins]
        cells = [f"{means[number]:.1f}" if whole else "" for number, whole in zip(bins, complete, strict=True)]
        rate = stamped["changed"].get("learning_rate", default)
        device = "CPU" if stamped["machine"]["device"] == "cpu" else stamped["machine"]["device"]
        rows.append((stamped["rung"], rate, stamped["seed"], *cells, device))
    rows.sort(key=lambda row: row[:3])
    header = ("rung", "learning rate", "seed", *(f"{20 * number}-{20 * number + 20}k" for number in bins), "device")
    return markup.table(header, [(f"`{row[0]}`", f"{row[1]:g}", *row[2:]) for row in rows])


if __name__ == "__main__":
    parser = lab.parser(__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--beside", type=int, default=0, help="number of other runs on the machine (default: 0)")
    args = parser.parse_args()
    print(keep(args.run, args.beside))
