"""Warn if other programs keep torch's threads waiting for a core."""

import logging
import time

import torch
from ignite.engine import Engine, Events

from lib.system.core_times import TASKS, Reading, read
from lib.system.machine import cores

log = logging.getLogger(__name__)


class CoreContention:
    """Warn once if other programs slow down torch's threads, which wait for each other at every layer.

    A thread that waits for another one occupies its core, so that neither the awaited thread nor the other program gets
    it. With one other busy program on two cores, two threads learned two to twenty times slower than one thread.
    """

    INTERVAL = 10.0  # seconds between two readings
    WAITING = 0.25  # average number of waiting threads
    OTHERS = 0.5  # average number of cores that other programs use. Actors and players of the run do not count

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._warned = False

    def attach(self, engine: Engine) -> None:
        """Take a reading at most once per INTERVAL. Do nothing if the system does not report waiting times."""
        if any(TASKS.glob("*/schedstat")):
            engine.add_event_handler(Events.STARTED | Events.ITERATION_COMPLETED, self._look)

    def _look(self) -> None:
        last, threads = self._last, torch.get_num_threads()
        if self._warned or threads == 1 or (last is not None and time.monotonic() < last.time + self.INTERVAL):
            return
        now = self._last = read()
        if last is None or now is None:
            return
        seconds = now.time - last.time
        waiting, others = (now.waiting - last.waiting) / seconds, (now.others - last.others) / seconds
        if waiting < self.WAITING or others < self.OTHERS:
            return
        self._warned = True
        log.warning(
            "Other programs use %.1f of %d cores, which slows down torch's %d threads. End those programs, or restart "
            "with OMP_NUM_THREADS=%d, which is probably faster.",
            others,
            cores(),
            threads,
            max(1, min(threads - 1, cores() - round(others))),
        )
