#!/usr/bin/env python3
"""Runs beside each other, as a table: how far they came, how fast, and in what they differ.

    ./compare.py ../runs/*-pong-*
    ./compare.py 2026-11-20T1200-pong-01_baseline 2026-11-20T1230-pong-02_n_envs --csv table.csv

`mean` is that of the last 100 training episodes, `solved` the minutes until it first reached the run's bound,
`evaluated` the mean that evaluate.py or the end of a solved run found. Settings that all runs share are left out.
"""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd

from lib import options, runs, telemetry
from lib.hyperparameters import RunParameters

WIDTH = 40  # characters of a run's name
SAME = {field.name for field in dataclasses.fields(RunParameters) if field.name in ("run_name", "milestone")}


def settings(run: Path) -> dict[str, object]:
    """The script, the seed, the script's own options and the hyperparameters of a run."""
    params = runs.read_params(run)
    hyperparameters = {name: value for name, value in params["hyperparameters"].items() if name not in SAME}
    return {"script": params["script"], "seed": params["seed"], **params["knobs"], **hyperparameters}


def outcome(run: Path) -> dict[str, object]:
    """How far a run came; of one that is at work, or was killed, what its episodes tell."""
    episodes = pd.read_csv(run / "episodes.csv")
    returns = episodes["return"]
    result = _json(run / "result.json")
    bound = str(runs.read_params(run)["hyperparameters"].get("stop_reward"))
    reached = result.get("reached", {}).get(bound, {})
    evaluated = _json(run / "evaluation.json") or result.get("evaluation", {})
    return {
        "steps": int(result.get("steps", episodes["step"].max() if len(episodes) else 0)),
        "episodes": len(episodes),
        "mean": returns.tail(telemetry.WINDOW).mean(),
        "best": returns.rolling(telemetry.WINDOW).mean().max(),
        "minutes": result.get("seconds", episodes["seconds"].max()) / 60,
        "steps/s": result.get("this_process", {}).get("steps_per_second"),
        "solved": reached.get("seconds", math.nan) / 60,
        "evaluated": evaluated.get("mean"),
        "ended": result.get("stopped", "no result"),
    }


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def table(paths: list[Path]) -> pd.DataFrame:
    """A row a run: its name, its settings that others do not share, its outcome."""
    rows = [settings(path) for path in paths]
    names = list(dict.fromkeys(name for row in rows for name in row))
    differing = [name for name in names if len({str(row.get(name, "")) for row in rows}) > 1]
    shown = [
        {name: _text(row.get(name, "")) for name in differing} | outcome(path)
        for row, path in zip(rows, paths, strict=True)
    ]
    return pd.DataFrame(shown, index=pd.Index([path.name for path in paths], name="run"))


def main() -> None:
    parser = options.tool(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=options.existing_run, help="folders, or names in runs/")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table there, too")
    args = parser.parse_args()
    found = table(args.runs)
    if args.csv:
        found.to_csv(args.csv)
    # A column a run, as there are more properties than fit beside each other.
    found.index = [name if len(name) <= WIDTH else f"{name[: WIDTH - 1]}…" for name in found.index]
    print(found.T.to_string(float_format=lambda value: f"{value:.2f}", na_rep="-"))


if __name__ == "__main__":
    with options.exits():
        main()
