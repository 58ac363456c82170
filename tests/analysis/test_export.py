"""Exported policies take the actions of the original, on states of every kind."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_extra, dqn_model
from lib.analysis import export
from lib.envs.masks import MaskedBox, append_mask
from lib.envs.observations import conversions
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.nets import losses
from lib.nets.masking import MaskSplitter
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.policy import GreedyPolicy

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
BOARD = spaces.Box(-1.0, 1.0, (2, 6, 7), np.float32)
MASKED_VECTOR, MASKED_BOARD = MaskedBox(VECTOR, 7), MaskedBox(BOARD, 7)

SUPPORT = losses.support(-2.0, 2.0, 51)
NETWORKS = {
    "basic": lambda space: dqn_model.DQN(space, 7),
    "normalising": lambda space: dqn_model.DQN(space, 7, normalise=True),
    "rainbow": lambda space: dqn_extra.ExtendedDQN(space, 7, dueling=True, sigma=0.5, support=SUPPORT),
    "ppo": lambda space: Model(space, 7),
    "fast ppo": lambda space: FastModel(space, 7),
}


def make_net(name, space, states):
    """Make a network whose actions depend on the state, as those of a trained one do."""
    torch.manual_seed(1)
    net = NETWORKS[name](space)
    with torch.no_grad():
        for parameter, weights in net.named_parameters():
            if parameter.endswith("bias"):
                weights.zero_()
            elif parameter.startswith(("policy", "advantage")):
                weights.mul_(10)
    if name == "fast ppo":
        net.normalise_by(torch.from_numpy(states).movedim(1, -1) if states.ndim == 4 else torch.from_numpy(states))
    return net


class OfBatch(dqn_model.DQN):
    """A network that computes with the number of states."""

    def forward(self, states):
        return super().forward(states).view(len(states), 7)


class Agent:
    """What an export needs of a TrainedAgent, with a network that has not been trained."""

    def __init__(self, net, tmp_path):
        self.policy = GreedyPolicy(net)
        self.env_id = "CartPole-v1"
        self.run = self.file = tmp_path

    def make_env(self):
        return make_env(self.env_id)


def states_of(space, count=1000):
    """Random states; each mask allows at least one action."""
    rng = np.random.default_rng(1)
    if space is IMAGE:
        # Coarse blocks, because an untrained network takes the same action in all pictures of noise.
        return rng.integers(0, 256, (count, 4, 4, 4), np.uint8).repeat(21, axis=2).repeat(21, axis=3)
    plain = space.plain if isinstance(space, MaskedBox) else space
    states = rng.uniform(-1, 1, (count, *plain.shape)).astype(np.float32)
    if plain is space:
        return states
    masks = rng.random((count, 7)) < 0.4
    masks[np.arange(count), rng.integers(7, size=count)] = True
    return np.stack([append_mask(state, mask) for state, mask in zip(states, masks, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("rainbow", MASKED_BOARD),
        ("fast ppo", IMAGE),
        *(pytest.param(name, IMAGE, marks=pytest.mark.long) for name in ("basic", "normalising", "ppo")),
    ],
)
def test_actions_are_equal_on_many_states(tmp_path, name, space):
    pytest.importorskip("onnxruntime")
    states = states_of(space, 250 if space is IMAGE else 1000)
    net = make_net(name, space, states)
    assert export.export(Agent(net, tmp_path), tmp_path / "export", states) < 1e-5
    expected = GreedyPolicy(net)(states)
    exported = export.load_onnx(tmp_path / "export" / "policy.onnx")
    assert np.array_equal(exported(states)[0], expected)
    assert np.array_equal(exported(states[:1])[0], expected[:1])
    assert len(set(expected.tolist())) > 1
    _, allowed = MaskSplitter(space)(torch.from_numpy(states))
    if allowed is not None:
        assert allowed[np.arange(len(states)), expected].all()
        unmasked = exported(np.where(np.isin(states, (0, 1)), 1, states).astype(np.float32))[0]
        assert not np.array_equal(unmasked, expected)


def act_worst(policy, states):
    scores = policy.net(states)
    return scores.argmin(1), scores


@pytest.mark.slow
def test_an_export_that_acts_differently_is_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export.ExportedPolicy, "forward", act_worst)
    with pytest.raises(Fault, match=r"takes another action .* in 50 of 50 states"):
        export.export(Agent(NETWORKS["basic"](VECTOR), tmp_path), tmp_path / "export", states_of(VECTOR, 50))
    assert not (tmp_path / "export").exists()


def test_actions_may_differ_between_equal_scores_only():
    class Original:
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


@pytest.mark.slow
def test_a_network_that_cannot_be_exported_is_explained_and_leaves_no_folder(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(UsageError, match=r"cannot be exported: .* number of states in a batch"):
        export.export(Agent(OfBatch(VECTOR, 7), tmp_path), tmp_path / "export", states_of(VECTOR))
    assert not (tmp_path / "export").exists()


@pytest.mark.slow
def test_the_description_says_how_observations_become_states_and_actions_are_counted(tmp_path):
    pytest.importorskip("onnxruntime")
    agent = Agent(NETWORKS["ppo"](VECTOR), tmp_path)
    agent.env_id = "fakes:Board-v0"
    agent.make_env = lambda: make_env("fakes:Seventh-v0")
    export.export(agent, tmp_path, states_of(VECTOR, 10))
    described = json.loads((tmp_path / "policy.json").read_text())
    assert described["observation_space"] == "Box(-2, 2, (9, 8), int8)"
    assert described["state"] == {"shape": [5], "dtype": "float32"}
    assert (described["scores"], described["checked_states"]) == ("probability", 10)
    assert (described["first_action"], described["actions"][0]) == (7, "7")
    assert described["conversions"] == conversions(make_env("fakes:Seventh-v0"))
