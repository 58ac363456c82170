"""Which measurements are made, kept and replaced."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pandas as pd
import pytest

import bench
import results
from experiments import EXPERIMENTS, Experiment
from results import Place

HERE = Place("one", "1e234567")  # a key that is also a number


@pytest.fixture
def measured(kept, monkeypatch):
    """Function that runs an experiment of two variants, and returns the measurements that it makes."""

    def measure(seeds, commit="one", steps=10, fails_at=None, again=False):
        made = []

        def call(job):
            made.append(f"{job.variant}{job.seed}")
            if made[-1] == fails_at:
                made[-1] = "failed"
                raise RuntimeError("it failed")
            return {"speed": job.seed + 0.5}, {}

        monkeypatch.setattr(results, "place", lambda device, threads: HERE._replace(commit=commit))
        variants = {name: f"{name} {steps}" for name in "ab"}
        monkeypatch.setitem(EXPERIMENTS, "x", Experiment("about", variants, call))
        with pytest.raises(RuntimeError, match="it failed") if fails_at else nullcontext():
            bench.run("x", [], seeds, 0, again)
        return made

    return measure


def rows(column):
    return {row["variant"] + row["seed"]: row[column] for row in results.rows_of("runs.csv", "x")}


def test_an_interrupted_measurement_goes_on_where_it_was_and_loses_nothing(measured):
    assert measured([1, 2], fails_at="b2") == ["a1", "b1", "failed"]  # no other begins
    assert measured([1, 2]) == ["b2", "a2"]  # every second round goes backwards
    assert measured([1, 2]) == []
    assert rows("speed") == {"a1": "1.5", "b1": "1.5", "a2": "2.5", "b2": "2.5"}


def test_a_measurement_of_another_commit_is_kept_until_it_is_measured_again(measured):
    assert measured([1]) == ["a1", "b1"]
    assert measured([1, 2], commit="two") == ["b2", "a2"]
    assert measured([1, 2], commit="two", again=True, fails_at="b1") == ["a1", "failed"]
    assert rows("commit") == {"a1": "two", "b1": "one", "a2": "two", "b2": "two"}
    assert measured([1, 2], commit="two", again=True) == ["b1"]


def test_a_measurement_does_not_go_on_with_other_settings(measured):
    measured([1])
    for again, seeds in ((False, [1]), (False, [2]), (True, [2])):
        with pytest.raises(SystemExit, match=r"x: \w, seed 1, was measured with other settings:\n  \w 10\n  \w 20"):
            measured(seeds, steps=20, again=again)
    assert measured([1, 2], steps=20, again=True) == ["a1", "b1", "b2", "a2"]


def test_only_complete_rounds_of_one_commit_are_compared(kept):
    for variant, seed, commit in (("a", 1, "one"), ("b", 1, "one"), ("a", 2, "one"), ("b", 2, "two"), ("a", 3, "one")):
        kept("x", variant, seed, commit=commit, speed=seed + len(variant))
    assert results.rounds(results.runs("x"), "speed", "ba").to_dict("list") == {"b": [2], "a": [2]}
    with pytest.raises(SystemExit, match="no round of x is complete"):
        results.rounds(results.runs("x")[2:], "speed", "ab")


def test_measurements_that_end_at_once_are_all_kept_with_their_curves(kept):
    curve = pd.DataFrame({"step": [10, 20], "seconds": [None, 1.0], "value": [0.25, float("inf")]})
    kept("x", "a", 0, curves={"return": curve, "length": curve}, old=1)
    with ThreadPoolExecutor(9) as pool:
        list(pool.map(lambda seed: kept("x", "a", seed, curves={"return": curve}), range(9)))
    assert sorted(results.runs("x")["seed"]) == list(range(9))
    points = results.curves("x", "return")
    assert points[points["seed"] == 0][["step", "value"]].to_numpy().tolist() == [[10, 0.25], [20, float("inf")]]
    assert len(points) == 18
    assert results.curves("x", "length").empty  # those of the replaced measurement are gone, and its figures
    assert "old" not in results.runs("x")
