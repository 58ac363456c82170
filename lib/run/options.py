"""Options of a run."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from lib.errors import UsageError
from lib.system.files import PROJECT

DEFAULT_RUNS_DIR = PROJECT / "runs"

# Options of scripts on which no result depends, so that a resumed run may change them.
CHANGEABLE = frozenset({"async_envs", "engine", "patience", "address", "actor_cpus"})


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Values of the common command line options, with their defaults. See `--help` of any script.

    Attributes:
        stop_after: agent steps at which the run stops, warm-up included; None for the game's max_steps.
        time_limit: seconds after which the run stops; None for no limit. They count from the start of the process, or
            from setup_ignite if the script has no cli.main.
        resume: folder of the run to resume; None for a new run.
        init: folder of the run or model whose weights a new run starts with; None for random ones.
        runs_dir: folder in which a new run's folder is created.
        evaluate_every: agent steps between evaluations; None for no evaluations.
        record_every: number of episodes between videos; None for no videos.
        track: key of tracking.TRACKERS; None for no tracker.
        game: key of the script's table of hyperparameters.
        knobs: the script's own options by name. Each can be read as an attribute, too.
        owns_process: whether cli.main runs the script: the process does nothing else, and takes --resume. A book's
            script or a notebook may do other work before and after the run.
        changes: suffix that follows the script's name in a new run's name, such as "-huber-seed2".
    """

    seed: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    stop_after: int | None = None
    time_limit: int | None = None
    resume: Path | None = None
    init: Path | None = None
    runs_dir: Path = DEFAULT_RUNS_DIR
    quiet: bool = False
    evaluate_every: int | None = None
    record_every: int | None = None
    track: str | None = None
    game: str = "pong"
    knobs: dict[str, Any] = dataclasses.field(default_factory=dict)
    owns_process: bool = False
    changes: str = ""

    def __post_init__(self) -> None:
        """Accept names of devices, and texts and relative paths."""
        object.__setattr__(self, "device", torch.device(self.device))
        for name in ("resume", "init", "runs_dir"):
            path = getattr(self, name)
            object.__setattr__(self, name, None if path is None else Path(path).absolute())

    def __getattr__(self, name: str) -> Any:
        # Unpickling looks up attributes before `knobs` is set.
        knobs = self.__dict__.get("knobs", {})
        if name not in knobs:
            raise AttributeError(f"no option {name!r}; the script's own options are {', '.join(knobs) or 'none'}")
        return knobs[name]


def options_of_book() -> RunOptions:
    """Return the options of a script without our command line: torch's seed, and the GPU if CUDA is initialised."""
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    return RunOptions(seed=torch.initial_seed() % 2**63, device=device, runs_dir=Path("runs"))


def usable_device(name: str) -> torch.device:
    """Return a device of this machine.

    Raises:
        UsageError: if this machine does not have the device.
    """
    available = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        available.append("mps")
    if ("cuda:0" if name == "cuda" else name) not in available:
        raise UsageError(
            f"PyTorch {torch.__version__} finds no device {name!r} on this machine; use one of {', '.join(available)}"
        )
    return torch.device(name)
