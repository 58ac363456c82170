"""The learning curve at the end of a run, and titles of pictures."""

import pandas as pd
import pytest
from matplotlib.figure import Figure

from finished_runs import make_run
from lib.run.curve import draw_curve, picture_title, rolling_mean, shorten_thousands
from running import full_disk


def test_the_curve_is_the_mean_of_the_last_hundred_episodes_and_begins_with_the_tenth():
    means = rolling_mean(pd.Series(range(150)))
    assert means.notna().tolist() == [False] * 9 + [True] * 141
    assert (means[9], means[99], means[149]) == (4.5, 49.5, 99.5)


@pytest.mark.parametrize("episodes", [7, 150])
def test_a_short_run_has_a_curve_too(tmp_path, episodes):
    run = make_run(tmp_path / "run", episodes=episodes)
    path = draw_curve(run, 18.0)
    assert path == run / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_curve_that_cannot_be_written_leaves_the_old_one(tmp_path):
    run = make_run(tmp_path / "run", episodes=20)
    old = draw_curve(run, 18.0).read_bytes()
    with full_disk(1000), pytest.raises(OSError, match="File too large"):
        draw_curve(run, 19.0)
    assert (run / "curve.png").read_bytes() == old


@pytest.mark.parametrize(
    ("seeds", "text"),
    [((3,), "seed 3"), ((2, 1), "seeds 1, 2"), ((3, 1, 2), "seeds 1 to 3"), ((1, 4, 9), "seeds 1, 4, 9")],
)
def test_a_title_names_game_scripts_and_seeds(tmp_path, seeds, text):
    runs = [make_run(tmp_path / str(seed), seed, episodes=1) for seed in seeds]
    assert picture_title(runs, 80) == f"PongNoFrameskip-v4 · 01_ppo · {text}"


def test_a_title_counts_many_scripts_and_seeds(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed, script=f"script_{seed}", episodes=1) for seed in range(1, 11, 2)]
    assert picture_title(runs, 80) == "PongNoFrameskip-v4 · 5 scripts · 5 seeds"


def test_thousands_are_shortened():
    figure = Figure()
    axes = figure.add_subplot()
    axes.set_xlim(0, 1.5e6)
    shorten_thousands(axes.xaxis)
    figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "0",
        "250k",
        "500k",
        "750k",
        "1M",
        "1.25M",
        "1.5M",
    ]
