"""Transfers between devices, counted on the CPU, and device mixing, which fails on tensors without data (`meta`)."""

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from lib.envs.masks import MaskedBox
from lib.nets.encoders import NormalisingEncoder, VectorEncoder
from lib.ppo.actor import Segment
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner
from lib.ppo.model import Model
from ppo_setup import random_rollout, trainer_of

SPACE = spaces.Box(-1.0, 1.0, (5,))
BOARD = spaces.Box(-1.0, 1.0, (3, 6, 6))
IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
MASKED = MaskedBox(SPACE, 4)


class Waits(TorchDispatchMode):
    """Count the operations for which a CPU would have to wait for a GPU: .item(), bool(tensor) and the like."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("kl_target", "copies"), [(None, 1), (0.01, 4)])
def test_an_update_waits_once_and_with_an_adaptive_rate_once_an_epoch(monkeypatch, kl_target, copies):
    fetches, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: fetches.append(tensor) or tolist(tensor))
    optimizer = torch.optim.SGD
    model = FastModel(SPACE, 4)
    trainer = trainer_of(model, optimizer(model.parameters(), lr=0.1), epochs=3, minibatch=9, kl_target=kl_target)
    transitions = trainer.transitions(random_rollout(6, 6))
    with Waits() as waits:
        trainer.learn(transitions)
    assert waits.count == 0
    assert len(fetches) == copies


@pytest.fixture
def _meta(monkeypatch):
    """Let programs run on the device `meta`: its tensors have no numbers to fetch, and autocast does not know it."""
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: tolist(torch.ones(tensor.shape)))
    for encoder in (NormalisingEncoder, VectorEncoder):
        monkeypatch.setattr(encoder, "is_fitted", True)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype))


@pytest.mark.usefixtures("_meta")
@pytest.mark.parametrize(
    ("space", "kind", "settings"),
    [
        (IMAGE, Model, {}),
        (BOARD, FastModel, {"kl_target": 0.1}),
        (MASKED, FastModel, {"kl_target": 0.1, "minibatch": 36}),  # one minibatch: the divergence is calculated apart
    ],
    ids=["image", "board", "masked"],
)
def test_an_update_mixes_no_devices(space, kind, settings):
    model = kind(space, 4).to("meta")
    trainer = trainer_of(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"minibatch": 9} | settings)
    states = torch.from_numpy(np.stack([space.sample() for _ in range(36)])).unflatten(0, (6, 6))
    states = states.movedim(2, -1) if len(space.shape) == 3 else states  # channels last, as in a rollout
    rollout = dataclasses.replace(random_rollout(6, 6), states=states)
    if kind is Model:
        trainer.update(rollout)
        return
    columns = {name: column.numpy() for name, column in vars(rollout).items()}
    learner = PPOLearner(trainer)
    for _ in range(2):  # the second time, the segment is older than the weights
        learner.train([Segment(0, 1, 1, 1.0, {}, columns, [])])
