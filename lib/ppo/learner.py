"""The learner: update the model from the segments of all actors, and provide its weights."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lib.actors.contract import Weights
from lib.ppo.actor import Segment
from lib.ppo.data_parallel import DataParallelTrainer
from lib.ppo.fast import FastTrainer
from lib.ppo.rollout import Rollout


class PPOLearner:
    """Learn from trajectory segments that actors have played.

    Args:
        trainer: trainer of the model.
        learners: number of processes that share each minibatch; see DataParallelTrainer.

    Attributes:
        trainer: trainer of the model.
        learners: number of learners.
        version: version of the weights; it grows by one with every change.

    Raises:
        UsageError: if this number of learners cannot share the minibatches.
    """

    def __init__(self, trainer: FastTrainer, learners: int = 1):
        self.trainer = trainer
        self.learners = learners
        self.version = 0
        self._data_parallel = DataParallelTrainer(trainer, learners) if learners > 1 else None

    def train(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Make one update from segments of equal length, and return the metrics of Trainer.update."""
        trainer = self._data_parallel or self.trainer
        metrics = trainer.update(join_segments(segments))
        self.version += 1
        return metrics

    def normalise_by(self, segments: Sequence[Segment]) -> None:
        """Fit the model's input normalisation to the states of these segments."""
        self.trainer.model.normalise_by(join_segments(segments).some_states())
        self.version += 1

    def get_model(self) -> Weights:
        """Return the current weights. If the model is on the CPU, they share its memory and change with it."""
        state = self.trainer.model.state_dict()
        return Weights(self.version, {name: tensor.cpu() for name, tensor in state.items()})

    def close(self) -> None:
        """End the other learners' processes. They also end with this process."""
        if self._data_parallel is not None:
            self._data_parallel.close()

    def state_dict(self) -> dict[str, int]:
        """Return the version; the model and the optimizer are saved separately."""
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the version."""
        self.version = state["version"]


def join_segments(segments: Sequence[Segment]) -> Rollout:
    """Join segments of T steps to one rollout, (T, N, ...), by concatenating their environments."""
    columns: dict[str, torch.Tensor] = {}
    for name in segments[0].arrays:
        columns[name] = torch.from_numpy(np.concatenate([segment.arrays[name] for segment in segments], axis=1))
    return Rollout(**columns)
