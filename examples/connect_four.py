"""Connect Four against a random player: four discs in a row, column or diagonal win.

Importing this module registers ConnectFour-v0. Full columns are illegal actions, which action_masks() reports. A player
that picks any legal column at random wins as often as it loses, so its mean return is near 0.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS = 6, 7
STRIDE = ROWS + 1  # bits of a column; the highest one stays empty, so that no line runs into the next column
FULL = sum(((1 << ROWS) - 1) << STRIDE * column for column in range(COLUMNS))
DIRECTIONS = (1, STRIDE - 1, STRIDE, STRIDE + 1)  # bits from a cell to the next one of a line
CELL_BITS = np.array([[STRIDE * column + row for column in range(COLUMNS)] for row in reversed(range(ROWS))])
CELL_PIXELS = 16
GROUND, OWN, OTHER = np.array([(40, 60, 140), (240, 200, 40), (220, 60, 50)], np.uint8)

OWN_PLAYER, OPPONENT = 0, 1


class ConnectFour(gym.Env):
    """The agent and a random opponent take turns to drop discs into a board of 6 x 7 cells.

    Observations are (2, 6, 7) float32, 0 or 1: the agent's discs and the opponent's, with the top row first. Action n
    drops a disc into column n. The reward is 1 for a win, -1 for a loss, and otherwise 0. The player who
    begins is drawn at random.

    Args:
        render_mode: "rgb_array" or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 - declared by gym.Env without ClassVar

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (2, ROWS, COLUMNS), np.float32)
        self.action_space = spaces.Discrete(COLUMNS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with an empty board, or with the opponent's first disc."""
        super().reset(seed=seed)
        self._discs = [0, 0]  # a bit for each disc, by player
        if self.np_random.integers(2):
            self._reply()
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Drop a disc, and let the opponent reply.

        Raises:
            ValueError: if the column is full.
        """
        if not self.action_masks()[action]:
            raise ValueError(f"column {action} is full; choose an action for which action_masks() is True")
        reward = 0.0
        if self._drop(OWN_PLAYER, int(action)):
            reward = 1.0
        elif not self._full() and self._reply():
            reward = -1.0
        return self._observation(), reward, reward != 0.0 or self._full(), False, {}

    def action_masks(self) -> np.ndarray:
        """Return the columns that are not full, (7,) bool."""
        taken = self._discs[OWN_PLAYER] | self._discs[OPPONENT]
        return np.array([not taken >> STRIDE * column + ROWS - 1 & 1 for column in range(COLUMNS)])

    def render(self) -> np.ndarray | None:
        """Draw the board, (96, 112, 3) uint8."""
        if self.render_mode is None:
            return None
        own, other = self._observation()
        colours = np.where(own[..., None] > 0, OWN, np.where(other[..., None] > 0, OTHER, GROUND))
        frame: np.ndarray = colours.astype(np.uint8).repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
        frame[::CELL_PIXELS] = frame[:, ::CELL_PIXELS] = GROUND // 2
        return frame

    def _reply(self) -> bool:
        """Let the opponent drop a disc into a random column, and return whether it wins."""
        return self._drop(OPPONENT, int(self.np_random.choice(np.flatnonzero(self.action_masks()))))

    def _drop(self, player: int, column: int) -> bool:
        """Drop a disc, and return whether the player has four in a line."""
        taken = self._discs[OWN_PLAYER] | self._discs[OPPONENT]
        in_column = ((1 << ROWS) - 1) << STRIDE * column
        self._discs[player] |= (taken + (1 << STRIDE * column)) & in_column & ~taken
        return has_four(self._discs[player])

    def _full(self) -> bool:
        return self._discs[OWN_PLAYER] | self._discs[OPPONENT] == FULL

    def _observation(self) -> np.ndarray:
        return np.stack([discs >> CELL_BITS & 1 for discs in self._discs]).astype(np.float32)


def has_four(discs: int) -> bool:
    """Return whether four discs are in a line."""
    for step in DIRECTIONS:
        pairs = discs & discs >> step
        if pairs & pairs >> 2 * step:
            return True
    return False


gym.register("ConnectFour-v0", f"{__name__}:ConnectFour", reward_threshold=0.9)
