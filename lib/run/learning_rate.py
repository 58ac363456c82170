"""Decay of the learning rate."""

from collections.abc import Callable
from pathlib import Path

from ignite.engine import Engine, Events
from torch.optim import Optimizer

from lib.errors import UsageError
from lib.hyperparameters import Hyperparameters, PPOHyperparameters, RunParameters


def attach_decay(engine: Engine, params: Hyperparameters, optimizer: object, steps: Callable[[], int]) -> None:
    """Let the learning rate fall linearly from `learning_rate` to `learning_rate_final` over `learning_rate_steps`.

    Args:
        engine: training engine.
        params: hyperparameters with a `learning_rate_final`.
        optimizer: torch optimizer of the run, or None.
        steps: function that returns the agent steps so far.

    Raises:
        ValueError: if there is no optimizer.
    """
    assert params.learning_rate_final is not None
    if not isinstance(optimizer, Optimizer):
        raise ValueError("learning_rate_final needs an optimizer in `save`, as {..., 'optimizer': optimizer}")
    fall = 1.0 - params.learning_rate_final / params.learning_rate
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])

    def adapt() -> None:
        share = 1.0 - fall * min(1.0, steps() / params.learning_rate_steps)
        for group in optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]

    engine.add_event_handler(Events.ITERATION_STARTED, adapt)


def falls_to_zero(params: RunParameters) -> bool:
    """Return whether the learning rate falls to 0 at `max_steps`, as that of 01_ppo.py does; see learning_rate_at."""
    return type(params) is PPOHyperparameters


def require_above_zero(params: RunParameters, run: Path, step: int) -> None:
    """Refuse to resume a run whose learning rate has fallen to 0."""
    if falls_to_zero(params) and step >= params.max_steps:
        raise UsageError(
            f"{run} is at step {step:,}, where its learning rate has fallen to 0; start a new run with "
            "--set max_steps=..."
        )


def require(params: RunParameters, stop_after: int | None) -> None:
    """Refuse to train beyond `max_steps` if the learning rate is 0 there."""
    if falls_to_zero(params) and stop_after is not None and stop_after > params.max_steps:
        raise UsageError(
            f"--stop-after {stop_after} is beyond max_steps, {params.max_steps}, at which the learning rate has fallen "
            "to 0; start a new run with --set max_steps=..."
        )
