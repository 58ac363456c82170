"""Window on the local display, and a panel of action scores beside a frame."""

import os
import sys
from types import ModuleType

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lib.errors import UsageError
from lib.run.videos import MIN_SIDE, enlarge

ADVICE = "--record, or make play ARGS=--record, writes videos without one"
HEADLESS_DRIVERS = ("dummy", "offscreen", "evdev")  # what SDL falls back to if no display answers
MAX_SCORES = 20
PANEL_WIDTH, MARGIN, HEADER, LINE, TYPE = 220, 8, 28, 20, 14  # pixels
BACKGROUND, TEXT, BAR, BEST_BAR = (24, 24, 24), (235, 235, 235), (90, 110, 140), (80, 160, 90)


class WindowClosed(Exception):
    """A person has closed the window."""


class Window:
    """Window on the local display. UsageError if there is none, or if pygame is not installed."""

    def __init__(self, title: str, frames_per_second: float):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise UsageError(f"there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set. {ADVICE}")
        try:
            import pygame
        except ImportError as error:
            raise UsageError("a window needs pygame-ce, which is not installed; pip install pygame-ce") from error
        self._pygame: ModuleType = pygame
        try:
            pygame.display.init()
        except pygame.error as error:
            raise UsageError(f"no window can be opened: {error}. {ADVICE}") from error
        if pygame.display.get_driver() in HEADLESS_DRIVERS and "SDL_VIDEODRIVER" not in os.environ:
            raise UsageError(f"no window can be opened: the display does not answer. {ADVICE}")
        pygame.display.set_caption(title)
        self._frames_per_second = frames_per_second
        self._clock = pygame.time.Clock()

    def show(self, frame: np.ndarray) -> None:
        """Show an RGB frame, (height, width, 3) uint8, and wait until the next one is due. WindowClosed may be raised.

        The window has the size of the first frame. If a person resizes it, frames keep their proportions.
        """
        pygame, picture = self._pygame, enlarge(frame).swapaxes(0, 1)
        width, height = picture.shape[:2]
        if pygame.display.get_surface() is None:
            pygame.display.set_mode((width, height), pygame.RESIZABLE)
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise WindowClosed
        surface = pygame.display.get_surface()
        factor = min(surface.get_width() / width, surface.get_height() / height)
        scale = pygame.transform.scale if factor.is_integer() else pygame.transform.smoothscale
        size = max(1, round(width * factor)), max(1, round(height * factor))
        surface.fill((0, 0, 0))
        scaled = scale(pygame.surfarray.make_surface(picture), size)
        surface.blit(scaled, scaled.get_rect(center=surface.get_rect().center))
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        self._pygame.display.quit()


def action_names(env: gym.Env) -> list[str]:
    """Return the names of discrete actions, or the environment's own numbers if it does not name them."""
    if not isinstance(env.action_space, gym.spaces.Discrete):
        return []
    meanings = env.get_wrapper_attr("get_action_meanings")() if env.has_wrapper_attr("get_action_meanings") else None
    if isinstance(meanings, dict):
        meanings = [meanings[number] for number in sorted(meanings)]
    if meanings is not None and len(meanings) == env.action_space.n:
        return list(map(str, meanings))
    return [str(first_action(env) + action) for action in range(env.action_space.n)]


def first_action(env: gym.Env) -> int | np.ndarray:
    """Return the environment's own number of action 0, or an array of them for MultiDiscrete."""
    return env.get_wrapper_attr("first_action") if env.has_wrapper_attr("first_action") else 0


def add_score_panel(
    frame: np.ndarray, names: list[str], scores: np.ndarray, score_name: str, mask: np.ndarray
) -> np.ndarray:
    """Add a panel with one bar per action at the right of a frame, (height, width, 3) uint8.

    Invalid actions are left out. If there is not enough room, the best actions are shown in descending order.

    Args:
        scores: (n_actions,) float32.
        score_name: heading of the panel, "Q" or "probability".
        mask: action mask, (n_actions,) bool, or (1,) for all actions.
    """
    frame = enlarge(frame)
    if (missing := MIN_SIDE - len(frame)) > 0:  # the frame is a strip
        frame = np.pad(frame, ((0, missing), (0, 0), (0, 0)))
    actions = np.flatnonzero(np.broadcast_to(mask, scores.shape))
    room = min(MAX_SCORES, (len(frame) - HEADER) // LINE)
    if len(actions) > room:
        actions = actions[np.argsort(-scores[actions], kind="stable")[:room]]
    low, high = (0.0, 1.0) if score_name == "probability" else (scores[actions].min(), scores[actions].max())

    panel = Image.new("RGB", (PANEL_WIDTH, len(frame)), BACKGROUND)
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(TYPE)  # pillow's own typeface
    draw.text((MARGIN, HEADER // 2), score_name, TEXT, font, anchor="lm")
    for row, action in enumerate(actions):
        top, bottom = HEADER + row * LINE, HEADER + (row + 1) * LINE - 4
        length = (scores[action] - low) / (high - low) if high > low else 0.0
        right = MARGIN + int((PANEL_WIDTH - 2 * MARGIN) * length)
        draw.rectangle((MARGIN, top, right, bottom), BEST_BAR if action == scores.argmax() else BAR)
        middle = (top + bottom) // 2
        draw.text((MARGIN + 4, middle), names[action], TEXT, font, anchor="lm")
        draw.text((PANEL_WIDTH - MARGIN - 4, middle), f"{scores[action]:.2f}", TEXT, font, anchor="rm")
    return np.concatenate([frame, np.asarray(panel)], axis=1)
