"""The scalars that scripts write are those of tests/golden/tags.csv."""

import csv
import json
from pathlib import Path

import pytest

from running import PROJECT, assignments, folder, tags_of

pytestmark = pytest.mark.slow

GOLDEN = PROJECT / "tests" / "golden"
CHAIN = ("--env-id", "fakes:Chain-v0", *assignments("replay_initial=200", "replay_size=2000"))
# Together with the golden runs, these scripts write every tag.
SCRIPTS = ("chapter08/03_dqn_double", "chapter08/06_dqn_dueling")


def test_the_scripts_write_the_expected_scalars(answer, tmp_path):
    tags = {name: set(run["tags"]) for name, run in json.loads((GOLDEN / "runs.json").read_text()).items()}
    for name in SCRIPTS:
        options = (*CHAIN, "--stop-after", 310, "--evaluate-every", 50, "--quiet")
        answer(Path(f"{name}.py"), *options, "--runs-dir", tmp_path / name)
        tags[name] = set(tags_of(folder(tmp_path / name)))
    with (GOLDEN / "tags.csv").open(newline="") as file:
        expected = {row["tag"]: row["everywhere"] == "1" for row in csv.DictReader(file)}  # see docs/metrics.md, too
    assert set().union(*tags.values()) == set(expected)
    everywhere = {tag for tag, is_common in expected.items() if is_common}
    means = {"result/best_mean", "episodes/mean_100", "episodes_by_step/mean_100"}  # from the tenth episode on
    for name, own in tags.items():
        assert everywhere - own in (set(), means), name
        assert everywhere <= own or name not in SCRIPTS
