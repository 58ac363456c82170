"""Export a trained policy as ONNX or TorchScript, checked against the original policy on recorded states.

Input of an exported policy: states, (batch, ...), as make_env returns them. Outputs: the best action of each state,
(batch,) int64, and the scores of all actions, (batch, n_actions) float32, Q-values or probabilities. If states carry
action masks, invalid actions have the lowest score.
"""

import json
import logging
import os
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.analysis.trained_agent import TrainedAgent
from lib.analysis.window import action_names, first_action
from lib.envs.observations import conversions
from lib.envs.single_env import close_plain_env, make_plain_env
from lib.errors import Fault, UsageError
from lib.run.episode_player import EpisodePlayer
from lib.run.policy import GreedyPolicy, scores_of
from lib.system import files, memory
from lib.system.log import install_command
from lib.system.progress import TaskProgress

log = logging.getLogger(__name__)

ONNX, TORCHSCRIPT = "onnx", "torchscript"
DESCRIPTION = "policy.json"
FILES = {ONNX: "policy.onnx", TORCHSCRIPT: "policy.pt"}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")

BATCH = 100  # number of states per check
TIE = 1e-5  # relative difference below which rounding may swap the order of two scores

Outputs = tuple[np.ndarray, np.ndarray]  # actions and scores


class ExportedPolicy(nn.Module):
    """A network as a function from states to actions and scores.

    Args:
        net: network of a GreedyPolicy, on the CPU.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best actions, (batch,) int64, and the scores, (batch, n_actions) float32."""
        scores = scores_of(self.net, states)
        return scores.argmax(1), scores


def require_packages(kinds: tuple[str, ...]) -> None:
    """Check that the packages for an export are installed.

    Raises:
        UsageError: if a package is missing.
    """
    missing = [name for name in ONNX_PACKAGES if ONNX in kinds and find_spec(name) is None]
    if missing:
        raise UsageError(
            f"an ONNX file needs {', '.join(missing)}; run {install_command('export')}, or add --format {TORCHSCRIPT}"
        )


def record_states(agent: TrainedAgent, count: int, seed: int) -> np.ndarray:
    """Return the first states, (count, ...), of the agent's greedy episodes."""
    env = agent.make_env()
    player = EpisodePlayer(env)
    states: list[np.ndarray] = []
    episode = 0
    with TaskProgress("Playing", count, "states") as progress:
        while len(states) < count:
            game = player.start(seed, episode)
            while game.result is None and len(states) < count:
                states.append(game.state)
                progress.advance()
                game.step(int(agent.policy(game.state[None], [game.random])[0]))
            episode += 1
    env.close()
    return np.stack(states)


