"""The learning curve at the end of a run, and titles of pictures."""

import pandas as pd

from finished_runs import make_run
from lib.run.curve import draw_curve, picture_title, rolling_mean
from lib.run.folder import read_params


def test_the_mean_of_the_last_hundred_episodes_begins_with_the_tenth():
    means = rolling_mean(pd.Series(range(150)))
    assert means.notna().tolist() == [False] * 9 + [True] * 141
    assert (means[9], means[99], means[149]) == (4.5, 49.5, 99.5)


def test_a_short_run_has_a_curve_too(tmp_path):
    run = make_run(tmp_path / "run", episodes=7)
    draw_curve(run, 18.0)
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_title_names_game_scripts_and_seeds_or_counts_them(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed, script=f"script_{seed}", episodes=1) for seed in range(1, 6)]
    params = [read_params(run) for run in runs]
    assert picture_title(params[:2], 80) == "PongNoFrameskip-v4 · script_1, script_2 · seeds: 1, 2"
    assert picture_title(params, 80) == "PongNoFrameskip-v4 · 5 scripts · seeds: 5 in all"
