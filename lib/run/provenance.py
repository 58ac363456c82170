"""Provenance of a run: commit, package versions, machine, command line."""

import dataclasses
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from typing import Any

from lib.hyperparameters import RunParameters
from lib.run.options import RunOptions
from lib.system import files, machine

PACKAGES = ("torch", "pytorch-ignite", "ptan", "gymnasium", "ale-py", "tensorboard", "numpy")


def describe(script: str, params: RunParameters, options: RunOptions) -> dict[str, Any]:
    """Return the content of params.json: the settings that reproduce the run, and its first session."""
    return {
        "script": script,
        "game": options.game,
        "seed": options.seed,
        "hyperparameters": dataclasses.asdict(params),
        "knobs": options.knobs,
        "init": None if options.init is None else str(options.init),
        "sessions": [session(options)],
    }


def session(options: RunOptions) -> dict[str, Any]:
    """Describe this process: command line, start time, code and machine. A resumed run has several sessions."""
    return {
        "argv": sys.argv,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine.machine(options.device),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def commit() -> str | None:
    """Return the project's commit, or None if git or the repository is missing.

    A "+" is appended if files other than documents, models and results differ from the commit.
    """
    git = ["git", "-C", str(files.PROJECT)]
    code = ["--", ".", *(f":(exclude){path}" for path in ("docs", "models", "README.md", "benchmarks/results"))]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain", *code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if status.stdout else "")
