"""Cells, sources and blocks of the tables in the pages, and the check of the pages."""

import math

import pandas as pd
import pytest

import check_docs
import lab
import markup


@pytest.mark.parametrize(
    ("values", "options", "text"),
    [
        ([155.2, 98.4, 271.6], {"digits": 0, "unit": " s"}, "155 s (98 to 272)"),
        ([1615.6], {"digits": 0, "unit": " s", "single": "seed"}, "1,616 s (one seed)"),
        ([5.0, math.inf, 3.0], {"digits": 0}, "5 (3 to never)"),
        ([5.0, math.inf, 3.0, math.inf], {"digits": 0}, "never (3 to never)"),
        ([100.0, math.inf, math.inf], {"digits": 0, "unit": " s"}, "never (100 to never)"),
    ],
)
def test_a_spread_is_the_median_and_the_range(values, options, text):
    assert markup.spread(pd.Series(values), **options) == text


def test_one_sentence_says_where_several_files_were_measured():
    stamped = {
        "measured": "2026-11-22T10:00:00",
        "machine": {"cores": 2, "processor": "AMD EPYC", "device": "cpu", "torch_threads": 2},
        "versions": {"torch": "2.13.0+cpu", "ale-py": "0.12.1"},
    }
    other = stamped | {"measured": "2026-11-20T10:00:00"}
    sentence = markup.measured_on([stamped, other])
    assert sentence.count("2 cores (AMD EPYC), no GPU") == 1
    assert "2026-11-20 to 2026-11-22" in sentence


@pytest.mark.parametrize(("fast", "text"), [(True, "no GPU, bfloat16, "), (False, "no GPU, no bfloat16, ")])
def test_a_measurement_says_whether_the_machine_is_fast_in_bfloat16(fast, text):
    stamped = lab.stamp()
    assert isinstance(stamped["machine"]["fast_bfloat16"], bool)
    stamped["machine"]["fast_bfloat16"] = fast
    assert text in markup.measured_on([stamped])


def test_a_block_replaces_only_the_text_between_its_markers():
    block = markup.Block("page.md", "speed", "new")
    assert block.put_into("a\n<!-- speed -->\nold\n<!-- /speed -->\nb") == "a\n<!-- speed -->\nnew\n<!-- /speed -->\nb"
    with pytest.raises(ValueError, match=r"page\.md has no block <!-- speed -->"):
        block.put_into("a")


def test_the_check_of_the_pages_finds_old_tables_and_dead_links(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[x](#a-heading) [y](#none) [z](gone.md)\n`lib/gone.py`\n<!-- t -->\n1\n<!-- /t -->\n")
    assert list(check_docs.outdated([markup.Block("page.md", "t", "1")])) == []
    [line] = check_docs.outdated([markup.Block("page.md", "t", "2")])
    assert line.startswith("page.md: block 't'")
    assert list(check_docs.without_results(page, [markup.Block("page.md", "t", "1")])) == []
    [line] = check_docs.without_results(page, [markup.Block("other.md", "t", "1")])
    assert line.startswith("page.md: block 't' has no results")
    page.write_text(page.read_text().replace("\n1\n", "\n"))
    assert list(check_docs.without_results(page, [])) == []  # nothing is claimed
    assert [line.split(": ")[1] for line in check_docs.broken_links(page)] == [
        "the page has no heading for #none",
        "gone.md does not exist",
    ]
    assert list(check_docs.missing_files(page)) == ["page.md: lib/gone.py does not exist"]


@pytest.mark.parametrize(
    ("reached", "seeds", "text"),
    [
        ([], 3, "0 of 3 seeds"),
        ([300.0], 1, "300 (one seed)"),
        ([300.0, 200.0], 2, "250 (200 to 300)"),
        ([300.0, 200.0], 3, "300 (200 to never), 2 of 3 seeds"),
        ([300.0], 3, "never (300 to never), 1 of 3 seeds"),
    ],
)
def test_a_seed_that_did_not_reach_the_goal_counts_as_slower_than_all_others(reached, seeds, text):
    assert markup.spread_of_seeds(pd.Series(reached, dtype=float), seeds) == text


def test_an_unknown_value_is_not_called_never():
    assert markup.spread(pd.Series([float("nan")])) == ""
    assert markup.spread(pd.Series([float("nan"), 2.0]), single="seed") == "2.0 (one seed)"
    assert markup.spread(pd.Series([float("inf")] * 2)) == "never"