def export(agent: TrainedAgent, folder: Path, kinds: tuple[str, ...], states: np.ndarray) -> dict[Path, float]:
    """Write the policy and its description, policy.json. A file that disagrees with the original is not kept.

    Args:
        agent: trained agent on the CPU.
        folder: output folder; it is created if it does not exist.
        kinds: ONNX, TORCHSCRIPT, or both.
        states: (n, ...) states on which the exported policy is checked.

    Returns:
        For each file, the largest absolute difference between its scores and the original's.

    Raises:
        Fault: if an exported policy takes different actions from the original.
        UsageError: if a network cannot be exported.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    policy = ExportedPolicy(agent.policy.net).eval()
    differences, unfinished = {}, {}
    try:
        for kind in kinds:
            file = folder / FILES[kind]
            part = unfinished[file] = file.with_suffix(f".{os.getpid()}.part{file.suffix}")
            log.info("Writing and checking %s ...", file.name)
            try:
                run = _write_onnx(policy, states, part) if kind == ONNX else _trace(policy, states, part)
                differences[file] = compare(agent.policy, run, states, file.name)
            except OSError as error:
                error.filename = str(file)
                raise
            except Fault:
                raise
            except Exception as error:
                if memory.shortage(error):
                    raise
                reason = textwrap.shorten(str(error), 300, placeholder=" ...")
                raise UsageError(
                    f"the network cannot be exported as {file.name}: {type(error).__name__}: {reason}. Its forward may "
                    "compute with the number of states in a batch, len(states); flatten and unflatten do without it"
                ) from error
        description = _description(agent, states, differences)
        files.write(folder / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        for file, part in unfinished.items():
            part.replace(file)
        for kind in FILES.keys() - {*kinds}:  # perhaps of another checkpoint, and policy.json describes one
            (folder / FILES[kind]).unlink(missing_ok=True)
    finally:
        for part in unfinished.values():
            part.unlink(missing_ok=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    return differences


def require_replaceable(folder: Path) -> None:
    """Reject a folder in which an export would replace files that export.py did not write.

    Raises:
        UsageError: if it does.
    """
    names = [name for name in (*FILES.values(), DESCRIPTION) if (folder / name).exists()]
    try:
        ours = "largest_difference" in json.loads((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError, TypeError):
        ours = False
    if names and not ours:
        raise UsageError(
            f"{', '.join(names)} in {folder} were not written by export.py; give another --output, or remove them"
        )


def _description(agent: TrainedAgent, states: np.ndarray, differences: dict[Path, float]) -> dict[str, Any]:
    plain = make_plain_env(agent.env_id)
    close_plain_env(plain, agent.env_id)
    env = agent.make_env()
    description = {
        "env_id": agent.env_id,
        "observation_space": str(plain.observation_space),
        "conversions": conversions(env),  # from observations to states
        "state": {"shape": states.shape[1:], "dtype": str(states.dtype)},
        "actions": action_names(env),
        "first_action": first_action(env),  # the environment's own number of action 0
        "scores": agent.policy.score_name,
        "run": agent.run.name,
        "checkpoint": agent.file.name,
        "checked_states": len(states),
        "largest_difference": {file.name: difference for file, difference in differences.items()},
    }
    env.close()
    return description


def compare(original: GreedyPolicy, exported: Callable[[np.ndarray], Outputs], states: np.ndarray, name: str) -> float:
    """Return the largest difference between the scores of an exported policy and the original.

    Raises:
        Fault: if the exported policy takes a different action in any state, except for ties, or a score is NaN.
    """
    wrong, largest = 0, 0.0
    for batch in np.split(states, range(BATCH, len(states), BATCH)):
        actions, scores = exported(batch)
        expected = original.scores(batch)
        best = expected.max(1)
        taken = expected[np.arange(len(batch)), actions]
        wrong += int((np.isnan(scores).any(1) | (best - taken > TIE * np.maximum(1.0, np.abs(best)))).sum())
        largest = max(largest, float(np.abs(scores - expected).max()))
    if wrong:
        problem = "takes another action than the run's policy, or has a score of NaN,"
        raise Fault(f"{name} {problem} in {wrong} of {len(states)} states; not kept")
    return largest


def load_onnx(file: Path) -> Callable[[np.ndarray], Outputs]:
    """Return a function that runs an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda states: session.run(["action", "scores"], {"state": states})


def _write_onnx(policy: ExportedPolicy, states: np.ndarray, file: Path) -> Callable[[np.ndarray], Outputs]:
    with _quiet():
        program: Any = torch.onnx.export(
            policy,
            (torch.from_numpy(np.repeat(states[:1], 2, axis=0)),),  # a batch of 1 could not vary
            dynamo=True,
            input_names=["state"],
            output_names=["action", "scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
        program.save(str(file))
    return load_onnx(file)


def _trace(policy: ExportedPolicy, states: np.ndarray, file: Path) -> Callable[[np.ndarray], Outputs]:
    with _quiet(), torch.no_grad():
        traced = torch.jit.trace(policy, torch.from_numpy(states[:2]))  # type: ignore[no-untyped-call]
        traced.save(str(file))
        loaded = torch.jit.load(str(file))  # type: ignore[no-untyped-call]

    def run(batch: np.ndarray) -> Outputs:
        with torch.no_grad():
            actions, scores = loaded(torch.from_numpy(batch))
        return actions.numpy(), scores.numpy()

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings that are meant for the exporters' developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
