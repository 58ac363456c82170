"""The report page: complete, self-contained, safe against names with HTML, and readable in a browser."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from browser import open_page
from finished_runs import add_scalars, add_videos, edit_params, make_run
from lib.analysis import curves, report
from lib.analysis.run_data import Run, select_runs
from lib.system import files

COMPARE, REPORT = Path("tools/compare.py"), Path("tools/report.py")


def write_report(runs, folder):
    return report.write_report([Run.read(run) for run in runs], folder)


def render_page(*runs):
    return report.render_page([Run.read(run) for run in runs], {})


class StrictParser(HTMLParser):
    """Parses a page, checks that all tags are closed in order, and collects tags, addresses and texts."""

    VOID = frozenset(("br", "img", "link", "meta"))
    ADDRESSES = frozenset(("src", "srcset", "href", "poster", "action", "data"))

    def __init__(self, html):
        super().__init__()
        self.open, self.addresses, self.tags, self.text = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, dict(attributes)))
        self.addresses += [value for name, value in attributes if name in self.ADDRESSES]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.text.append(data.strip())

    def attributes_of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def section_of(html, name):
    start = html.index(f'<section id="{name}">')
    return html[start : html.index("</section>", start) + len("</section>")]


def decode(uri):
    kind, _, data = uri.partition(";base64,")
    return kind.removeprefix("data:"), base64.b64decode(data, validate=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three seeds of one setting and one run with another gamma, with scalars and videos."""
    folder = tmp_path_factory.mktemp("runs")
    seeds = [make_run(folder / f"run-{seed}", seed, lambda n, seed=seed: 0.2 * n - 20 + seed) for seed in (1, 2, 3)]
    for run in seeds:
        add_scalars(run)
    add_videos(seeds[0], "play-15000-episode-1-return-20.webm")
    other = add_videos(make_run(folder / "other", gamma=0.9), "episode-120-return--3.webm")
    return [*seeds, other]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write_report(runs, tmp_path_factory.mktemp("page") / "new" / "folder")


def test_the_page_and_the_terminal_show_the_same_numbers(answer, runs, page):
    table, *summaries = answer(COMPARE, *runs).split("\n\n")
    terminal = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    html = page.read_text()
    for section, names in (
        ("outcomes", ("steps", "episodes", "mean", "minutes", "steps/s", "solved")),
        ("differences", ("seed", "gamma")),
    ):
        # One row per run in the page, one column per run in the terminal.
        text = StrictParser(section_of(html, section)).text
        header = text[text.index("run") + 1 : text.index(runs[0].name)]
        for column, run in enumerate(runs):
            row = text[text.index(run.name) + 1 :]
            assert [row[header.index(name)] for name in names] == [terminal[name][column] for name in names]
    assert len(summaries) == 1
    assert summaries[0].partition("runs: ")[2].strip() in html


def test_the_page_of_one_run_is_written_to_its_folder(answer, tmp_path):
    run = add_scalars(make_run(tmp_path / "run"))
    assert answer(REPORT, run) == f"{run / 'report.html'}\n"
    names = [f"report-{name}.png" for name in ("steps", "minutes", "speed", "parts")]
    assert {file.name for file in run.glob("report*")} == {"report.html", *names}
    images = StrictParser((run / "report.html").read_text()).attributes_of("img")
    assert [decode(image["src"])[1] for image in images] == [(run / name).read_bytes() for name in names]
    for name in names:
        picture = Image.open(run / name)
        assert picture.width > 900
        assert picture.convert("L").getextrema()[0] < 100  # not empty
        assert picture.getpixel((0, 0))[3] == 0  # transparent, so that it fits a light and a dark page


def test_the_page_of_several_runs_is_written_to_the_current_folder_or_as_asked(
    answer, monkeypatch, tmp_path, runs, small_pictures
):
    monkeypatch.chdir(tmp_path)
    assert answer(REPORT, runs[0], runs[3], runs[0]) == f"{Path('report') / 'report.html'}\n"
    details = StrictParser((tmp_path / "report" / "report.html").read_text()).attributes_of("details")
    assert len(details) == 2  # a run that is given twice counts once
    answer(REPORT, runs[0], "--output", tmp_path / "other" / "folder")
    assert (tmp_path / "other" / "folder" / "report-steps.png").exists()


def test_the_page_is_self_contained(page):
    html = page.read_text()
    parser = StrictParser(html)
    assert parser.addresses
    assert all(address.startswith("data:") for address in parser.addresses)
    assert "url(" not in html
    assert "@import" not in html
    assert not parser.attributes_of("script")
    assert len(parser.attributes_of("img")) == 4
    assert all(image["alt"] for image in parser.attributes_of("img"))
    policies = [meta["content"] for meta in parser.attributes_of("meta") if "http-equiv" in meta]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none';")


