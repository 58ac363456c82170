"""The learner: update the model from the segments of all actors, and provide its weights."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from lib.actors.worker import Weights
from lib.ppo.actor import Segment, unstack
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.rollout import Rollout
from lib.system.machine import to_device


class PPOLearner:
    """Learn from trajectory segments that actors have played.

    If some were played with older weights, advantages and value targets are those of V-trace. PPO's ratio is clipped
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
            rollout, rhos = reevaluated(rollout, self.trainer.model, self.trainer.settings.minibatch)
        metrics = self.trainer.update(rollout, rhos)
        self.version += 1
        return metrics

    def normalise_by(self, segments: Sequence[Segment]) -> None:
        """Fit the model's input normalisation to the states of these segments, and of the other learners'."""
        group = self.trainer.group
        states = join_segments(segments).some_states(4096 // group.size)
        self.trainer.model.normalise_by(group.gathered(states.to(group.device)).cpu())
        self.version += 1

    def get_model(self) -> Weights:
        """Return the current weights. If the model is on the CPU, they share its memory and change with it."""
        state = self.trainer.model.state_dict()
        return Weights(self.version, {name: tensor.cpu() for name, tensor in state.items()})

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
    if "frames" in columns:
        frames = columns.pop("frames").numpy()
        columns["states"] = torch.from_numpy(unstack(frames, columns["ended"].numpy()))
    return Rollout(**columns)


@torch.no_grad()
def reevaluated(rollout: Rollout, model: FastModel, batch_size: int) -> tuple[Rollout, torch.Tensor]:
    """Re-evaluate steps that older weights have played with the current model.

    The values of the states after the last step and after truncations are not known to the learner; those of the
    actor are kept.

    Args:
        rollout: T steps of N environments.
        model: current model.
        batch_size: states in a forward pass.

    Returns:
        The rollout with the current values, and the ratios (T, N) of the current probabilities of its actions to those
        under the behaviour policy, at most 1.
    """
    device = next(model.parameters()).device
    log_probs, values = [], []
    batches = (torch.split(column.flatten(0, 1), batch_size) for column in (rollout.states, rollout.actions))
    for states, actions in zip(*batches, strict=True):
        logits, value = model(to_device(states, device).movedim(-1, 1))
        log_prob = F.log_softmax(logits, dim=1).gather(1, actions.to(device)[:, None])
        log_probs.append(log_prob.squeeze(1))
        values.append(value)
    shape = rollout.actions.shape
    ratios = (torch.cat(log_probs).cpu().view(shape) - rollout.log_probs).exp()
    current = dataclasses.replace(
        rollout, values=torch.cat(values).cpu().view(shape), next_values=rollout.next_values.clone()
    )
    current.fill_next_values(rollout.next_values[-1])
    return current, ratios.clamp(max=1.0)
