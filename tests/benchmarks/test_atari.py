"""PPO on other Atari games: curves and table."""

import json

import pandas as pd
import pytest

import atari
from finished_runs import make_run
from lib.run.folder import read_params, write_json


@pytest.fixture
def atari_run(results, tmp_path):
    run = make_run(tmp_path / "run", returns=float, episodes=12)  # without videos
    result = json.loads((run / "result.json").read_text())
    write_json(run / "result.json", result | {"mean_100": 6.5})
    return run


def test_the_curve_of_an_atari_run_begins_with_its_tenth_episode(atari_run):
    atari.keep(atari_run, atari.STEPS, "distributed/02_ppo_fast", "Boxing", 3)
    atari.keep(atari_run, 1000, "distributed/02_ppo_fast", "Boxing", 3)  # a try, which the table does not show
    [kept] = atari.read()
    assert (kept.game, kept.seed, kept.mean_100) == ("Boxing", 3, 6.5)
    assert list(kept.curve.step) == [1000, 1100, 1200]
    assert list(kept.curve.mean_100) == [5.5, 6.0, 6.5]


def test_the_numbers_of_seeds_of_both_scripts_are_shown_if_they_differ():
    def run(script, seed):
        return atari.Run(script, "Breakout", seed, 40.0, pd.DataFrame(), {})

    runs = [run("distributed/01_ppo", 1), *(run("distributed/02_ppo_fast", seed) for seed in (1, 2, 3))]
    assert "| Breakout | 1 / 3 | 40.0 | 40.0 (40.0 to 40.0) |" in atari.table(runs)
    assert "| Breakout | 1 | 40.0 | 40.0 |" in atari.table(runs[:2])


def test_an_atari_run_that_moved_names_all_its_machines(atari_run):
    params = read_params(atari_run)
    [first] = params["sessions"]
    second = first | {"machine": first["machine"] | {"cores": 99}}
    write_json(atari_run / "params.json", params | {"sessions": [first, second]})
    atari.keep(atari_run, atari.STEPS, "distributed/02_ppo_fast", "Boxing", 3)
    [block] = atari.blocks()
    assert "; and on 99 cores (" in block.text
