"""The cells, sources and blocks of the tables, the ladder's lines, and the check of the pages."""

import math

import numpy as np
import pandas as pd
import pytest

import check_docs
import ladder
import results
import significance
import tables
from tables import Block


def cells(text):
    """Return the rows of a table below its header."""
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:] if line.startswith("|")]


def test_the_time_to_solve_counts_what_was_reached_within_the_limit(kept):
    for seed, seconds in enumerate((600.0, 600.1, 300.0), 1):
        figures = {"seconds_to_goal": seconds, "steps_to_goal": 1000 * seconds, "evaluation_mean": 20.0 - seed}
        figures |= {"emulator_before": 1000, "emulator_after": 3000, "steps_per_second": 9}
        kept("solve", "x", seed, "x --time-limit 600", **figures)
    kept("solve", "y", 1, "y --time-limit 900", seconds_to_goal=math.inf, steps_to_goal=math.inf, steps_per_second=7)
    text = tables.solve_table(results.runs("solve"))
    solved, unsolved = cells(text)
    assert solved[1:4] == ["600 s (300 to never), 2 of 3 seeds", "1.20 (0.60 to never)", "600 (300 to never)"]
    assert solved[5] == "17.0"
    assert unsolved[1] == "not in 900 s"
    assert "Measured on 2 cores (AMD EPYC); 20" in text


def test_a_block_replaces_only_the_text_between_its_markers():
    block = Block("page.md", "speed", "new")
    assert block.put_into("a\n<!-- speed -->\nold\n<!-- /speed -->\nb") == "a\n<!-- speed -->\nnew\n<!-- /speed -->\nb"
    with pytest.raises(ValueError, match=r"page\.md has no block <!-- speed -->"):
        block.put_into("a")


def test_the_check_of_the_pages_finds_old_tables_and_dead_links(tmp_path, monkeypatch):
    monkeypatch.setattr(check_docs, "PROJECT", tmp_path)
    page, current = tmp_path / "page.md", Block("page.md", "t", "1")
    page.write_text("# A heading\n[x](#a-heading) [y](#none) [z](gone.md)\n`lib/gone.py`\n<!-- t -->\n1\n<!-- /t -->\n")
    assert [*check_docs.outdated([current]), *check_docs.without_results(page, [current])] == []
    wrong = [*check_docs.outdated([Block("page.md", "t", "2")]), *check_docs.without_results(page, [])]
    wrong += [*check_docs.broken_links(page), *check_docs.missing_files(page)]
    page.write_text("`--envs`\n\n    ./gone.py --envs 3 --seeds=1  # --not-given\n")
    wrong += check_docs.wrong_commands(page, {"--envs"})
    expected = (
        *("block 't'", "block 't' has no results", "the page has no heading for #none", "gone.md does not exist"),
        *("lib/gone.py does not exist", "there is no gone.py", "no script has the option --seeds"),
    )
    for line, beginning in zip(wrong, expected, strict=True):
        assert line.startswith(f"page.md: {beginning}")


def test_the_lines_to_read_are_those_of_the_script_and_of_what_its_header_names(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "PROJECT", tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/one.py").write_text("x = 1\n\n\nclass One:\n    y = 2\n\n    z = 3\n")
    (tmp_path / "lib/two.py").write_text("import lib.one\n\n\ndef two():\n    from lib import three\n")
    (tmp_path / "lib/three.py").write_text("x = 1\n")
    script = tmp_path / "script.py"
    script.write_text('"""Idea.\n\nRead    One in lib/one.py, then\n        lib/two.py\n"""\nfrom lib import two\n')
    assert ladder.lines_of(script) == (12, 6 + 4 + 5)


def test_the_permutation_and_the_rank_test_on_numbers_worked_by_hand():
    # Of the 6 ways to draw two of four, only {3, 4} and {1, 2} are as far apart.
    assert significance.permutation_test(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == pytest.approx(2 / 6)
    assert significance.permutation_test(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0
    never = math.inf  # such runs share the last rank
    # Ranks 1, 2 and 4.5, 4.5, 4.5. Of the 10 ways to draw two of five, only {1, 2} is as far apart.
    assert significance.rank_test(pd.Series([100, 200]), pd.Series([never, never, never])) == pytest.approx(1 / 10)
    assert significance.rank_test(pd.Series([never, never]), pd.Series([never, never])) == 1.0
