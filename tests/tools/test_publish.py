"""tools/publish.py and tools/export.py, and --init with a model or run."""

import json
from pathlib import Path

import numpy as np
import pytest

from lib.analysis.export import load_onnx
from lib.analysis.trained_agent import TrainedAgent
from lib.run import checkpoint
from running import BASELINE, SHOWN, SMALL_DQN, SMALL_PPO, contents, differences, folder, resuming

pytestmark = pytest.mark.slow

PUBLISH, EVALUATE, EXPORT = (Path(f"tools/{name}.py") for name in ("publish", "evaluate", "export"))
PPO = Path("distributed/01_ppo.py")


def first_weights(run, network="net"):
    """Return the weights in the first of a run's checkpoints, without PPO's value head, which follows the returns."""
    net = checkpoint.load(min((run / "checkpoints").glob("step-*.pt")))[network]
    return {name: value for name, value in net.items() if name.endswith("weight") and not name.startswith("value")}


def test_a_model_holds_the_best_network_and_a_card(answer, refused, original_run, tmp_path):
    model = tmp_path / "models/well shown"
    answer(PUBLISH, original_run, model, *SHOWN, "--episodes", 10)
    [published] = (model / "checkpoints").glob("*.pt")
    [best] = (original_run / "checkpoints").glob("best-*.pt")
    content = checkpoint.load(published)
    assert set(content) == {"net"}
    assert differences(content["net"], checkpoint.load(best)["net"]) == []
    evaluation = json.loads((model / "evaluation.json").read_text())
    card = (model / "README.md").read_text()
    assert f"**{evaluation['mean']:.2f}**" in card
    assert "    tools/play.py 'path/to/well shown' --env-id fakes:Shown-v0\n" in card
    again = model.parent / "again.json"
    answer(EVALUATE, model, *SHOWN, "--episodes", 10, "--output", again)
    assert json.loads(again.read_text())["returns"] == evaluation["returns"]
    before = contents(model)
    assert f"{model} exists; remove it, or give a new folder" in refused(PUBLISH, original_run, model, *SHOWN)
    assert f"Start a new run from its network with --init '{model}'" in refused(PPO, *resuming(model))
    assert contents(model) == before


@pytest.mark.parametrize(("script", "small"), [(BASELINE, SMALL_DQN), (PPO, SMALL_PPO)])
def test_a_run_starts_with_the_weights_of_another(answer, tmp_path, script, small):
    def start(name, seed, *options):
        # The learning rate is too small to change a weight, so the first checkpoint has the first weights.
        options += (*small, "--set", "learning_rate=1e-30", "--stop-after", 256, "--quiet", "--seed", seed)
        answer(script, "--env-id", "fakes:Chain-v0", *options, "--runs-dir", tmp_path / name)
        return folder(tmp_path / name)

    first = start("first", 1)
    other, begun = start("other", 2), start("begun", 2, "--init", first)
    assert differences(first_weights(begun), first_weights(first)) == []
    assert differences(first_weights(other), first_weights(first)) != []
    if script == BASELINE:
        assert differences(first_weights(begun, "target"), first_weights(first)) == []
    assert "-init" in begun.name


def test_the_exported_policy_plays_the_run_s_actions_and_replaces_no_other(answer, refused, trained_run):
    pytest.importorskip("onnxruntime")
    output = answer(EXPORT, trained_run, *SHOWN)
    target = trained_run / "export"
    assert f"{target / 'policy.onnx'}: same actions in 1,000 states" in output
    shape = json.loads((target / "policy.json").read_text())["state"]["shape"]
    states = np.random.default_rng(1).integers(0, 256, (64, *shape)).astype(np.uint8)
    agent = TrainedAgent(trained_run, env_id="fakes:Shown-v0")
    assert np.array_equal(load_onnx(target / "policy.onnx")(states)[0], agent.policy(states))
    before = contents(target)
    message = refused(EXPORT, trained_run, *SHOWN)
    assert f"{target / 'policy.onnx'} exists; remove it, or give another folder by --output" in message
    assert contents(target) == before
