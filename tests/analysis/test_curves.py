"""Numbers behind the curves."""

from lib.analysis.curves import Series, common_band


def band_of(*runs):
    """Return the grid of three points and the interval at its end."""
    band = common_band(runs, 3)
    return band and (band[0].tolist(), [part[-1] for part in band[1]])


def test_a_band_covers_the_range_that_all_runs_share_and_ended_runs_keep_their_last_value():
    early, late = Series([0, 10], [0, 10]), Series([5, 15], [20, 40])
    assert band_of(early, late) == ([5, 7.5, 10], [20, 10, 30])
    solved = [Series([0, end], [-20, 18], ended=True) for end in (10, 20)]
    assert band_of(*solved) == ([0, 10, 20], [18, 18, 18])
    assert band_of(*solved, Series([0, 12], [-20, 0]))[0] == [0, 6, 12]  # nobody knows how the third one goes on
    for runs in ([early], [early, Series([12, 13], [1, 1])], [early, Series([], [])]):
        assert band_of(*runs) is None


def test_a_series_is_finite_and_its_x_never_decreases():
    series = Series([1, 4, 3, 5, 6], [10, 20, 30, float("nan"), 50])
    assert series.x.tolist() == [1, 4, 4, 6]
    assert series.y.tolist() == [10, 20, 30, 50]
    assert Series([1, 2, 3], [0, -1, 5], above=0).x.tolist() == [3]
