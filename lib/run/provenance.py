"""What a run was made with: commit, package versions, machine, command line."""

import dataclasses
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from typing import Any

from lib.run.options import RunOptions
from lib.system import files, machine

PACKAGES = ("torch", "pytorch-ignite", "ptan", "gymnasium", "ale-py", "tensorboard", "numpy")


def describe(script: str, params: Any, options: RunOptions) -> dict[str, Any]:
    """What params.json holds: enough to run the same thing again, and to know why another machine differs."""
    return {
        "script": script,
        "game": options.game,
        "seed": options.seed,
        "hyperparameters": dataclasses.asdict(params),
        "knobs": options.knobs,
        "sessions": [session(options)],
    }


def session(options: RunOptions) -> dict[str, Any]:
    """By what, when and where this process works on a run; a resumed run has one of these for each process."""
    return {
        "argv": sys.argv,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine.machine(options.device),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def commit() -> str | None:
    """The project's commit, "+" behind it where more than documents and results differs; None where git is none."""
    git = ["git", "-C", str(files.PROJECT)]
    code = ["--", ".", *(f":(exclude){path}" for path in ("docs", "README.md", "benchmarks/results"))]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain", *code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if status.stdout else "")
