"""Data-parallel learning: several learner processes make one update together.

Each learner takes its part of every minibatch, and their gradients are averaged: synchronous stochastic gradient
descent, Chen et al. (2016), https://arxiv.org/abs/1604.00981.
"""

import atexit
import logging
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from lib.errors import Fault, UsageError, divisors
from lib.ppo.rollout import Rollout
from lib.ppo.update import LearnerGroup, Trainer, Transitions
from lib.system.log import start_console
from lib.system.machine import cores, torch_threads
from lib.system.memory import shortage
from lib.system.parent import ParentGone, end_with_learner, receive
from lib.system.processes import Child, pickled, start_server

log = logging.getLogger(__name__)

# Time for an exchange, which takes milliseconds. gloo notices at once if a learner dies. But all processes may be
# suspended for a while, as by Ctrl-Z.
TIMEOUT = timedelta(minutes=30)
SIGNALS_EVERY = timedelta(seconds=1)  # while an exchange waits, Python handles no signals


class ProcessGroup(LearnerGroup):
    """One learner's membership in a group of processes that exchange tensors by gloo or nccl.

    Args:
        rank: number of this learner; the first learner is 0.
        size: number of learners.
        rendezvous: path of a file through which the learners find each other. It can be deleted once the
            constructor has returned.
        device: device of this learner.

    Raises:
        Fault: if the other learners cannot be reached.
    """

    def __init__(self, rank: int, size: int, rendezvous: str, device: torch.device | str):
        self.rank = rank
        self.size = size
        self._device = torch.device(device)
        store = distributed.FileStore(rendezvous, size)  # type: ignore[attr-defined, unused-ignore]
        store.set_timeout(TIMEOUT)
        with _collective():
            self._backend = _backend(store, rank, size, self._device)
        # After this first exchange, all learners have read the file.
        self.average([torch.zeros(1, device=device)])

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite the tensor with that of the first learner, and return it."""
        with _collective():
            # The default options broadcast from rank 0.
            self._wait(self._backend.broadcast([tensor], distributed.BroadcastOptions()))
        return tensor

    def shard(self, batch: torch.Tensor) -> torch.Tensor:
        """Return this learner's part of a minibatch: every `size`-th entry, starting at `rank`."""
        return batch[self.rank :: self.size]

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite each tensor with its mean over all learners, in one exchange."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _collective():
            self._wait(self._backend.allreduce([flat]))  # the default options compute the sum
        flat /= self.size
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def _wait(self, work: Any) -> None:
        if self._device.type == "cuda":  # NCCL returns once the exchange is queued
            work.wait()
            return
        while True:
            try:
                work.wait(SIGNALS_EVERY)
            except RuntimeError as error:
                if work.is_completed() or "Operation timed out" not in str(error):
                    raise
            else:
                return


