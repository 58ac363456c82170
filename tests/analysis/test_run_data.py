"""Files of run folders: complete, missing, unfinished and damaged."""

from pathlib import Path

import pytest

from finished_runs import PARTS, add_scalars, add_videos, in_use, make_run
from lib.analysis.run_data import Run, best_video, returns_before, select_runs
from lib.errors import UsageError
from lib.run.folder import read_json, write_json
from lib.system import files


def test_the_time_by_part_comes_from_the_result_or_of_a_run_in_progress_from_tensorboard(tmp_path):
    run = make_run(tmp_path / "run")
    assert Run.read(run).time_by_part() == PARTS | {"rest": 0.5}
    with in_use(run):
        earlier = Run.read(run)
        add_scalars(run)
        assert earlier.time_by_part() == {}
        assert Run.read(run).time_by_part() == PARTS


def test_the_training_returns_before_a_step_are_the_last_hundred(tmp_path):
    run = make_run(tmp_path / "run", returns=lambda number: number / 2)  # 150 episodes of 100 steps
    assert returns_before(run, 12_050) == [number / 2 for number in range(21, 121)]


def test_a_run_that_can_be_resumed_has_not_ended(tmp_path):
    run = make_run(tmp_path / "run")
    for stopped, steps, ended in (("solved", 9, True), ("step limit", 10**9, True), ("step limit", 9, False)):
        write_json(run / "result.json", read_json(run / "result.json") | {"stopped": stopped, "steps": steps})
        assert Run.read(run).has_ended == ended


def test_a_damaged_file_is_reported_in_one_line(tmp_path):
    run = make_run(tmp_path / "run")
    for content in ("episode,reward\n1,2\n", "step,length,return,seconds\n1,2,three,4\n"):
        (run / "episodes.csv").write_text(content)
        with pytest.raises(UsageError, match=r"^.*episodes.csv cannot be read: .*(step|three).*$"):
            Run.read(run)


def test_what_cannot_be_shown_is_skipped_with_a_reason(tmp_path, monkeypatch):
    good, _ = make_run(tmp_path / "good"), make_run(tmp_path / "new", episodes=0)
    make_run(tmp_path / "project" / "models" / "pong", episodes=0)
    monkeypatch.setattr(files, "PROJECT", tmp_path / "project")
    (make_run(tmp_path / "broken") / "params.json").write_text("{")
    (tmp_path / "tune").mkdir()
    names = ["good", "new", str(good), "models/pong", "broken", "tune"]
    runs, reasons = select_runs(names, tmp_path, with_episodes=True)
    assert [run.path for run in runs] == [good]  # once, although it is given twice
    assert [Path(reason.split()[0]).name for reason in reasons] == ["new", "pong", "params.json", "tune"]
    with pytest.raises(UsageError, match=r"new has no finished episode"):
        select_runs(["new"], tmp_path, with_episodes=True)
    with pytest.raises(UsageError, match="there is no run folder 'runn'"):
        select_runs(["good", "runn"], tmp_path)


def test_the_video_with_the_best_return_is_chosen_and_the_newest_if_none_has_a_return(tmp_path):
    names = [f"episode-{n}-return-{total}.webm" for n, total in ((4, -2), (2, 21), (1, 3))]
    one = add_videos(make_run(tmp_path / "one"), *names)
    two = add_videos(make_run(tmp_path / "two"), "older.webm", "by hand.webm", "newer.part.webm")
    assert [best_video(run).name for run in (one, two)] == [names[1], "by hand.webm"]
    assert best_video(make_run(tmp_path / "three")) is None
