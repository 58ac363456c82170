"""The scalars and images that scripts write are those of tests/golden/tags.csv."""

import csv
import json
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from lib.run.tensorboard import LAYOUT
from running import PROJECT, assignments, folder, run, two_at_a_time

pytestmark = pytest.mark.slow

CHAIN = ("--env-id", "fakes:Chain-v0", *assignments("replay_initial=200", "replay_size=2000"))
SMALL = ("--env-id", "fakes:Shown-v0", *assignments("envs=4", "rollout=16", "minibatch=32", "kl_final=0.001"))
SMALL += (*assignments("stop_reward=9"), "--stop-after", 640, "--record-every", 30)
# Together these runs write every tag.
RUNS = {
    "chapter09/01_baseline": (*CHAIN, "--stop-after", 310, "--evaluate-every", 50),
    "chapter09/03_parallel": (*CHAIN, "--set", "batch_size=8", "--replay-ratio", 8, "--stop-after", 700),
    "chapter09/05_native_envs": (*CHAIN, "--envs", 4, "--stop-after", 700),
    "chapter08/03_dqn_double": (*CHAIN, "--stop-after", 310),
    "chapter08/06_dqn_dueling": (*CHAIN, "--stop-after", 310),
    "chapter08/08_dqn_rainbow": (*CHAIN, "--stop-after", 310),
    "distributed/01_ppo": SMALL,
    "distributed/02_ppo_actors": SMALL,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Run each script, and return {script: (run folder, EventAccumulator)}."""

    def run_script(script):
        runs_dir = tmp_path_factory.mktemp("metrics")
        process = run(Path(f"{script}.py"), *RUNS[script], "--quiet", "--runs-dir", runs_dir)
        assert process.returncode == 0, process.stderr
        accumulator = EventAccumulator(str(folder(runs_dir)))
        accumulator.Reload()
        return folder(runs_dir), accumulator

    return two_at_a_time(tmp_path_factory, run_script, RUNS)


def expected():
    """Return {tag: whether every script writes it}. docs-check compares docs/metrics.md with the same file."""
    with (PROJECT / "tests" / "golden" / "tags.csv").open(newline="") as file:
        return {row["tag"]: row["everywhere"] == "1" for row in csv.DictReader(file)}


def test_the_scripts_write_the_expected_scalars(written):
    tags = {tag for _, accumulator in written.values() for tag in accumulator.Tags()["scalars"]}
    assert tags == set(expected())


def test_the_scripts_write_the_newest_video_as_an_image(written):
    tags = {tag for _, accumulator in written.values() for tag in accumulator.Tags()["images"]}
    assert tags == {"videos/last"}  # these runs are too short for the figures


def test_every_script_writes_the_common_scalars(written):
    everywhere = {tag for tag, is_common in expected().items() if is_common}
    assert len(everywhere) > 10
    for script, (_, accumulator) in written.items():
        assert everywhere <= set(accumulator.Tags()["scalars"]), script


def test_the_charts_of_the_custom_scalars_page_have_data(written):
    tags = {tag for _, accumulator in written.values() for tag in accumulator.Tags()["scalars"]}
    shown = [tag for charts in LAYOUT.values() for _, patterns in charts.values() for tag in patterns]
    assert all(any(re.fullmatch(pattern, tag) for tag in tags) for pattern in shown)
    _, accumulator = written["distributed/01_ppo"]
    [event] = accumulator.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    assert {category.title for category in layout.category} == set(LAYOUT)


def test_the_hparams_page_has_the_hyperparameters_and_the_result(written):
    path, accumulator = written["distributed/02_ppo_actors"]
    content = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["rollout"].number_value == 16
    assert hparams["engine"].string_value == "process"
    assert hparams["script"].string_value == "02_ppo_actors"
    result = json.loads((path / "result.json").read_text())
    [event] = accumulator.Scalars("final/mean_100")
    assert (event.step, event.value) == (result["steps"], pytest.approx(result["mean_100"]))
