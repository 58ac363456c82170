"""Trained agents: networks are rebuilt from what their runs have recorded, and checkpoints are found."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib import dqn_model
from lib.analysis.trained_agent import TrainedAgent, recorded_network
from lib.errors import UsageError
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.run.checkpoint import find_checkpoint
from lib.run.folder import describe_network
from lib.run.policy import GreedyPolicy
from running import PROJECT, assignments, folder, trusting

EVALUATE, PUBLISH = Path("tools/evaluate.py"), Path("tools/publish.py")
IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
NETWORKS = {
    "rainbow": (dqn_model.DQN(IMAGE, 6, dueling=True, sigma=0.1, support=(-2.0, 2.0, 5), dtype=torch.bfloat16), IMAGE),
    "noisy": (dqn_model.DQN(VECTOR, 6, sigma=0.017, noise="independent"), VECTOR),
    "normalising": (dqn_model.DQN(VECTOR, 6, normalise=True), VECTOR),
    "ppo": (Model(VECTOR, 6), VECTOR),
    "fast ppo": (FastModel(IMAGE, 6, torch.bfloat16), IMAGE),
}


@pytest.mark.parametrize(("net", "space"), NETWORKS.values(), ids=NETWORKS)
def test_a_network_is_rebuilt_from_what_its_run_has_recorded(net, space):
    states = np.stack([space.sample() for _ in range(5)])
    if not isinstance(net, Model):
        net.normalise_by(torch.from_numpy(states))
    recorded = json.loads(json.dumps(describe_network(net)))
    rebuilt = recorded_network(Path("run"), recorded)(space, 6)
    rebuilt.load_state_dict(net.state_dict())
    assert json.loads(json.dumps(describe_network(rebuilt))) == recorded
    scores = GreedyPolicy(net).scores(states)
    tolerance = 0.05 if space is IMAGE else 1e-6  # images are encoded in bfloat16, and the rebuilt one's in float32
    assert np.allclose(GreedyPolicy(rebuilt).scores(states), scores, atol=tolerance)
    assert not np.allclose(scores[0], scores[1], atol=1e-9)


@pytest.mark.parametrize("kind", ["foreign:Net", "lib.run.folder:describe", "lib.ppo.model:nn"])
def test_only_networks_of_lib_are_built_and_no_other_module_is_imported(tmp_path, monkeypatch, kind):
    (tmp_path / "foreign.py").write_text("raise AssertionError('code of a run folder was run')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"run has the network {kind}, which this version of lib does not have"):
        recorded_network(Path("run"), {"class": kind, "options": {}})


NETWORK = """
class Scaled(dqn_model.DQN):
    def forward(self, states):
        return super().forward(-states)


def train("""


@pytest.mark.slow
def test_a_run_with_its_own_network_is_played_with_that_network_or_not_at_all(answer, refused, tmp_path):
    """The network has the parent's weights, but gives other values."""
    script, text = tmp_path / "10_scaled.py", (PROJECT / "chapter08/01_dqn_basic.py").read_text()
    script.write_text(text.replace("dqn_model.DQN(", "Scaled(").replace("\ndef train(", NETWORK))
    short = assignments("replay_initial=60", "replay_size=400", "batch_size=4", "max_steps=108", "stop_reward=none")
    output = answer(script, "--env-id", "fakes:Vector-v0", *short, "--quiet", "--runs-dir", tmp_path / "runs")
    run = folder(tmp_path / "runs")
    option = f"--network {script}:Scaled"
    assert re.search(rf"tools/play.py \S*{run.name} .*--network \S*10_scaled.py:Scaled +#", output)
    assert f"has a network of its own. Add {option}, which" in refused(EVALUATE, run, *trusting(run))
    assert "Evaluation: mean return" in answer(EVALUATE, run, *trusting(run), *option.split(), "--episodes", 1)
    model = tmp_path / "model"
    answer(PUBLISH, run, model, *trusting(run), *option.split(), "--checkpoint", "last", "--episodes", 1)
    assert f"{model.name} --env-id fakes:Vector-v0 --network" in (model / "README.md").read_text()


@pytest.mark.slow
def test_a_function_may_build_the_network_and_wrong_use_is_explained(original_run, tmp_path):
    def agent(name):
        return TrainedAgent(original_run, env_id="fakes:Shown-v0", network=f"{tmp_path / name}")

    (tmp_path / "mine.py").write_text("from lib.ppo.model import Model as net\n\ndef other(space):\n    pass\n")
    assert isinstance(agent("mine.py:net").policy.net, Model)
    for name, message in (
        ("missing.py:net", "give a file that exists"),
        ("mine.py:wrong", "has no class or function 'wrong'"),
        ("mine.py:other", "takes 1 positional .* is called with the observation space and the number of actions"),
    ):
        with pytest.raises(UsageError, match=message):
            agent(name)


def test_a_checkpoint_is_found_by_kind_or_step(tmp_path):
    with pytest.raises(UsageError, match="has no checkpoint"):
        find_checkpoint(tmp_path, "best")
    (tmp_path / "checkpoints").mkdir()
    for name in ("best-000000300.pt", "step-000000400.pt", "step-000000500.pt", "step-mine.pt", "step-000000600.tmp"):
        (tmp_path / "checkpoints" / name).touch()
    found = [find_checkpoint(tmp_path, which).stem for which in ("best", "last", "400", "300")]
    assert found == ["best-000000300", "step-000000500", "step-000000400", "best-000000300"]
    with pytest.raises(UsageError, match="'700'; give one of 300, 400, 500, last, best"):
        find_checkpoint(tmp_path, "700")
    (tmp_path / "checkpoints" / "best-000000300.pt").unlink()
    assert find_checkpoint(tmp_path, "best").stem == "step-000000500"
