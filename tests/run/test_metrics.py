"""The scalars that scripts write are those of tests/golden/tags.csv."""

import csv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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
    """Run each script, and return {script: EventAccumulator}."""

    def run_script(script):
        runs_dir = tmp_path_factory.mktemp("metrics")
        process = run(Path(f"{script}.py"), *RUNS[script], "--quiet", "--runs-dir", runs_dir)
        assert process.returncode == 0, process.stderr
        accumulator = EventAccumulator(str(folder(runs_dir)))
        accumulator.Reload()
        return accumulator

    return two_at_a_time(tmp_path_factory, run_script, RUNS)


def expected():
    """Return {tag: whether every script writes it}. docs-check compares docs/metrics.md with the same file."""
    with (PROJECT / "tests" / "golden" / "tags.csv").open(newline="") as file:
        return {row["tag"]: row["everywhere"] == "1" for row in csv.DictReader(file)}


def test_the_scripts_write_the_expected_scalars(written):
    tags = {script: set(accumulator.Tags()["scalars"]) for script, accumulator in written.items()}
    assert set().union(*tags.values()) == set(expected())
    everywhere = {tag for tag, is_common in expected().items() if is_common}
    assert len(everywhere) > 10
    assert {script: everywhere - own for script, own in tags.items() if everywhere - own} == {}
