"""The learning curve at the end of a run."""

import pandas as pd

from lib.run.curve import draw_curve, rolling_mean


def test_the_curve_is_the_mean_of_the_last_hundred_episodes():
    means = rolling_mean(pd.Series(range(150))).tolist()
    assert (means[0], means[99], means[149]) == (0, 49.5, 99.5)


def test_a_short_run_has_a_curve_too(tmp_path):
    rows = "".join(f"{n},{100 * n},100,{n - 5},{n}.5,\n" for n in range(1, 8))
    (tmp_path / "episodes.csv").write_text(f"episode,step,length,return,seconds,video\n{rows}")
    path = draw_curve(tmp_path, 18.0)
    assert path == tmp_path / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
