"""Window on the local display, and a panel of action scores beside a frame."""

import os
import sys
from typing import Any

import cv2
import gymnasium as gym
import numpy as np

from lib.errors import UsageError
from lib.run import video_file

MAX_SCORES = 20
MIN_LINE, MAX_LINE = 16, 28  # height of a score in pixels
PANEL_WIDTH, MARGIN, HEADER = 220, 8, 28  # pixels
BACKGROUND, TEXT, BAR, BEST_BAR = (24, 24, 24), (235, 235, 235), (90, 110, 140), (80, 160, 90)


class Window:
    """Window on the local display. Closing it ends the program like Ctrl-C.

    Args:
        title: window title.
        frames_per_second: frames shown per second.

    Raises:
        UsageError: if there is no display or pygame is not installed.
    """

    def __init__(self, title: str, frames_per_second: float):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
            raise UsageError(
                "there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set. --record writes videos without one"
            )
        try:
            import pygame
        except ImportError as error:
            raise UsageError("a window needs pygame, which is not installed; pip install pygame") from error
        self._pygame: Any = pygame
        self._title = title
        self._frames_per_second = frames_per_second
        self._surface: Any = None
        self._clock = pygame.time.Clock()

    def show(self, frame: np.ndarray) -> None:
        """Show an RGB frame, (height, width, 3) uint8, and wait until the next one is due."""
        pygame, frame = self._pygame, video_file.enlarge(frame)
        if self._surface is None:
            self._surface = self._open(frame.shape[1], frame.shape[0])
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        pygame.surfarray.blit_array(self._surface, frame.swapaxes(0, 1))
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()

    def _open(self, width: int, height: int) -> Any:
        display = self._pygame.display
        try:
            display.init()
            surface = display.set_mode((width, height))
        except self._pygame.error as error:
            raise UsageError(f"no window can be opened: {error}; --record writes videos without one") from error
        display.set_caption(self._title)
        return surface


def action_names(env: gym.Env) -> list[str]:
    """Return the names of the actions, or their numbers if the environment does not name them."""
    if env.has_wrapper_attr("get_action_meanings"):
        return list(env.get_wrapper_attr("get_action_meanings")())
    assert isinstance(env.action_space, gym.spaces.Discrete)
    return [str(action) for action in range(env.action_space.n)]


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
    frame = video_file.enlarge(frame)
    height = frame.shape[0]
    actions = np.flatnonzero(np.broadcast_to(mask, scores.shape))
    room = min(MAX_SCORES, (height - 30) // MIN_LINE)
    if len(actions) > room:
        actions = actions[np.argsort(-scores[actions], kind="stable")[:room]]
    low, high = (0.0, 1.0) if score_name == "probability" else (scores[actions].min(), scores[actions].max())
    lengths = (scores[actions] - low) / (high - low) if high > low else np.zeros(len(actions))

    panel = np.full((height, PANEL_WIDTH, 3), BACKGROUND, np.uint8)
    _write(panel, score_name, (MARGIN, 18), 0.45)
    line = min(MAX_LINE, (height - 30) // max(1, len(actions)))
    best = scores.argmax()
    for row, (action, length) in enumerate(zip(actions, lengths, strict=True)):
        top = HEADER + row * line
        corner = (MARGIN + int((PANEL_WIDTH - 2 * MARGIN) * float(length)), top + max(2, line - 4))
        cv2.rectangle(panel, (MARGIN, top), corner, BEST_BAR if action == best else BAR, -1)
        _write(panel, f"{names[action]} {scores[action]:.2f}", (MARGIN + 4, top + line // 2 + 2), 0.4)
    return np.concatenate([frame, panel], axis=1)


def _write(panel: np.ndarray, text: str, position: tuple[int, int], size: float) -> None:
    cv2.putText(panel, text, position, cv2.FONT_HERSHEY_SIMPLEX, size, TEXT, 1, cv2.LINE_AA)
