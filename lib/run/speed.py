"""Agent steps per second, and the seconds spent in each part of training."""

import math
from collections import deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import NamedTuple, TypeGuard

from ignite.engine import Engine, Events
from ignite.handlers import Timer

from lib.experience.interface import ExperienceSource
from lib.run.events import EpisodeEvents, TrainingEvents
from lib.system.clock import since_process_start


class Mark(NamedTuple):
    """A moment of the run: agent steps, and seconds since process start without pauses."""

    steps: int
    seconds: float


class Logged(NamedTuple):
    """Iteration and seconds by part at the last update of the metrics."""

    iteration: int
    parts: dict[str, float]


class Counted(NamedTuple):
    """Agent steps and sampled transitions at the last update of the metrics."""

    steps: int
    samples: int


class Speed:
    """Agent steps per second and seconds by part of training. The warm-up is measured separately.

    Args:
        exp_source: experience source that counts the steps.
        every: iterations between two updates of the metrics.

    Attributes:
        names: names of the parts: the source's own, "sample" and "learn".
        metrics: names of the other metrics that are put into engine.state.metrics.
        warm_up: agent steps and seconds of the warm-up.
        updates: learner iterations of this run of the engine.
        every: event on which the metrics are updated.
        learning_since: seconds since process start at the end of the warm-up.
    """

    # Agent steps over which the recent speed is measured.
    WINDOW = 1000

    def __init__(self, exp_source: ExperienceSource, every: int = 100):
        self.exp_source = exp_source
        self.every = Events.ITERATION_COMPLETED(every=every)
        self.names = (*exp_source.PARTS, "sample", "learn")
        self.metrics = ("avg_fps", "replay_ratio", *exp_source.METRICS)
        self.warm_up = Mark(0, 0.0)
        self.updates = 0
        self._batch_timer, self._learn_timer = Timer(), Timer()
        self._paused_seconds = 0.0
        self._samples = 0
        self.learning_since = 0.0
        self._start = Mark(0, 0.0)
        self._parts_at_start = dict.fromkeys(self.names, 0.0)
        self._marks: deque[Mark] = deque()
        self._logged = Logged(0, self._parts_at_start)
        self._counted: Counted | None = None  # None until the warm-up ends

    def attach(self, engine: Engine) -> None:
        """Time the two parts of an iteration, fetching the batch and learning, and update the metrics on `every`."""
        self._batch_timer.attach(
            engine, start=Events.STARTED, resume=Events.GET_BATCH_STARTED, pause=Events.GET_BATCH_COMPLETED
        )
        self._learn_timer.attach(
            engine, start=Events.STARTED, resume=Events.ITERATION_STARTED, pause=Events.ITERATION_COMPLETED
        )
        engine.add_event_handler(Events.STARTED, self._run_started)
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._batch_completed)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(self.every, self._update_metrics)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, self._episode_completed)

    def state_dict(self) -> dict[str, int]:
        """Return the counters of the replay ratio, so that a resumed run logs what an uninterrupted one does."""
        counted = self._counted or Counted(0, 0)
        return {"samples": self._samples, "counted_steps": counted.steps, "counted_samples": counted.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._samples = state["samples"]
        self._counted = Counted(state["counted_steps"], state["counted_samples"])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time spent in this block out of all speeds and parts."""
        start = since_process_start()
        try:
            yield
        finally:
            self._paused_seconds += since_process_start() - start

    @property
    def recent(self) -> float:
        """Agent steps per second over the last 1,000 agent steps, or over all if there are fewer."""
        return _rate(self._marks[0], self._marks[-1]) if len(self._marks) > 1 else math.nan

    @property
    def overall(self) -> float:
        """Agent steps per second of training since the engine started."""
        return _rate(self._start, self._marks[-1]) if self.training_steps else math.nan

    @property
    def with_pauses(self) -> float:
        """Agent steps per second of training since the engine started, pauses included."""
        seconds = since_process_start() - self.learning_since
        return self.training_steps / seconds if self.training_steps else math.nan

    @property
    def warm_up_speed(self) -> float:
        """Agent steps per second while the replay was filled."""
        return self.warm_up.steps / self.warm_up.seconds if self.warm_up.seconds else math.nan

    @property
    def updates_per_second(self) -> float:
        """Learner iterations per second of training since the engine started."""
        return self.updates / self.training_seconds if self.training_seconds else math.nan

    @property
    def training_steps(self) -> int:
        """Agent steps of training since the engine started."""
        return self._marks[-1].steps - self._start.steps if self._marks else 0

    @property
    def training_seconds(self) -> float:
        """Seconds of training since the engine started."""
        return self._marks[-1].seconds - self._start.seconds if self._marks else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of training since the engine started, by part."""
        if not self._marks:
            return dict.fromkeys(self.names, 0.0)
        parts = self._parts_since_process_start()
        return {part: parts[part] - self._parts_at_start[part] for part in self.names}

    def table(self) -> str:
        """Return a table of the seconds of training, one line per part."""
        parts = self.parts
        seconds = self.training_seconds
        parts["rest"] = max(0.0, seconds - sum(parts.values()))
        lines = [f"{'part':<12}{'seconds':>10}{'share':>8}{'ms/step':>11}"]
        for part, spent in parts.items():
            share = spent / seconds if seconds else 0.0
            lines.append(f"{part:<12}{spent:>10.1f}{share:>8.1%}{1000 * spent / max(1, self.training_steps):>11.2f}")
        return "\n".join(lines)

    def _run_started(self, engine: Engine) -> None:
        self._start = self._mark()
        self.learning_since = since_process_start()
        self._marks.clear()  # the engine may have run before
        self.updates = 0

    def _batch_completed(self, engine: Engine) -> None:
        self._samples += _count_transitions(engine.state.batch)
        if not self._marks:
            self._end_warm_up(engine)

    def _end_warm_up(self, engine: Engine) -> None:
        mark = self._mark()
        self.warm_up = Mark(mark.steps - self._start.steps, mark.seconds - self._start.seconds)
        self._start = mark
        self.learning_since = since_process_start()
        self._parts_at_start = self._parts_since_process_start()
        self._marks.append(mark)
        self.exp_source.metrics()  # discard the measurements of the warm-up
        self._logged = Logged(engine.state.iteration, dict.fromkeys(self.names, 0.0))
        self._counted = self._counted or Counted(mark.steps, self._samples)
        engine.fire_event(TrainingEvents.LEARNING_STARTED)

    def _iteration_completed(self, engine: Engine) -> None:
        self.updates += 1
        self._marks.append(self._mark())
        while len(self._marks) > 2 and self._marks[1].steps <= self._marks[-1].steps - self.WINDOW:
            self._marks.popleft()

    def _episode_completed(self, engine: Engine) -> None:
        engine.state.metrics |= {"avg_fps": self.recent, "fps": self.recent}

    def _update_metrics(self, engine: Engine) -> None:
        last, counted = self._logged, self._counted
        assert counted is not None
        parts = self.parts
        iterations = max(1, engine.state.iteration - last.iteration)
        # This is 0 if the only batch so far is the one that ended the warm-up.
        steps = self.exp_source.steps_done - counted.steps
        metrics = engine.state.metrics
        metrics["avg_fps"] = self.recent
        metrics["replay_ratio"] = (self._samples - counted.samples) / steps if steps else math.nan
        metrics |= {part: 1000 / iterations * (parts[part] - last.parts[part]) for part in self.names}
        metrics |= self.exp_source.metrics()
        self._logged = Logged(engine.state.iteration, parts)
        self._counted = Counted(self.exp_source.steps_done, self._samples)

    def _mark(self) -> Mark:
        return Mark(self.exp_source.steps_done, since_process_start() - self._paused_seconds)

    def _parts_since_process_start(self) -> dict[str, float]:
        parts = dict.fromkeys(self.names, 0.0) | dict(self.exp_source.clock.seconds)
        parts["sample"] = self._batch_timer.value() - sum(parts.values())
        parts["learn"] = self._learn_timer.value()
        return parts


def _count_transitions(batch: object) -> int:
    """Return the number of transitions in a batch, or in all segments of a list.

    A batch of the book's prioritised buffer is a tuple of transitions, indices and weights. Other tuples and dicts have
    an array for each field of the transitions.
    """
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    first = batch[0] if isinstance(batch, tuple) and batch else None
    if isinstance(first, list) or (type(batch) is tuple and _has_length(first)):
        batch = first
    if isinstance(batch, list):
        return sum(len(part) if _has_length(part) and not isinstance(part, tuple) else 1 for part in batch)
    return len(batch) if _has_length(batch) else 1


def _has_length(value: object) -> TypeGuard[Sized]:
    """Return whether a value has a length. An array without dimensions has none, although it is Sized."""
    return isinstance(value, Sized) and getattr(value, "ndim", None) != 0


def format_rate(rate: float) -> str:
    """Format a rate with at least three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _rate(old: Mark, new: Mark) -> float:
    return (new.steps - old.steps) / (new.seconds - old.seconds) if new.seconds > old.seconds else math.nan
