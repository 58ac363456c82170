"""The learner: update the model from the segments of all actors, and provide its weights.

Several learners make one update together, each with its own actors. Any launcher that sets RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT starts them, such as torchrun or Slurm. Gradients are averaged: synchronous stochastic
gradient descent, Chen et al. (2016), https://arxiv.org/abs/1604.00981.
"""

import os
import pickle
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed

from lib.actors.engines import Weights
from lib.envs.frames import unstack
from lib.errors import Fault, UsageError
from lib.ppo.actor import Segment
from lib.ppo.fast import FastTrainer
from lib.ppo.rollout import Rollout
from lib.ppo.update import LearnerGroup, T

# An exchange takes milliseconds, but the first learner may evaluate or draw, or be suspended by Ctrl-Z. If a learner
# dies, gloo notices at once.
TIMEOUT = timedelta(minutes=30)


class PPOLearner:
    """Learn from trajectory segments that actors have played.

    If some were played with older weights, V-trace computes the advantages and value targets. PPO's ratio is clipped
    around the behaviour policy.

    Args:
        trainer: trainer of the model. Its group is the learners that share every update.

    Attributes:
        trainer: trainer of the model.
        version: version of the weights; it grows by one with every change.
    """

    def __init__(self, trainer: FastTrainer):
        self.trainer = trainer
        self.version = 0

    def train(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Make one update from segments of equal length, and return the metrics of Trainer.update."""
        if self.trainer.group.size > 1:  # a checkpoint has the first learner's settings and random numbers
            seed = int(torch.randint(2**62, ()))
            self.trainer.settings, seed = self.trainer.group.share((self.trainer.settings, seed))
            torch.manual_seed(seed)
        rollout, rhos = join_segments(segments), None
        if any(segment.version != self.version for segment in segments):
            rollout, rhos = self.trainer.reevaluated(rollout)
        metrics = self.trainer.update(rollout, rhos)
        self.version += 1
        return metrics

    def get_model(self) -> Weights:
        """Return the current weights. If the model is on the CPU, they share its memory and change with it."""
        state = self.trainer.model.state_dict()
        return Weights(self.version, {name: tensor.cpu() for name, tensor in state.items()}, {})

    def state_dict(self) -> dict[str, int]:
        """Return the version; the model and the optimizer are saved separately."""
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.version = state["version"]


def join_segments(segments: Sequence[Segment]) -> Rollout:
    """Join segments of T steps to one rollout, (T, N, ...), by concatenating their environments."""
    names = segments[0].columns
    columns = {name: np.concatenate([segment.columns[name] for segment in segments], axis=1) for name in names}
    if "frames" in columns:
        columns["states"] = unstack(columns.pop("frames"), columns["ended"])
    return Rollout(**{name: torch.from_numpy(column) for name, column in columns.items()})


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
