"""Minutes to solve Pong: which runs are trained and timed, and their table."""

import sys

import pandas as pd
import pytest

import chapter09
import curve
import lab
import launch
import minutes


def test_after_a_failed_training_no_other_is_started(tmp_path, monkeypatch):
    programs = [sys.executable, "-c", "exit(7)"], [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    monkeypatch.setattr(launch, "command", lambda rung, *options: programs[int(rung)])
    monkeypatch.setattr(minutes, "_folders", lambda *asked: [(tmp_path / rung, rung, 1) for rung in "01"])
    with pytest.raises(SystemExit) as ended:
        minutes.train("best", "cpu", go_on=False, rungs=(), seeds=1, jobs=1)
    assert ended.value.code == 7
    assert not (tmp_path / "started").exists()


MEASURED = {
    "last_1000_steps_per_second": 50.0,
    "warm_up_steps_per_second": 9.0,
    "parts": {},
    "training_seconds": 20.0,
    "training_steps": 1000,
}


def trained(rung, steps):
    reached = {} if steps is None else {"17.0": {"step": steps // 2}, "18.0": {"step": steps, "episode": 300}}
    return minutes.Trained(rung, pd.DataFrame(), {"result": {"reached": reached}})


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_continued(tmp_path):
    for name, files in (("a", ["params.json"]), ("b", ["params.json", "checkpoints/step-000000064.pt"])):
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
    assert minutes.runs_in(tmp_path) == [tmp_path / "b"]


def test_minutes_are_steps_divided_by_the_median_speed():
    runs = [trained("01_baseline", 600_000), trained("03_parallel", 480_000), trained("03_parallel", None)]
    speeds = {"01_baseline": pd.Series([100.0, 50.0, 120.0]), "03_parallel": pd.Series([200.0, 100.0, 100.0])}
    *_, baseline, parallel = minutes.table(runs, speeds).splitlines()
    assert baseline.split(" | ")[2:6] == ["100 (50 to 120)", "50", "100", ""]
    assert parallel.split(" | ")[3:5] == ["never (40 to never)", "never (80 to never)"]
    assert parallel.split(" | ")[6] == "never (300 to never)"
    *_, parallel = minutes.table([runs[0], runs[1]], speeds).splitlines()
    assert parallel.split(" | ")[3:6] == ["40", "80", ""]  # one seed tells nothing
    *_, parallel = minutes.table([runs[0], runs[1], runs[1]], speeds).splitlines()
    assert parallel.split(" | ")[3:6] == ["40 (40 to 40)", "80 (80 to 80)", "-20 %"]  # as a reader would compute it
    *_, parallel = minutes.table([trained("01_baseline", None), runs[1], runs[1]], speeds).splitlines()
    assert parallel.split(" | ")[3:6] == ["40 (40 to 40)", "80 (80 to 80)", ""]  # nothing to compare with


def test_a_run_whose_results_are_kept_is_not_trained_again(monkeypatch, results, tmp_path):
    started = []
    monkeypatch.setattr(
        launch, "command", lambda rung, *options: started.append(options) or [sys.executable, "--version"]
    )
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    lab.Results("minutes-best/03_parallel-seed1", ("episode",), trained("03_parallel", 9).stamped).add(episode=1)
    minutes.train("best", "cpu", go_on=False, rungs=["03_parallel"], seeds=2, jobs=1)
    assert [options[options.index("--seed") + 1] for options in started] == ["2"]


def test_speeds_are_measured_only_if_one_is_missing(monkeypatch, results):
    def measured_rungs():
        timed = []
        monkeypatch.setattr(launch, "timed", lambda rung, *_: timed.append(rung) or MEASURED)
        monkeypatch.setattr(sys, "argv", ["chapter09.py", "--params", "best", "--rounds", "2"])
        chapter09.main()
        return timed

    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(minutes, "train", lambda *asked: None)
    monkeypatch.setattr(lab, "_is_committed", lambda path: True)
    for rung in ("03_parallel", "07_pong_in_minutes"):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
        every = sorted(set(minutes.LADDER) & {run.rung for run in minutes.read("best")})
        assert measured_rungs() == [*every, *every[::-1]]  # all anew, in one measurement
        assert measured_rungs() == []


def test_the_asked_for_number_of_seeds_is_trained():
    rung = "02_n_envs --envs 3"
    assert [seed for _, _, seed in minutes._folders("best", "cpu", [rung], 3)] == [1, 2, 3]
    assert [seed for _, _, seed in minutes._folders("best", "cpu", ["01_baseline", rung], 0)] == [1, 1, 2, 3]


def test_speeds_with_tuned_hyperparameters_are_measured_again_without_training(monkeypatch, results):
    for rung in ("03_parallel", minutes.PLAIN, minutes.REMEDIES[0]):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    lab.Results("minutes-best/speed", chapter09.COLUMNS).add(**dict.fromkeys(chapter09.COLUMNS, 1))
    monkeypatch.setattr(launch, "timed", lambda rung, *_: MEASURED)
    monkeypatch.setattr(minutes, "train", pytest.fail)
    monkeypatch.setattr(lab, "_is_committed", lambda path: True)
    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(sys, "argv", ["chapter09.py", "speed", "--params", "best", "--rounds", "2"])
    chapter09.main()
    frame = lab.read("minutes-best/speed")[0]
    assert (sorted(frame.rung.unique()), frame.steps_per_second.tolist()) == (
        ["03_parallel", minutes.PLAIN],
        [50.0] * 4,
    )
    remedies = lab.read("minutes-best/speed-remedies")[0]
    assert sorted(remedies.rung.unique()) == [minutes.PLAIN, minutes.REMEDIES[0]]
    assert not lab.path_of("chapter09/speed").exists()


def test_a_remedy_alone_is_timed_and_shown(monkeypatch, results, capsys):
    rung = minutes.REMEDIES[0]
    lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    monkeypatch.setattr(launch, "timed", lambda rung, *_: MEASURED)
    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(sys, "argv", ["chapter09.py", "speed", "--params", "best", "--rounds", "1"])
    chapter09.main()
    assert f"| `{rung}` | 1 | 50 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("knobs", "rung"),
    [
        ({"players": 1, "replay_ratio": 32, "engine": "ray", "patience": 9, "address": "a:1"}, "x"),
        (
            {"envs": 3, "parallel": False, "stack": 4, "noop_max": 0, "max_frames": 0},
            "x --envs 3 --noop-max 0 --max-frames 0",
        ),
        ({"parallel": True, "players": 2, "async_envs": True}, "x --parallel --players 2"),
    ],
)
def test_a_rung_has_its_options_but_not_those_that_change_no_result(knobs, rung):
    assert curve.rung_of({"script": "x", "knobs": knobs}) == rung


def test_a_rung_whose_speed_was_not_measured_is_left_out(results):
    for rung in ("01_baseline", "03_parallel"):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    assert minutes.timed("best")[0] == []
    lab.Results("minutes-best/speed", ("round", "rung", "steps_per_second")).add(
        round=0, rung="01_baseline", steps_per_second=100
    )
    runs, speeds = minutes.timed("best")
    assert [run.rung for run in runs] == ["01_baseline"]
    assert speeds["01_baseline"].tolist() == [100]


def test_a_rung_that_equals_its_parent_has_the_parent_s_steps_to_solve_pong(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    for rung, steps in (("01_baseline", 600_000), ("02_n_envs --envs 3", 500_000)):
        stamped = trained(rung, steps).stamped
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode", "step"), stamped).add(episode=1, step=steps)
    found = {run.rung: run.needed("18.0") for run in minutes.read("best")}
    assert found == {
        "00_slow_grads": 600_000,
        "01_baseline": 600_000,
        "02_n_envs --envs 3": 500_000,
        "04_wrappers --envs 3": 500_000,
    }
