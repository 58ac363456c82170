"""--network: build a network that a script of the user defines."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium import spaces
from torch import nn

from lib.errors import UsageError

Factory = Callable[[spaces.Space[Any], int], nn.Module]


def _load_factory(text: str) -> Factory:
    """Import a Python file, which runs its code, and return the class or function that builds the network."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not name:
        raise UsageError(f"--network {text}: give a file and the name of a class or function in it, FILE.py:NAME")
    if not path.is_file():
        raise UsageError(f"--network {text}: there is no file {path}")
    factory: Factory | None = getattr(_imported(path.resolve()), name, None)
    if not callable(factory):
        raise UsageError(f"{path} has no class or function {name!r}")
    return factory


def _imported(path: Path) -> ModuleType:
    """Return the module of a file; the one that --env-id has imported, if there is one."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path):
            return module
    name = f"_network_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses of the file look it up
    sys.path.append(str(path.parent))  # for the modules beside it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"{path} fails to import: {type(error).__name__}: {error}") from error
    return module


def build(network: str | Factory, space: spaces.Space[Any], n_actions: int) -> nn.Module:
    """Build a network of the user.

    Args:
        network: "FILE.py:NAME", or a class or function that builds the network.
        space: observation space, as make_env returns it.
        n_actions: number of actions.

    Raises:
        UsageError: if there is no such file or name, if the file fails to import, or if the call fails or returns no
            network.
    """
    factory = _load_factory(network) if isinstance(network, str) else network
    try:
        net = factory(space, n_actions)
    except Exception as error:
        raise UsageError(
            f"--network {network}: called with the observation space and {n_actions} actions, it raised "
            f"{type(error).__name__}: {error}. Name a function with these two parameters that returns the network"
        ) from error
    if not isinstance(net, nn.Module):
        raise UsageError(f"--network {network}: it returned {type(net).__name__}, and not a torch.nn.Module")
    return net
