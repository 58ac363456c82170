"""Snake: a snake grows by eating, and dies if it hits a wall or itself.

Importing this module registers two environments that differ in one number:

    Snake-v0             +1 for food, -1 for death, 0 for a step
    SnakeStepPenalty-v0  the same, and -0.1 for every step

The penalty is meant to make the snake hurry. It does hurry: into the wall. Compare three beginners:

    behaviour            Snake-v0    SnakeStepPenalty-v0
    straight into a wall    -1       -1.5   dies in step 5
    random legal moves      -0.83    -2.8   lives for 20 steps and finds 0.17 foods on average
    circles until it starves 0      -10     lives for 100 steps; -6.3 if discounted by 0.99 per step

With the penalty, a step is worth taking only if food is found in every 10th step. A beginner finds food in every 120th
step, so it first learns to end the episode. In Snake-v0 it first learns to survive, and then to eat.

Returns of different rewards cannot be compared. Compare info["length"] at the end of an episode instead. Or evaluate
both agents in Snake-v0, which has the same observations and moves: its return is the number of foods, minus 1 if the
snake died.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Cell = tuple[int, int]  # row, column

START_LENGTH = 3
UP, RIGHT, DOWN, LEFT = ACTIONS = range(4)
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]  # change of row and column by action
MASKS = np.array([[action != (heading + 2) % 4 for action in ACTIONS] for heading in ACTIONS], np.int8)

CELL_PIXELS = 16
GROUND, BODY, HEAD, FOOD = np.array([(24, 26, 32), (72, 168, 88), (196, 240, 144), (232, 72, 64)], np.uint8)


class Snake(gym.Env):
    """Snake on a board without obstacles.

    Observations are (3, size, size) float32 in [0, 1]. The planes are the body, the head and the food. The value of a
    body cell is its position counted from the tail, divided by the length. It shows how soon the cell becomes free.

    Actions are 0 to 3: up, right, down, left. The snake cannot turn back into its own neck. That action is 0 in
    info["action_mask"], (4,) int8, and if it is taken the snake goes straight on. info["length"] is the snake's length.

    An episode terminates if the snake dies or fills the board. It is truncated if the snake starves, after size * size
    steps without food.

    Args:
        size: number of rows and columns.
        food: reward for eating.
        death: reward for dying.
        step: reward for every step, in addition to the others.
        render_mode: "rgb_array" or None.

    Raises:
        ValueError: if the board is too small.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - declared by gym.Env without ClassVar

    def __init__(
        self,
        size: int = 10,
        food: float = 1.0,
        death: float = -1.0,
        step: float = 0.0,
        render_mode: str | None = None,
    ):
        if size <= START_LENGTH:
            raise ValueError(f"a board of size {size} is too small; use {START_LENGTH + 1} or more")
        self.size = size
        self.food_reward, self.death_reward, self.step_reward = food, death, step
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (3, size, size), np.float32)
        self.action_space = spaces.Discrete(len(ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with a snake of 3 cells in the middle that moves to the right.

        Args:
            options: optional start position. "body" is a list of at least 2 cells (row, column) from tail to head.
                "food" is a cell.
        """
        super().reset(seed=seed)
        options = options or {}
        middle = self.size // 2
        body: list[Cell] = options.get("body", [(middle, middle - 2), (middle, middle - 1), (middle, middle)])
        neck, (self._row, self._column) = body[-2:]
        self._heading = MOVES.index((self._row - neck[0], self._column - neck[1]))
        self._length = len(body)
        # Each cell stores the time at which it becomes free. The clock stands still when the tail does not move.
        self._clock = 0
        self._free_at = np.zeros(self.size**2, np.int64)
        self._free_at[[self._index(cell) for cell in body]] = range(1, len(body) + 1)
        self._food = self._index(options["food"]) if "food" in options else self._draw_food()
        self._steps_without_food = 0
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the snake by one cell."""
        if int(action) != (self._heading + 2) % 4:
            self._heading = int(action)
        down, right = MOVES[self._heading]
        row, column = self._row + down, self._column + right
        inside = 0 <= row < self.size and 0 <= column < self.size
        cell = self._index((row, column))
        eats = inside and cell == self._food
        self._steps_without_food = 0 if eats else self._steps_without_food + 1
        now = self._clock + (not eats)  # the tail leaves its cell unless the snake eats
        if not inside or self._free_at[cell] > now:
            return self._observation(), self.step_reward + self.death_reward, True, False, self._info()
        self._clock = now
        self._row, self._column = row, column
        self._length += eats
        self._free_at[cell] = now + self._length
        reward = self.step_reward
        if eats:
            reward += self.food_reward
            self._food = self._draw_food()
        starves = self._steps_without_food == self.size**2
        return self._observation(), reward, self._food is None, starves, self._info()

    def render(self) -> np.ndarray | None:
        """Draw the board, (16 * size, 16 * size, 3) uint8."""
        if self.render_mode is None:
            return None
        body, head, food = self._observation()[..., None]
        brightness = 0.4 + 0.6 * body  # darkest at the tail
        colours = np.where(body > 0, brightness * BODY, GROUND)
        colours = np.where(head > 0, HEAD, np.where(food > 0, FOOD, colours))
        frame: np.ndarray = colours.astype(np.uint8).repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
        frame[::CELL_PIXELS] = frame[:, ::CELL_PIXELS] = GROUND // 2  # grid lines
        return frame

    def _index(self, cell: Cell) -> int:
        return cell[0] * self.size + cell[1]

    def _draw_food(self) -> int | None:
        """Draw a free cell. Returns None if the snake fills the board."""
        free = np.flatnonzero(self._free_at <= self._clock)
        return int(free[self.np_random.integers(len(free))]) if len(free) else None

    def _observation(self) -> np.ndarray:
        planes = np.zeros((3, self.size**2), np.float32)
        planes[0] = np.maximum(self._free_at - self._clock, 0) / self._length
        planes[1, self._row * self.size + self._column] = 1.0
        if self._food is not None:
            planes[2, self._food] = 1.0
        return planes.reshape(3, self.size, self.size)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": MASKS[self._heading].copy(), "length": self._length}


gym.register("Snake-v0", f"{__name__}:Snake", reward_threshold=7.0)  # a snake of ten cells
gym.register("SnakeStepPenalty-v0", f"{__name__}:Snake", kwargs={"step": -0.1})