class DataParallelTrainer:
    """Trainer that shares its updates with learners in other processes. The first update starts these processes.

    Args:
        trainer: trainer of this process, which is the first learner.
        learners: number of learners, this process included.

    Raises:
        UsageError: if the minibatch cannot be shared equally, if GPUs are missing, or if the device is neither the CPU
            nor the first GPU.
    """

    def __init__(self, trainer: Trainer, learners: int):
        _require_shareable(trainer.settings.minibatch, learners)
        _require_devices(torch.device(trainer.device), learners)
        self.trainer = trainer
        self.learners = learners
        self._children: list[Child] = []
        self._while_learning = ExitStack()

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learn from a rollout together with the other learners; see Trainer.update.

        Raises:
            Fault: if another learner is lost.
        """
        transitions = self.trainer.transitions(rollout)
        if not self._children:
            self._start()
        self._send(transitions)
        return self.trainer.learn(transitions)

    def close(self) -> None:
        """End the other learners' processes. The next update starts them again."""
        atexit.unregister(self.close)
        self._while_learning.close()
        for child in self._children:
            child.kill()
        self.trainer.group = LearnerGroup()
        self._children.clear()

    def _start(self) -> None:
        start_server()
        threads = max(1, cores() // self.learners)
        payload = pickled(self.trainer, "the trainer", "Use --learners 1")
        atexit.register(self.close)
        with tempfile.TemporaryDirectory() as folder:
            rendezvous = f"{folder}/rendezvous"
            for rank in range(1, self.learners):
                child = Child(f"learner {rank}")
                self._children.append(child)
                child.launch(run_learner, payload, rank, self.learners, rendezvous, threads)
            self._while_learning.enter_context(torch_threads(threads))
            self.trainer.group = self._join(rendezvous)

    def _join(self, rendezvous: str) -> ProcessGroup:
        """Join the group. Another thread waits for the learners, so that this one sees signals and lost processes."""
        joining: Future[ProcessGroup] = Future()

        def join() -> None:
            try:
                joining.set_result(ProcessGroup(0, self.learners, rendezvous, self.trainer.device))
            except Exception as error:  # noqa: BLE001 - the future raises it below
                joining.set_exception(error)

        threading.Thread(target=join, daemon=True).start()
        while not joining.done():
            wait([joining], 0.5)
            dead = [child for child in self._children if child.process.exitcode is not None]
            if dead and not joining.done():
                raise Fault(f"{dead[0].fate()} while it started. Continue from the last checkpoint with --resume")
        return joining.result()

    def _send(self, transitions: Transitions) -> None:
        """Send the transitions to all learners: settings, shapes and dtypes through pipes, contents by broadcast."""
        layout = [(column.shape, column.dtype) for column in transitions]
        for child in self._children:
            try:
                child.connection.send((layout, self.trainer.settings))
            except OSError as error:
                raise Fault(f"{child.fate()}. Continue from the last checkpoint with --resume") from error
        for column in transitions:
            self.trainer.group.broadcast(column)


def run_learner(link: Any, payload: bytes, rank: int, size: int, rendezvous: str, threads: int) -> None:
    """Main function of the other learners' processes: learn until the first learner ends.

    Args:
        link: pipe from the first learner. Each message holds the layout of the transitions and the update's settings.
        payload: pickled trainer.
        rank: number of this learner.
        size: number of learners.
        rendezvous: path of the file through which the learners find each other.
        threads: number of torch threads.
    """
    end_with_learner()
    start_console()
    torch.set_num_threads(threads)
    try:
        trainer: Trainer = pickle.loads(payload)
        if torch.device(trainer.device).type == "cuda":
            trainer.move_to(torch.device("cuda", rank))
        trainer.group = group = ProcessGroup(rank, size, rendezvous, trainer.device)
        while True:
            layout, trainer.settings = receive(link)
            columns = [torch.empty(shape, dtype=dtype, device=trainer.device) for shape, dtype in layout]
            trainer.learn(Transitions(*(group.broadcast(column) for column in columns)))
    except (ParentGone, Fault):
        return
    except Exception as error:
        if not (fault := shortage(error)):
            raise
        log.error("Learner %d: %s", rank, fault)


def _require_shareable(minibatch: int, learners: int) -> None:
    if minibatch % learners:
        raise UsageError(
            f"{learners} learners cannot share minibatches of {minibatch} equally; --learners has to be one of "
            f"{divisors(minibatch)}"
        )


def _require_devices(device: torch.device, learners: int) -> None:
    if device.type not in ("cpu", "cuda") or device.index:
        raise UsageError(
            f"several learners need --device cpu, or --device cuda, which uses the GPUs from 0 on; --device is {device}"
        )
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and learners > gpus:
        raise UsageError(f"{learners} learners need one GPU each, and {gpus} are available; use --learners {gpus}")


def _backend(store: Any, rank: int, size: int, device: torch.device) -> Any:
    # torch's default process group is not used: ignite would find it, and run its handlers as in a distributed run.
    if device.type == "cuda":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return distributed.ProcessGroupNCCL(store, rank, size, options)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all learners are on this machine, whatever a cluster sets
    return distributed.ProcessGroupGloo(store, rank, size, TIMEOUT)


@contextmanager
def _collective() -> Iterator[None]:
    """Turn the error of a failed exchange into a Fault. The usual cause is that another learner has died."""
    try:
        yield
    except RuntimeError as error:
        raise Fault(
            "the learners lost contact with each other, probably because one of them died, was stopped or is far too "
            "slow. Continue from the last checkpoint with --resume"
        ) from error
