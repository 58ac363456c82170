"""Chapter 8's variants: their runs and their table."""

import runpy

import pytest

import chapter08
import lab


def test_every_variant_of_chapter_8_is_rainbow_without_the_other_parts():
    script = runpy.run_path(str(lab.PROJECT / "chapter08" / "08_dqn_rainbow.py"))
    assert set(chapter08.PARTS) == set(script["PARTS"])
    assert chapter08.VARIANTS["rainbow"] == chapter08.PARTS
    assert chapter08.VARIANTS["basic"] == ()
    assert {part for parts in chapter08.VARIANTS.values() for part in parts} == set(chapter08.PARTS)
    assert [(lab.PROJECT / f"{script}.py").exists() for script in chapter08.SCRIPTS] == [True] * 8


@pytest.fixture
def fake_runs(monkeypatch, results):
    """Replace chapter 8's runs by a function of the seed; the returned function returns the list of started runs."""

    def replace(curve_of_seed):
        started = []

        def curve(task, seed, variant):
            started.append((seed, variant))
            return curve_of_seed(seed)

        monkeypatch.setattr(chapter08, "curve", curve)
        return started

    return replace


def test_each_run_of_chapter_8_is_measured_once_and_kept_with_its_commit(monkeypatch, results, fake_runs):
    started = fake_runs(lambda seed: ({250: seed / 2, 500: 1.0}, 300.0 if seed == 1 else float("nan")))
    variants = ["basic", "double, n_steps"]
    monkeypatch.setattr(lab, "commit", lambda: "one")
    chapter08.learn("toy", variants, seeds=1, jobs=1, go_on=False)
    monkeypatch.setattr(lab, "commit", lambda: "another")
    chapter08.learn("toy", variants, seeds=2, jobs=2, go_on=True)
    assert sorted(started) == [(seed, variant) for seed in (1, 2) for variant in variants]
    frame, stamps = chapter08.measured("toy")
    assert {stamped["commit"] for stamped in stamps} == {"one", "another"}
    [*_, basic, both] = chapter08.learn_table("toy", frame).splitlines()
    assert basic == "| basic | 0.88 (0.75 to 1.00) | 1.00 | 375 (250 to 500) | never (300 to never), 1 of 2 seeds |"
    assert both.startswith("| double, n_steps |")
    with pytest.raises(SystemExit, match="is not committed"):
        chapter08.learn("toy", variants, seeds=1, jobs=1, go_on=False)
    assert len(started) == 4
    monkeypatch.setattr(lab, "_is_committed", lambda path: True)
    chapter08.learn("toy", variants, seeds=1, jobs=1, go_on=False)
    assert len(started) == 6


def test_bins_without_a_finished_episode_are_interpolated(fake_runs):
    # The first run has no episode in the second bin; the second one, which diverged, none in the last.
    fake_runs(lambda seed: ({250: 0.0, 750: 1.0} if seed == 1 else {250: 0.0, 500: 0.0}, float("nan")))
    chapter08.learn("toy", ["basic"], seeds=2, jobs=1, go_on=True)
    *_, basic = chapter08.learn_table("toy", chapter08.measured("toy")[0]).splitlines()
    assert basic.startswith("| basic | 0.25 (0.00 to 0.50) | 1.00 |")


def test_runs_of_chapter_8_with_different_settings_are_not_put_into_one_table(monkeypatch, results, fake_runs):
    fake_runs(lambda seed: ({250: 0.5}, float("nan")))
    monkeypatch.setattr(lab, "_is_committed", lambda path: True)
    chapter08.learn("toy", ["basic"], seeds=2, jobs=1, go_on=True)
    monkeypatch.setitem(chapter08.TASKS, "toy", chapter08.TASKS["toy"]._replace(steps=7000))
    chapter08.learn("toy", ["basic"], seeds=1, jobs=1, go_on=False)
    with pytest.raises(SystemExit, match="were measured with different settings"):
        chapter08.measured("toy")
