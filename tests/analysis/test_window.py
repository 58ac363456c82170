"""The panel of action scores beside a frame."""

import numpy as np
import pytest

from fakes import Counting
from lib.analysis.window import BAR, BEST_BAR, MAX_SCORES, action_names, add_score_panel
from lib.run.videos import enlarge

FRAME = np.full((192, 144, 3), 200, np.uint8)


def bars(scores, score_name="Q", mask=(True,)):
    """Return (colour, length) of each bar from top to bottom."""
    names = [str(action) for action in range(len(scores))]
    shown = add_score_panel(FRAME, names, np.array(scores), score_name, np.array(mask))
    width = enlarge(FRAME).shape[1]
    assert np.array_equal(shown[:, :width], enlarge(FRAME))
    panel = shown[:, width:]
    found = []
    for colour in (BEST_BAR, BAR):
        same = (panel == colour).all(axis=2)
        rows = np.flatnonzero(same[:, 8])
        starts = rows[np.insert(np.diff(rows) > 1, 0, True)] if len(rows) else []
        found += [(int(start), colour, int(same[start].sum())) for start in starts]  # the first row is above the text
    return [(colour, length) for _, colour, length in sorted(found)]


@pytest.mark.parametrize(
    ("meanings", "names"),
    [({1: "right", 0: "left"}, ["left", "right"]), (None, ["0", "1"]), ([4, 5], ["4", "5"]), (["left"], ["0", "1"])],
)
def test_actions_have_the_environments_names_if_there_is_one_for_each(meanings, names, monkeypatch):
    env = Counting()
    monkeypatch.setattr(env, "get_action_meanings", lambda: meanings, raising=False)
    assert action_names(env) == names


def test_bars_are_proportional_to_the_values_of_valid_actions_and_to_probabilities():
    mask = [True, False, True, True]
    (low, shortest), (best, longest), (middle, half) = bars([0.0, -1e9, 4.0, 2.0], "Q", mask)
    assert (low, best, middle) == (BAR, BEST_BAR, BAR)
    assert shortest <= 1 < half < longest
    assert abs(half - longest / 2) <= 2
    (_, quarter), (_, most) = bars([0.25, 0.75], "probability")
    assert abs(3 * quarter - most) <= 4


def test_of_many_actions_the_best_are_shown_in_descending_order():
    shown = bars(np.random.default_rng(1).normal(size=243).astype(np.float32))
    assert [colour for colour, _ in shown] == [BEST_BAR] + [BAR] * (MAX_SCORES - 1)
    lengths = [length for _, length in shown[:-1]]
    assert lengths == sorted(lengths, reverse=True)
