"""Runs whose script defines its own network: tools need the file that defines it."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gymnasium import spaces

from lib.analysis.own_network import build
from lib.analysis.trained_agent import TrainedAgent
from lib.errors import UsageError
from lib.ppo.model import Model
from lib.run.folder import describe_network
from running import CATCH, assignments, folder, trusting

EVALUATE, PUBLISH = Path("tools/evaluate.py"), Path("tools/publish.py")
PARENT = Path(__file__).parents[2] / "chapter08/01_dqn_basic.py"
NETWORK = """
class Scaled(dqn_model.DQN):
    def forward(self, states):
        return super().forward(-states)


def train("""


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
    assert f"has a network of its own, Scaled. Add {option}, which" in refused(EVALUATE, run, *trusting(run))
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
    assert describe_network(net)["builder"] == "/project/10_mine.py:NAME"


def test_a_network_of_a_notebooks_cell_has_to_be_moved_into_a_file_or_is_given_itself(monkeypatch, trained_run):
    cell = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", cell)
    monkeypatch.setattr("sys.argv", ["/project/launcher.py"])
    kind = type("Cell", (torch.nn.Linear,), {"__module__": "__main__"})
    assert describe_network(kind(3, 2)) == {"class": "Cell", "builder": "/project/launcher.py:NAME"}
    agent = TrainedAgent(trained_run, env_id="fakes:Shown-v0", network=lambda space, n_actions: Model(space, n_actions))
    expected = TrainedAgent(trained_run, env_id="fakes:Shown-v0").policy.net.state_dict()
    assert all(torch.equal(weights, expected[name]) for name, weights in agent.policy.net.state_dict().items())


FILE = """
def net(space, n_actions):
    import torch
    return torch.nn.Linear(space.shape[0], n_actions)

def other(space):
    pass

def none(space, n_actions):
    pass
"""


def test_a_function_may_build_the_network(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    net = build(f"{tmp_path / 'mine.py'}:net", spaces.Box(0, 1, (3,)), 5)
    assert net(torch.zeros(2, 3)).shape == (2, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine.py", "give a file and the name"),
        ("mine:net", "give a file and the name"),
        ("mine.py:", "give a file and the name"),
        ("missing.py:net", "there is no file missing.py"),
        ("mine.py:wrong", "has no class or function 'wrong'"),
        ("mine.py:other", "raised TypeError.* Name a function with these two parameters"),
        ("mine.py:none", "it returned NoneType"),
        ("broken.py:net", "fails to import: ZeroDivisionError"),
        ("unguarded.py:net", "fails to import: SystemExit"),
    ],
)
def test_wrong_use_is_explained(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    Path("broken.py").write_text("1 / 0")
    Path("unguarded.py").write_text("raise SystemExit(0)")
    with pytest.raises(UsageError, match=message):
        build(text, spaces.Box(0, 1, (3,)), 5)
