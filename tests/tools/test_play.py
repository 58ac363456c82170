"""tools/play.py on a short run: videos without a display, and a window with one."""

import re
from pathlib import Path

import cv2
import pytest

from lib.analysis.window import Window
from running import SHOWN, contents, run

pytestmark = pytest.mark.slow

PLAY = Path("tools/play.py")


def test_videos_are_recorded_without_a_display_and_replace_no_other(refused, trained_run):
    record = (PLAY, trained_run, *SHOWN, "--record", "--episodes", 2, "--scores", "--checkpoint", "last")
    process = run(*record)
    assert (process.returncode, process.stderr) == (0, "")
    printed = re.findall(r"Episode (\d): return (-?1), 6 steps\n(.*)", process.stdout)
    for number, total, path in printed:
        assert Path(path) == trained_run / "videos" / f"play-1280-episode-{number}-return-{total}.webm"
        video = cv2.VideoCapture(path)
        assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 7  # one before the first step, and one after each of 6 steps
        assert video.get(cv2.CAP_PROP_FPS) == 10
        _, frame = video.read()
        assert frame[100, 3] == pytest.approx([40, 0, 0], abs=12)  # blue of the rendered frame, not of observations
        assert frame.shape[1] == 560 + 220  # the frame and the panel of scores
    before = contents(trained_run / "videos")
    assert len(before) == 2  # nothing unfinished
    assert f"{printed[0][2]} exists; move it to another folder, or remove it" in refused(*record)
    assert contents(trained_run / "videos") == before


def test_a_window_writes_nothing_and_may_be_closed(answer, original_run, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = set(original_run.rglob("*"))
    play = (PLAY, original_run, *SHOWN, "--scores")
    assert re.search(r"Playing in a window\..*\nEpisode 1: return -?1, 6 steps\n$", answer(*play))
    assert set(original_run.rglob("*")) == before
    show = Window.show

    def close_first(window, frame):
        import pygame

        pygame.event.post(pygame.event.Event(pygame.QUIT))
        show(window, frame)

    monkeypatch.setattr(Window, "show", close_first)
    assert "Episode" not in answer(*play)
