"""Exported policies take the actions of the original, on states of every kind."""

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_extra, dqn_model
from lib.analysis import export
from lib.envs.masks import MaskedBox, append_mask
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
        ("ppo", MASKED_VECTOR),
        ("basic", VECTOR),
        *(pytest.param(name, IMAGE, marks=pytest.mark.long) for name in NETWORKS if name != "fast ppo"),
        *(pytest.param(name, MASKED_BOARD, marks=pytest.mark.long) for name in ("ppo", "fast ppo")),
    ],
)
def test_actions_are_equal_on_many_states(tmp_path, name, space):
    pytest.importorskip("onnxruntime")
    states = states_of(space, 250 if space is IMAGE else 1000)
    net = make_net(name, space, states)
    files = export.export(Agent(net, tmp_path), tmp_path / "export", (export.ONNX, export.TORCHSCRIPT), states)
    assert {file.name for file in files} == {"policy.onnx", "policy.pt"}
    assert max(files.values()) < 1e-5
    # The files alone, without the project's networks.
    expected = GreedyPolicy(net)(states)
    exported = export.load_onnx(tmp_path / "export" / "policy.onnx")
    assert np.array_equal(exported(states)[0], expected)
    assert np.array_equal(exported(states[:1])[0], expected[:1])
    with torch.no_grad():
        actions, _ = torch.jit.load(tmp_path / "export" / "policy.pt")(torch.from_numpy(states))
    assert np.array_equal(actions.numpy(), expected)
    assert len(set(expected.tolist())) > 1
    _, allowed = MaskSplitter(space)(torch.from_numpy(states))
    if allowed is not None:
        assert allowed[np.arange(len(states)), expected].all()
        unmasked = exported(np.where(np.isin(states, (0, 1)), 1, states).astype(np.float32))[0]
        assert not np.array_equal(unmasked, expected)


def act_worst(policy, states):
    scores = policy.net(states)
    return scores.argmin(1), scores


def test_an_export_that_acts_differently_is_not_kept(tmp_path, monkeypatch):
    net, states = NETWORKS["basic"](VECTOR), states_of(VECTOR, 50)
    agent = Agent(net, tmp_path)
    monkeypatch.setattr(export.ExportedPolicy, "forward", act_worst)
    with pytest.raises(Fault, match=r"policy\.pt takes another action .* in 50 of 50 states"):
        export.export(agent, tmp_path / "export", (export.TORCHSCRIPT,), states)
    assert not (tmp_path / "export").exists()


def test_all_files_of_an_export_belong_to_one_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_write_onnx", lambda policy, states, file: export._trace(policy, states, file))
    agent, states = Agent(NETWORKS["basic"](VECTOR), tmp_path), states_of(VECTOR, 50)
    folder = tmp_path / "export"
    export.export(agent, folder, (export.ONNX, export.TORCHSCRIPT), states)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 3
    compare = export.compare
    monkeypatch.setattr(export, "compare", lambda *values: compare(*values) if "onnx" in values[-1] else fail())
    with pytest.raises(Fault, match="another action"):
        export.export(Agent(NETWORKS["basic"](VECTOR), tmp_path), folder, (export.ONNX, export.TORCHSCRIPT), states)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    export.export(agent, folder, (export.ONNX,), states)
    assert sorted(path.name for path in folder.iterdir()) == ["policy.json", "policy.onnx"]


def fail():
    raise Fault("another action")


def test_actions_may_differ_between_equal_scores_only():
    class Original:
        def scores(self, states):
            return np.array([[1.0, 1.0 + 1e-7, 0.5]] * len(states), np.float32)

    def takes(action):
        return lambda states: (np.full(len(states), action), Original().scores(states))

    states = np.zeros((250, 1), np.float32)
    assert export.compare(Original(), takes(0), states, "x") == 0.0
    with pytest.raises(Fault, match="250 of 250"):
        export.compare(Original(), takes(2), states, "x")


def test_scores_that_are_not_finite_are_no_equal_ones():
    class Original:
        def scores(self, states):
            return np.zeros((len(states), 2), np.float32)

    with pytest.raises(Fault, match="3 of 3"):
        export.compare(
            Original(), lambda states: (np.zeros(3, int), np.full((3, 2), np.nan)), np.zeros((3, 1), np.float32), "x"
        )


def test_missing_packages_are_reported(monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(
        UsageError, match=r"needs onnxscript; run pip install -e '/.*\[export\]', or add --format torchscript"
    ):
        export.require_packages((export.ONNX,))
    export.require_packages((export.TORCHSCRIPT,))


def test_the_description_names_the_actions_and_the_state(tmp_path):
    states = states_of(VECTOR, 10)
    export.export(Agent(NETWORKS["ppo"](VECTOR), tmp_path), tmp_path, (export.TORCHSCRIPT,), states)
    description = json.loads((tmp_path / "policy.json").read_text())
    assert description["state"] == {"shape": [5], "dtype": "float32"}
    assert description["scores"] == "probability"
    assert description["checked_states"] == 10
    assert description["first_action"] == 0


def test_the_description_of_actions_that_start_at_another_number_has_that_number(tmp_path):
    agent = Agent(NETWORKS["ppo"](VECTOR), tmp_path)
    agent.make_env = lambda: make_env("fakes:Seventh-v0")
    export.export(agent, tmp_path, (export.TORCHSCRIPT,), states_of(VECTOR, 10))
    description = json.loads((tmp_path / "policy.json").read_text())
    assert description["first_action"] == 7
    assert description["actions"][0] == "7"


@pytest.mark.parametrize("kind", export.FILES)
def test_a_network_that_cannot_be_exported_is_explained_and_leaves_no_folder(tmp_path, kind):
    agent = Agent(OfBatch(VECTOR, 7), tmp_path)
    with pytest.raises(UsageError, match=r"cannot be exported as policy\.\w+: .* number of states in a batch"):
        export.export(agent, tmp_path / "export", (kind,), states_of(VECTOR))
    assert not (tmp_path / "export").exists()


def test_the_description_says_how_observations_become_states(tmp_path):
    agent = Agent(NETWORKS["basic"](VECTOR), tmp_path)
    agent.env_id = "fakes:Board-v0"
    export.export(agent, tmp_path / "export", (export.TORCHSCRIPT,), states_of(VECTOR, 50))
    described = json.loads((tmp_path / "export" / "policy.json").read_text())
    assert described["observation_space"] == "Box(-2, 2, (9, 8), int8)"
    assert described["conversions"] == ["float32, divided by 2", "an axis of length 1 in front"]
