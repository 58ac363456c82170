"""Results files of the benchmarks: stamps, rounds and interrupted measurements."""

import json
import shutil
import subprocess

import pandas as pd
import pytest

import lab


def test_an_interrupted_measurement_goes_on_with_its_rows(results):
    first = lab.Results("folder/x", ("round", "rung", "value"))
    first.add(round=0, rung="a", value="1.50")
    second = lab.Results("folder/x", ("round", "rung", "value"), go_on=True)
    assert second.has(round=0, rung="a")
    assert not second.has(round=0, rung="b")
    second.add(round=0, rung="b", value="2.50")
    assert second.has(round=0, rung="b")
    frame, stamped = lab.read("folder/x")
    assert list(frame["value"]) == [1.5, 2.5]
    assert list(frame["rung"]) == ["a", "b"]
    assert stamped["machine"]["cores"] >= 1


NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def commit(results):
    for command in (("init", "-q"), ("add", "x.csv"), ("commit", "-qm", "measured")):
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(results), *command]
        subprocess.run(git, check=True)


@NEEDS_GIT
@pytest.mark.parametrize("replace", [True, False])
def test_a_new_measurement_keeps_the_old_rows_until_its_first_row(results, replace):
    lab.Results("x", ("round",)).add(round=0)
    if not replace:
        with pytest.raises(SystemExit, match=r"x.csv is not committed.*--go-on"):
            lab.Results("x", ("round",))
        commit(results)
    new = lab.Results("x", ("round",), replace=replace)
    assert list(lab.read("x")[0]["round"]) == [0]
    new.add(round=7)
    assert list(lab.read("x")[0]["round"]) == [7]


@NEEDS_GIT
@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("commit", "another"),
        ("versions", {"torch": "1"}),
        ("machine", {"cores": 0}),
        ("settings", {"steps": 20}),
    ],
)
def test_a_measurement_under_other_conditions_is_not_continued(results, key, changed):
    stamped = lab.stamp(steps=10) | {"commit": "abc"}
    lab.Results("x", ("round",), stamped).add(round=0)
    assert lab.differences("x", ("round",), stamped) == []
    assert lab.differences("x", ("round", "more"), stamped) == ["columns"]
    assert lab.differences("x", ("round",), stamped | {key: changed}) == [key]
    with pytest.raises(SystemExit, match=key):
        lab.Results("x", ("round",), stamped | {key: changed}, go_on=True)
    commit(results)  # as an earlier measurement
    again = lab.Results("x", ("round",), stamped | {key: changed}, go_on=True)
    assert not again.has(round=0)
    again.add(round=9)
    assert lab.read("x")[0]["round"].tolist() == [9]


def test_settings_are_compared_as_they_are_written(results):
    stamped = lab.stamp(settings=("envs=2",), place=(1, (2, 3)))
    lab.Results("x", ("round",), stamped).add(round=0)
    assert lab.Results("x", ("round",), stamped, go_on=True).has(round=0)


def test_every_second_round_goes_backwards():
    assert list(lab.turns(2, ["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_ratios_are_taken_within_a_round_and_incomplete_rounds_are_left_out():
    frame = pd.DataFrame(
        {"round": [0, 0, 1, 1, 2], "rung": ["b", "a", "a", "b", "a"], "value": [2.0, 1.0, 10.0, 30.0, 5.0]}
    )
    table = lab.rounds(frame, "rung", "value")
    assert list(table.columns) == ["b", "a"]
    assert list(lab.ratios(table, "a")["b"]) == [2.0, 3.0]


def test_a_table_without_complete_rounds_or_without_its_reference_is_refused():
    frame = pd.DataFrame({"round": [0, 1], "rung": ["a", "b"], "value": [1.0, 2.0]})
    with pytest.raises(SystemExit, match="no round of this measurement is complete"):
        lab.rounds(frame, "rung", "value")
    with pytest.raises(SystemExit, match="01_baseline was not measured"):
        lab.ratios(lab.rounds(frame[:1], "rung", "value"), "01_baseline")


def test_only_complete_rounds_are_counted():
    frame = pd.DataFrame({"round": [0, 0, 1, 1, 2], "rung": ["a", "b", "b", "a", "a"]})
    assert lab.count_rounds(frame) == 2
    assert lab.count_rounds(frame.drop(columns="round")) == 0


def test_a_missing_results_file_is_named(results):
    with pytest.raises(SystemExit, match=r"nothing\.csv is missing; measure it"):
        lab.read("nothing")


def test_the_stamp_is_json(results):
    lab.Results("x", ("a",), lab.stamp(steps=3)).add(a=1)
    assert json.loads((results / "x.csv").read_text().splitlines()[0][2:])["settings"] == {"steps": 3}
