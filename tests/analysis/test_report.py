"""The page of runs: its numbers, that nothing of a run can break it, and how it looks in a browser."""

import base64
import io
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

import browser
from lib.analysis import comparison, curves, report, run_data
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import provenance, run_folder, video_file
from lib.run.curve import rolling_mean
from lib.run.options import RunOptions
from running import ENVIRONMENT, run

COMPARE, REPORT = Path("tools/compare.py"), Path("tools/report.py")
WITHOUT_DISPLAY = {name: value for name, value in ENVIRONMENT.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
PARTS = {"act": 1.0, "environment": 2.0, "sample": 0.5, "learn": 4.0}
STEEP, EVEN = (lambda n: 0.2 * n - 20), (lambda n: -20.0)


def made(
    path, seed=1, returns=STEEP, episodes=150, script="01_ppo", knobs=None, ended=True, tensorboard=False, **settings
):
    """A run's folder, of 100 steps and 6 seconds an episode."""
    path.mkdir(parents=True)
    options = RunOptions(seed=seed, knobs=knobs or {})
    described = provenance.describe(script, HYPERPARAMS["pong"], options)
    described["hyperparameters"] |= settings
    (path / "params.json").write_text(json.dumps(described))
    rows = [f"{n},{100 * n},100,{returns(n):g},{6 * n}.00,\n" for n in range(1, episodes + 1)]
    (path / "episodes.csv").write_text("episode,step,length,return,seconds,video\n" + "".join(rows))
    if ended:
        process = {"steps_per_second": 250.0 + seed, "training_seconds": 8.0, "parts": PARTS}
        result = {
            "stopped": "solved",
            "steps": 100 * episodes + 7,
            "seconds": 6.0 * episodes + 3,
            "reached": {"18.0": {"seconds": 60.0 * seed}},
            "this_process": process,
        }
        (path / "result.json").write_text(json.dumps(result))
    if tensorboard:
        with SummaryWriter(path) as writer:
            for step in range(1000, 100 * episodes + 1, 1000):
                writer.add_scalar("train/avg_fps", 250 + step / 1000, step)
                writer.add_scalar("evaluation/mean", step / 1000, step)
                for part, share in PARTS.items():
                    writer.add_scalar(f"time/{part}", share, step)
    return path


def filmed(path, *names):
    """A short video by each name, each newer than the one before."""
    for age, name in enumerate(reversed(names)):
        video = video_file.Video(path / "videos" / name, 10)
        for shade in range(0, 250, 25):
            video.show(np.full((64, 64, 3), shade, np.uint8))
        video.close()
        os.utime(path / "videos" / name, (1e9 - age, 1e9 - age))
    return path


class Strict(HTMLParser):
    """Every tag that is opened is closed, in turn; every address is data; collects what is of interest."""

    VOID = frozenset(("br", "img", "link", "meta"))

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
        self.addresses += [value for name, value in attributes if name in ("src", "href", "poster", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.text.append(data.strip())

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def content(uri):
    kind, _, data = uri.partition(";base64,")
    return kind.removeprefix("data:"), base64.b64decode(data, validate=True)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Three seeds of one thing and another one, with everything that a run can have."""
    folder = tmp_path_factory.mktemp("several")
    one = [
        made(folder / f"run-{seed}", seed, lambda n, seed=seed: 0.2 * n - 20 + seed, tensorboard=True)
        for seed in (1, 2, 3)
    ]
    filmed(one[0], "play-15000-episode-1-return-20.webm")
    return [*one, filmed(made(folder / "other", gamma=0.9), "episode-120-return--3.webm")]


@pytest.fixture(scope="module")
def page(several, tmp_path_factory):
    """Their page."""
    return report.write(several, tmp_path_factory.mktemp("page") / "deep" / "er")


def test_a_band_covers_the_stretch_that_all_runs_have():
    short = curves.series([0, 10], [0, 10])
    long = curves.series([5, 15], [20, 40])
    found = curves.band([short, long], points=2)
    assert found.grid.tolist() == [5, 10]
    assert found.low.tolist() == [5, 10]
    assert found.high.tolist() == [20, 30]
    assert found.mean.tolist() == [12.5, 20]


def test_there_is_no_band_of_one_run_or_of_runs_that_share_no_stretch():
    early, late = curves.series([0, 1], [1, 1]), curves.series([2, 3], [1, 1])
    assert curves.band([early]) is None
    assert curves.band([early, late]) is None
    assert curves.band([early, curves.series([], [])]) is None


def test_places_never_fall_and_values_are_finite():
    found = curves.series([1, 4, 3, 5, 6], [10, 20, 30, float("nan"), 50])
    assert found.x.tolist() == [1, 4, 4, 6]
    assert found.y.tolist() == [10, 20, 30, 50]
    assert found.at(np.array([4.0, 5.0])).tolist() == [30, 40]


def test_the_curve_is_the_mean_of_the_last_hundred():
    means = rolling_mean(pd.Series(range(150))).tolist()
    assert (means[0], means[99], means[149]) == (0, 49.5, 99.5)


def test_runs_that_differ_in_nothing_but_the_seed_are_a_group(tmp_path):
    one = [made(tmp_path / f"a{seed}", seed, knobs={"players": 2}, episodes=1) for seed in (1, 2)]
    knob = made(tmp_path / "b", knobs={"players": 4}, episodes=1)
    gamma = made(tmp_path / "c", knobs={"players": 2}, gamma=0.9, episodes=1)
    script = made(tmp_path / "d", script="02_other", knobs={"players": 2}, episodes=1)
    renamed = made(tmp_path / "e", 3, knobs={"players": 2}, run_name="mine", episodes=1)
    found = comparison.groups([one[0], knob, gamma, script, one[1], renamed])
    assert [group.runs for group in found] == [(one[0], one[1], renamed), (knob,), (gamma,), (script,)]
    assert [group.label for group in found] == [
        "01_ppo, players=2, gamma=0.99",
        "01_ppo, players=4, gamma=0.99",
        "01_ppo, players=2, gamma=0.9",
        "02_other, players=2, gamma=0.99",
    ]


def test_a_group_is_told_by_its_mean_its_lowest_and_its_highest(tmp_path):
    one, two, three = (made(tmp_path / f"{seed}", seed, lambda n, seed=seed: 10.0 * seed) for seed in (1, 2, 3))
    found = comparison.summary(comparison.Group("", (one, two, three)))
    assert found == "mean return 20.00 (10.00 to 30.00), solved in 2.00 (1.00 to 3.00) minutes"
    (two / "result.json").unlink()
    found = comparison.summary(comparison.Group("", (one, two)))
    assert found == "mean return 15.00 (10.00 to 20.00), solved in 1 of 2 runs in 1.00 minutes"


def test_the_page_and_the_terminal_show_the_same_numbers(answer, several, page):
    said = answer(COMPARE, *several).splitlines()
    shown = Strict(page.read_text()).text
    for name in ("seed", "gamma", "steps", "episodes", "mean", "minutes", "steps/s", "solved"):
        [line] = [line.split()[1:] for line in said if line.split()[0] == name]
        assert len(line) == 4
        # Column by column in the terminal, row by row in the page; the table is behind the head of the page.
        start = shown.index("How far they came" if name not in ("seed", "gamma") else "In what they differ")
        header = shown[start + 1 : shown.index(several[0].name, start)]
        for path, value in zip(several, line, strict=True):
            assert shown[shown.index(path.name, start) + header.index(name)] == value


def test_one_runs_page_lies_in_its_folder_with_its_pictures(answer, tmp_path):
    path = filmed(made(tmp_path / "run", tensorboard=True), "play-15000-episode-1-return-20.webm")
    assert answer(REPORT, path) == f"{path / 'report.html'}\n"
    assert {file.name for file in path.glob("report*")} == {
        "report.html",
        *(f"report-{name}.png" for name in ("steps", "minutes", "speed", "parts")),
    }
    page = Strict((path / "report.html").read_text())
    embedded = [content(image["src"])[1] for image in page.of("img")]
    assert embedded == [(path / f"report-{name}.png").read_bytes() for name in ("steps", "minutes", "speed", "parts")]
    for png in embedded:
        picture = Image.open(io.BytesIO(png)).convert("L")
        assert picture.width > 900
        assert picture.getextrema()[0] < 100  # something is drawn


def test_of_several_runs_it_lies_where_it_is_asked_for_and_a_run_counts_once(answer, monkeypatch, tmp_path, several):
    monkeypatch.chdir(tmp_path)
    assert answer(REPORT, several[0], several[3], several[0]) == f"{Path('report') / 'report.html'}\n"
    assert len(Strict((tmp_path / "report" / "report.html").read_text()).of("details")) == 2
    answer(REPORT, several[0], "--output", tmp_path / "else" / "where")
    assert (tmp_path / "else" / "where" / "report-steps.png").exists()


def test_the_page_has_everything_in_itself(page):
    html = page.read_text()
    strict = Strict(html)
    assert strict.addresses
    assert all(address.startswith("data:") for address in strict.addresses)
    assert "url(" not in html
    assert "@import" not in html
    assert not strict.of("script")
    assert len(strict.of("img")) == 4
    assert all(image["alt"] for image in strict.of("img"))
    [policy] = [meta["content"] for meta in strict.of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")


def test_its_videos_can_be_played(page, tmp_path):
    films = Strict(page.read_text()).of("video")
    assert len(films) == 2
    for number, film in enumerate(films):
        kind, data = content(film["src"])
        assert kind == "video/webm"
        (tmp_path / f"{number}.webm").write_bytes(data)
        assert cv2.VideoCapture(str(tmp_path / f"{number}.webm")).get(cv2.CAP_PROP_FRAME_COUNT) == 10
    assert "Return 20, episode 1 by the checkpoint of step 15,000" in page.read_text()
    assert "Return -3, training episode 120" in page.read_text()


def test_the_best_and_the_newest_videos_are_shown_as_far_as_there_is_room(monkeypatch, tmp_path):
    names = [f"episode-{n}-return-{total}.webm" for n, total in ((5, -1), (4, -2), (3, -9), (2, 21), (1, 3))]
    one = filmed(made(tmp_path / "one"), *names, "episode-6-return-99.part.webm")
    two = filmed(made(tmp_path / "two"), "by hand.webm")
    chosen = [names[3], names[4], names[2], "by hand.webm"]
    assert [video.path.name for video in report.videos([one, two])] == chosen
    size = (one / "videos" / names[4]).stat().st_size
    monkeypatch.setattr(report, "ROOM", 2 * size + size // 2)  # the best of each come first
    assert [video.path.name for video in report.videos([one, two]) if video.uri] == [names[3], "by hand.webm"]
    html = report.page([one, two], [])
    assert len(Strict(html).of("video")) == 2
    assert f"too large: {Path('one', 'videos', names[4])}" in html


def test_nothing_of_a_run_is_taken_for_html_or_a_formula(tmp_path):
    evil = "<script>alert(1)</script> & \"'$x^$"
    path = made(tmp_path / "<b>&amp;", script=evil, knobs={"<i>": evil}, run_name=evil, env_name=evil, tensorboard=True)
    params = run_folder.read_params(path)
    params["sessions"][0] |= {"argv": ["./x.py", evil], "commit": evil, "machine": {evil: evil}, "versions": {evil: 1}}
    (path / "params.json").write_text(json.dumps(params))
    filmed(path, "<u>.webm")
    other = made(tmp_path / "other")
    html = report.write([path, other], tmp_path / "page").read_text()
    strict = Strict(html)
    assert not [tag for tag, _ in strict.tags if tag in ("script", "b", "i", "u")]
    assert "alert(1)" in html
    assert "<b>&amp;" in strict.text
    assert any(evil in text for text in strict.text)


def test_without_tensorboards_files_the_result_tells_where_the_seconds_went(tmp_path):
    path = made(tmp_path / "run")
    assert run_data.scalars(path) == {}
    assert run_data.parts(path) == PARTS | {"rest": 0.5}
    drawn = report.pictures([path])
    assert [picture.file for picture in drawn] == ["report-steps.png", "report-minutes.png", "report-parts.png"]
    assert "No run has told its speed." in report.page([path], drawn)
    (path / "result.json").unlink()
    drawn = report.pictures([path])
    assert [picture.file for picture in drawn] == ["report-steps.png", "report-minutes.png"]
    assert "No run has told its speed or how its time was spent." in report.page([path], drawn)


def test_a_run_that_is_at_work_is_told_by_what_it_has_written(tmp_path):
    path = made(tmp_path / "run", tensorboard=True)
    assert comparison.outcome(path)["ended"] == "solved"
    (path / "pid").write_text(str(os.getpid()))  # resumed, so that the result is that of the process before
    with (path / "episodes.csv").open("a") as file:
        file.write("151,15100,100,")  # a row that is just being written
    assert run_data.parts(path) == PARTS
    found = comparison.outcome(path)
    assert (found["ended"], found["steps"], found["episodes"], found["minutes"]) == ("at work", 15_000, 150, 15.0)
    assert "at work" in report.write([path], tmp_path / "page").read_text()
    os.utime(path / "pid", (1e9, 1e9))  # the number is another process's by now
    assert comparison.outcome(path)["ended"] == "solved"


def test_runs_by_other_commits_are_not_compared_without_a_word(tmp_path):
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    assert "Not all runs" not in report.page([one, other], [])
    params = run_folder.read_params(other)
    params["sessions"][0]["commit"] = "abc123"
    (other / "params.json").write_text(json.dumps(params))
    assert "Not all runs are of the same commit;" in report.page([one, other], [])


@pytest.mark.parametrize("content", [None, "", "episode,step,length,return,seconds,video\n"])
def test_a_run_without_an_episode(refused, several, tmp_path, content):
    path = made(tmp_path / "run")
    (path / "episodes.csv").unlink()
    if content is not None:
        (path / "episodes.csv").write_text(content)
    assert refused(REPORT, several[0], path) == (
        f"error: {path} has no finished episode yet, so there is nothing to show; leave it out, or wait\n"
    )
    assert comparison.text(comparison.outcome(path)["mean"]) == "-"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("episodes.csv", "episode,reward\n1,2\n", "was made by another version of this project, commit "),
        ("episodes.csv", "step,length,return,seconds\n1,2,three,4\n", "could not convert"),
        ("episodes.csv", "a,b\n1,2,3,4\n5,6,7,8,9\n", "episodes.csv cannot be read: "),
        ("params.json", '{"script": "01_ppo"}', "lacks game, hyperparameters, knobs, seed, sessions; it is not one of"),
        ("result.json", '{"stopped": ', "result.json cannot be read: "),
        ("result.json", "[1]", "result.json is not what a run of this version writes"),
    ],
)
def test_a_run_of_another_version(refused, tmp_path, file, content, message):
    path = made(tmp_path / "run")
    (path / file).write_text(content)
    said = refused(REPORT, path)
    assert message in said
    assert said.count("\n") == 1


def test_a_folder_that_cannot_be_written(refused, several, tmp_path):
    (tmp_path / "file").write_text("")
    said = refused(REPORT, *several, "--output", tmp_path / "file" / "page")
    assert said == f"error: {tmp_path / 'file' / 'page'} cannot be written (Not a directory); give another --output\n"
    with pytest.raises(UsageError, match=r"cannot be written \(File exists\)"):
        report.write(several, tmp_path / "file")


def test_by_one_command_without_a_display(several, tmp_path):
    process = run(REPORT, *several, "--output", tmp_path, env=WITHOUT_DISPLAY)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == f"{tmp_path / 'report.html'}\n"
    assert Strict((tmp_path / "report.html").read_text()).of("img")


def look(page, picture, *options):
    """What a browser sees of a page."""
    command = [sys.executable, browser.__file__, page, picture, *options]
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    if process.returncode == browser.MISSING or "no Qt platform plugin could be initialized" in process.stderr:
        pytest.skip(f"no browser starts here: {process.stderr.strip()}")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (390, True)])
def test_in_a_browser_the_page_is_whole(page, tmp_path, width, dark):
    seen = look(page, tmp_path / "seen.png", "--width", width, *(["--dark"] if dark else []))
    assert seen["inner"] == width
    assert seen["width"] <= width  # nothing makes the page wider than the window
    assert len(seen["images"]) == 4
    for natural, shown in seen["images"]:
        assert natural > 900
        assert 300 < shown < width
    assert seen["videos"] == [[512, None]] * 2
    assert seen["text"]["outcomes"].startswith("How far they came\nrun\tsteps\tepisodes\t")
    assert "run-2\t15007\t150\t2.10\t" in seen["text"]["outcomes"]
    assert "other\t1\t0.9" in seen["text"]["differences"]
    assert (seen["scripts"], seen["fetched"], seen["console"]) == (0, [], [])
    assert seen["dark"] == dark
    picture = Image.open(tmp_path / "seen.png").convert("RGB")
    assert picture.size == (width, seen["height"])
    ground = picture.getpixel((2, 2))
    assert (max(ground) < 60) == dark
    # Something is drawn all the way down, but for the gaps between sections and the foot.
    pixels = np.asarray(picture, int)
    busy = (np.abs(pixels - pixels[:, :1]).sum(axis=2) > 30).any(axis=1)
    assert busy.mean() > 0.8
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100
