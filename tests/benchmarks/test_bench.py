"""Which measurements are made, kept and replaced."""

import threading

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
            if (job.variant, job.seed) == fails_at:
                raise RuntimeError("it failed")
            made.append((job.variant, job.seed))
            return {"speed": job.seed + 0.5}, {}

        monkeypatch.setattr(results, "place", lambda device, threads: HERE._replace(commit=commit))
        variants = {name: f"{name} {steps}" for name in "ab"}
        monkeypatch.setitem(EXPERIMENTS, "x", Experiment("about", variants, call))
        try:
            bench.run("x", [], seeds, 0, again)
        except RuntimeError:
            made.append("failed")
        return made

    return measure


def rows():
    return {(row["variant"], row["seed"]): (row["commit"], row["speed"]) for row in results.rows_of("runs.csv", "x")}


def test_an_interrupted_measurement_goes_on_where_it_was_and_loses_nothing(measured):
    assert measured([1, 2], fails_at=("b", 2)) == [("a", 1), ("b", 1), "failed"]  # no other begins
    assert measured([1, 2]) == [("b", 2), ("a", 2)]  # every second round goes backwards
    assert measured([1, 2]) == []
    assert rows() == {(v, str(s)): ("one", f"{s}.5") for v in "ab" for s in (1, 2)}


def test_a_measurement_of_another_commit_is_kept_until_it_is_measured_again(measured):
    assert measured([1]) == [("a", 1), ("b", 1)]
    assert measured([1, 2], commit="two") == [("b", 2), ("a", 2)]
    assert measured([1, 2], commit="two", again=True, fails_at=("b", 1)) == [("a", 1), "failed"]
    assert {key: commit for key, (commit, _) in rows().items()} == {
        ("a", "1"): "two",
        ("b", "1"): "one",
        ("a", "2"): "two",
        ("b", "2"): "two",
    }
    assert measured([1, 2], commit="two", again=True) == [("b", 1)]


def test_a_measurement_does_not_go_on_with_other_settings(measured):
    measured([1])
    for again, seeds in ((False, [1]), (False, [2]), (True, [2])):
        with pytest.raises(SystemExit, match=r"x: \w, seed 1, was measured with other settings:\n  \w 10\n  \w 20"):
            measured(seeds, steps=20, again=again)
    assert measured([1, 2], steps=20, again=True) == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]


def test_only_complete_rounds_of_one_commit_are_compared(kept):
    for variant, seed, commit in (("a", 1, "one"), ("b", 1, "one"), ("a", 2, "one"), ("b", 2, "two"), ("a", 3, "one")):
        kept("x", variant, seed, commit=commit, speed=seed + len(variant))
    assert results.rounds(results.runs("x"), "speed", "ba").to_dict("list") == {"b": [2], "a": [2]}
    with pytest.raises(SystemExit, match="no round of x is complete"):
        results.rounds(results.runs("x")[2:], "speed", "ab")


def test_measurements_that_end_at_once_are_all_kept_with_their_curves(kept):
    curve = pd.DataFrame({"step": [10, 20], "seconds": [None, 1.0], "value": [0.25, float("inf")]})
    kept("x", "a", 0, curves={"return": curve, "length": curve}, old=1)
    threads = [
        threading.Thread(target=kept, args=("x", "a", n), kwargs={"curves": {"return": curve}}) for n in range(9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.runs("x")["seed"]) == list(range(9))
    points = results.curves("x", "return")
    assert points[points["seed"] == 0][["step", "value"]].to_numpy().tolist() == [[10, 0.25], [20, float("inf")]]
    assert len(points) == 18
    assert results.curves("x", "length").empty  # those of the replaced measurement are gone, and its figures
    assert "old" not in results.runs("x")
