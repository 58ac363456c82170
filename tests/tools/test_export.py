"""tools/export.py on a short run."""

import json
from pathlib import Path

import numpy as np
import pytest

from lib.analysis.export import load_onnx
from lib.analysis.trained_agent import TrainedAgent
from running import SHOWN, contents

pytestmark = pytest.mark.slow


def test_the_exported_policy_plays_the_run_s_actions_and_replaces_no_other(answer, refused, trained_run):
    pytest.importorskip("onnxruntime")
    output = answer(Path("tools/export.py"), trained_run, *SHOWN)
    folder = trained_run / "export"
    assert f"{folder / 'policy.onnx'}: same actions in 1,000 states" in output
    assert {path.name for path in folder.iterdir()} == {"policy.onnx", "policy.json"}
    shape = json.loads((folder / "policy.json").read_text())["state"]["shape"]
    states = np.random.default_rng(1).integers(0, 256, (64, *shape)).astype(np.uint8)
    agent = TrainedAgent(trained_run, env_id="fakes:Shown-v0")
    assert np.array_equal(load_onnx(folder / "policy.onnx")(states)[0], agent.policy(states))
    before = contents(folder)
    message = refused(Path("tools/export.py"), trained_run, *SHOWN)
    assert f"{folder / 'policy.onnx'} exists; remove it, or give another folder by --output" in message
    assert contents(folder) == before
