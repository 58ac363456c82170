"""tools/play.py on a short run: videos without a display, and a window with one."""

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import fakes
from finished_runs import edit_params
from lib.analysis.window import Window, WindowClosed
from running import SHOWN, WITHOUT_DISPLAY, run

pytestmark = pytest.mark.slow

PLAY = Path("tools/play.py")


def test_videos_are_recorded_without_a_display(trained_run):
    (trained_run / "videos").mkdir()
    (trained_run / "videos" / "play-1280-episode-1.99999999.part.webm").touch()  # of a process that was killed
    process = run(
        PLAY, trained_run, *SHOWN, "--record", "--episodes", 2, "--scores", "--checkpoint", "last", env=WITHOUT_DISPLAY
    )
    assert (process.returncode, process.stderr) == (0, "")
    printed = re.findall(r"Episode (\d): return (-?1), 6 steps\n(.*)", process.stdout)
    assert [number for number, _, _ in printed] == ["1", "2"]
    for number, total, path in printed:
        assert Path(path) == trained_run / "videos" / f"play-1280-episode-{number}-return-{total}.webm"
        video = cv2.VideoCapture(path)
        assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 7  # one before the first step, and one after each of 6 steps
        assert video.get(cv2.CAP_PROP_FPS) == 10
        _, frame = video.read()
        blue, green, red = frame[100, 3]
        assert abs(int(blue) - 40) < 12  # a colour of the rendered frame, which observations do not have
        assert max(int(green), int(red)) < 12
        assert frame.shape[1] == 560 + 220  # the frame and the panel of scores
    assert len(list((trained_run / "videos").iterdir())) == 2  # nothing unfinished


@pytest.mark.parametrize(
    "frame", [None, np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((0, 0, 3), np.uint8)]
)
def test_a_window_refuses_what_is_no_frame(refused, monkeypatch, original_run, frame):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(fakes.Shown, "render", lambda env: frame)
    message = refused(PLAY, original_run, *SHOWN, "--scores")
    assert "error: render() gave " in message
    assert "; frames have to be (height, width, 3) uint8" in message


def test_a_window_writes_nothing(answer, monkeypatch, original_run):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    before = set(original_run.rglob("*"))
    assert re.fullmatch(
        r"Playing in a window\..*\nEpisode 1: return -?1, 6 steps\n", answer(PLAY, original_run, *SHOWN, "--scores")
    )
    assert set(original_run.rglob("*")) == before


def test_the_window_has_the_given_scale_and_can_be_resized(monkeypatch):
    import pygame

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = Window("title", 1000, scale=1.5)
    frame = np.zeros((400, 600, 3), np.uint8)
    frame[:, :300] = 200
    window.show(frame)
    assert pygame.display.get_surface().get_size() == (900, 600)
    assert pygame.display.get_surface().get_flags() & pygame.RESIZABLE
    pygame.display.set_mode((600, 800), pygame.RESIZABLE)  # as a person does with the mouse
    window.show(frame)
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    assert shown.shape == (800, 600, 3)
    assert (shown[200:600] == frame).all()  # in the middle, with its proportions
    assert not shown[:200].any()
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    with pytest.raises(WindowClosed):
        window.show(frame)
    window.close()


def test_closing_the_window_ends_the_program_without_an_error(answer, monkeypatch, original_run):
    def close(window, frame):
        raise WindowClosed

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(Window, "show", close)
    assert "Episode" not in answer(PLAY, original_run, *SHOWN)


def test_a_window_needs_pygame(refused, monkeypatch, original_run):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert "pip install pygame-ce" in refused(PLAY, original_run, *SHOWN)


def test_a_display_that_does_not_answer_is_reported(refused, monkeypatch, original_run):
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    assert "no window can be opened: " in refused(PLAY, original_run, *SHOWN)


def test_an_invisible_driver_is_not_taken_for_a_display(refused, monkeypatch, original_run):
    import pygame

    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setattr(pygame.display, "init", lambda: None)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "offscreen")
    assert "the display :77 does not answer; --record" in refused(PLAY, original_run, *SHOWN)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ((), "neither DISPLAY nor WAYLAND_DISPLAY"),
        (("--checkpoint", "77"), "no checkpoint '77'"),
        (("--epsilon", "2"), "2 is not between 0 and 1"),
        (("--record", "--scale", "2"), "--scale is the size of the window; leave it out with --record"),
    ],
)
def test_wrong_use_is_explained(refused, monkeypatch, original_run, options, facts):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert facts in refused(PLAY, original_run, *SHOWN, *options)


def test_an_environment_that_cannot_render_is_refused(refused, trained_run):
    edit_params(trained_run, lambda params: params["hyperparameters"].update(env_name="fakes:Catch-v0"))
    message = refused(PLAY, trained_run, *SHOWN, "--record")
    assert "fakes:Catch-v0" in message
    assert "render_modes are []" in message
