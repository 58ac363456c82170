"""Exported policies take the actions of the original."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_model
from lib.analysis import export
from lib.envs.masks import MaskedBox, append_mask
from lib.envs.observations import conversions
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.policy import GreedyPolicy

VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
BOARD = spaces.Box(-1.0, 1.0, (2, 6, 7), np.float32)
VECTORS = np.random.default_rng(1).uniform(-1, 1, (50, 5)).astype(np.float32)


class Agent:
    """What an export needs of a TrainedAgent, with a network that has not been trained."""

    def __init__(self, net, tmp_path):
        self.policy = GreedyPolicy(net)
        self.env_id = "CartPole-v1"
        self.run = self.file = tmp_path

    def make_env(self):
        return make_env(self.env_id)


def sharpened(net):
    """Let the actions of a network depend on the state, as those of a trained one do."""
    with torch.no_grad():
        for parameter, weights in net.named_parameters():
            if parameter.endswith("bias"):
                weights.zero_()
            elif parameter.startswith(("policy", "advantage")):
                weights.mul_(10)
    return net


def rainbow():
    """A network of distributions, boards with masks of legal actions, and the masks."""
    rng = np.random.default_rng(1)
    masks = rng.random((1000, 7)) < 0.4
    masks[np.arange(1000), rng.integers(7, size=1000)] = True
    boards = rng.uniform(-1, 1, (1000, *BOARD.shape)).astype(np.float32)
    states = np.stack([append_mask(board, mask) for board, mask in zip(boards, masks, strict=True)])
    support = (-2.0, 2.0, 51)
    net = dqn_model.DQN(MaskedBox(BOARD, 7), 7, dueling=True, sigma=0.5, support=support)
    return sharpened(net), states, masks


def fast_ppo():
    """A network of PPO, images of coarse blocks, in which its actions differ, and no masks."""
    blocks = np.random.default_rng(1).integers(0, 256, (250, 4, 4, 4), np.uint8)
    states = blocks.repeat(21, axis=2).repeat(21, axis=3)
    net = sharpened(FastModel(spaces.Box(0, 255, (4, 84, 84), np.uint8), 7))
    net.normalise_by(torch.from_numpy(states))
    return net, states, None


@pytest.mark.slow
@pytest.mark.parametrize("make", [rainbow, fast_ppo])
def test_actions_are_equal_on_many_states(tmp_path, make):
    pytest.importorskip("onnxruntime")
    torch.manual_seed(1)
    net, states, masks = make()
    assert export.export(Agent(net, tmp_path), tmp_path / "export", states) < 1e-5
    expected = GreedyPolicy(net)(states)
    exported = export.load_onnx(tmp_path / "export" / "policy.onnx")
    assert np.array_equal(exported(states)[0], expected)
    assert np.array_equal(exported(states[:1])[0], expected[:1])
    assert len(set(expected.tolist())) > 1
    if masks is not None:
        assert masks[np.arange(len(states)), expected].all()
        unmasked = exported(np.where(np.isin(states, (0, 1)), 1, states).astype(np.float32))[0]
        assert not np.array_equal(unmasked, expected)


@pytest.mark.slow
def test_an_export_that_acts_differently_is_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(
        export.ExportedPolicy, "forward", lambda policy, states: (states[:, 0].long(), policy.net(states))
    )
    with pytest.raises(Fault, match=r"takes another action .* of 50 states"):
        export.export(Agent(dqn_model.DQN(VECTOR, 7), tmp_path), tmp_path / "export", VECTORS)
    assert not (tmp_path / "export").exists()


def test_actions_may_differ_between_equal_scores_only():
    class Original:
        score_name = "Q"

        def scores(self, states):
            return np.array([[1.0, 1.0 + 1e-7, 0.5]] * len(states), np.float32)

    def takes(action, score=1.0):
        return lambda states: (np.full(len(states), action), score * Original().scores(states))

    states = np.zeros((250, 1), np.float32)
    assert export.compare(Original(), takes(0), states) == 0.0
    for wrong in (takes(2), takes(0, np.nan)):
        with pytest.raises(Fault, match="250 of 250"):
            export.compare(Original(), wrong, states)


def test_missing_packages_are_reported(monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UsageError, match=r"needs onnxscript; run pip install -e '/.*\[export\]'"):
        export.require_packages()


class OfBatch(dqn_model.DQN):
    """A network that computes with the number of states."""

    def forward(self, states):
        return super().forward(states).view(len(states), 7)


@pytest.mark.slow
def test_a_network_that_cannot_be_exported_is_explained_and_leaves_no_folder(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(UsageError, match=r"cannot be exported: .* number of states in a batch"):
        export.export(Agent(OfBatch(VECTOR, 7), tmp_path), tmp_path / "export", VECTORS)
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_the_description_says_how_observations_become_states_and_actions_are_counted(tmp_path):
    pytest.importorskip("onnxruntime")
    agent = Agent(Model(VECTOR, 7), tmp_path)
    agent.env_id = "fakes:Board-v0"
    agent.make_env = lambda: make_env("fakes:Seventh-v0")
    export.export(agent, tmp_path, VECTORS)
    described = json.loads((tmp_path / "policy.json").read_text())
    assert described["observation_space"] == "Box(-2, 2, (9, 8), int8)"
    assert described["state"] == {"shape": [5], "dtype": "float32"}
    assert (described["scores"], described["checked_states"]) == ("probability", 50)
    assert (described["first_action"], described["actions"][0]) == (7, "7")
    assert described["conversions"] == conversions(make_env("fakes:Seventh-v0"))
