"""A window on this machine's display, and action scores beside the picture."""

import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from lib.errors import UsageError
from lib.run import video_file

LINE, MAX_SCORES = 16, 20  # pixels that a score needs to be read; how many are shown at most


class Window:
    """A window on this machine's display; closing it ends the program, as Ctrl-C does.

    Args:
        title: of it.
        per_second: pictures of a second.

    Raises:
        UsageError: there is no display, or no pygame.
    """

    def __init__(self, title: str, per_second: float):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if sys.platform == "linux" and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
            raise UsageError(
                "there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set); --record writes "
                "videos without one"
            )
        try:
            import pygame
        except ImportError as error:
            raise UsageError("a window needs pygame, which is not installed; pip install pygame") from error
        self._pygame: Any = pygame
        self._title = title
        self._per_second = per_second
        self._surface: Any = None
        self._clock = pygame.time.Clock()

    def show(self, picture: np.ndarray) -> None:
        """Show a picture, (height, width, 3) uint8, RGB, for as long as its time is."""
        pygame, picture = self._pygame, video_file.enlarged(picture)
        if self._surface is None:
            try:
                pygame.display.init()
                self._surface = pygame.display.set_mode((picture.shape[1], picture.shape[0]))
            except pygame.error as error:
                raise UsageError(f"no window can be opened: {error}; --record writes videos without one") from error
            pygame.display.set_caption(self._title)
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise KeyboardInterrupt
        pygame.surfarray.blit_array(self._surface, picture.swapaxes(0, 1))
        pygame.display.flip()
        self._clock.tick(self._per_second)

    def close(self) -> None:
        self._pygame.display.quit()


def action_names(env: gym.Env) -> list[str]:
    """What the actions are called, or their numbers where they have no names."""
    unwrapped: Any = env.unwrapped
    if hasattr(unwrapped, "get_action_meanings"):
        return list(unwrapped.get_action_meanings())
    return [str(action) for action in range(unwrapped.action_space.n)]


def with_scores(
    picture: np.ndarray, names: list[str], scores: np.ndarray, meaning: str, allowed: np.ndarray
) -> np.ndarray:
    """The picture, beside it a bar for each action, as long as what the agent thinks of it.

    Actions that are not allowed are left out; of more than there is room for, the best are shown, the best one first.

    Args:
        picture: (height, width, 3) uint8.
        names: of the actions.
        scores: (n_actions,).
        meaning: "Q" or "probability", written above them.
        allowed: (n_actions,) bool, or (1,) for all.
    """
    import cv2

    picture = video_file.enlarged(picture)
    height = picture.shape[0]
    panel = np.full((height, 220, 3), 24, np.uint8)
    shown = np.flatnonzero(np.broadcast_to(allowed, scores.shape))
    room = min(MAX_SCORES, (height - 30) // LINE)
    if len(shown) > room:
        shown = shown[np.argsort(-scores[shown], kind="stable")[:room]]
    line = min(28, (height - 30) // max(1, len(shown)))
    lowest, highest = float(scores[shown].min()), float(scores[shown].max())
    if meaning == "probability":
        lowest, highest = 0.0, 1.0
    best = int(scores.argmax())
    font, white, grey = cv2.FONT_HERSHEY_SIMPLEX, (235, 235, 235), (90, 110, 140)
    cv2.putText(panel, meaning, (8, 18), font, 0.45, white, 1, cv2.LINE_AA)
    for row, index in enumerate(shown):
        name, score = names[index], scores[index]
        top = 28 + row * line
        length = int(204 * (float(score) - lowest) / (highest - lowest)) if highest > lowest else 0
        colour = (80, 160, 90) if index == best else grey
        cv2.rectangle(panel, (8, top), (8 + length, top + max(2, line - 4)), colour, -1)
        cv2.putText(panel, f"{name} {score:.2f}", (12, top + line // 2 + 2), font, 0.4, white, 1, cv2.LINE_AA)
    return np.concatenate([picture, panel], axis=1)
