"""Window on the local display, and a panel of action scores beside a frame."""

import functools
import os
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lib.envs.single_env import has_display
from lib.errors import UsageError
from lib.run.videos import MIN_SIDE, enlarge

HEADLESS_DRIVERS = ("dummy", "offscreen", "evdev")  # what SDL falls back to if no display answers
MAX_SCORES = 20
MIN_LINE, MAX_LINE = 17, 28  # height of a score in pixels
PANEL_WIDTH, MARGIN, HEADER = 220, 8, 28  # pixels
SMALLEST_TYPE, LARGEST_TYPE = 13, 17  # pixels
BACKGROUND, TEXT, BAR, BEST_BAR = (24, 24, 24), (235, 235, 235), (90, 110, 140), (80, 160, 90)


class WindowClosed(Exception):
    """A person has closed the window."""


class Window:
    """Window on the local display.

    Args:
        title: window title.
        frames_per_second: frames shown per second.

    Raises:
        UsageError: if there is no display or pygame is not installed.
    """

    def __init__(self, title: str, frames_per_second: float):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if not has_display():
            raise UsageError(
                "there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set. --record, or make play "
                "ARGS=--record, writes videos without one"
            )
        try:
            import pygame
        except ImportError as error:
            raise UsageError("a window needs pygame-ce, which is not installed; pip install pygame-ce") from error
        self._pygame: Any = pygame
        self._title = title
        self._frames_per_second = frames_per_second
        self._opened = False
        self._clock = pygame.time.Clock()

    def show(self, frame: np.ndarray) -> None:
        """Show an RGB frame, (height, width, 3) uint8, and wait until the next one is due.

        Raises:
            WindowClosed: if the window has been closed.
        """
        pygame, frame = self._pygame, enlarge(frame)
        height, width = frame.shape[:2]
        if not self._opened:
            self._open(width, height)
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise WindowClosed
        surface = pygame.display.get_surface()
        factor = min(surface.get_width() / width, surface.get_height() / height)
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        size = max(1, round(width * factor)), max(1, round(height * factor))
        scale = pygame.transform.scale if factor.is_integer() else pygame.transform.smoothscale
        surface.fill((0, 0, 0))
        surface.blit(
            scale(picture, size), ((surface.get_width() - size[0]) // 2, (surface.get_height() - size[1]) // 2)
        )
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()

    def _open(self, width: int, height: int) -> None:
        display = self._pygame.display
        try:
            display.init()
            if display.get_driver() in HEADLESS_DRIVERS and "SDL_VIDEODRIVER" not in os.environ:
                raise UsageError(
                    f"the display {os.environ.get('DISPLAY') or os.environ.get('WAYLAND_DISPLAY')} does not answer; "
                    "--record writes videos without one"
                )
            display.set_mode((width, height), self._pygame.RESIZABLE)
        except self._pygame.error as error:
            raise UsageError(f"no window can be opened: {error}; --record writes videos without one") from error
        display.set_caption(self._title)
        self._opened = True


def action_names(env: gym.Env) -> list[str]:
    """Return the names of the actions, or the environment's own numbers if it does not name them."""
    assert isinstance(env.action_space, gym.spaces.Discrete)
    if env.has_wrapper_attr("get_action_meanings"):
        meanings = env.get_wrapper_attr("get_action_meanings")()
        if isinstance(meanings, dict):
            if all(isinstance(name, str) for name in meanings):
                meanings = {number: name for name, number in meanings.items()}
            meanings = [meanings[number] for number in sorted(meanings)]
        names = [] if meanings is None else [str(name) for name in meanings]
        if len(names) == env.action_space.n:
            return names
    return [str(first_action(env) + action) for action in range(env.action_space.n)]


def first_action(env: gym.Env) -> int:
    """Return the environment's own number of action 0, given an environment that counts its actions from 0."""
    return int(env.get_wrapper_attr("first_action")) if env.has_wrapper_attr("first_action") else 0


def add_score_panel(
    frame: np.ndarray, names: list[str], scores: np.ndarray, score_name: str, mask: np.ndarray
) -> np.ndarray:
    """Add a panel with one bar per action at the right of a frame.

    Invalid actions are left out. If there is not enough room, the best actions are shown in descending order.

    Args:
        frame: (height, width, 3) uint8.
        names: action names.
        scores: (n_actions,) float32.
        score_name: heading of the panel, "Q" or "probability".
        mask: action mask, (n_actions,) bool, or (1,) for all actions.
    """
    frame = enlarge(frame)
    if (missing := MIN_SIDE - frame.shape[0]) > 0:  # the frame is a strip
        frame = np.pad(frame, ((0, missing), (0, 0), (0, 0)))
    height = frame.shape[0]
    actions = np.flatnonzero(np.broadcast_to(mask, scores.shape))
    room = min(MAX_SCORES, (height - 30) // MIN_LINE)
    if len(actions) > room:
        actions = actions[np.argsort(-scores[actions], kind="stable")[:room]]
    low, high = (0.0, 1.0) if score_name == "probability" else (scores[actions].min(), scores[actions].max())
    lengths = (scores[actions] - low) / (high - low) if high > low else np.zeros(len(actions))

    panel = np.full((height, PANEL_WIDTH, 3), BACKGROUND, np.uint8)
    line = min(MAX_LINE, (height - 30) // max(1, len(actions)))
    best = scores.argmax()
    tops = [HEADER + row * line for row in range(len(actions))]
    for top, action, length in zip(tops, actions, lengths, strict=True):
        corner = (MARGIN + int((PANEL_WIDTH - 2 * MARGIN) * float(length)), top + max(2, line - 4))
        cv2.rectangle(panel, (MARGIN, top), corner, BEST_BAR if action == best else BAR, -1)
    image = Image.fromarray(panel)
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN, HEADER // 2), score_name, TEXT, _font(LARGEST_TYPE), anchor="lm")
    font = _font(max(SMALLEST_TYPE, min(LARGEST_TYPE, line - 8)))
    for top, action in zip(tops, actions, strict=True):
        middle = top + max(2, line - 4) // 2
        draw.text((MARGIN + 4, middle), names[action], TEXT, font, anchor="lm")
        draw.text((PANEL_WIDTH - MARGIN - 4, middle), f"{scores[action]:.2f}", TEXT, font, anchor="rm")
    return np.concatenate([frame, np.asarray(image)], axis=1)


@functools.cache
def _font(size: int) -> Any:
    """Return pillow's own typeface, which needs no file of the system."""
    return ImageFont.load_default(size)
