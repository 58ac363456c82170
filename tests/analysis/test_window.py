"""The panel of action scores beside a frame."""

import numpy as np

from fakes import Counting
from lib.analysis.window import BAR, BEST_BAR, MAX_SCORES, action_names, add_score_panel
from lib.run.videos import enlarge

FRAME = np.full((192, 144, 3), 200, np.uint8)


def bars(scores, score_name="Q", mask=(True,)):
    """Return (is best, length) of each bar from top to bottom."""
    names = [str(action) for action in range(len(scores))]
    panel = add_score_panel(FRAME, names, np.array(scores), score_name, np.array(mask))[:, enlarge(FRAME).shape[1] :]
    coloured = {best: (panel == colour).all(axis=2) for best, colour in ((True, BEST_BAR), (False, BAR))}
    first_rows = [28 + 20 * row for row in range((len(panel) - 28) // 20)]  # of each bar, above its text
    return [(best, n) for row in first_rows for best in (True, False) if (n := int(coloured[best][row].sum()))]


def test_actions_have_the_environments_names_if_there_is_one_for_each(monkeypatch):
    env = Counting()
    for meanings, names in (({1: "right", 0: "left"}, ["left", "right"]), (None, ["0", "1"]), (["left"], ["0", "1"])):
        monkeypatch.setattr(env, "get_action_meanings", lambda meanings=meanings: meanings, raising=False)
        assert action_names(env) == names


def test_bars_are_proportional_to_the_values_of_valid_actions_and_to_probabilities():
    shown = bars([0.0, -1e9, 4.0, 2.0], "Q", [True, False, True, True])
    assert [best for best, _ in shown] == [False, True, False]
    shortest, longest, half = (length for _, length in shown)
    assert shortest <= 1 < half < longest
    assert abs(half - longest / 2) <= 2
    (_, quarter), (_, most) = bars([0.25, 0.75], "probability")
    assert abs(3 * quarter - most) <= 4


def test_of_many_actions_the_best_are_shown_in_descending_order():
    shown = bars(np.random.default_rng(1).normal(size=243).astype(np.float32))
    assert [best for best, _ in shown] == [True] + [False] * (MAX_SCORES - 1)
    assert shown == sorted(shown, key=lambda bar: -bar[1])
