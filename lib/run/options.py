"""Options of a run, as the command line gives them."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from lib.system.files import PROJECT

DEFAULT_RUNS_DIR = PROJECT / "runs"


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the common command line options say, with their defaults; see `--help` of any script.

    Attributes:
        seed: what every random generator is seeded from.
        device: where the networks live.
        stop_after: stop at this many agent steps, warm-up included; None for the game's max_steps.
        time_limit: stop after this many seconds of this process; None for no limit.
        resume: the run folder to go on with, or None for a new one.
        runs_dir: where a new run's folder is made.
        quiet: no progress bar and no line an episode.
        evaluate_every: agent steps between evaluations; None for none.
        record_every: of so many episodes one is recorded; None for none.
        game: the name of the hyperparameters in HYPERPARAMS.
        knobs: the script's own options by name; each can be read as an attribute too.
    """

    seed: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    stop_after: int | None = None
    time_limit: int | None = None
    resume: Path | None = None
    runs_dir: Path = DEFAULT_RUNS_DIR
    quiet: bool = False
    evaluate_every: int | None = None
    record_every: int | None = None
    game: str = "pong"
    knobs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        knobs = self.__dict__.get("knobs", {})
        if name not in knobs:
            raise AttributeError(f"no option {name!r}; the script's own are {', '.join(knobs) or 'none'}")
        return knobs[name]
