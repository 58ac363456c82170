"""Where the seconds go, and how many steps they make."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers import Timer

from lib.run.events import TrainingEvents
from lib.system.clock import since_process_start


class Speed:
    """Agent steps a second and seconds by part, over windows of training; the warm-up is measured apart.

    Attributes:
        names: of the parts: the source's own, "sample" and "learn".
        metrics: names of what is put into the engine's metrics, beside the parts.
        parts: seconds of training so far in this process, by part.
        warm_up: (agent steps, seconds) of filling the replay.
        updates: learner iterations of this process.
        every: the event after which the metrics are new.
    """

    # avg_fps looks back over this many agent steps.
    WINDOW = 1000

    def __init__(self, exp_source: Any, steps: Callable[[], int], every: int = 100):
        self.exp_source = exp_source
        self.steps = steps
        self.every = Events.ITERATION_COMPLETED(every=every)
        self.warm_up = (0, 0.0)
        self._apart = 0.0  # seconds of what was no training
        self._batch, self._learn = Timer(), Timer()
        self.updates = 0
        self._start = (0, 0.0)
        self.names = (*getattr(exp_source, "PARTS", ()), "sample", "learn")
        self.metrics = ("avg_fps", "replay_ratio", *getattr(exp_source, "METRICS", ()))
        self._parts_at_start = dict.fromkeys(self.names, 0.0)
        self._marks: deque[tuple[int, float]] = deque()
        self._samples = 0
        self._logged = (0, 0, 0, self._parts_at_start)

    def attach(self, engine: Engine) -> None:
        """Time the two halves of an iteration; put speeds and times into the metrics now and then."""
        batch = {"resume": Events.GET_BATCH_STARTED, "pause": Events.GET_BATCH_COMPLETED}
        learn = {"resume": Events.ITERATION_STARTED, "pause": Events.ITERATION_COMPLETED}
        self._batch.attach(engine, start=Events.STARTED, **batch)
        self._learn.attach(engine, start=Events.STARTED, **learn)
        engine.add_event_handler(Events.STARTED, self._started)
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._batch_made)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._mark)
        engine.add_event_handler(self.every, self._log)

    def _started(self, engine: Engine) -> None:
        self._start = (self.steps(), self._clock())

    def _batch_made(self, engine: Engine) -> None:
        self._samples += _samples(engine.state.batch)
        if self._marks:
            return
        now = (self.steps(), self._clock())
        self.warm_up = (now[0] - self._start[0], now[1] - self._start[1])
        self._start = now
        self._parts_at_start = self._all_parts()
        self._marks.append(now)
        if hasattr(self.exp_source, "metrics"):
            self.exp_source.metrics()  # what it has counted in the warm-up is not training's
        self._logged = (engine.state.iteration, now[0], self._samples, dict.fromkeys(self.names, 0.0))
        engine.fire_event(TrainingEvents.LEARNING_STARTED)

    def _mark(self, engine: Engine) -> None:
        self.updates += 1
        self._marks.append((self.steps(), self._clock()))
        while len(self._marks) > 2 and self._marks[1][0] <= self._marks[-1][0] - self.WINDOW:
            self._marks.popleft()

    def _log(self, engine: Engine) -> None:
        iteration, steps, samples, before = self._logged
        parts = self.parts
        milliseconds = 1000 / max(1, engine.state.iteration - iteration)
        engine.state.metrics["avg_fps"] = self.now
        made = self.steps() - steps  # none where the first batch is the first iteration's, made before the time began
        engine.state.metrics["replay_ratio"] = (self._samples - samples) / made if made else math.nan
        engine.state.metrics |= {part: (parts[part] - before[part]) * milliseconds for part in self.names}
        if hasattr(self.exp_source, "metrics"):
            engine.state.metrics |= self.exp_source.metrics()
        self._logged = (engine.state.iteration, self.steps(), self._samples, parts)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done within it is left out of all speeds and times."""
        start = since_process_start()
        try:
            yield
        finally:
            self._apart += since_process_start() - start

    def _clock(self) -> float:
        return since_process_start() - self._apart

    @property
    def now(self) -> float:
        """Agent steps a second over the last 1,000 agent steps, or over those that there were."""
        return _rate(self._marks[0], self._marks[-1]) if len(self._marks) > 1 else math.nan

    @property
    def learning_since(self) -> float:
        """Seconds since process start when the warm-up was over."""
        return self._start[1]

    @property
    def of_warm_up(self) -> float:
        """Agent steps a second while the replay was filled."""
        steps, seconds = self.warm_up
        return steps / seconds if seconds else math.nan

    @property
    def overall(self) -> float:
        """Agent steps a second of this process, from the end of the warm-up on."""
        return _rate(self._start, self._marks[-1]) if len(self._marks) > 1 else math.nan

    @property
    def updates_per_second(self) -> float:
        """Learner iterations a second of this process, from the end of the warm-up on."""
        return self.updates / self.seconds if self.seconds else math.nan

    @property
    def parts(self) -> dict[str, float]:
        if not self._marks:
            return dict.fromkeys(self.names, 0.0)
        parts = self._all_parts()
        return {part: parts[part] - self._parts_at_start[part] for part in self.names}

    @property
    def trained(self) -> int:
        """Agent steps of training in this process."""
        return self._marks[-1][0] - self._start[0] if self._marks else 0

    @property
    def seconds(self) -> float:
        """Seconds of training in this process."""
        return self._marks[-1][1] - self._start[1] if self._marks else 0.0

    def _all_parts(self) -> dict[str, float]:
        clock = getattr(self.exp_source, "clock", None)
        parts = dict.fromkeys(self.names, 0.0) | (dict(clock.seconds) if clock else {})
        parts["sample"] = self._batch.value() - sum(parts.values())
        parts["learn"] = self._learn.value()
        return parts

    def table(self) -> str:
        """Where the seconds of training went, a line a part."""
        parts = self.parts
        parts["rest"] = max(0.0, self.seconds - sum(parts.values()))
        lines = [f"{'part':<12}{'seconds':>10}{'share':>8}{'ms a step':>11}"]
        for part, seconds in parts.items():
            share = seconds / self.seconds if self.seconds else 0.0
            lines.append(f"{part:<12}{seconds:>10.1f}{share:>8.1%}{1000 * seconds / max(1, self.trained):>11.2f}")
        return "\n".join(lines)


def _samples(batch: Any) -> int:
    """Transitions in a batch; in a list of segments, those of all."""
    if isinstance(batch, list):
        return sum(len(part) if isinstance(part, Sized) else 1 for part in batch)
    return len(batch) if isinstance(batch, Sized) else 1


def _rate(old: tuple[int, float], new: tuple[int, float]) -> float:
    return (new[0] - old[0]) / (new[1] - old[1]) if new[1] > old[1] else math.nan
