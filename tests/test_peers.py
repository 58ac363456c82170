import contextlib
import json
import subprocess
import sys

import pandas as pd
import pytest

import lab
import peers
from lib.run.stopping import NOT_FINITE

PLAY = """import time
for n, total in enumerate({returns}):
    print(f'global_step={100 * n}, episodic_return={total}')
{then}
"""


def play(returns, then="time.sleep(60)", time_limit=30.0):
    text = PLAY.replace("{returns}", repr(returns)).replace("{then}", then)
    return peers.play([sys.executable, "-c", text], time_limit)


def test_a_peer_is_stopped_where_the_last_hundred_have_reached_the_goal():
    # The first 100 have a mean of 17.99, the last 100 after one more of 18.2; the two that follow are not waited for.
    stopped, episodes = play([-1.0, *[18.0] * 80, *[18.95] * 19, 20.0, 21.0, 21.0])
    assert (stopped, len(episodes)) == ("solved", 101)
    assert (episodes[-1][0], episodes[-1][2]) == (10000, 20.0)
    assert 0.0 < episodes[0][1] <= episodes[-1][1] < 30.0


def test_ninety_nine_good_episodes_are_not_enough():
    stopped, episodes = play([21.0] * 99, then="pass")
    assert (stopped, len(episodes)) == ("ended by itself", 99)


def test_a_peer_is_ended_at_the_time_limit():
    stopped, episodes = play([-21.0], time_limit=2.0)
    assert (stopped, [total for *_, total in episodes]) == ("time limit", [-21.0])


def test_the_failure_of_a_peer_is_told_in_its_words():
    with pytest.raises(SystemExit, match=r"(?s)exit code 1:.*ValueError: no such game"):
        play([-21.0], then="raise ValueError('no such game')")


@pytest.mark.parametrize(
    "line", ["global_step=1200, episodic_return=-20.5", "global_step=1200, episodic_return=[-20.5]"]
)
def test_episodes_are_read_as_cleanrl_prints_them(line):
    assert peers.EPISODE.search(line).groups() == ("1200", "-20.5")


def test_a_peer_without_its_checkout_says_what_to_give(tmp_path):
    with pytest.raises(SystemExit, match="give its folder by --cleanrl PATH"):
        peers.command("cleanrl-ppo", tmp_path / "python", 1, tmp_path)


def test_every_package_of_a_peer_is_pinned():
    for name, _ in peers.PEERS.values():
        assert peers.pins(name)
        assert all("==" in pin for pin in peers.pins(name))
    assert peers.version("sb3-ppo", None) == "stable-baselines3 2.9.2"


def test_this_project_is_told_by_its_own_files_and_its_own_clock(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def finished_run(rung, *options):
        assert (rung, options) == ("distributed/02_ppo_actors", ("--seed", "3", "--time-limit", "600"))
        yield tmp_path

    monkeypatch.setattr(lab, "finished_run", finished_run)
    frame = pd.DataFrame({"episode": [1, 2], "step": [900, 950], "return": [-21.0, 20.0], "seconds": [7.5, 8.0]})
    frame.to_csv(tmp_path / "episodes.csv", index=False)
    (tmp_path / "result.json").write_text(json.dumps({"stopped": "solved"}))
    assert peers.own(3, 600) == ("solved", [(900, 7.5, -21.0), (950, 8.0, 20.0)])


def test_some_peers_alone_do_not_replace_the_figures_of_others_unasked(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    stamped = lab.stamp(time_limit=600, pins={})
    row = dict.fromkeys(peers.COLUMNS, "1")
    lab.Results("peers", peers.COLUMNS, stamped).add(**row | {"peer": "rl_games-ppo"})
    before = lab.path_of("peers").read_text()
    with pytest.raises(SystemExit, match=r"other settings and would lose rl_games-ppo; measure all, or give --anew"):
        peers.measure(["sb3-ppo"], 1, 600, None)
    assert lab.path_of("peers").read_text() == before


def test_our_own_run_whose_loss_runs_away_is_a_figure_and_one_that_fails_is_not(tmp_path):
    script = tmp_path / "script.py"
    text = """import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--runs-dir") + 1], "run")
folder.mkdir()
(folder / "result.json").write_text(json.dumps({"stopped": %r}))
sys.exit(1)
"""
    script.write_text(text % NOT_FINITE)
    with lab.finished_run(str(script.with_suffix(""))) as run:
        assert run.name == "run"
    script.write_text(text % "SIGTERM")
    with pytest.raises(subprocess.CalledProcessError), lab.finished_run(str(script.with_suffix(""))):
        pass


def test_the_table_of_peers_is_of_the_results():
    assert f"{peers.PICTURE}\n\n{peers.table()}\n<!-- /peers -->" in (lab.PROJECT / "docs/speed.md").read_text()
