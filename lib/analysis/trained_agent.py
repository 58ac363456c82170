"""Trained agent of a run: the network of a checkpoint and its environment."""

import importlib.util
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from gymnasium import spaces
from torch import nn

from lib.envs.checked_env import CellActions
from lib.envs.single_env import DiscreteEnv, make_env
from lib.errors import Fault, UsageError
from lib.run import checkpoint
from lib.run.checkpoint import BEST, find_checkpoint
from lib.run.folder import Json, read_params, require_spaces, trusted_id
from lib.run.policy import GreedyPolicy, RandomPolicy

# From the observation space and the number of actions, or a space of other actions than discrete ones.
Factory = Callable[[spaces.Space[object], int | spaces.Space[object]], nn.Module]
CALL = "called with the observation space and the number of actions, or the action space if it is not Discrete"


class TrainedAgent:
    """Agent of a finished or running run.

    Args:
        which: see checkpoint.find_checkpoint.
        env_id: id of the run's environment, needed if it has a module, which is imported.
        network: "FILE.py:NAME" of a network that is not in lib, whose code is run. None for the recorded network.

    Attributes:
        file, step: checkpoint file, and its agent step.
        policy: greedy policy of the network, which computes in float32.
        random: policy of random legal actions.

    Raises:
        UsageError: if there is no such checkpoint, or if its environment or network cannot be built.
        Fault: if the checkpoint is damaged.
    """

    def __init__(
        self,
        run: Path,
        which: str = BEST,
        device: torch.device | str = "cpu",
        env_id: str | None = None,
        network: str | None = None,
    ):
        self.run, params = run, read_params(run)
        self.env_id = trusted_id(run, str(params["hyperparameters"].get("env_name")), env_id)
        self.file = find_checkpoint(run, which)
        self.step = int(self.file.stem.partition("-")[2])
        build = recorded_network(run, params["network"]) if network is None else _own_network(network)
        try:
            content = checkpoint.load(self.file)
        except Fault as fault:
            raise Fault(f"{fault}. Add --checkpoint last or --checkpoint STEP to load another one") from fault
        env = self.make_env()
        require_spaces(run, self.env_id)
        space, actions, self.random = env.observation_space, env.action_space, RandomPolicy(env)
        env.close()
        try:
            is_plain = isinstance(actions, spaces.Discrete) and not isinstance(actions, CellActions)
            net = build(space, int(actions.n) if is_plain else actions)
            net.load_state_dict(content["net"])
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")
            call = "" if network is None else f"--network {network} is {CALL}. "
            raise UsageError(
                f"the network of {self.file} does not fit {self.env_id}: {reason}. {call}The environment or the "
                f"network has changed since the run, whose commit was {params['sessions'][-1].get('commit')}"
            ) from error
        self.policy = GreedyPolicy(net.to(device))

    def make_env(self, render_mode: str | None = None) -> DiscreteEnv:
        """Build a single environment by make_env, faster for Atari games, with any action space."""
        return make_env(self.env_id, tweaked=True, render_mode=render_mode, any_actions=True)


def recorded_network(run: Path, network: Json) -> Factory:
    """Return a function that builds the network of a run, given what folder.describe_network has recorded.

    Only networks of lib are used. The run may come from somebody else, and importing another module would run its code.
    """
    if "builder" in network:
        raise UsageError(
            f"{run} has a network of its own. Add --network {shlex.quote(network['builder'])}, which runs that file's "
            f"code. The class, or a function in its place, is {CALL}"
        )
    name = str(network.get("class"))
    module, _, kind = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), kind) if module.startswith("lib.") else None
    except (ImportError, AttributeError):
        found = None
    if not (isinstance(found, type) and issubclass(found, nn.Module) and found.__module__ == module):
        raise UsageError(f"{run} has the network {name}, which this version of lib does not have; use the run's commit")
    return partial(found, **network["options"])


def _own_network(text: str) -> Factory:
    """Import FILE.py, and return its class or function NAME."""
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"--network {text}: give a file that exists and a class or function in it, FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(f"_network_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses of the file look it up
    sys.path.append(str(path.parent))  # for the modules beside it
    spec.loader.exec_module(module)
    factory: Factory | None = getattr(module, name, None)
    if factory is None:
        raise UsageError(f"--network {text}: the file has no class or function {name!r}")
    return factory
