"""Environments in processes: gymnasium's AsyncVectorEnv, but errors name the environment, and no process is left."""

import atexit
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from lib.envs.checked_env import Info, Reset
from lib.errors import EnvironmentFailed, Fault, UsageError
from lib.system import processes
from lib.system.log import start_console

PATIENCE = 1.0  # seconds until a process that was asked to end is killed


class ProcessVectorEnv(AsyncVectorEnv):
    """Environments that step at the same time, one per process. An environment that ends its episode is reset.

    Args:
        make: function that makes an environment. It has to be picklable. Here, it is called once, for the spaces.
        num_envs: number of environments and processes.
        env_id: gymnasium id, for messages.

    Raises:
        Fault: by reset and step, if a process has died.
        EnvironmentFailed: if an environment raises an error that is no Fault or UsageError. Its process ends then.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int, env_id: str):
        # gymnasium sets these while or after the processes start, and `close` may come before.
        self.parent_pipes, self.processes, self._state = [], [], AsyncState.DEFAULT
        self._env_id = env_id
        processes.start_server()
        try:
            with self._dead_named():
                super().__init__(
                    [make] * num_envs,
                    context="forkserver",
                    worker=_work,
                    autoreset_mode=AutoresetMode.SAME_STEP,
                    daemon=False,  # an environment may start processes of its own
                )
        except BaseException:
            self.close_extras(terminate=True)
            raise
        atexit.register(self.close)  # before multiprocessing waits for its processes

    def reset(self, *, seed: int | list[int | None] | None = None, options: Info | None = None) -> Reset:
        with self._dead_named():
            return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        with self._dead_named():
            return super().step(actions)

    @contextmanager
    def _dead_named(self) -> Iterator[None]:
        """Name the environment whose process has died in a call."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            started = [process for process in self.processes if process.pid is not None]
            connection.wait([process.sentinel for process in started], PATIENCE)
            dead = [(index, process.exitcode) for index, process in enumerate(started) if process.exitcode is not None]
            if not dead:
                raise
            index, code = dead[0]
            raise Fault(
                f"the process of environment {index} of {self._env_id} {processes.describe_exit(code)}. If no error "
                "is shown above, it was probably killed for lack of memory: use fewer environments, or no --async-envs"
            ) from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        self._state = AsyncState.DEFAULT  # nothing is awaited, so that the other environments can be closed
        index, error, text, trace = self.error_queue.get()
        if error is None:
            error = EnvironmentFailed(f"environment {index} of {self._env_id} raised {text}")
            error.add_note(f"In its process:\n{trace}")
        raise error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask the processes to end, and kill those that do not."""
        atexit.unregister(self.close)
        end = time.monotonic()
        if self._state == AsyncState.DEFAULT and not terminate:
            end += PATIENCE
            for pipe in self.parent_pipes:
                with suppress(OSError):
                    pipe.send(("close", None))
        for process in self.processes:
            if process.is_alive():
                process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                processes.kill_child(process)
        for pipe in self.parent_pipes:
            pipe.close()


def _work(
    index: int, make: Callable[[], gym.Env], pipe: Any, parent_pipe: Any, states: Any, errors: Any, *options: Any
) -> None:
    """Serve an environment in its process until the parent closes the connection or ends."""

    def put(report: tuple[int, type[BaseException], BaseException, str]) -> None:
        """Send an error, or only the text of one that may not be picklable."""
        _, _, error, trace = report
        errors.put((index, error if isinstance(error, Fault | UsageError) else None, repr(error), trace))

    processes.end_with_learner()
    start_console()
    logging.getLogger("lib.envs.observations").setLevel(logging.ERROR)  # the parent has logged its warnings
    with suppress(ConnectionError):  # the parent has ended
        queue: Any = SimpleNamespace(put=put)
        _async_worker(index, make, pipe, parent_pipe, states, queue, *options)
