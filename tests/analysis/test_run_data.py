"""Files of run folders: complete, missing, unfinished and damaged."""

import pytest

from finished_runs import PARTS, add_scalars, add_videos, in_use, make_run
from lib.analysis import comparison
from lib.analysis.run_data import (
    list_videos,
    read_episodes,
    read_result,
    read_scalars,
    require_unchanged_events,
    returns_before,
    time_by_part,
)
from lib.errors import UsageError
from lib.run import run_json
from lib.system import files


def test_the_time_by_part_comes_from_the_result_or_from_tensorboard(tmp_path):
    run = make_run(tmp_path / "run")
    assert read_scalars(run) == {}
    assert time_by_part(run) == PARTS | {"rest": 0.5}
    (run / "result.json").unlink()
    assert time_by_part(run) == {}
    add_scalars(run)
    assert time_by_part(run) == PARTS


def test_the_training_returns_before_a_step_are_the_last_hundred(tmp_path, caplog):
    run = make_run(tmp_path / "run", returns=lambda number: number / 2)  # 150 episodes of 100 steps
    assert returns_before(run, 12_050) == [number / 2 for number in range(21, 121)]
    assert not caplog.records
    (run / "episodes.csv").write_text("step,length,return,seconds\n1,2,x,4\n")
    assert returns_before(run, 12_050) == []
    assert "not compared with training" in caplog.text
    (run / "episodes.csv").unlink()
    assert returns_before(run, 12_050) == []
    assert len(caplog.records) == 1


def test_the_result_of_a_run_in_progress_is_not_used(tmp_path):
    run = add_scalars(make_run(tmp_path / "run"))
    with in_use(run):
        assert time_by_part(run) == PARTS


def test_the_best_video_is_listed_first_and_then_the_newest(tmp_path):
    names = [f"episode-{n}-return-{total}.webm" for n, total in ((5, -1), (4, -2), (3, -9), (2, 21), (1, 3))]
    run = add_videos(make_run(tmp_path / "run"), *names, "by hand.webm", "episode-6-return-99.part.webm")
    assert [path.name for path in list_videos(run)] == [names[3], "by hand.webm", names[4], *reversed(names[:3])]


def test_a_deleted_file_of_a_run_is_named(tmp_path, caplog):
    run = make_run(tmp_path / "run")
    run_json.write_json(
        run / "files.json",
        {"files": {name: {"size": 9, "sha256": 64 * "0"} for name in ("episodes.csv", "events.out.tfevents.1.a.b.0")}},
    )
    require_unchanged_events(run)
    assert "events.out.tfevents.1.a.b.0 is missing: its scalars are not shown." in caplog.text
    (run / "episodes.csv").unlink()
    with pytest.raises(UsageError, match=r"episodes.csv was deleted; restore it"):
        read_episodes(run)


@pytest.mark.parametrize("content", [None, "", "episode,step,length,return,seconds,video\n"])
def test_a_run_without_episodes_is_an_empty_table(tmp_path, content):
    run = make_run(tmp_path / "run")
    (run / "episodes.csv").unlink()
    if content is not None:
        (run / "episodes.csv").write_text(content)
    assert read_episodes(run).empty
    assert comparison.format_value(comparison.read_outcome(run)["mean"]) == "-"


@pytest.mark.parametrize(
    ("file", "content", "facts"),
    [
        ("episodes.csv", "episode,reward\n1,2\n", "another version of this project, commit .* no length, return, sec"),
        ("episodes.csv", "step,length,return,seconds\n1,2,three,4\n", "episodes.csv cannot be read: .*three"),
        ("episodes.csv", "a,b\n1,2,3,4\n5,6,7,8,9\n", "episodes.csv cannot be read"),
        ("params.json", '{"script": "01_ppo"}', "params.json lacks game, hyperparameters, knobs, seed, sessions"),
        ("result.json", '{"stopped": ', "result.json cannot be read"),
        ("result.json", "[1]", "result.json does not hold a JSON object"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path, file, content, facts):
    run = make_run(tmp_path / "run")
    (run / file).write_text(content)
    with pytest.raises(UsageError, match=facts) as error:
        comparison.comparison_table([run])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("killed", [True, False])
def test_changed_episodes_of_a_run_are_refused_even_if_it_was_killed(tmp_path, killed):
    run = make_run(tmp_path / "run")
    file = run / "episodes.csv"
    saved = {file.name: {"size": file.stat().st_size, "sha256": files.digest(file)}}
    if killed:
        (run / "result.json").unlink()
        run_json.write_json(run / "files.json", {"files": saved})
        with file.open("a") as more:  # after the last checkpoint
            more.write(file.read_text().splitlines()[-1] + "\n")
    else:
        run_json.write_json(run / "result.json", read_result(run) | {"files": saved})
    assert len(read_episodes(run))
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"episodes\.csv was changed after it was written"):
        read_episodes(run)
