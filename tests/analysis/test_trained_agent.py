"""Trained agents: networks are rebuilt from what their runs have recorded, and checkpoints are found."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from gymnasium import spaces

import fakes
from finished_runs import edit_params
from lib import dqn_model
from lib.analysis.trained_agent import TrainedAgent, recorded_network
from lib.errors import UsageError
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.checkpoint import find_checkpoint
from lib.run.folder import describe_network
from lib.run.policy import GreedyPolicy
from running import CATCH, assignments, folder, trusting

EVALUATE, PUBLISH = Path("tools/evaluate.py"), Path("tools/publish.py")
PARENT = Path(__file__).parents[2] / "chapter08/01_dqn_basic.py"
NETWORK = """
class Scaled(dqn_model.DQN):
    def forward(self, states):
        return super().forward(-states)


def train("""

IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
SUPPORT = (-2.0, 2.0, 5)

NETWORKS = {
    "basic": lambda space: dqn_model.DQN(space, 6),
    "two whole streams": lambda space: dqn_model.DQN(space, 6, dueling=True, hidden=512),
    "independent noise": lambda space: dqn_model.DQN(space, 6, sigma=0.017, noise="independent"),
    "rainbow, bfloat16": lambda space: dqn_model.DQN(
        space, 6, dueling=True, sigma=0.1, support=SUPPORT, dtype=torch.bfloat16
    ),
    "normalising": lambda space: dqn_model.DQN(space, 6, normalise=True),
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
def test_a_network_is_rebuilt_from_what_its_run_has_recorded(name, space):
    torch.manual_seed(1)
    net, states = NETWORKS[name](space), states_of(space)
    if name in ("fast ppo", "normalising"):
        net.normalise_by(torch.from_numpy(states))
    recorded = json.loads(json.dumps(describe_network(net)))
    rebuilt = recorded_network(Path("run"), recorded)(space, 6)
    rebuilt.load_state_dict(net.state_dict())
    assert json.loads(json.dumps(describe_network(rebuilt))) == recorded
    scores = GreedyPolicy(net).scores(states)
    assert scores.shape == (5, 6)
    tolerance = 0.05 if "bfloat16" in name else 1e-6  # the rebuilt network computes in float32
    assert np.allclose(GreedyPolicy(rebuilt).scores(states), scores, atol=tolerance)
    assert not np.allclose(scores[0], scores[1], atol=1e-9)


@pytest.mark.parametrize(
    "kind", ["foreign:Net", "lib.run.folder:describe", "lib.ppo.model:nn", "lib.ppo.none:Net", "Model"]
)
def test_only_networks_of_lib_are_built_and_no_other_module_is_imported(tmp_path, monkeypatch, kind):
    (tmp_path / "foreign.py").write_text("raise AssertionError('code of a run folder was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"run has the network {kind}, which this version of lib does not have"):
        recorded_network(Path("run"), {"class": kind, "options": {}})


@pytest.fixture
def script(tmp_path):
    """A copy of 01_dqn_basic.py whose network has the parent's weights, but gives other values."""
    text = PARENT.read_text().replace("dqn_model.DQN(", "Scaled(").replace("\ndef train(", NETWORK)
    path = tmp_path / "10_scaled.py"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_a_run_with_its_own_network_is_played_with_that_network_or_not_at_all(answer, refused, script, tmp_path):
    limits = assignments("max_steps=1000", "stop_reward=none")
    output = answer(script, *CATCH, *limits, "--quiet", "--runs-dir", tmp_path / "runs")
    run = folder(tmp_path / "runs")
    option = f"--network {script}:Scaled"
    assert re.search(rf"tools/play.py \S*{run.name} .*--network \S*10_scaled.py:Scaled +#", output)
    assert f"has a network of its own. Add {option}, which" in refused(EVALUATE, run, *trusting(run))
    own = TrainedAgent(run, "last", env_id="fakes:Catch-v0", network=f"{script}:Scaled")
    assert type(own.policy.net).__name__ == "Scaled"
    assert "Evaluation: mean return" in answer(
        EVALUATE, run, *trusting(run), *option.split(), "--epsilon", 0.5, "--episodes", 5
    )
    model = tmp_path / "model"
    answer(PUBLISH, run, model, *trusting(run), *option.split(), "--checkpoint", "last", "--episodes", 1)
    assert f"{model.name} --env-id fakes:Catch-v0 --network" in (model / "README.md").read_text()


class Outer:
    class Inner(torch.nn.Linear):
        pass


@pytest.mark.parametrize("net", [torch.nn.Sequential(torch.nn.Linear(3, 2)), Outer.Inner(3, 2)])
def test_a_network_without_a_class_of_its_own_is_built_by_a_function_of_the_script(monkeypatch, net):
    monkeypatch.setattr("sys.argv", ["/project/10_mine.py"])
    assert describe_network(net) == {"builder": "/project/10_mine.py:NAME"}


def test_a_network_of_a_notebooks_cell_has_to_be_moved_into_a_file_or_is_given_itself(monkeypatch, trained_run):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr("sys.argv", ["/project/launcher.py"])
    kind = type("Cell", (torch.nn.Linear,), {"__module__": "__main__"})
    assert describe_network(kind(3, 2)) == {"builder": "/project/launcher.py:NAME"}
    agent = TrainedAgent(trained_run, env_id="fakes:Shown-v0", network=lambda space, n_actions: Model(space, n_actions))
    expected = TrainedAgent(trained_run, env_id="fakes:Shown-v0").policy.net.state_dict()
    assert all(torch.equal(weights, expected[name]) for name, weights in agent.policy.net.state_dict().items())


FILE = """
from lib.ppo.model import Model

def net(space, n_actions):
    return Model(space, n_actions)

def other(space):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", "give a file that exists"),
        ("missing.py:net", "give a file that exists"),
        ("mine.py:wrong", "has no class or function 'wrong'"),
        ("mine.py:other", "takes 1 positional .* is called with the observation space and the number of actions"),
    ],
)
def test_a_function_may_build_the_network_and_wrong_use_is_explained(
    original_run, tmp_path, monkeypatch, name, message
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    assert isinstance(TrainedAgent(original_run, env_id="fakes:Shown-v0", network="mine.py:net").policy.net, Model)
    with pytest.raises(UsageError, match=message):
        TrainedAgent(original_run, env_id="fakes:Shown-v0", network=name)


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
