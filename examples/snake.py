"""Snake: a snake on a board grows by what it eats, and dies of walls and of itself.

Importing this module registers two environments, which differ in one number:

    Snake-v0             +1 for food, -1 for death, nothing for a step
    SnakeStepPenalty-v0  the same, and -0.1 for every step, "so that it hurries"

It does hurry: into the wall. Who starts does not know how to find food, and each step is paid for. To go straight on
is to die in the 5th step, with a return of -1 - 5 * 0.1 = -1.5. To wander by random legal moves is, as measured, to
live for 20 steps and find 0.17 foods, 0.17 - 1 - 20 * 0.1 = -2.8. To stay alive without food is to starve after 100
steps, -100 * 0.1 = -10; discounted by 0.99 a step this is -6.3, and the wall -1.45. A step is worth taking only for who
finds food in every tenth, and a wanderer does in every 120th: what it learns first from its own steps is to have fewer
of them. In Snake-v0 the same three get -1, -0.83 and 0: there to live is what is learnt first, and to eat comes after.

Returns of different rewards do not compare. What does is info["length"] at the end of an episode; or the return in
Snake-v0, which has the same observations and the same moves, so that it can judge agents that learnt in either: it is
the foods eaten, less one for a death.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

START = 3  # cells
UP, RIGHT, DOWN, LEFT = MOVES = range(4)
MASKS = np.array([[move != (heading + 2) % 4 for move in MOVES] for heading in MOVES], np.int8)
PIXELS = 16  # a cell's
GROUND, BODY, HEAD, FOOD = np.array([(24, 26, 32), (72, 168, 88), (196, 240, 144), (232, 72, 64)], np.uint8)


class Snake(gym.Env):
    """A snake on a board without obstacles.

    Observations are (3, size, size) float32 in [0, 1]: the body, a cell's value being its position counted from the
    tail, 1 / length, to the head, 1, which tells when it will be free; the head; the food. Actions are up, right, down
    and left, 0 to 3. To turn back into its own neck is impossible: such an action is 0 in info["action_mask"],
    (4,) int8, and whoever takes it nevertheless goes straight on. info["length"] is the snake's length in cells.

    An episode is terminated by death, after which the snake is shown where it was last, or by a board that the snake
    fills. It is truncated when the snake starves, after size * size steps without food.

    Args:
        size: of the board.
        food, death, step: rewards; that of a step is added to the others.
        render_mode: "rgb_array" or None.

    Raises:
        ValueError: the board is too small.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        size: int = 10,
        food: float = 1.0,
        death: float = -1.0,
        step: float = 0.0,
        render_mode: str | None = None,
    ):
        if size <= START:
            raise ValueError(f"a board of size {size} is too small; take {START + 1} or more")
        self.size = size
        self.rewards = (food, death, step)
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (3, size, size), np.float32)
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with a snake of 3 cells in the middle, on its way to the right.

        Args:
            options: "body", the snake's cells (row, column) from tail to head, at least 2; "food", a cell. Each may be
                left out.
        """
        super().reset(seed=seed)
        middle = self.size // 2
        given = options or {}
        body: Sequence[tuple[int, int]] = given.get("body", [(middle, middle + at) for at in range(1 - START, 1)])
        (row_before, column_before), (self._row, self._column) = body[-2:]
        ways = [(-1, 0), (0, 1), (1, 0), (0, -1)]
        self._heading = ways.index((self._row - row_before, self._column - column_before))
        self._length = len(body)
        # The clock goes on when the tail moves, so not in a step that eats. A cell is free when its time has come.
        self._clock = 0
        self._until = np.zeros(self.size**2, np.int64)
        self._until[[row * self.size + column for row, column in body]] = range(1, len(body) + 1)
        self._food = given["food"][0] * self.size + given["food"][1] if "food" in given else self._new_food()
        self._hunger = 0
        return self._observation(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move on by one cell."""
        food, death, reward = self.rewards
        action = int(action)
        if action != (self._heading + 2) % 4:
            self._heading = action
        row = self._row + (self._heading == DOWN) - (self._heading == UP)
        column = self._column + (self._heading == RIGHT) - (self._heading == LEFT)
        cell = row * self.size + column
        eats = cell == self._food and 0 <= column < self.size
        self._clock += not eats
        self._hunger = 0 if eats else self._hunger + 1
        inside = 0 <= row < self.size and 0 <= column < self.size
        if not inside or self._until[cell] > self._clock:
            self._clock -= 1
            return self._observation(), reward + death, True, False, self._info()
        self._row, self._column = row, column
        self._length += eats
        self._until[cell] = self._clock + self._length
        if eats:
            reward += food
            self._food = self._new_food()
        return self._observation(), reward, self._food is None, self._hunger == self.size**2, self._info()

    def render(self) -> np.ndarray | None:
        """The board, (16 * size, 16 * size, 3) uint8."""
        if self.render_mode is None:
            return None
        body, head, food = self._observation()[..., None]
        share = 0.4 + 0.6 * body  # the tail is dark, but to be seen
        picture = np.where(body > 0, share * BODY, GROUND)
        picture = np.where(head > 0, HEAD, np.where(food > 0, FOOD, picture)).astype(np.uint8)
        picture = picture.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        picture[::PIXELS] = picture[:, ::PIXELS] = GROUND // 2
        return picture

    def _new_food(self) -> int | None:
        free = np.flatnonzero(self._until <= self._clock)
        return int(free[self.np_random.integers(len(free))]) if len(free) else None

    def _observation(self) -> np.ndarray:
        planes = np.zeros((3, self.size**2), np.float32)
        planes[0] = np.maximum(self._until - self._clock, 0) / self._length
        planes[1, self._row * self.size + self._column] = 1.0
        if self._food is not None:
            planes[2, self._food] = 1.0
        return planes.reshape(self.observation_space.shape)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": MASKS[self._heading].copy(), "length": self._length}


gym.register("Snake-v0", f"{__name__}:Snake")
gym.register("SnakeStepPenalty-v0", f"{__name__}:Snake", kwargs={"step": -0.1})
