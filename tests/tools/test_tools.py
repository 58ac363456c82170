"""What all tools share, and the tools that need no trained network: compare, doctor and look."""

import os
import re
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from finished_runs import make_run
from running import PROJECT, contents

TOOLS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("tools/*.py"))
COMPARE, DOCTOR, EVALUATE, LOOK = (Path(f"tools/{name}.py") for name in ("compare", "doctor", "evaluate", "look"))


def test_every_help_shows_an_example(answer):
    for tool in TOOLS:
        assert f"    ./{tool.name} " in answer(tool, "--help"), tool
        assert os.access(PROJECT / tool, os.X_OK), tool


def test_the_table_shows_differing_settings_and_all_outcomes_of_runs_elsewhere(answer, refused, tmp_path):
    make_run(tmp_path / "solved")
    killed = make_run(tmp_path / "killed", episodes=200, returns=lambda n: n % 2, learning_rate=1.25e-7)
    (killed / "result.json").unlink()
    output = answer(COMPARE, "solved", "killed", "--runs-dir", tmp_path, "--csv", tmp_path / "table.csv")
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines()[1:]}
    assert lines["learning_rate"][1] == "1.25e-07"
    assert "gamma" not in lines
    assert (lines["steps"], lines["episodes"]) == (["15007", "20000"], ["150", "200"])
    assert (lines["mean"][1], lines["minutes"][1]) == ("0.50", "20.00")
    assert (lines["solved"], lines["ended"]) == (["1.00", "-"], ["solved", "no", "result"])
    assert pd.read_csv(tmp_path / "table.csv")["run"].tolist() == ["solved", "killed"]
    assert str(tmp_path) in refused(COMPARE, "two", "--runs-dir", tmp_path)


def test_an_output_replaces_no_file_and_needs_a_folder(refused, tmp_path):
    run = make_run(tmp_path / "run")
    before = contents(run)
    for output in ((COMPARE, run, "--csv"), (EVALUATE, run, "--output")):
        assert f"{run / 'params.json'} exists and would be lost" in refused(*output, run / "params.json")
        assert f"there is no folder {tmp_path / 'none'}" in refused(*output, tmp_path / "none" / "file")
    assert contents(run) == before


def test_a_problem_of_the_machine_is_reported_with_its_remedy(answer, ends, monkeypatch):
    output = answer(DOCTOR)
    for finding in (r"PongNoFrameskip-v4 runs", r"torch \d.*", r"\d+\.\d GB of memory free"):
        assert re.search(rf"^ok       {finding}$", output, re.M)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.4.0" if name == "pytorch-ignite" else version(name))
    code, output, _ = ends(DOCTOR)
    assert code == 1
    assert re.search(r"^problem  pytorch-ignite 0\.4\.0, and >=0\.5\.5\S* is needed: make clean", output, re.M)
    assert output.endswith(": 1\n")  # the number of problems


@pytest.fixture
def look(answer):
    """Function (*options) that returns what the tool prints, by the first word of each line."""
    return lambda *options: dict(line.split(maxsplit=1) for line in answer(LOOK, *options).splitlines())


def test_look_prints_spaces_rewards_lengths_and_returns(look):
    seen = look("fakes:Board-v0", "--episodes", 40)
    assert seen["states"] == "board, (1, 9, 8) float32"
    assert seen["actions"].startswith("5: ")
    share = re.fullmatch(r"0 \(\S+%\), 1 \((\S+)%\)", seen["rewards"])[1]
    assert 10 < float(share) < 30  # one of five actions earns 1
    assert seen["length"] == "mean 5 steps, 5 to 5"
    mean, error = re.fullmatch(r"mean (\S+) ± (\S+), \d to \d", seen["return"]).groups()
    assert 0.5 < float(mean) < 1.5
    assert 0.05 < float(error) < 0.3
    assert look("fakes:Vector-info-v0", "--episodes", 10)["length"]  # an illegal action would raise
    assert look("fakes:Chain-v0", "--env-arg", "length=4", "--episodes", 1)["states"] == "vector, (4,) float32"
    assert re.fullmatch(r"-\S+ to -\S+, quartiles( -\S+){3}", look("Pendulum-v1", "--episodes", 1)["rewards"])
