"""tools/export.py on a short run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lib.analysis.export import load_onnx
from lib.analysis.trained_agent import TrainedAgent
from running import SHOWN

pytestmark = pytest.mark.slow

EXPORT = Path("tools/export.py")


def test_the_exported_policy_plays_the_run_s_actions(answer, trained_run):
    pytest.importorskip("onnxruntime")
    output = answer(EXPORT, trained_run, *SHOWN)
    assert re.findall(r"policy\.\w+: same actions in 1,000 states", output) == [
        "policy.onnx: same actions in 1,000 states",
        "policy.pt: same actions in 1,000 states",
    ]
    folder = trained_run / "export"
    assert {path.name for path in folder.iterdir()} == {"policy.onnx", "policy.pt", "policy.json"}
    agent = TrainedAgent(trained_run, env_id="fakes:Shown-v0")
    shape = json.loads((folder / "policy.json").read_text())["state"]["shape"]
    states = np.random.default_rng(1).integers(0, 256, (64, *shape)).astype(np.uint8)
    assert np.array_equal(load_onnx(folder / "policy.onnx")(states)[0], agent.policy(states))


def test_files_of_the_user_are_not_replaced(answer, refused, original_run, tmp_path):
    export = (EXPORT, original_run, *SHOWN, "--format", "torchscript", "--states", 10, "--output", tmp_path)
    answer(*export)
    answer(*export)  # an export of its own is replaced
    (tmp_path / "policy.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert f"policy.pt, policy.json in {tmp_path} were not written by export.py; give another --output" in refused(
        *export
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_wrong_use_is_explained(refused, original_run, tmp_path):
    assert "--env-id fakes:Shown-v0" in refused(EXPORT, original_run)
    assert "invalid choice: 'keras'" in refused(EXPORT, original_run, *SHOWN, "--format", "keras")
