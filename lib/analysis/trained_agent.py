"""Trained agent of a run: the network of a checkpoint and its environment."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import nn

from lib import dqn_model
from lib.analysis import own_network
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.nets import noisy
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run import checkpoint
from lib.run.checkpoint import BEST, find_checkpoint
from lib.run.folder import read_params, trusted_id
from lib.run.policy import GreedyPolicy, SampledPolicy


class TrainedAgent:
    """Agent of a finished or running run.

    Args:
        run: run folder.
        which: BEST for the checkpoint with the best mean return, LAST for the newest one, or an agent step.
        device: device of the network.
        env_id: id of the run's environment, needed if it has a module, which is imported.
        network: "FILE.py:NAME" of the run's own network, see own_network, or the class or function itself; None for one
            of the project's networks.

    Attributes:
        run: run folder.
        file: checkpoint file.
        step: agent step of the checkpoint.
        env_id: gymnasium id of the training environment.
        n_actions: number of actions.
        policy: greedy policy of the network.

    Raises:
        UsageError: if the run needs another module or its own network, if there is no such checkpoint, or if its
            network does not fit this version or the environment.
        Fault: if the checkpoint is damaged.
    """

    def __init__(
        self,
        run: Path,
        which: str = BEST,
        device: torch.device | str = "cpu",
        env_id: str | None = None,
        network: str | own_network.Factory | None = None,
    ):
        self.run = run
        params = read_params(run)
        self.env_id = trusted_id(run, str(params["hyperparameters"].get("env_name")), env_id)
        self.file = find_checkpoint(run, which)
        self.step = int(self.file.stem.partition("-")[2])
        if network is None:
            _require_known(run, params.get("network"))
        try:
            content = checkpoint.load(self.file)
        except Fault as fault:
            raise Fault(f"{fault}. Add --checkpoint last or --checkpoint STEP to load another one") from fault
        env = self.make_env()
        assert isinstance(env.action_space, spaces.Discrete)
        self.n_actions = int(env.action_space.n)
        try:
            if network is None:
                net = build_network(content["net"], env.observation_space, self.n_actions)
            else:
                net = own_network.build(network, env.observation_space, self.n_actions)
                net.load_state_dict(content["net"])
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise _network_error(self.file, params, error, network) from error
        finally:
            env.close()
        self.policy = GreedyPolicy(net.to(device))

    def sampled(self) -> SampledPolicy:
        """Return the policy that draws its actions.

        Raises:
            UsageError: if the network gives action values instead of probabilities.
        """
        return SampledPolicy(self.policy.net)

    def make_env(self, render_mode: str | None = None) -> gym.Env:
        """Build a single environment with the default wrappers of make_env."""
        return make_env(self.env_id, render_mode=render_mode)


def build_network(weights: Mapping[str, torch.Tensor], space: spaces.Space[Any], n_actions: int) -> nn.Module:
    """Build the network to which a state_dict belongs, and load the weights. It computes in float32.

    Args:
        weights: state_dict of the network.
        space: observation space.
        n_actions: number of actions.

    Raises:
        RuntimeError: if the weights belong to none of the project's networks.
    """
    assert isinstance(space, spaces.Box)
    net: nn.Module
    normalise = "conv.mean" in weights
    if any(name.startswith("policy.") for name in weights):
        kind = FastModel if "return_mean" in weights else Model
        net = kind(space, n_actions)
    elif any(name.startswith("advantage.") for name in weights):
        hidden_bias = next((bias for name, bias in weights.items() if name.startswith("advantage.0.bias")), None)
        support = weights.get("support")
        is_noisy = any(name.endswith("_sigma") for name in weights)
        net = dqn_model.DQN(
            space,
            n_actions,
            dueling=any(name.startswith("value.") for name in weights),
            hidden=None if hidden_bias is None else len(hidden_bias),
            sigma=noisy.SIGMAS[noisy.FACTORISED] if is_noisy else None,
            support=None if support is None else (support[0].item(), support[-1].item(), len(support)),
            normalise=normalise,
        )
    else:
        raise RuntimeError("the weights belong to none of the project's networks")
    net.load_state_dict(weights)
    return net


def _require_known(run: Path, recorded: dict[str, Any] | None) -> None:
    """Refuse a network that a file of the user defines."""
    if recorded and recorded["builder"]:
        raise UsageError(
            f"{run} has a network of its own, {recorded['class']}. Add --network {shlex.quote(recorded['builder'])}, "
            "which runs that file's code. The class, or a function in its place, is called with the observation space "
            "and the number of actions"
        )


def _network_error(file: Path, params: dict[str, Any], error: Exception, network: object) -> UsageError:
    """Name the possible causes of a network that cannot be built."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[-1].strip().rstrip(".")
    if network is not None:
        return UsageError(
            f"--network {network} does not build the network of {file}: {reason}. If the network depends on options of "
            "the script, name a function that takes the observation space and the number of actions and knows them"
        )
    return UsageError(
        f"the network of {file} does not fit {params['hyperparameters'].get('env_name')}: {reason}. The environment or "
        f"the project's network has changed since the run, whose commit was {params['sessions'][-1].get('commit')}"
    )
