"""The report page: complete, self-contained, safe against names with HTML, and readable in a browser."""

import base64
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from bokeh.models import HBar, HSpan, Line
from PIL import Image

from browser import open_page
from finished_runs import add_scalars, add_videos, edit_params, make_run
from lib.analysis import report
from lib.analysis.run_data import Run

REPORT = Path("tools/report.py")


class Page(HTMLParser):
    """Attributes of a page's elements by tag, and all texts. Only the page's own two scripts may run."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text = {}, []
        self.feed(html)
        [policy] = [meta["content"] for meta in self.tags["meta"] if "http-equiv" in meta]
        assert policy.startswith("default-src 'none';")  # a browser fetches nothing
        assert policy.endswith(f"script-src 'nonce-{self.tags['script'][0]['nonce']}'")
        assert len(self.tags["script"]) == 2

    def handle_starttag(self, tag, attributes):
        self.tags.setdefault(tag, []).append(dict(attributes))

    def handle_data(self, data):
        if data.strip():
            self.text.append(data.strip())


def glyphs(plot, kind):
    return [drawn for drawn in plot.renderers if type(drawn.glyph) is kind]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of one setting and one run with another gamma, with scalars and videos."""
    folder = tmp_path_factory.mktemp("runs")
    seeds = [make_run(folder / f"run-{seed}", seed, lambda n, seed=seed: 0.2 * n - 20 + seed) for seed in (1, 2, 3)]
    for run in seeds:
        add_scalars(run)
    add_videos(seeds[0], "play-15000-episode-1-return-20.webm")
    other = add_videos(make_run(folder / "other", gamma=0.9), "episode-120-return--3.webm")
    return [Run.read(run) for run in (*seeds, other)]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return report.write_report(runs, tmp_path_factory.mktemp("page") / "new" / "folder")


def test_the_page_is_self_contained(runs, page):
    parsed = Page(page.read_text())
    assert page.stat().st_size < 3_000_000
    row = parsed.text.index(runs[1].name)
    assert parsed.text[row + 1 : row + 8] == ["15007", "150", "2.10", "2.10", "15.05", "252.00", "2.00"]
    videos = [base64.b64decode(video["src"].partition(";base64,")[2]) for video in parsed.tags["video"]]
    assert sorted(videos) == sorted(file.read_bytes() for run in runs for file in run.path.glob("videos/*.webm"))


def test_the_figures_hold_the_means_of_all_runs_and_the_goal(runs):
    steps, minutes, speed, parts = (picture.plot for picture in report.draw_pictures(runs))
    lines = {line.name: line.data_source.data for line in glyphs(steps, Line) if "seed" in line.name}
    assert list(lines) == ["gamma=0.99, seed 1", "gamma=0.99, seed 2", "gamma=0.99, seed 3", "gamma=0.9, seed 1"]
    assert lines["gamma=0.99, seed 2"]["x"][[0, -1]].tolist() == [1000, 15000]  # from the tenth episode on
    assert lines["gamma=0.99, seed 2"]["y"][-1] == pytest.approx(0.2 * 100.5 - 20 + 2)
    assert [line.glyph.y for line in glyphs(steps, HSpan)] == [18.0]
    assert minutes.select_one({"name": "gamma=0.9, seed 1"}).data_source.data["x"][-1] == 15.0
    assert len(speed.select_one({"name": "gamma=0.9, seed 1"}).data_source.data["x"]) == 0  # without scalars
    shares = {bars.name: bars.data_source.data["percent"] for bars in glyphs(parts, HBar)}
    assert {part: percents[0] for part, percents in shares.items()} == {
        "act": 12.5, "environment": 25.0, "sample": 6.25, "learn": 50.0, "rest": 6.25
    }  # fmt: skip


def test_texts_of_a_run_are_never_html(tmp_path):
    evil = "<script>alert(1)</script> & \"'"
    run = make_run(tmp_path / "<b>&amp;", script=evil, knobs={"<i>": evil}, run_name=evil, env_name=evil)
    add_scalars(add_videos(run, "<u>.webm"))
    session = {"argv": ["./x.py", evil], "commit": evil, "machine": {evil: evil}, "versions": {evil: evil}}
    edit_params(run, lambda params: params["sessions"][0].update(session))
    both = [Run.read(run), Run.read(make_run(tmp_path / "other"))]
    parsed = Page(report.write_report(both, tmp_path / "page").read_text())
    assert not {"b", "i", "u"} & set(parsed.tags)
    assert {"<b>&amp;", evil} <= set(parsed.text)


def test_the_page_names_no_private_folder_and_warns_if_commits_differ(tmp_path):
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")

    def rendered():
        return report.write_report([Run.read(run), Run.read(other)], tmp_path).read_text()

    argv = ["/home/me/01_ppo.py", "--runs-dir=/home/me/runs", "--init", "/home/me/my runs/x=3"]
    edit_params(run, lambda params: params["sessions"][0].update(argv=argv) or params.update(init=argv[-1]))
    assert "01_ppo.py --runs-dir=runs --init x=3" in rendered()
    assert "/home/me" not in rendered()
    assert "do not all have the same" not in rendered()
    edit_params(other, lambda params: params["sessions"][0].update(commit="abc123"))
    assert "do not all have the same commit." in rendered()


def test_the_page_is_written_to_the_folder_of_one_run_and_to_a_new_one_for_several(answer, ends, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one, new = make_run(tmp_path / "one"), make_run(tmp_path / "new", episodes=0)
    assert answer(REPORT, one) == f"{one / 'report.html'}\n"
    assert answer(REPORT, one, make_run(tmp_path / "two")) == f"{Path('report') / 'report.html'}\n"
    (tmp_path / "README.md").touch()  # runs/* matches one
    code, _, errors = ends(REPORT, one, new, tmp_path / "README.md", "--output", tmp_path / "other" / "folder")
    assert (code, errors.count("\n")) == (0, 1)
    assert (tmp_path / "other" / "folder" / "report.html").exists()


@pytest.mark.long
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_a_browser_shows_the_whole_page(page, tmp_path, width, dark):
    seen = open_page(page, tmp_path / "seen.png", width, dark)
    assert seen["width"] <= seen["inner"] == width  # nothing is wider than the window
    assert [300 < shown < width and height > 200 for shown, height in seen["figures"]] == [True] * 4
    assert [hidden < 2 for hidden in seen["tables"]] == [True] * 2  # the last column can be scrolled into view
    assert seen["videos"] == [[512, None]] * 2
    assert (seen["scripts"], seen["fetched"]) == (2, [])
    assert not [line for line in seen["console"] if not line.startswith("[bokeh") or "attempt" in line]
    bright = (np.asarray(Image.open(tmp_path / "seen.png").convert("RGB")).min(axis=2) > 200).mean()
    assert bright < 0.1 if dark else bright > 0.6  # pictures, too
