"""Actors in processes of this machine. Weights and segments go through pipes."""

import atexit
import logging
import pickle
import time
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from lib.actors.engines import Engine
from lib.actors.worker import Lost, Weights, Worker, pack
from lib.envs import checked_env
from lib.system.log import start_console
from lib.system.parent import end_with_learner
from lib.system.processes import Child, start_server

ENDING = 1.0  # seconds in which all actors may end by themselves when they are closed


class ProcessEngine(Engine):
    """Actors in processes of this machine; see Engine.

    Args:
        names: names of the actors in messages.
    """

    def __init__(self, names: list[str]):
        self._names = names
        self._children: dict[int, Child] = {}
        self._outboxes: dict[int, SimpleQueue[bytes | None]] = {}
        start_server()
        atexit.register(self.close)

    def start(self, index: int, payload: bytes) -> None:
        # A thread sends, because the pipe is full while a process is stopped, and the learner must not wait for it.
        outbox = self._outboxes[index] = SimpleQueue()
        child = self._children[index] = Child(self._names[index], act, index)
        child.launch()
        Thread(target=_send_all, args=(outbox, child.connection), daemon=True).start()
        self.send(index, "start", payload)

    def pack(self, weights: Weights) -> bytes:
        return pickle.dumps(pack(weights), pickle.HIGHEST_PROTOCOL)

    def send(self, index: int, method: str, *arguments: Any) -> None:
        self._outboxes[index].put(pickle.dumps((method, *arguments), pickle.HIGHEST_PROTOCOL))

    def receive(self, timeout: float) -> list[tuple[int, Any]]:
        ends = {
            index: (child.connection, child.process.sentinel)
            for index, child in sorted(self._children.items())
            if not child.connection.closed
        }
        ready = connection.wait([end for both in ends.values() for end in both], timeout)
        return [(index, self._answer(index)) for index, both in ends.items() if any(end in ready for end in both)]

    def _answer(self, index: int) -> Any:
        child = self._children[index]
        try:
            if not child.connection.poll():
                raise EOFError  # it is dead, but a process that it forked keeps the pipe open
            return child.connection.recv()
        except (EOFError, OSError):
            self.kill(index)
            return Lost(child.fate())

    def kill(self, index: int) -> None:
        self._outboxes[index].put(None)
        self._children[index].kill()
        self._children[index].connection.close()

    def close(self) -> None:
        atexit.unregister(self.close)
        try:
            for index, child in self._children.items():
                self._outboxes[index].put(None)
                child.connection.close()
            deadline = time.monotonic() + ENDING
            for child in self._children.values():
                child.end(max(0.0, deadline - time.monotonic()))
        finally:  # even if a second Ctrl-C interrupts the waiting
            for child in self._children.values():
                child.kill()
            self._children.clear()


def _send_all(outbox: "SimpleQueue[bytes | None]", pipe: "Connection[Any, Any]") -> None:
    with suppress(OSError, TypeError):  # the process is gone, which `receive` reports, or the pipe was closed
        while (message := outbox.get()) is not None:
            pipe.send_bytes(message)


def act(pipe: "Connection[Any, Any]", index: int) -> None:
    """Main function of an actor's process: answer the learner's messages until it has ended."""
    end_with_learner()
    start_console()
    for module in ("lib.envs.observations", "lib.ppo.fast"):  # the learner has logged the same messages
        logging.getLogger(module).setLevel(logging.ERROR)
    torch.set_num_threads(1)  # other actors and the learner need the other cores
    worker = Worker(index)
    with suppress(EOFError, OSError), checked_env.closing():  # the learner has hung up
        pipe.send(worker.hello())
        while True:
            method, *arguments = pipe.recv()
            if method == "play" and arguments[0] is not None:
                arguments = [pickle.loads(arguments[0])]
            pipe.send(getattr(worker, method)(*arguments))
