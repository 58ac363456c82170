"""Several learners that make one update together: each takes its part of every minibatch, and their gradients are
averaged, synchronous data-parallel stochastic gradient descent, Chen et al. (2016), https://arxiv.org/abs/1604.00981.
"""

import atexit
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from lib.errors import Fault, UsageError, divisors
from lib.system.machine import cores
from lib.system.parent import ParentGone, end_with_learner, receive
from lib.system.processes import Child, start_server, to_shared_memory

if TYPE_CHECKING:
    from lib.ppo.update import Trainer


PATIENCE = timedelta(seconds=60)  # for the others, in every exchange


STARTING = timedelta(seconds=180)


class Group:
    """One learner's place among all, as a Trainer sees it.

    Args:
        rank: which learner; 0 is the one that was there first.
        size: how many there are.
        meeting: a file by which they find each other.
        device: of this learner.
    """

    def __init__(self, rank: int, size: int, meeting: str, device: torch.device | str):
        self.rank = rank
        self.size = size
        store = distributed.FileStore(meeting, size)
        store.set_timeout(STARTING)
        with _together():
            self._group = _process_group(store, rank, size, torch.device(device))
        self.average([torch.zeros(1, device=device)])  # when this is done all have met, and the file is not needed

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """The first learner's tensor, in all."""
        with _together():
            self._group.broadcast([tensor], distributed.BroadcastOptions()).wait()  # the first's, unless told otherwise
        return tensor

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        """This learner's part of a minibatch."""
        return batch[self.rank :: self.size]

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have the mean over all learners in each tensor's place, in one exchange."""
        together = torch.cat([tensor.flatten() for tensor in tensors])
        with _together():
            self._group.allreduce([together]).wait()  # the sum
        together /= self.size
        for tensor, mean in zip(tensors, together.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))


class Learners:
    """Further learners, in processes of their own, for a trainer; they are started with its first update.

    Args:
        trainer: the first learner's; its minibatches are shared from now on.
        number: of learners in all, the first one included.

    Raises:
        UsageError: a minibatch cannot be shared by so many, or there are too few GPUs, or the device is neither the CPU
            nor the first of them.
    """

    def __init__(self, trainer: "Trainer", number: int):
        if trainer.minibatch % number:
            raise UsageError(
                f"{number} learners cannot share minibatches of {trainer.minibatch}; "
                f"take one of {divisors(trainer.minibatch)}"
            )
        device, gpus = torch.device(trainer.device), torch.cuda.device_count()
        if device.type not in ("cpu", "cuda") or device.index:
            raise UsageError(f"several learners take --device cpu, or cuda from its first GPU on; it is {device}")
        if device.type == "cuda" and number > gpus:
            raise UsageError(f"{number} learners need a GPU each, and there are {gpus}; take --learners {gpus}")
        self.trainer = trainer
        self.number = number
        self._children: list[Child] = []
        trainer.learners = self

    def begin(self, columns: Sequence[torch.Tensor], progress: float) -> None:
        """Have all learners make an update from these columns, of which the others get copies.

        Raises:
            Fault: one of them is gone.
        """
        if not self._children:
            self._start()
        layout = [(column.shape, column.dtype) for column in columns]
        for child in self._children:
            try:
                child.connection.send((layout, progress))
            except OSError as error:
                raise Fault(f"{child.fate()}. Go on from the last checkpoint with --resume") from error
        assert self.trainer.group is not None
        for column in columns:
            self.trainer.group.shared(column)

    def _start(self) -> None:
        start_server()
        threads = max(1, cores() // self.number)
        self.trainer.learners = None  # the others have none
        try:
            trainer = to_shared_memory(self.trainer, "the trainer", "Use --learners 1")
        finally:
            self.trainer.learners = self
        atexit.register(self.close)
        with tempfile.TemporaryDirectory(prefix="learners-") as folder:
            for rank in range(1, self.number):
                child = Child(f"learner {rank}")
                child.launch(follow, trainer, rank, self.number, f"{folder}/meeting", threads)
                self._children.append(child)
            torch.set_num_threads(threads)
            self.trainer.group = Group(0, self.number, f"{folder}/meeting", self.trainer.device)

    def close(self) -> None:
        """End the other learners."""
        atexit.unregister(self.close)
        for child in self._children:
            child.kill()
        self.trainer.group = None
        self._children.clear()


def follow(link: Any, sent: Any, rank: int, size: int, meeting: str, threads: int) -> None:
    """Be one of the further learners, until the first is gone.

    Args:
        link: to the first; in come layouts of columns, and the progress.
        sent: the trainer, see child.moved.
        rank, size, meeting: see Group.
        threads: of torch.
    """
    end_with_learner()
    torch.set_num_threads(threads)
    trainer: Trainer = pickle.loads(sent.raw)
    if torch.device(trainer.device).type == "cuda":
        trainer.move_to(torch.device("cuda", rank))
    trainer.group = Group(rank, size, meeting, trainer.device)
    try:
        while True:
            layout, progress = receive(link)
            columns = [torch.empty(shape, dtype=dtype, device=trainer.device) for shape, dtype in layout]
            trainer.learn([trainer.group.shared(column) for column in columns], progress)
    except (ParentGone, Fault):
        return


def _process_group(store: Any, rank: int, size: int, device: torch.device) -> Any:
    # Made by hand, not as the process's default group: ignite would take that for its own, and have all learners do
    # what only the first does.
    if device.type == "cuda":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = PATIENCE
        return distributed.ProcessGroupNCCL(store, rank, size, options)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # they are all on this machine
    return distributed.ProcessGroupGloo(store, rank, size, PATIENCE)


@contextmanager
def _together() -> Iterator[None]:
    """An exchange; that it failed, nearly always as another learner is gone, comes out of it as a Fault."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise Fault(
            f"the learners have lost each other ({first}). Go on from the last checkpoint with --resume"
        ) from error
