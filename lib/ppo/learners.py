"""Several learners that make one update together: the script runs once for each, with its own actors.

Any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT starts them, such as torchrun or Slurm. Gradients
are averaged: synchronous stochastic gradient descent, Chen et al. (2016), https://arxiv.org/abs/1604.00981.
"""

import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from lib.errors import Fault, UsageError
from lib.ppo.update import LearnerGroup, T

# An exchange takes milliseconds, but the first learner may evaluate or draw, or be suspended by Ctrl-Z. If a learner
# dies, gloo notices at once.
TIMEOUT = timedelta(minutes=30)


def join_learners(device: torch.device) -> LearnerGroup:
    """Return the group of learners that a launcher has started, or that of this learner alone.

    Raises:
        UsageError: if this machine has fewer GPUs than learners.
        Fault: if the other learners cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return LearnerGroup(device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if device.index >= (gpus := torch.cuda.device_count()):
            raise UsageError(
                f"each learner of a machine needs a GPU, and this one has {gpus} GPUs; start {gpus} learners"
            )
        torch.cuda.set_device(device)
    group = ProcessGroup(device)
    if group.rank:  # only the first one is asked to stop; the others end with it
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
    return group


class ProcessGroup(LearnerGroup):
    """One learner's membership in a group of processes that exchange tensors by gloo, or on GPUs by nccl."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        with _collective():
            store, self.rank, self.size = next(distributed.rendezvous("env://", timeout=TIMEOUT))  # type: ignore[attr-defined]
            # torch's default process group is not used: ignite would find it, and run its handlers as in its own
            # distributed runs.
            if device.type == "cuda":
                options = distributed.ProcessGroupNCCL.Options()
                options._timeout = TIMEOUT
                self._backend: Any = distributed.ProcessGroupNCCL(store, self.rank, self.size, options)
            else:
                self._backend = distributed.ProcessGroupGloo(store, self.rank, self.size, TIMEOUT)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _collective():
            self._backend.allreduce([flat]).wait()  # the default options compute the sum
        flat /= self.size
        means = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean.view_as(tensor))

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with _collective():
            self._backend.allgather([parts], [tensor.contiguous()]).wait()
        return torch.cat(parts)

    def share(self, thing: T, rank: int = 0) -> T:
        data = pickle.dumps(thing) if rank == self.rank else b""
        size = torch.tensor([len(data)], device=self.device)
        options = distributed.BroadcastOptions()
        options.rootRank = rank
        with _collective():
            self._backend.broadcast([size], options).wait()
            content = torch.empty(int(size), dtype=torch.uint8, device=self.device)
            if data:
                content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            self._backend.broadcast([content], options).wait()
        shared: T = pickle.loads(content.cpu().numpy().tobytes())
        return shared


@contextmanager
def _collective() -> Iterator[None]:
    """Turn the error of a failed exchange into a Fault. The usual cause is that another learner has died."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise Fault(
            "the learners lost contact with each other, probably because one of them died, was stopped or is far too "
            "slow. Continue from the last checkpoint with --resume"
        ) from error
