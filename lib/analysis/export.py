"""Export a trained policy as ONNX, checked against the original policy on states of its own episodes.

Its input is states as make_env returns them, with any action masks; for its outputs, see ExportedPolicy.forward.
"""

import itertools
import json
import logging
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lib.analysis.trained_agent import TrainedAgent
from lib.analysis.window import action_names, first_action
from lib.envs.single_env import conversions, make_plain_env
from lib.errors import Fault, UsageError
from lib.run.episode_player import EpisodePlayer, play_together
from lib.run.policy import GreedyPolicy, best_actions, scores_of
from lib.system import files

ONNX, DESCRIPTION = "policy.onnx", "policy.json"
STATES, SEED = 1000, 1  # states on which an export is checked, and seed of the episodes from which they come
TIE = 1e-5  # relative difference below which rounding may swap the order of two scores

Outputs = tuple[np.ndarray, np.ndarray]  # actions and scores


class ExportedPolicy(nn.Module):
    """A network of a GreedyPolicy, on the CPU, as a function from states to actions and scores."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best actions, (batch, ...), as the environment gets them, and the scores; see policy.scores_of."""
        scores = scores_of(self.net, states)
        return best_actions(self.net, scores), scores


def record_states(agent: TrainedAgent) -> np.ndarray:
    """Return the first STATES states, (STATES, ...), of the agent's greedy episodes."""
    states: list[np.ndarray] = []
    player = EpisodePlayer(agent.make_env(), states.append)
    play_together(agent.policy, [player], SEED, itertools.count(), lambda result: None, lambda: len(states) >= STATES)
    player.env.close()
    return np.stack(states[:STATES])


def export(agent: TrainedAgent, folder: Path, states: np.ndarray) -> float:
    """Write the policy of an agent on the CPU, policy.onnx, and its description, policy.json.

    Return the largest absolute difference between its scores and the original's in some states, (n, ...).

    Raises:
        Fault: if the exported policy takes different actions from the original. Nothing is written then.
        UsageError: if the network cannot be exported.
    """
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / ONNX
        try:
            _write_onnx(ExportedPolicy(agent.policy.net).eval(), states, file)
            difference = compare(agent.policy, load_onnx(file), states)
        except (Fault, OSError, MemoryError):
            raise
        except Exception as error:  # torch and onnxruntime raise errors of many classes
            reason = textwrap.shorten(str(error), 300, placeholder=" ...")
            raise UsageError(
                f"the network cannot be exported: {type(error).__name__}: {reason}. Its forward may compute with the "
                "number of states in a batch, len(states); flatten and unflatten do without it"
            ) from error
        content = file.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / ONNX, content)
    description = _description(agent, states) | {"checked_states": len(states), "largest_difference": difference}
    files.write(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")
    return difference


def _description(agent: TrainedAgent, states: np.ndarray) -> dict[str, object]:
    plain = make_plain_env(agent.env_id)
    plain.close()  # some games allow only one at a time
    env = agent.make_env()
    return {
        "env_id": agent.env_id,
        "observation_space": str(plain.observation_space),
        "conversions": conversions(env),  # from observations to states
        "state": {"shape": states.shape[1:], "dtype": str(states.dtype)},
        "action": {"shape": env.action_space.shape, "dtype": str(env.action_space.dtype)},
        "actions": action_names(env),  # empty if they are not Discrete
        "action_space": str(env.action_space),
        "first_action": np.asarray(first_action(env)).tolist(),  # the environment's own number of action 0
        "scores": agent.policy.score_name,
        "run": agent.run.name,
        "checkpoint": agent.file.name,
    }


def compare(original: GreedyPolicy, exported: Callable[[np.ndarray], Outputs], states: np.ndarray) -> float:
    """Return the largest difference between the scores of an exported policy and the original.

    A Fault says that the exported policy takes a different action in a state, except for ties, or that a score is NaN.
    """
    actions, scores = exported(states)
    expected = original.scores(states)
    if original.score_name == "parameter":
        best = best_actions(original.net, torch.from_numpy(expected)).numpy()
        same = np.isclose(actions, best, rtol=1e-3, atol=1e-4).reshape(len(states), -1).all(1)
        wrong = ~(same & np.isclose(scores, expected, rtol=1e-3, atol=1e-4).all(1))
    else:
        best, taken = expected.max(1), expected[np.arange(len(states)), actions]
        wrong = np.isnan(scores).any(1) | (best - taken > TIE * np.maximum(1.0, np.abs(best)))
    if wrong.any():
        raise Fault(
            f"the exported policy takes another action than the run's policy, or has a score of NaN, in {wrong.sum()} "
            f"of {len(states)} states; not kept"
        )
    return float(np.abs(scores - expected).max())


def load_onnx(file: Path) -> Callable[[np.ndarray], Outputs]:
    """Return a function that runs an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda states: session.run(["action", "scores"], {"state": states})


def _write_onnx(policy: ExportedPolicy, states: np.ndarray, file: Path) -> None:
    logging.disable(logging.WARNING)  # what the exporter says is meant for its developers
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                policy,
                (torch.from_numpy(np.repeat(states[:1], 2, axis=0)),),  # a batch of 1 could not vary
                file,
                dynamo=True,
                input_names=["state"],
                output_names=["action", "scores"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                verbose=False,
            )
    finally:
        logging.disable(logging.NOTSET)
