"""Settings that follow the progress of the mean return toward `stop_reward`."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Self

import torch
from gymnasium import spaces

from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.progress import Estimate
from lib.ppo.update import Transitions, fetched_number

SCHEDULES = ("entropy", "kl", "epochs", "temperature")
FINAL_TEMPERATURE_FROM = 0.75  # value of Estimate.lower_bound from which the final temperature is used
SINGLE_EPOCH_FROM = 0.95  # progress from which an update has a single epoch


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

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights. A FastModel's have no temperature; the current one is then kept."""
        return super().load_state_dict({"temperature": self.temperature, **state_dict}, strict, assign)

    def encode(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute features and unmasked logits, divided by the temperature; see FastModel.encode."""
        features, logits = super().encode(observations)
        return features, logits / self.temperature


@dataclasses.dataclass(frozen=True, kw_only=True)
class GoalSettings(FastSettings):
    """Hyperparameters of an update at progress 0; `at` returns those at other progress.

    Attributes:
        kl_final: value of `kl_target` at progress 1; None for a constant target.
        final_temperature: temperature of the policy near the goal.
        finishing: set the final temperature permanently after this update. `at` decides it.
    """

    kl_final: float | None = None
    final_temperature: float = 1.0
    finishing: bool = dataclasses.field(default=False, metadata={"derived": True})

    def at(self, progress: Estimate, without: Collection[str] = ()) -> Self:
        """Return the settings for an update at the given progress.

        Args:
            progress: progress toward the goal; see Progress.
            without: names from SCHEDULES that ignore the progress.
        """
        now: dict[str, Any] = {}
        if "entropy" not in without:  # the bonus for random actions falls linearly to 0
            now["entropy"] = self.entropy * (1.0 - progress.mean)
        if "kl" not in without:  # large steps of the policy at first, small ones near the goal
            now["kl_target"] = self._kl_target_at(progress.mean)
        # Shorter updates leave more time for the episodes that decide whether the run is solved.
        if "epochs" not in without and progress.mean >= SINGLE_EPOCH_FROM:
            now["epochs"] = 1
        if "temperature" not in without:  # a sharper policy makes fewer random mistakes near the end
            # The switch is permanent, so a few lucky episodes should not cause it. They still can if all or
            # almost all of their returns are equal, because the standard error is small then.
            now["finishing"] = progress.lower_bound >= FINAL_TEMPERATURE_FROM
        return dataclasses.replace(self, **now)

    def _kl_target_at(self, progress: float) -> float | None:
        """Return the target KL divergence, which moves linearly to `kl_final`."""
        if self.kl_target is None or self.kl_final is None:
            return self.kl_target
        return self.kl_target + progress * (self.kl_final - self.kl_target)


class GoalTrainer(FastTrainer):
    """Trainer of a GoalModel. Before each update, assign `settings` from GoalSettings.at.

    Attributes:
        changed_temperature: whether the last update has changed the policy's temperature.
    """

    model: GoalModel
    settings: GoalSettings
    changed_temperature = False
    _is_final = False  # whether the temperature is the final one, so that it need not be fetched from a GPU again

    def learn(self, transitions: Transitions) -> dict[str, float]:
        """Learn, then set the final temperature if due; the transitions were played at the old one."""
        metrics = super().learn(transitions)
        self.changed_temperature = False
        if self.settings.finishing and not self._is_final:
            self._is_final = True
            temperature = fetched_number(self.model.temperature)
            final = torch.tensor(self.settings.final_temperature, dtype=torch.float32).item()  # as the model stores it
            if temperature > final:  # weights from --init may have a lower one already
                self.changed_temperature = True
                self.model.temperature.fill_(final)
        return metrics
