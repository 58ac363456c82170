"""Trained agents: checkpoints are found, and networks are rebuilt from their weights."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import fakes
from finished_runs import edit_params
from lib import dqn_model
from lib.analysis.trained_agent import TrainedAgent, build_network
from lib.errors import UsageError
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.checkpoint import find_checkpoint
from lib.run.folder import describe_network
from lib.run.policy import GreedyPolicy

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
SUPPORT = (-2.0, 2.0, 5)


NETWORKS = {
    "basic": lambda space: dqn_model.DQN(space.shape, 6),
    "bfloat16": lambda space: dqn_model.DQN(space.shape, 6, dtype=torch.bfloat16),
    "dueling": lambda space: dqn_model.DQN(space.shape, 6, dueling=True),
    "two whole streams": lambda space: dqn_model.DQN(space.shape, 6, dueling=True, hidden=512),
    "noisy": lambda space: dqn_model.DQN(space.shape, 6, sigma=0.5),
    "independent noise": lambda space: dqn_model.DQN(space.shape, 6, sigma=0.017, noise="independent"),
    "distributional": lambda space: dqn_model.DQN(space.shape, 6, support=SUPPORT),
    "rainbow, bfloat16": lambda space: dqn_model.DQN(
        space.shape, 6, dueling=True, sigma=0.1, support=SUPPORT, dtype=torch.bfloat16
    ),
    "normalising": lambda space: dqn_model.DQN(space.shape, 6, normalise=True),
    "normalising rainbow": lambda space: dqn_model.DQN(space.shape, 6, dueling=True, sigma=0.1, normalise=True),
    "ppo": lambda space: Model(space, 6),
    "fast ppo": lambda space: FastModel(space, 6),
}


def states_of(space):
    rng = np.random.default_rng(0)
    if space is IMAGE:
        return rng.integers(0, 256, (5, *space.shape)).astype(np.uint8)
    return rng.normal(size=(5, *space.shape)).astype(np.float32)


@pytest.mark.parametrize("space", [IMAGE, VECTOR], ids=["image", "vector"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_rebuilt_from_its_weights(name, space):
    torch.manual_seed(1)
    net, states = NETWORKS[name](space), states_of(space)
    if name == "fast ppo" or name.startswith("normalising"):
        net.normalise_by(torch.from_numpy(states))
    rebuilt = build_network(net.state_dict(), space, 6)
    assert describe_network(rebuilt) == describe_network(net)
    scores = GreedyPolicy(net).scores(states)
    assert scores.shape == (5, 6)
    tolerance = 0.05 if "bfloat16" in name else 1e-6  # the rebuilt network computes in float32
    assert np.allclose(GreedyPolicy(rebuilt).scores(states), scores, atol=tolerance)
    assert not np.allclose(scores[0], scores[1], atol=1e-9)


def test_weights_of_a_foreign_network_are_refused():
    with pytest.raises(RuntimeError):
        build_network({"layer.weight": torch.zeros(2, 2)}, IMAGE, 6)


@pytest.mark.slow
def test_an_error_of_the_environment_is_not_taken_for_another_version(original_run, monkeypatch):
    def reset(*args, **options):
        raise KeyError("level_7")

    monkeypatch.setattr(fakes.Shown, "reset", reset)
    with pytest.raises(KeyError, match="level_7"):
        TrainedAgent(original_run, env_id="fakes:Shown-v0")


@pytest.mark.slow
def test_a_run_whose_script_imported_the_module_itself_needs_the_module(trained_run):
    edit_params(trained_run, lambda params: params["hyperparameters"].update(env_name="Shown-v0"))
    assert TrainedAgent(trained_run, env_id="fakes:Shown-v0").env_id == "fakes:Shown-v0"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for name in ("best-000000300.pt", "step-000000400.pt", "step-000000500.pt", "step-mine.pt", "step-000000600.tmp"):
        (tmp_path / "checkpoints" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("which", "name"),
    [("best", "best-000000300"), ("last", "step-000000500"), ("400", "step-000000400"), ("300", "best-000000300")],
)
def test_a_checkpoint_is_found_by_kind_or_step(run, which, name):
    assert find_checkpoint(run, which).stem == name


def test_without_a_best_checkpoint_the_newest_is_used(run):
    (run / "checkpoints" / "best-000000300.pt").unlink()
    assert find_checkpoint(run, "best").stem == "step-000000500"


@pytest.mark.parametrize("which", ["700", "worst", "-1", "²"])
def test_an_unknown_checkpoint_is_refused_with_a_list_of_those_available(run, which):
    with pytest.raises(UsageError, match=f"'{which}'; give one of 300, 400, 500, last, best"):
        find_checkpoint(run, which)


def test_a_run_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no checkpoint"):
        find_checkpoint(tmp_path, "best")