def test_the_videos_in_the_page_can_be_played(page, tmp_path):
    videos = StrictParser(page.read_text()).attributes_of("video")
    assert len(videos) == 2
    for number, video in enumerate(videos):
        kind, data = decode(video["src"])
        assert kind == "video/webm"
        (tmp_path / f"{number}.webm").write_bytes(data)
        assert cv2.VideoCapture(str(tmp_path / f"{number}.webm")).get(cv2.CAP_PROP_FRAME_COUNT) == 10
    assert "play-15000-episode-1-return-20<br>" in page.read_text()
    assert "episode-120-return--3<br>" in page.read_text()


def test_the_best_videos_of_all_runs_come_first_when_room_is_short(monkeypatch, tmp_path):
    names = [f"episode-{n}-return-{total}.webm" for n, total in ((4, -2), (3, -9), (2, 21), (1, 3))]
    one = add_videos(make_run(tmp_path / "one"), *names)
    two = add_videos(make_run(tmp_path / "two"), "by hand.webm")
    both = [Run.read(one), Run.read(two)]
    chosen = [names[2], names[3], names[1], "by hand.webm"]
    assert [video.path.name for video in report.choose_videos(both)] == chosen
    size = (one / "videos" / names[3]).stat().st_size
    monkeypatch.setattr(report, "MAX_VIDEO_BYTES", 2 * size + size // 2)
    assert [video.path.name for video in report.choose_videos(both) if video.uri] == [names[2], "by hand.webm"]
    html = render_page(one, two)
    assert len(StrictParser(html).attributes_of("video")) == 2
    assert str(Path("one", "videos", names[3])) in html  # named although it is left out


def test_texts_of_a_run_are_never_html_or_formulas(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "DPI", 30)
    evil = "<script>alert(1)</script> & \"'$x^$"
    run = make_run(tmp_path / "<b>&amp;", script=evil, knobs={"<i>": evil}, run_name=evil, env_name=evil)
    add_scalars(add_videos(run, "<u>.webm"))
    session = {"argv": ["./x.py", evil], "commit": evil, "machine": {evil: evil}, "versions": {evil: evil}}
    edit_params(run, lambda params: params["sessions"][0].update(session))
    html = write_report([run, make_run(tmp_path / "other")], tmp_path / "page").read_text()
    parser = StrictParser(html)
    assert not [tag for tag, _ in parser.tags if tag in ("script", "b", "i", "u")]
    assert "alert(1)" in html
    assert "<b>&amp;" in parser.text
    assert any(evil in text for text in parser.text)


def test_the_page_names_no_private_folder(tmp_path, small_pictures):
    run = make_run(tmp_path / "run")
    argv = ["/home/me/01_ppo.py", "--runs-dir=/home/me/runs", "--init", "/home/me/runs/x=3"]
    edit_params(run, lambda params: params["sessions"][0].update(argv=argv))
    edit_params(run, lambda params: params.update(init="/home/me/runs/x=3"))
    html = render_page(run)
    assert "01_ppo.py --runs-dir=runs --init x=3" in html
    assert "/home/me" not in html


def test_pictures_without_data_are_left_out_and_reported(tmp_path, small_pictures):
    def drawn():
        read = [Run.read(run)]
        pictures = report.draw_pictures(read)
        html = report.render_page(read, pictures)
        missing = html.partition("No run has recorded")[2].partition("</p>")[0]
        return list(pictures), ["speed" in missing, "time" in missing]

    run = make_run(tmp_path / "run")
    assert drawn() == (["steps", "minutes", "parts"], [True, False])
    (run / "result.json").unlink()
    assert drawn() == (["steps", "minutes"], [True, True])
    add_scalars(run)
    assert len(drawn()[0]) == 4


def test_the_page_warns_if_runs_have_different_commits(tmp_path):
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "other")
    assert "do not all have the same" not in render_page(one, other)
    edit_params(other, lambda params: params["sessions"][0].update(commit="abc123"))
    assert "do not all have the same commit." in render_page(one, other)


def test_what_cannot_be_shown_is_skipped_with_a_note(ends, tmp_path, small_pictures):
    folder = tmp_path / "runs"
    good = make_run(folder / "good")
    make_run(folder / "new", episodes=0)
    broken = make_run(folder / "broken")
    (broken / "params.json").write_text("{")
    (folder / "README.md").write_text("")
    (folder / "tune").mkdir()
    code, _, errors = ends(REPORT, *sorted(folder.iterdir()), "--output", tmp_path / "page")
    assert code == 0
    notes = errors.splitlines()
    for note, reason in zip(notes, ("README.md", "broken.*cannot be read", "new has no finished", "tune"), strict=True):
        assert re.search(reason, note)
    html = (tmp_path / "page" / "report.html").read_text()
    texts = StrictParser(html).text
    assert set(notes) <= set(texts)
    assert good.name in texts
    assert str(tmp_path) not in html  # the page may be sent to others


