"""What a run has trained: the network of one of its checkpoints, and the plain environment that it plays in."""

import re
from collections.abc import Mapping
from pathlib import Path

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import nn

from lib import dqn_extra, dqn_model
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.ppo.model import Model
from lib.run import checkpoint, provenance, run_folder
from lib.run.policy import GreedyPolicy

BEST, LAST = "best", "last"


class TrainedAgent:
    """A run's agent.

    Args:
        run: the run's folder.
        which: BEST for the checkpoint of the best mean return, LAST for the newest, or the agent step of one.
        device: where the network is.

    Attributes:
        run: the folder.
        file: the checkpoint's; step: the agent step that it was made at.
        env_id: gymnasium id of what was trained on; n_actions: how many it has.
        policy: Greedy.

    Raises:
        UsageError: there is no such checkpoint, or it was made by a version of this project with other networks.
        Fault: the checkpoint is damaged.
    """

    def __init__(self, run: Path, which: str = BEST, device: torch.device | str = "cpu"):
        self.run = run
        recorded = run_folder.read_params(run)
        self.file = find_checkpoint(run, which)
        self.step = _step(self.file)
        content = checkpoint.load(self.file)
        try:
            self.env_id: str = recorded["hyperparameters"]["env_name"]
            env = self.make_env()
            self.n_actions = int(env.action_space.n)  # type: ignore[attr-defined]
            net = network_of(content["net"], env.observation_space, self.n_actions)
            env.close()
        except (LookupError, RuntimeError, ValueError) as error:
            commit = str(recorded["sessions"][-1].get("commit")).rstrip("+")
            reason = str(error).strip().splitlines()[-1].strip()
            if commit == str(provenance.commit()).rstrip("+"):
                raise UsageError(
                    f"the network of {self.file} does not fit {recorded['hyperparameters'].get('env_name')} as it is "
                    f"now: {reason}. Its observations or actions have changed since the run"
                ) from error
            raise UsageError(
                f"{self.file} was made by another version of this project, commit {commit}, whose network is none of "
                f"this version's ({reason}). To use it: git checkout {commit}"
            ) from error
        self.policy = GreedyPolicy(net.to(device), device)

    def make_env(self, render_mode: str | None = None) -> gym.Env:
        """The environment with the plain wrapper stack, for one player."""
        return make_env(self.env_id, render_mode=render_mode)


def network_of(weights: Mapping[str, torch.Tensor], space: gym.Space, n_actions: int) -> nn.Module:
    """The network that a checkpoint's weights are of, with these weights; it calculates in float32.

    Args:
        weights: its state_dict.
        space: of the states.
        n_actions: how many actions there are.

    Raises:
        RuntimeError: the weights are of none of the networks here.
    """
    assert isinstance(space, spaces.Box)
    net: nn.Module
    normalise = any(name.startswith("conv.body.") for name in weights)
    if any(name.startswith("policy.") for name in weights):
        net = Model(space, n_actions)
    elif any(name.startswith("advantage.") for name in weights):
        net = dqn_extra.ExtendedDQN(
            space,
            n_actions,
            dueling=any(name.startswith("value.") for name in weights),
            hidden=next((len(bias) for name, bias in weights.items() if name.startswith("advantage.0.bias")), None),
            sigma=dqn_extra.SIGMAS[dqn_extra.FACTORISED] if any(name.endswith("_sigma") for name in weights) else None,
            support=weights.get("support"),
            normalise=normalise,
        )
    else:
        net = dqn_model.DQN(space, n_actions, normalise=normalise)
    net.load_state_dict(weights)
    return net


def find_checkpoint(run: Path, which: str) -> Path:
    """A run's checkpoint: BEST, LAST, or an agent step.

    Raises:
        UsageError: there is none; the message has those that there are.
    """
    files = [file for file in (run / "checkpoints").glob("*.pt") if _step(file) >= 0]
    files.sort(key=lambda file: (_step(file), file.name))
    if not files:
        raise UsageError(
            f"{run} has no checkpoint: it was stopped before it had learnt anything, or they were removed; go on with "
            "it first, or start a new run"
        )
    if which == BEST:
        return ([file for file in files if file.name.startswith(BEST)] or files)[-1]
    if which == LAST:
        return files[-1]
    there = {_step(file): file for file in files}
    if not which.isdigit() or int(which) not in there:
        steps = ", ".join(map(str, there))
        raise UsageError(f"{run} has no checkpoint {which!r}; give {BEST}, {LAST}, or one of the steps {steps}")
    return there[int(which)]


def _step(file: Path) -> int:
    """The agent step that a checkpoint was made at; -1 of what is none of ours."""
    match = re.fullmatch(r"(?:best|step)-(\d+)\.pt", file.name)
    return int(match[1]) if match else -1
