import numpy as np

from lib.analysis.window import MAX_SCORES, with_scores
from lib.run import video_file

BEST, OTHER = (80, 160, 90), (90, 110, 140)  # colours of the bars
SCREEN = np.full((192, 144, 3), 200, np.uint8)


def bars(scores, meaning="Q", allowed=(True,)):
    """(colour, length) of each bar beside the picture, from the top; looked at in its lowest line, below the text."""
    shown = with_scores(
        SCREEN, [str(action) for action in range(len(scores))], np.array(scores), meaning, np.array(allowed)
    )
    large = video_file.enlarged(SCREEN)
    assert np.array_equal(shown[:, : large.shape[1]], large)
    panel = shown[:, large.shape[1] :]
    found = []
    for colour in (BEST, OTHER):
        same = (panel == colour).all(axis=2)
        rows = np.flatnonzero(same[:, 8])
        starts = rows[np.insert(np.diff(rows) > 1, 0, True)] if len(rows) else []
        found += [(int(start), colour, int(same[start].sum())) for start in starts]
    return [(colour, length) for _, colour, length in sorted(found)]


def test_a_bar_is_as_long_as_what_the_agent_thinks_of_an_action():
    (low, shortest), (best, longest), (middle, half) = bars([0.0, 4.0, 2.0])
    assert (low, best, middle) == (OTHER, BEST, OTHER)
    assert shortest <= 1 < half < longest
    assert abs(half - longest / 2) <= 2


def test_probabilities_are_shown_between_0_and_1():
    (_, quarter), (_, most) = bars([0.25, 0.75], "probability")
    assert abs(3 * quarter - most) <= 4


def test_actions_that_are_not_allowed_are_left_out():
    allowed = [False, True, False, True]
    assert [colour for colour, _ in bars([-1e9, 1.0, -1e9, 2.0], "Q", allowed)] == [OTHER, BEST]
    assert [colour for colour, _ in bars([0.0, 0.25, 0.0, 0.75], "probability", allowed)] == [OTHER, BEST]


def test_of_many_actions_the_best_are_shown_the_best_one_first():
    scores = np.random.default_rng(1).normal(size=243).astype(np.float32)
    shown = bars(scores)
    assert len(shown) == MAX_SCORES
    assert [colour for colour, _ in shown] == [BEST] + [OTHER] * (MAX_SCORES - 1)
    lengths = [length for _, length in shown[:-1]]
    assert lengths == sorted(lengths, reverse=True)