def test_names_and_models_that_cannot_be_shown_are_skipped_without_their_folder(tmp_path, monkeypatch):
    good, _ = make_run(tmp_path / "good"), make_run(tmp_path / "new", episodes=0)
    make_run(tmp_path / "project" / "models" / "pong", episodes=0)
    monkeypatch.setattr(files, "PROJECT", tmp_path / "project")
    runs, reasons = select_runs(["good", "new", "models/pong"], tmp_path, with_episodes=True)
    assert [run.path for run in runs] == [good]
    assert [reason.split()[0] for reason in reasons] == ["new", "pong"]


def test_runs_of_which_none_can_be_shown_and_names_that_do_not_exist_are_refused(refused, runs, tmp_path):
    run = make_run(tmp_path / "run", episodes=0)
    message = refused(REPORT, run)
    assert "run has no finished episode" in message
    assert message.count("\n") == 1
    assert "there is no run folder 'runn'" in refused(REPORT, runs[0], "runn")
    assert "there is no run folder 'runn'" in refused(COMPARE, runs[0], "runn")


def test_pictures_name_game_script_and_seeds(monkeypatch, runs):
    titles = []

    def keep(figure, *args, **options):
        titles.append(figure.get_suptitle().replace("\n", " "))

    monkeypatch.setattr(Figure, "savefig", keep)
    report.draw_pictures([Run.read(run) for run in runs])
    assert set(titles) == {"PongNoFrameskip-v4 · 01_ppo · seeds: 1, 2, 3"}


def labels_outside(axis):
    """Return the labels of an axis that are not drawn, because their ticks are outside."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def test_no_text_in_a_picture_touches_another(monkeypatch, tmp_path):
    name = "03_ppo_actors-learning_rate=0.0003-batch_size=128-gamma=0.999-" + "-".join(f"knob{n}=1" for n in range(9))
    one = add_scalars(make_run(tmp_path / "one", script=name, episodes=5_000), 5_000)
    two = make_run(tmp_path / "two", 123_456, script="01_ppo", learning_rate=1.25e-7, episodes=40)
    touching = []

    def check(figure, *args, **options):
        figure.draw_without_rendering()
        width, height = figure.canvas.get_width_height()
        hidden = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in labels_outside(axis)}
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in hidden]
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
        for number, (text, box) in enumerate(boxes):
            assert min(box.x0, box.y0) >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text
            touching.extend((text, other) for other, place in boxes[number + 1 :] if box.overlaps(place))

    monkeypatch.setattr(Figure, "savefig", check)
    assert len(report.draw_pictures([Run.read(one), Run.read(two)])) == 4
    assert touching == []


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (390, True),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1280, True), (390, False), (1280, False))),
    ],
)
def test_a_browser_shows_the_whole_page(page, tmp_path, width, dark):
    seen = open_page(page, tmp_path / "seen.png", "--width", width, *(["--dark"] if dark else []))
    assert seen["inner"] == width
    assert seen["width"] <= width  # nothing is wider than the window
    assert len(seen["images"]) == 4
    for natural, shown in seen["images"]:
        assert natural > 900
        assert 300 < shown < width
    assert len(seen["tables"]) == 2
    for before, after in seen["tables"]:
        assert after < 2  # the last column can be scrolled into view,
        assert (before > 20) == (width == 390 and before > after)  # which is needed on a telephone only
    assert seen["videos"] == [[512, None]] * 2
    assert "\nrun\tsteps\tepisodes\t" in seen["text"]["outcomes"]
    text = {section: text.replace("\n\t", "\t") for section, text in seen["text"].items()}
    assert "run-2\t15007\t150\t2.10\t" in text["outcomes"]
    assert "other\t1\t0.9" in text["differences"]
    assert (seen["scripts"], seen["fetched"], seen["console"]) == (0, [], [])
    assert seen["dark"] == dark
    picture = Image.open(tmp_path / "seen.png").convert("RGB")
    assert picture.size == (width, seen["height"])
    background = picture.getpixel((2, 2))
    assert (max(background) < 60) == dark
    bright = (np.asarray(picture, int).min(axis=2) > 200).mean()
    assert bright < 0.1 if dark else bright > 0.6  # pictures, too
    # Content is drawn all the way down, except for gaps between sections.
    pixels = np.asarray(picture, int)
    busy = (np.abs(pixels - pixels[:, :1]).sum(axis=2) > 30).any(axis=1)
    assert busy.mean() > 0.8
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100
