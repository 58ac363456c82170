"""Provenance of a run: network, commit, package versions, machine, command line."""

import contextlib
import dataclasses
import hashlib
import inspect
import os
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from lib.hyperparameters import RunParameters
from lib.run import run_json
from lib.run.options import RunOptions
from lib.system import files, machine

PACKAGES = ("torch", "pytorch-ignite", "ptan", "gymnasium", "ale-py", "tensorboard", "numpy")
CODE = ("lib", "chapter08", "chapter09", "distributed", "tools", "benchmarks", "examples")  # folders of Python files


def describe(script: str, params: RunParameters, options: RunOptions, net: object = None) -> dict[str, Any]:
    """Return the content of params.json: the settings that reproduce the run, its network, and its first session."""
    return {
        "format": run_json.FORMAT,
        "script": script,
        "game": options.game,
        "seed": options.seed,
        "hyperparameters": dataclasses.asdict(params),
        "knobs": options.knobs,
        "init": None if options.init is None else str(options.init),
        **({"network": network(net)} if _is_uncompiled(net) else {}),
        "sessions": [session(options)],
    }


def _is_uncompiled(net: object) -> TypeGuard[nn.Module]:
    """Return whether an object is a network that was not compiled. A compiled one has another class."""
    return isinstance(net, nn.Module) and not isinstance(net, torch.jit.ScriptModule) and not hasattr(net, "_orig_mod")


def network(net: nn.Module) -> dict[str, Any]:
    """Return a network's class and the class of each of its layers, by name, and what builds it.

    With them, tools recognise a network that they cannot build from its weights.

    Returns:
        class, layers and builder. The builder is FILE.py:CLASS, or None for a class of lib. For other classes, of a
        package such as torch or defined inside a function, it is SCRIPT.py:NAME. The user replaces NAME by a function
        that builds the network.
    """
    kind = type(net)
    layers = {name: type(layer).__name__ for name, layer in net.named_modules() if name}
    return {"class": kind.__name__, "layers": layers, "builder": _builder(kind)}


def _builder(kind: type[nn.Module]) -> str | None:
    if kind.__module__.partition(".")[0] == "lib":
        return None
    file = None
    if kind.__qualname__ == kind.__name__:  # not defined inside a function or another class
        with contextlib.suppress(OSError, TypeError):  # a notebook has no file
            file = inspect.getsourcefile(kind)
        if kind.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):  # a cell of a notebook
            return f"FILE.py:{kind.__name__}"
    if file is not None and not {"site-packages", "dist-packages"} & set(Path(file).parts):
        return f"{os.path.abspath(file)}:{kind.__name__}"
    return f"{os.path.abspath(sys.argv[0])}:NAME"


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
    """Return the project's commit, or None without git, or if this folder is not a git repository.

    If the code or the versions of its packages differ from the commit, "+" and a digest of the differences follow.
    """
    paths = ["--", *(f"{folder}/*.py" for folder in CODE), "setup.cfg", "requirements.lock"]
    try:
        head, prefix = _git("rev-parse", "HEAD", "--show-prefix").decode().split("\n")[:2]
        if prefix:  # the commit is that of a repository around this folder
            return None
        differences = _git("diff", "--no-ext-diff", "HEAD", *paths)
        for name in filter(None, _git("ls-files", "-z", "--others", "--exclude-standard", *paths).split(b"\0")):
            path = files.PROJECT / os.fsdecode(name)
            if path.is_file():  # not an editor's lock, which is a link to nothing
                differences += name + path.read_bytes()
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+{hashlib.sha1(differences).hexdigest()[:8]}" if differences else head


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(files.PROJECT), *arguments], capture_output=True, check=True).stdout
