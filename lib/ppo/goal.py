"""What follows the progress of the mean return toward `stop_reward`."""

import dataclasses
from collections.abc import Collection
from typing import Self

import torch
from gymnasium import spaces

from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.update import Transitions

PARTS = ("entropy", "kl", "epochs", "temperature")
FINAL_TEMPERATURE_FROM = 0.85  # progress at which the policy switches to its final temperature
SINGLE_EPOCH_FROM = 0.95  # progress from which an update is a single epoch


class GoalModel(FastModel):
    """FastModel whose policy has a temperature.

    Args:
        space: observation space of one environment; it may carry an action mask (`MaskedBox`).
        n_actions: number of actions.
        dtype: dtype in which an image encoder computes.

    Attributes:
        temperature: divisor of the logits, a scalar tensor; 1 at first.
    """

    temperature: torch.Tensor

    def __init__(self, space: spaces.Box, n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__(space, n_actions, dtype)
        self.register_buffer("temperature", torch.ones(()))

    def encode(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute features and unmasked logits, divided by the temperature; see FastModel.encode."""
        features, logits = super().encode(observations)
        return features, logits / self.temperature


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalSettings(FastSettings):
    """Hyperparameters of an update on the way to a goal. Their fields are those at progress 0.

    Attributes:
        kl_final: value of `kl_target` at progress 1; None for a constant target.
        final_temperature: temperature of the policy near the goal.
        finishing: set the policy permanently to its final temperature after this update.
    """

    kl_final: float | None = None
    final_temperature: float = 1.0
    finishing: bool = False

    def at(self, progress: float, without: Collection[str] = ()) -> Self:
        """Return the settings of an update at some progress toward the goal.

        Args:
            progress: progress toward the goal, 0 to 1; see Progress.
            without: those of PARTS that ignore the progress.
        """
        now = self
        if "entropy" not in without:  # the bonus for random actions falls linearly to 0
            now = dataclasses.replace(now, entropy=self.entropy * (1.0 - progress))
        if "kl" not in without:  # large steps of the policy at first, small ones near the goal
            now = dataclasses.replace(now, kl_target=self._kl_target_at(progress))
        if "epochs" not in without and progress >= SINGLE_EPOCH_FROM:  # the last games are played sooner
            now = dataclasses.replace(now, epochs=1)
        if "temperature" not in without:  # with less random actions, fewer games that are nearly won are lost
            now = dataclasses.replace(now, finishing=progress >= FINAL_TEMPERATURE_FROM)
        return now

    def _kl_target_at(self, progress: float) -> float | None:
        """Return the target of the divergence, which moves linearly to `kl_final`."""
        if self.kl_target is None or self.kl_final is None:
            return self.kl_target
        return self.kl_target + progress * (self.kl_final - self.kl_target)


class GoalTrainer(FastTrainer):
    """Trainer of a GoalModel. Give it the `settings` of each update by GoalSettings.at."""

    model: GoalModel
    settings: GoalSettings

    def learn(self, transitions: Transitions) -> dict[str, float]:
        """Learn, and set the final temperature afterwards, because the transitions were played at the old one."""
        metrics = super().learn(transitions)
        if self.settings.finishing:
            self.model.temperature.fill_(self.settings.final_temperature)
        return metrics
