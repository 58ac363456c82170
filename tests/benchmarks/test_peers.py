"""The comparison with other projects: running them, reading their output, and keeping their results."""

import contextlib
import json
import sys

import pandas as pd
import pytest

import lab
import launch
import peers

PLAY = """import time
for n, total in enumerate({returns}):
    print(f'global_step={100 * n}, episodic_return={total}')
{then}
"""


def play(returns, then="time.sleep(60)", time_limit=30.0):
    text = PLAY.replace("{returns}", repr(returns)).replace("{then}", then)
    return peers.play([sys.executable, "-c", text], time_limit)


def test_a_peer_is_stopped_when_the_last_hundred_episodes_reach_the_goal():
    # The mean of the first 100 episodes is 17.99. After one more, the mean of the last 100 is 18.2, so the two episodes
    # after that are not read.
    stopped, episodes = play([-1.0, *[18.0] * 80, *[18.95] * 19, 20.0, 21.0, 21.0])
    assert (stopped, len(episodes)) == ("solved", 101)
    assert (episodes[-1][0], episodes[-1][2]) == (10000, 20.0)
    assert 0.0 < episodes[0][1] <= episodes[-1][1] < 30.0


def test_ninety_nine_good_episodes_are_not_enough():
    stopped, episodes = play([21.0] * 99, then="pass")
    assert (stopped, len(episodes)) == ("ended by itself", 99)


def test_a_peer_is_killed_at_the_time_limit():
    stopped, episodes = play([-21.0], time_limit=2.0)
    assert (stopped, [total for *_, total in episodes]) == ("time limit", [-21.0])


def test_the_error_of_a_failed_peer_shows_its_own_output():
    with pytest.raises(SystemExit, match=r"(?s)exit code 1:.*ValueError: no such game"):
        play([-21.0], then="raise ValueError('no such game')")


@pytest.mark.parametrize(
    "line", ["global_step=1200, episodic_return=-20.5", "global_step=1200, episodic_return=[-20.5]"]
)
def test_episodes_are_read_as_cleanrl_prints_them(line):
    assert peers.EPISODE.search(line).groups() == ("1200", "-20.5")


def test_a_peer_without_its_checkout_is_refused_with_the_missing_option(tmp_path):
    with pytest.raises(SystemExit, match="--cleanrl PATH"):
        peers.command("cleanrl-ppo", tmp_path / "python", 1, tmp_path)


def test_every_package_of_a_peer_is_pinned():
    for name, _ in peers.PEERS.values():
        assert peers.pins(name)
        assert all("==" in pin for pin in peers.pins(name))
    assert peers.version("sb3-ppo", None) == "stable-baselines3 2.9.2"


def test_this_project_is_measured_by_its_own_files_and_clock(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def finished_run(rung, *options):
        assert (rung, options) == ("distributed/03_ppo_actors", ("--seed", "3", "--time-limit", "600"))
        yield tmp_path

    monkeypatch.setattr(launch, "finished_run", finished_run)
    frame = pd.DataFrame({"episode": [1, 2], "step": [900, 950], "return": [-21.0, 20.0], "seconds": [7.5, 8.0]})
    frame.to_csv(tmp_path / "episodes.csv", index=False)
    (tmp_path / "result.json").write_text(json.dumps({"stopped": "solved"}))
    assert peers.own_run(3, 600) == ("solved", [(900, 7.5, -21.0), (950, 8.0, 20.0)])


def test_measuring_some_peers_keeps_the_results_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    row = dict.fromkeys(peers.COLUMNS, "1")
    lab.Results(peers.SUMMARY, peers.COLUMNS, lab.stamp(time_limit=600, pins={})).add(**row | {"peer": "rl_games-ppo"})
    before = lab.path_of(peers.SUMMARY).read_text()
    with pytest.raises(SystemExit, match=r"(?s)settings.* of peer rl_games-ppo would.*--overwrite"):
        peers.measure(["sb3-ppo"], 1, 600, None)
    assert lab.path_of(peers.SUMMARY).read_text() == before
