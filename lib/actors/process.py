"""Actors in processes of this machine. Weights and segments go through pipes."""

import atexit
import io
import logging
import os
import pickle
import time
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import torch

from lib.actors.engines import Engine, Lost, Worker
from lib.envs import checked_env
from lib.system.log import start_console
from lib.system.processes import context, describe_exit, end_with_learner, kill_child, signals_blocked, start_server

Pipe: TypeAlias = "Connection[Any, Any]"
ENDING = 1.0  # seconds in which all actors may end by themselves when they are closed


class Child(NamedTuple):
    """An actor's process, the learner's end of its pipe, and messages for it, of which None is the last one."""

    process: BaseProcess
    pipe: Pipe
    outbox: "SimpleQueue[tuple[object, ...] | None]"


class ProcessEngine(Engine):
    """Actors in processes of this machine; see Engine."""

    def __init__(self) -> None:
        self._children: dict[int, Child] = {}
        start_server()
        atexit.register(self.close)  # before multiprocessing waits for its processes

    def start(self, index: int) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=act, args=(theirs,), name=f"actor-{index}")
        child = self._children[index] = Child(process, ours, SimpleQueue())
        with signals_blocked():  # in a fork server, too, that replaces a dead one
            process.start()  # a signal may interrupt this afterwards; `close` knows the process by now
        theirs.close()
        # A thread sends, because the pipe is full while a process is stopped, and the learner must not wait for it.
        # It has a descriptor of its own: the pipe's number may stand for another pipe after `kill`.
        Thread(target=_send_all, args=(child.outbox, os.dup(ours.fileno())), daemon=True).start()

    def send(self, index: int, method: str, *arguments: object) -> None:
        self._children[index].outbox.put((method, *arguments))

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        owners: dict[Pipe | int, int] = {}
        for index, child in self._children.items():
            if not child.pipe.closed:
                owners |= {child.pipe: index, child.process.sentinel: index}
        heard = {owners[end] for end in connection.wait(list(owners), timeout)}  # type: ignore[index]
        return [(index, self._answer(index)) for index in sorted(heard)]

    def _answer(self, index: int) -> object:
        child = self._children[index]
        try:
            if not child.pipe.poll():
                raise EOFError  # it is dead, but a process that it forked keeps the pipe open
            return _receive(child.pipe)
        except (EOFError, OSError, pickle.UnpicklingError):
            child.process.join(timeout=1)  # its exit code may come after the end of its pipe
            code = child.process.exitcode
            self.kill(index)
            return Lost("closed its pipe" if code is None else describe_exit(code))

    def kill(self, index: int) -> None:
        child = self._children[index]
        child.outbox.put(None)
        child.pipe.close()
        if child.process.is_alive():
            kill_child(child.process)

    def close(self) -> None:
        atexit.unregister(self.close)
        try:
            for child in self._children.values():
                child.outbox.put(None)
                child.pipe.close()
            deadline = time.monotonic() + ENDING
            for child in self._children.values():
                if child.process.is_alive():
                    child.process.join(max(0.0, deadline - time.monotonic()))
        finally:  # even if a second Ctrl-C interrupts the waiting
            for index in self._children:
                self.kill(index)
            self._children.clear()


def _send_all(outbox: "SimpleQueue[tuple[object, ...] | None]", descriptor: int) -> None:
    with suppress(OSError), open(descriptor, "wb") as sink:  # the process is gone, which `receive` reports
        while (message := outbox.get()) is not None:
            _send(sink, message)


def _send(sink: BinaryIO, message: object) -> None:
    pickle.dump(message, sink, pickle.HIGHEST_PROTOCOL)  # `pipe.send` copies arrays, and shares memory for tensors
    sink.flush()


def _receive(pipe: Pipe) -> Any:
    # With a buffer of one byte, nothing of the next message is read, so that `poll` sees it.
    with io.BufferedReader(io.FileIO(pipe.fileno(), closefd=False), 1) as file:
        return pickle.load(file)


def act(pipe: Pipe) -> None:
    """Main function of an actor's process: answer the learner's messages until it has ended."""
    end_with_learner()
    start_console()
    logging.getLogger("lib.envs.observations").setLevel(logging.ERROR)  # the learner has logged the same messages
    torch.set_num_threads(1)  # other actors and the learner need the other cores
    worker = Worker()
    # Until the learner has closed the pipe, or has ended.
    with suppress(EOFError, OSError), checked_env.closing(), open(pipe.fileno(), "wb", closefd=False) as sink:
        while True:
            _send(sink, worker.answer(*_receive(pipe)))
