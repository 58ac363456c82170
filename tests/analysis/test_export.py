"""Exported policies take the actions of the original."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium import spaces

from lib import dqn_model
from lib.analysis import export
from lib.envs.masks import MaskedBox, append_mask
from lib.envs.single_env import conversions, make_env
from lib.errors import Fault
from lib.run.policy import GreedyPolicy

BOARD = spaces.Box(-1.0, 1.0, (2, 6, 7), np.float32)


def export_to(folder, net, states):
    """Export a network that has not been trained."""
    env_id = "fakes:Seventh-v0"
    agent = SimpleNamespace(
        policy=GreedyPolicy(net), env_id=env_id, make_env=lambda: make_env(env_id), run=folder, file=folder
    )
    return export.export(agent, folder, states)


@pytest.mark.slow
def test_actions_are_equal_on_many_boards_with_masks(tmp_path):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(1)
    masks = rng.random((1000, 7)) < 0.4
    masks[np.arange(1000), rng.integers(7, size=1000)] = True
    boards = rng.uniform(-1, 1, (1000, *BOARD.shape)).astype(np.float32)
    states = np.stack([append_mask(board, mask) for board, mask in zip(boards, masks, strict=True)])
    net = dqn_model.DQN(MaskedBox(BOARD, 7), 7, dueling=True, sigma=0.5, support=(-2.0, 2.0, 51))
    assert export_to(tmp_path / "export", net, states) < 1e-5
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
    assert masks[np.arange(len(states)), expected].all()


@pytest.mark.slow
def test_an_export_that_acts_differently_is_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "best_actions", lambda net, scores: scores.argmin(1))
    states = np.random.default_rng(1).uniform(-1, 1, (50, 5)).astype(np.float32)
    with pytest.raises(Fault, match=r"takes another action .* of 50 states"):
        export_to(tmp_path / "export", dqn_model.DQN((5,), 7), states)
    assert not (tmp_path / "export").exists()


def test_actions_may_differ_between_equal_scores_only():
    scores = np.array([[1.0, 1.0 + 1e-7, 0.5]] * 250, np.float32)
    original = Mock(score_name="Q", scores=lambda states: scores)

    def compare(action, factor=1.0):
        return export.compare(original, lambda states: (np.full(250, action), factor * scores), scores)

    assert compare(0) == 0.0
    for wrong in ((2,), (0, np.nan)):
        with pytest.raises(Fault, match="250 of 250"):
            compare(*wrong)
