"""Exported policies take the actions of the original."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_model
from lib.analysis import export
from lib.envs.masks import MaskedBox, append_mask
from lib.envs.single_env import conversions, make_env
from lib.errors import Fault
from lib.run.policy import GreedyPolicy

VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
BOARD = spaces.Box(-1.0, 1.0, (2, 6, 7), np.float32)
VECTORS = np.random.default_rng(1).uniform(-1, 1, (50, 5)).astype(np.float32)


def agent(net, folder):
    """What an export needs of a TrainedAgent, with a network that has not been trained."""
    env_id = "fakes:Seventh-v0"
    return SimpleNamespace(
        policy=GreedyPolicy(net), env_id=env_id, make_env=lambda: make_env(env_id), run=folder, file=folder
    )


def rainbow():
    """A network of distributions, boards with masks of legal actions, and the masks."""
    rng = np.random.default_rng(1)
    masks = rng.random((1000, 7)) < 0.4
    masks[np.arange(1000), rng.integers(7, size=1000)] = True
    boards = rng.uniform(-1, 1, (1000, *BOARD.shape)).astype(np.float32)
    states = np.stack([append_mask(board, mask) for board, mask in zip(boards, masks, strict=True)])
    support = (-2.0, 2.0, 51)
    return dqn_model.DQN(MaskedBox(BOARD, 7), 7, dueling=True, sigma=0.5, support=support), states, masks


@pytest.mark.slow
def test_actions_are_equal_on_many_states(tmp_path):
    pytest.importorskip("onnxruntime")
    torch.manual_seed(1)
    net, states, masks = rainbow()
    assert export.export(agent(net, tmp_path), tmp_path / "export", states) < 1e-5
    described = json.loads((tmp_path / "export" / "policy.json").read_text())
    assert described["observation_space"] == "Box(-1.0, 1.0, (6,), float64)"
    assert described["state"] == {"shape": list(states.shape[1:]), "dtype": "float32"}
    assert (described["scores"], described["checked_states"]) == ("Q", 1000)
    assert (described["first_action"], described["actions"][0]) == (7, "7")
    assert described["conversions"] == conversions(make_env("fakes:Seventh-v0"))
    expected = GreedyPolicy(net)(states)
    exported = export.load_onnx(tmp_path / "export" / "policy.onnx")
    assert np.array_equal(exported(states)[0], expected)
    assert np.array_equal(exported(states[:1])[0], expected[:1])
    assert len(set(expected.tolist())) > 1
    assert masks[np.arange(len(states)), expected].all()


@pytest.mark.slow
def test_an_export_that_acts_differently_is_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(
        export.ExportedPolicy, "forward", lambda policy, states: (states[:, 0].long(), policy.net(states))
    )
    with pytest.raises(Fault, match=r"takes another action .* of 50 states"):
        export.export(agent(dqn_model.DQN(VECTOR, 7), tmp_path), tmp_path / "export", VECTORS)
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
