"""Files of run folders: complete, missing, unfinished and damaged."""

import pytest

from finished_runs import PARTS, add_scalars, add_videos, in_use, make_run
from lib.analysis import comparison
from lib.analysis.run_data import (
    Run,
    list_videos,
    read_episodes,
    returns_before,
)
from lib.errors import UsageError


def test_the_time_by_part_comes_from_the_result_or_from_tensorboard(tmp_path):
    run = make_run(tmp_path / "run")
    assert Run.read(run).scalars == {}
    assert Run.read(run).time_by_part() == PARTS | {"rest": 0.5}
    (run / "result.json").unlink()
    assert Run.read(run).time_by_part() == {}
    add_scalars(run)
    assert Run.read(run).time_by_part() == PARTS


def test_the_training_returns_before_a_step_are_the_last_hundred(tmp_path):
    run = make_run(tmp_path / "run", returns=lambda number: number / 2)  # 150 episodes of 100 steps
    assert returns_before(run, 12_050) == [number / 2 for number in range(21, 121)]
    (run / "episodes.csv").unlink()  # as in a published model
    assert returns_before(run, 12_050) == []


def test_the_result_of_a_run_in_progress_is_not_used(tmp_path):
    run = add_scalars(make_run(tmp_path / "run"))
    with in_use(run):
        assert Run.read(run).time_by_part() == PARTS


def test_the_best_video_is_listed_first_and_then_the_newest(tmp_path):
    names = [f"episode-{n}-return-{total}.webm" for n, total in ((5, -1), (4, -2), (3, -9), (2, 21), (1, 3))]
    run = add_videos(make_run(tmp_path / "run"), *names, "by hand.webm", "episode-6-return-99.part.webm")
    assert [path.name for path in list_videos(run)] == [names[3], "by hand.webm", names[4], *reversed(names[:3])]


@pytest.mark.parametrize("content", [None, "", "episode,step,length,return,seconds,video\n"])
def test_a_run_without_episodes_is_an_empty_table(tmp_path, content):
    run = make_run(tmp_path / "run")
    (run / "episodes.csv").unlink()
    if content is not None:
        (run / "episodes.csv").write_text(content)
    assert read_episodes(run).empty
    assert comparison.format_value(comparison.outcome_of(Run.read(run))["mean"]) == "-"


@pytest.mark.parametrize(
    ("file", "content", "facts"),
    [
        ("episodes.csv", "episode,reward\n1,2\n", "episodes.csv cannot be read: .*step"),
        ("episodes.csv", "step,length,return,seconds\n1,2,three,4\n", "episodes.csv cannot be read: .*three"),
        ("episodes.csv", "a,b\n1,2,3,4\n5,6,7,8,9\n", "episodes.csv cannot be read"),
        ("params.json", '{"script": "01_ppo"}', "another version of this project: its format is None"),
        ("result.json", '{"stopped": ', "result.json cannot be read"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path, file, content, facts):
    run = make_run(tmp_path / "run")
    (run / file).write_text(content)
    with pytest.raises(UsageError, match=facts) as error:
        Run.read(run)
    assert "\n" not in str(error.value)
