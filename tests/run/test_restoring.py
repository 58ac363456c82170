import gc
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lib.errors import Fault
from lib.ppo.fast import FastModel
from lib.run import checkpoint, checkpoint_reading, restoring
from lib.run.tensorboard import TensorBoard


@pytest.mark.parametrize(
    ("own", "saved", "place"),
    [
        ({"iteration": 3}, {"iteration": "x"}, "each.iteration is 'x'"),
        ({"iteration": 3}, {"iteration": -5}, "each.iteration is -5"),
        ({"iteration": 3}, {"iteration": True}, "each.iteration is True"),
        ({"iteration": 3}, {"iteration": None}, "each.iteration is None"),
        ({"mean": 0.5, "part": {"done": False}}, {"mean": 1, "part": {"done": 1}}, "each.part.done is 1"),
        ({"states": torch.zeros(2)}, {"states": torch.zeros(2, dtype=torch.int64)}, "each.states is torch.int64"),
    ],
)
def test_a_value_of_another_type_or_sign_is_rejected(own, saved, place):
    class Each:
        __module__ = "lib"  # the project's own objects are checked

        def state_dict(self):
            return own

        def load_state_dict(self, state):
            raise AssertionError("must not be loaded")

    with pytest.raises(Fault, match=re.escape(place)):
        restoring.restore({"each": Each()}, {"each": saved})


class Scores:
    """Own object of a script, whose numbers change their type and sign."""

    def __init__(self):
        self.state = {"total": 0, "best_episode": 0, "lowest": 1.0}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_script_may_save_schedulers_other_optimizers_and_objects_of_its_own(tmp_path):
    def objects():
        net = nn.Linear(3, 2)
        optimizer = torch.optim.Adafactor(net.parameters())
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"net": net, "optimizer": optimizer, "scheduler": scheduler, "scores": Scores()}

    saved, resumed = objects(), objects()
    saved["net"](torch.ones(3)).sum().backward()
    saved["optimizer"].step()
    saved["scores"].state = {"total": 0.5, "best_episode": -1, "lowest": math.inf}
    content = {name: each.state_dict() for name, each in saved.items()}
    checkpoint.VerifiedSaver(tmp_path)(content, "step-000000001.pt")
    restoring.restore(resumed, checkpoint_reading.newest(tmp_path))
    assert resumed["scores"].state == saved["scores"].state
    assert resumed["scheduler"].state_dict() == saved["scheduler"].state_dict()
    assert torch.equal(resumed["net"].weight, saved["net"].weight)


@pytest.mark.parametrize("wrong", [{"src": torch.zeros(0)}, {"_value": torch.zeros(0)}])
def test_a_smoothed_loss_of_another_type_is_rejected(tmp_path, wrong):
    average = TensorBoard(tmp_path).average
    average.load_state_dict(average.state_dict())
    state = average.state_dict()
    state["__metric_state_per_rank"][0].update(wrong)
    with pytest.raises(Fault, match="the smoothed loss is"):
        restoring.restore({"average": average}, {"average": state})


def image_model(dtype, seed):
    torch.manual_seed(seed)
    model = FastModel(spaces.Box(0, 255, (4, 84, 84), np.uint8), 6, dtype)
    model.normalise_by(torch.randint(0, 256, (8, 84, 84, 4), dtype=torch.uint8))
    return model


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
def test_a_checkpoint_loads_into_a_network_of_another_precision(dtypes):
    saved, own = (image_model(dtype, seed) for seed, dtype in enumerate(dtypes))
    assert not torch.equal(own.body.mean.float(), saved.body.mean.float())
    restoring.restore({"net": own}, {"net": saved.state_dict()})
    assert own.body.mean.dtype == dtypes[1]
    # Also the means, which are rounded, fit into both.
    for name, value in saved.state_dict().items():
        assert torch.equal(own.state_dict()[name].float(), value.float()), name


def test_a_network_in_double_precision_is_rejected():
    net = nn.Linear(2, 1)
    with pytest.raises(Fault, match=r"net\.\w+ is torch\.float64, not torch\.float32"):
        restoring.restore({"net": net}, {"net": nn.Linear(2, 1).double().state_dict()})


def test_weights_that_are_not_finite_are_rejected():
    net = nn.Linear(2, 1)
    weights = {**net.state_dict(), "bias": torch.tensor([float("nan")])}
    with pytest.raises(Fault, match=r"net\.bias has numbers that are not finite"):
        restoring.restore({"net": net}, {"net": weights})


@pytest.mark.parametrize("content", [{}, [1, 2], {"net": {"value": 1}}, {"net": 5}, {"net": {}}])
def test_a_checkpoint_that_does_not_fit_is_reported_in_one_line(content):
    with pytest.raises(Fault, match="does not fit") as fault:
        restoring.restore({"net": nn.Linear(1, 1)}, content)
    assert "\n" not in str(fault.value)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the mapped files")
def test_a_restored_object_may_keep_its_tensors_without_keeping_the_file(tmp_path):
    class Keeper:
        def __init__(self):
            self.kept = {"w": torch.arange(4.0)}

        def state_dict(self):
            return self.kept

        def load_state_dict(self, state):
            self.kept = state

    keeper = Keeper()
    checkpoint.VerifiedSaver(tmp_path)({"net": keeper.kept}, "step-000000001.pt")
    restoring.restore({"net": keeper}, checkpoint_reading.newest(tmp_path))
    gc.collect()
    assert torch.equal(keeper.kept["w"], torch.arange(4.0))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
