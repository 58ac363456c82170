"""Environments in processes of their own, for games whose step is slow: gymnasium's AsyncVectorEnv with this project's
rules for processes. Errors name the environment, a process that died is reported, and none outlives this process.
"""

import atexit
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, SupportsFloat, cast

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from lib.envs.checked_env import close_all
from lib.errors import CallInterrupted, EnvironmentFailed, Fault, UsageError
from lib.system import processes
from lib.system.log import start_console
from lib.system.parent import end_with_learner
from lib.system.shared_block import require_room

log = logging.getLogger(__name__)

SLACK = 2**20  # bytes that multiprocessing may add to an array
PATIENCE = 1.0  # seconds until a process that was asked to end is killed


class WatchedPipe:
    """The parent's end of a pipe, whose methods raise EOFError if the process at the other end has died.

    The pipe alone does not show this: a process that the environment forked may keep the other end open.
    """

    def __init__(self, pipe: connection.Connection, process: BaseProcess):
        self._pipe = pipe
        self._process = process
        self._unanswered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether an answer arrives in time."""
        ready = connection.wait([self._pipe, self._process.sentinel], timeout)
        if ready and self._pipe not in ready and not self._pipe.poll():
            raise EOFError
        return bool(ready)

    def send(self, message: Any) -> None:
        """Send a message, which will have one answer."""
        self._pipe.send(message)
        self._unanswered += 1

    def recv(self) -> Any:
        """Wait for an answer, and return it."""
        if not self._pipe.poll():
            self.poll(None)
        answer = self._pipe.recv_bytes()
        self._unanswered -= 1  # also if the answer cannot be unpickled
        return pickle.loads(answer)

    def discard_answers(self) -> None:
        """Wait for the answers that were not received."""
        while self._unanswered:
            self.recv()


class ProcessVectorEnv(AsyncVectorEnv):
    """Environments that step at the same time, one per process. An environment that ends its episode is reset.

    Args:
        make: function that makes an environment. It has to be picklable.
        num_envs: number of environments and processes.
        env_id: gymnasium id, for messages.

    Raises:
        Fault: by reset, step and set_attr, if a process has died, or if an environment raises it. Other errors of an
            environment are raised unchanged, with the traceback of its process as a note. Its process ends then.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int, env_id: str):
        # gymnasium sets these while or after the processes start, and `close` may come before.
        self.parent_pipes, self.processes, self._state = [], [], AsyncState.DEFAULT
        self._env_id = env_id
        self._awaited: int | None = None  # index of the environment that the parent waits for
        self._steps = 0
        self._seeds: list[int | None] = [None] * num_envs  # seeds of the newest seeded resets
        env = make()
        assert isinstance(env.observation_space, spaces.Box)
        states = num_envs * env.observation_space.low.nbytes
        made = [env]

        def make_once() -> gym.Env:
            """Return the environment that this process has made already; another process makes its own."""
            return made.pop() if made else make()

        try:
            require_room(states + SLACK)
            processes.start_server()
            with processes.signals_blocked(), self._named():
                super().__init__(
                    [make_once] * num_envs,  # gymnasium takes one, for the spaces, and closes it
                    context="forkserver",
                    worker=_work,
                    autoreset_mode=AutoresetMode.SAME_STEP,
                    daemon=False,  # an environment may start processes of its own
                )
        except BaseException:
            close_all(made)
            with suppress(Exception):  # the first error is the one to raise
                self.close()
            raise
        atexit.register(self.close)  # before multiprocessing waits for its processes

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seeds: list[int | None] | None
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None:
            is_reset = (options or {}).get("reset_mask", [True] * self.num_envs)
            self._seeds = [
                new if each and new is not None else old
                for old, new, each in zip(self._seeds, seeds, is_reset, strict=True)
            ]
        with self._named():
            for pipe in cast(list[WatchedPipe], self.parent_pipes):
                pipe.discard_answers()  # of a call that an error, such as Ctrl-C, has ended during its wait
            self._state = AsyncState.DEFAULT
            return super().reset(seed=seeds, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._steps += 1
        with self._named():
            return super().step(actions)

    def set_attr(self, name: str, values: Any) -> None:
        with self._named():
            super().set_attr(name, values)

    def _check_spaces(self) -> None:
        """Watch the processes, which have just started, and check their spaces."""
        pipes: list[Any] = [WatchedPipe(*each) for each in zip(self.parent_pipes, self.processes, strict=True)]
        self.parent_pipes = pipes
        with processes.signals_unblocked():  # a constructor may hang
            super()._check_spaces()  # type: ignore[no-untyped-call]

    def describe(self) -> str:
        """Return a name of the environment that is waited for, for messages about a call that does not return."""
        step = f"at step {self._steps} of this session"
        if self._awaited is None:
            return f"one of {len(self.env_fns)} processes of {self._env_id} ({step})"
        return f"environment {self._awaited} of {self._env_id} (last seed {self._seeds[self._awaited]}, {step})"

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        """Wait for the answers one after the other, so that `describe` can tell which one is missing."""
        for index, pipe in enumerate(self.parent_pipes):
            self._awaited = index
            if not pipe.poll(timeout):
                return False
        self._awaited = None
        return True

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name a process that hangs or dies in a call."""
        try:
            yield
        except CallInterrupted as error:
            error.add_note(f"Raised by {self.describe()}")
            raise
        except (EOFError, ConnectionError) as error:
            self._report_death(error)

    def _report_death(self, error: BaseException) -> NoReturn:
        time.sleep(0.1)  # until the exit code is known
        codes = [(index, process.exitcode) for index, process in enumerate(self.processes)]
        dead = [(index, code) for index, code in codes if code is not None]
        if self.processes[-1].pid is None:
            raise Fault(
                f"the process of environment {len(codes) - 1} of {self._env_id} could not be started, because the fork "
                "server died, for example for lack of memory: start again, or leave --async-envs out"
            ) from error
        if not dead:
            raise Fault(
                f"{self.describe()} closed its connection: {error!r}. Correct the environment, or "
                "leave --async-envs out"
            ) from error
        index, code = dead[0]
        if code == 0:
            raise Fault(
                f"the process of environment {index} of {self._env_id} ended with exit code 0, probably after an "
                "earlier error; make the environments again"
            ) from error
        raise Fault(
            f"the process of environment {index} of {self._env_id} {processes.describe_exit(code)}. If no error is "
            "shown above, it was probably killed, for example for lack of memory: use fewer environments, or leave "
            "--async-envs out"
        ) from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        self._state = AsyncState.DEFAULT  # nothing is awaited, so that the other environments can be closed
        try:
            index, kind, error, trace = self.error_queue.get(timeout=PATIENCE)
        except Exception as unreadable:  # what an environment raises may be impossible to pickle
            raise Fault(
                f"{self.describe()} raised an error that cannot be sent to this process: {unreadable!r}. To see it, "
                "leave --async-envs out"
            ) from unreadable
        if isinstance(error, Fault | UsageError):
            raise error
        error = error if isinstance(error, BaseException) else kind(error)
        error.add_note(f"This happened in the process of environment {index} of {self._env_id}:\n{trace}")
        raise error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask the processes to end, and kill those that do not."""
        atexit.unregister(self.close)
        pipes = [pipe for pipe in self.parent_pipes if pipe is not None and not pipe.closed]
        if self._state == AsyncState.DEFAULT:
            for pipe in pipes:
                with suppress(OSError):
                    pipe.send(("close", None))
            end = time.monotonic() + PATIENCE
            for process in self.processes:
                if process.pid is not None:
                    process.join(max(0.0, end - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                processes.kill_child(process)
        for pipe in pipes:
            pipe.close()


class SendableErrors(gym.Wrapper):
    """Convert errors that cannot be pickled, such as those of a local class, to EnvironmentFailed."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        with _sendable_errors():
            return super().reset(**options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        with _sendable_errors():
            return super().step(action)


@contextmanager
def _sendable_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - not our code
            text = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        else:
            raise
        raise EnvironmentFailed(text) from error


def _work(index: int, make: Callable[[], gym.Env], *arguments: Any) -> None:
    """Serve an environment in its process until the parent closes the connection or ends."""
    end_with_learner()
    start_console()
    logging.getLogger("lib.envs.observations").setLevel(logging.ERROR)  # the parent has logged its warnings
    try:
        _async_worker(index, lambda: SendableErrors(make()), *arguments)
    except (EOFError, ConnectionError):
        pass  # the parent has ended
    except Exception as error:  # noqa: BLE001 - of the constructor or of close; other errors are sent to the parent
        log.warning("%s", error)
        sys.exit(1)
