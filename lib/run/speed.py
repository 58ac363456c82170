"""Agent steps per second, and the seconds spent in each part of training."""

import math
from collections import deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any, NamedTuple

from ignite.engine import Engine, Events
from ignite.handlers import Timer

from lib.experience.interface import ExperienceSource
from lib.run.episodes import EpisodeEvents, TrainingEvents
from lib.system.clock import since_process_start


class Mark(NamedTuple):
    """Agent steps, and seconds since process start without pauses; or the difference of two such marks."""

    steps: int
    seconds: float

    def since(self, earlier: "Mark") -> "Mark":
        return Mark(self.steps - earlier.steps, self.seconds - earlier.seconds)

    @property
    def rate(self) -> float:
        """Agent steps per second; NaN if no time has passed."""
        return self.steps / self.seconds if self.seconds > 0.0 else math.nan


class Speed:
    """Agent steps per second and seconds by part of training. The warm-up is measured separately.

    Metrics are updated on every `every`-th iteration. Without `has_replay`, there is no replay ratio.
    """

    WINDOW = 1000  # agent steps over which the recent speed is measured

    def __init__(self, exp_source: ExperienceSource, every: int = 100, has_replay: bool = True):
        self.exp_source = exp_source
        self.every = Events.ITERATION_COMPLETED(every=every)  # event on which the metrics are updated
        self.names = (*exp_source.PARTS, "sample", "learn")  # of the parts
        replay = ("replay_ratio",) if has_replay else ()
        self.metrics = ("avg_fps", *replay, *exp_source.METRICS)  # names of the others in engine.state.metrics
        self.warm_up = Mark(0, 0.0)  # agent steps and seconds of the warm-up
        self.updates = 0  # learner iterations since the engine started
        self.learning_since = 0.0  # seconds since process start at the end of the warm-up
        self._batch_timer, self._learn_timer = Timer(), Timer()
        self._paused_seconds = 0.0
        self._start = Mark(0, 0.0)
        self._marks: deque[Mark] = deque()  # since WINDOW agent steps ago
        self._samples = 0
        # At the last update of the metrics:
        self._iteration, self._parts = 0, dict.fromkeys(self.names, 0.0)
        self._counted: tuple[int, int] | None = None  # agent steps and samples; None until the warm-up ends

    def attach(self, engine: Engine) -> None:
        """Time the two parts of an iteration, fetching the batch and learning, and update the metrics on `every`."""
        batch = {"resume": Events.GET_BATCH_STARTED, "pause": Events.GET_BATCH_COMPLETED}
        learn = {"resume": Events.ITERATION_STARTED, "pause": Events.ITERATION_COMPLETED}
        self._batch_timer.attach(engine, start=Events.STARTED, **batch)
        self._learn_timer.attach(engine, start=Events.STARTED, **learn)
        engine.add_event_handler(Events.STARTED, self._run_started)
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._batch_completed)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(self.every, self._update_metrics)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, self._episode_completed)

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
        return self._marks[-1].since(self._marks[0]).rate if self._marks else math.nan

    @property
    def training(self) -> Mark:
        """Agent steps and seconds of training since the engine started, without warm-up and pauses."""
        return self._marks[-1].since(self._start) if self._marks else Mark(0, 0.0)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of training since the engine started, by part."""
        parts = dict.fromkeys(self.names, 0.0)
        if self._marks:
            parts |= self.exp_source.clock.seconds
            parts["sample"] = self._batch_timer.value() - sum(parts.values())
            parts["learn"] = self._learn_timer.value()
        return parts

    def table(self) -> str:
        """Return a table of the seconds of training, one line per part."""
        parts, (steps, seconds) = self.parts, self.training
        parts["rest"] = max(0.0, seconds - sum(parts.values()))
        lines = [f"{'part':<12}{'seconds':>10}{'share':>8}{'µs/step':>11}"]
        for part, spent in parts.items():
            share = spent / seconds if seconds else 0.0
            lines.append(f"{part:<12}{spent:>10.1f}{share:>8.1%}{1e6 * spent / max(1, steps):>11,.0f}")
        return "\n".join(lines)

    def _run_started(self) -> None:
        self._start = self._mark()
        self.learning_since = since_process_start()

    def _batch_completed(self, engine: Engine) -> None:
        batch: Any = engine.state.batch
        # A tuple holds arrays, or, from the book's prioritised buffer, transitions, indices and weights.
        transitions = batch[0] if isinstance(batch, tuple) else batch
        self._samples += len(transitions) if isinstance(transitions, Sized) else 1
        if self._marks:
            return
        # The warm-up has ended.
        begun, self._start = self._start, self._mark()
        self.warm_up = self._start.since(begun)
        self.learning_since = since_process_start()
        self._marks.append(self._start)
        # Discard the measurements of the warm-up.
        self.exp_source.clock.pop()
        self.exp_source.metrics()
        self._batch_timer.reset().pause()
        self._learn_timer.reset()
        self._iteration = engine.state.iteration
        self._counted = self._start.steps, self._samples
        engine.fire_event(TrainingEvents.LEARNING_STARTED)

    def _iteration_completed(self) -> None:
        self.updates += 1
        self._marks.append(self._mark())
        while len(self._marks) > 2 and self._marks[1].steps <= self._marks[-1].steps - self.WINDOW:
            self._marks.popleft()

    def _episode_completed(self, engine: Engine) -> None:
        engine.state.metrics["avg_fps"] = self.recent

    def _update_metrics(self, engine: Engine) -> None:
        assert self._counted is not None
        iterations = max(1, engine.state.iteration - self._iteration)
        # No steps if the only batch so far is the one that ended the warm-up.
        steps, samples = self.exp_source.steps_done - self._counted[0], self._samples - self._counted[1]
        metrics, parts = engine.state.metrics, self.parts
        metrics |= {"avg_fps": self.recent, "replay_ratio": samples / steps if steps else math.nan}
        metrics |= {part: 1000 / iterations * (parts[part] - self._parts[part]) for part in self.names}
        metrics |= self.exp_source.metrics()
        self._iteration, self._parts = engine.state.iteration, parts
        self._counted = self.exp_source.steps_done, self._samples

    def _mark(self) -> Mark:
        return Mark(self.exp_source.steps_done, since_process_start() - self._paused_seconds)


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
