"""The learner: it trains on the segments of all actors."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lib.actors.contract import Weights
from lib.ppo.actor import Segment
from lib.ppo.data_parallel import Learners
from lib.ppo.rollout import Rollout
from lib.ppo.update import Trainer


class PPOLearner:
    """Learns from what actors have played.

    Args:
        trainer: with the model.
        learners: how many make each update together; see learners.Learners.

    Attributes:
        version: of the weights, one more with every update.
    """

    def __init__(self, trainer: Trainer, learners: int = 1):
        self.trainer = trainer
        self.learners = Learners(trainer, learners) if learners > 1 else None
        self.version = 0

    def close(self) -> None:
        """End the further learners; at the end of the process this happens by itself."""
        if self.learners is not None:
            self.learners.close()

    def train(self, segments: Sequence[Segment], progress: float = 0.0) -> dict[str, float]:
        """An update from all segments together.

        Args:
            segments: whose environments lie beside each other in the order given.
            progress: see Trainer.update.

        Returns:
            What Trainer.update does.
        """
        told = self.trainer.update(join_segments(segments), progress)
        self.version += 1
        return told

    def normalise_by(self, segments: Sequence[Segment]) -> None:
        """Have the model normalise states by those of these segments."""
        self.trainer.model.normalise_by(join_segments(segments).states.flatten(0, 1))
        self.version += 1

    def get_model(self) -> Weights:
        """The weights as they are, not to be changed while they are used."""
        return Weights(self.version, {name: each.cpu() for name, each in self.trainer.model.state_dict().items()})

    def state_dict(self) -> dict[str, int]:
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.version = state["version"]


def join_segments(segments: Sequence[Segment]) -> Rollout:
    """A rollout (T, N, ...) of all their environments, of each segment those after the ones before."""
    arrays = {name: np.concatenate([each.arrays[name] for each in segments], axis=1) for name in segments[0].arrays}
    return Rollout(**{name: torch.from_numpy(array) for name, array in arrays.items()})
