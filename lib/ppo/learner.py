"""The learner: update the model from the segments of all actors, and provide its weights."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lib.actors.worker import Weights
from lib.ppo.actor import Segment, unstack
from lib.ppo.fast import FastTrainer
from lib.ppo.rollout import Rollout


class PPOLearner:
    """Learn from trajectory segments that actors have played.

    If some were played with older weights, V-trace computes the advantages and value targets. PPO's ratio is clipped
    around the behaviour policy.

    Args:
        trainer: trainer of the model. Its group is the learners that share every update.

    Attributes:
        trainer: trainer of the model.
        version: version of the weights; it grows by one with every change.
    """

    def __init__(self, trainer: FastTrainer):
        self.trainer = trainer
        self.version = 0

    def train(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Make one update from segments of equal length, and return the metrics of Trainer.update."""
        if self.trainer.group.size > 1:  # a checkpoint has the first learner's settings and random numbers
            seed = int(torch.randint(2**62, ()))
            self.trainer.settings, seed = self.trainer.group.share((self.trainer.settings, seed))
            torch.manual_seed(seed)
        rollout, rhos = join_segments(segments), None
        if any(segment.version != self.version for segment in segments):
            rollout, rhos = self.trainer.reevaluated(rollout)
        metrics = self.trainer.update(rollout, rhos)
        self.version += 1
        return metrics

    def get_model(self) -> Weights:
        """Return the current weights. If the model is on the CPU, they share its memory and change with it."""
        state = self.trainer.model.state_dict()
        return Weights(self.version, {name: tensor.cpu() for name, tensor in state.items()})

    def state_dict(self) -> dict[str, int]:
        """Return the version; the model and the optimizer are saved separately."""
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.version = state["version"]


def join_segments(segments: Sequence[Segment]) -> Rollout:
    """Join segments of T steps to one rollout, (T, N, ...), by concatenating their environments."""
    columns: dict[str, torch.Tensor] = {}
    for name in segments[0].arrays:
        columns[name] = torch.from_numpy(np.concatenate([segment.arrays[name] for segment in segments], axis=1))
    if "frames" in columns:
        frames = columns.pop("frames").numpy()
        columns["states"] = torch.from_numpy(unstack(frames, columns["ended"].numpy()))
    return Rollout(**columns)
