"""The scalars and images that scripts write are those of tests/golden/tags.csv."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.hparams.backend_context import Context

from lib.run.tensorboard import LAYOUT
from running import PROJECT, SMALL_PPO, assignments, folder, run, two_at_a_time

pytestmark = pytest.mark.slow

CHAIN = ("--env-id", "fakes:Chain-v0", *assignments("replay_initial=200", "replay_size=2000"))
SMALL = ("--env-id", "fakes:Shown-v0", *SMALL_PPO)
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
    "distributed/03_ppo_actors": SMALL,
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


def test_every_chart_of_the_custom_scalars_page_has_data(written):
    shown = set()
    for script, (_, accumulator) in written.items():
        tags = accumulator.Tags()["scalars"]
        [event] = accumulator.Tensors("custom_scalars__config__")
        for category in layout_pb2.Layout.FromString(event.tensor_proto.string_val[0]).category:
            for chart in category.chart:
                patterns = [*chart.multiline.tag, *(series.value for series in chart.margin.series)]
                assert any(re.fullmatch(pattern, tag) for pattern in patterns for tag in tags), (script, chart.title)
                shown.add((category.title, chart.title))
    assert shown == {(category, chart) for category, charts in LAYOUT.items() for chart in charts}


def test_episodes_are_also_written_against_agent_steps(written):
    for path, accumulator in written.values():
        episodes = pd.read_csv(path / "episodes.csv")
        for tag, first in (("reward", 1), ("mean_100", 10)):
            by_episode, by_step = (accumulator.Scalars(f"{kind}/{tag}") for kind in ("episodes", "episodes_by_step"))
            assert [event.step for event in by_episode] == list(range(first, len(episodes) + 1))
            assert [event.value for event in by_step] == [event.value for event in by_episode]
            assert [event.step for event in by_step] == episodes["step"].cummax()[first - 1 :].tolist()


def test_the_hparams_page_shows_first_what_differs(written, tmp_path):
    """TensorBoard shows five columns and five metrics, in its own order."""
    for number, (path, _) in enumerate(written.values()):
        for file in path.glob("events.out.tfevents.*"):
            (tmp_path / str(number)).mkdir(exist_ok=True)
            shutil.copy(file, tmp_path / str(number))
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    flags = SimpleNamespace(generic_data="true")
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path)), flags=flags))
    request = RequestContext()
    metadata = context.hparams_metadata(request, "")
    experiment = context.experiment_from_metadata(request, "", True, metadata, [])
    columns = [info.name for info in experiment.hparam_infos]
    differing = [info.name for info in experiment.hparam_infos if info.differs]
    assert columns[:3] == differing[:3] == ["Learning rate", "Script", "batch_size"]  # all have the same seed
    assert differing == columns[: len(differing)]
    assert {"Seed", "rollout", "replay_size"} <= set(columns)  # of both kinds of runs
    metrics = [info.name.tag for info in experiment.metric_infos]
    assert metrics[:4] == ["end/best_mean", "end/mean_100", "end/seconds", "end/steps_per_second"]


def test_the_hparams_page_has_the_hyperparameters_and_the_result(written):
    path, accumulator = written["distributed/03_ppo_actors"]
    content = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["rollout"].number_value == 16
    assert hparams["engine"].string_value == "process"
    assert hparams["Script"].string_value == "03_ppo_actors"
    result = json.loads((path / "result.json").read_text())
    [event] = accumulator.Scalars("end/mean_100")
    assert (event.step, event.value) == (result["steps"], pytest.approx(result["mean_100"]))
