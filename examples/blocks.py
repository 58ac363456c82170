"""Blocks: three pieces at a time are placed on a 9 x 9 board, and full rows, columns and boxes vanish.

Importing this module registers Blocks-v0, whose episodes are truncated after 1000 moves. Few of its 243 actions are
legal, and the others are errors, so an agent has to ask for `action_masks()`.

The board is a number: the cell (row, column) is its bit 16 * row + column. The bits beyond its edges are set in WALL,
so that a piece that hangs over collides as it does with another one.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZE, BOX, OFFERED, STRIDE = 9, 3, 3, 16
PICTURES = """
    #  ##  #/#  ###  #/#/#  ##/#.  ##/.#  #./##  .#/##  ##/##  ####  #/#/#/#
    ###/#..  ###/..#  #../###  ..#/###  ##/#./#.  ##/.#/.#  #./#./##  .#/.#/##
    ###/.#.  .#./###  #./##/#.  .#/##/.#  .##/##.  ##./.##  #./##/.#  .#/##/#.
    #####  #/#/#/#/#  .#./###/.#.  ###/#../#..  ###/..#/..#  #../#../###  ..#/..#/###
"""


def bits(cells: Iterable[tuple[int, int]]) -> int:
    """The number that stands for these cells (row, column)."""
    return sum(1 << STRIDE * row + column for row, column in cells)


def planes(*numbers: int) -> np.ndarray:
    """The cells (len(numbers), 9, 9) that numbers stand for, uint8."""
    stored = b"".join(number.to_bytes(SIZE * STRIDE // 8, "little") for number in numbers)
    cells = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")
    return cells.reshape(len(numbers), SIZE, STRIDE)[:, :, :SIZE]


ALL = range(SIZE)
BOARD = bits((row, column) for row in ALL for column in ALL)
WALL = bits((row, column) for row in range(2 * SIZE) for column in range(STRIDE)) & ~BOARD
ROWS = [bits((line, at) for at in ALL) for line in ALL]
COLUMNS = [bits((at, line) for at in ALL) for line in ALL]
BOXES = [bits((line // BOX * BOX + at // BOX, line % BOX * BOX + at % BOX) for at in ALL) for line in ALL]
SHAPES = {
    piece: bits((row, at) for row, line in enumerate(piece.split("/")) for at, cell in enumerate(line) if cell == "#")
    for piece in PICTURES.split()
}
PIECES = list(SHAPES)
PIXELS, SMALL = 16, 8  # of a cell of the board, and of a piece's
GROUNDS = np.array([(24, 26, 32), (36, 39, 48)], np.uint8)  # of the boxes, in turn
PLACED, PIECE = np.array([(88, 152, 232), (240, 184, 72)], np.uint8)


class Blocks(gym.Env):
    """A board, and three pieces on offer; when all three are placed, three new ones are drawn from PIECES.

    Observations are (7, 9, 9) float32, 0 to 1: the board; each piece on offer in the upper left corner of a plane of
    its own, which is empty once it is placed; and of every cell how full its row, its column and its box are: what the
    rules count, an agent would have to learn to count else. Action piece * 81 + row * 9 + column puts the upper left
    corner of the piece's bounding box there. Rows, columns and 3 x 3 boxes that a move fills are emptied together, and
    the reward is how many there were. An episode is terminated when no piece on offer fits anywhere.

    Args:
        render_mode: "rgb_array" or None.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1 + OFFERED + 3, SIZE, SIZE), np.float32)
        self.action_space = spaces.Discrete(OFFERED * SIZE**2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin with an empty board.

        Args:
            options: "board", (9, 9), not 0 where a cell is full; "pieces", three of PIECES. Each may be left out.
        """
        super().reset(seed=seed)
        given = options or {}
        self._board = bits(np.argwhere(given["board"]).tolist()) if "board" in given else 0
        self._offer([SHAPES[piece] for piece in given["pieces"]] if "pieces" in given else self._drawn())
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Place a piece.

        Raises:
            ValueError: the action is illegal.
        """
        piece, place = divmod(int(action), SIZE**2)
        row, column = divmod(place, SIZE)
        at = STRIDE * row + column
        if not 0 <= piece < OFFERED or self._blocked[piece] >> at & 1:
            legal = [int(mask.sum()) for mask in np.split(self.action_masks(), OFFERED)]
            raise ValueError(
                f"action {action}, to place piece {piece} at row {row}, column {column}, is illegal; the three pieces "
                f"fit in {legal} places now: take an action for which action_masks() is True"
            )
        board = self._board | self._pieces[piece] << at
        full = [line for line in ROWS + COLUMNS + BOXES if board & line == line]
        for line in full:
            board &= ~line
        self._board = board
        self._pieces[piece] = 0
        self._offer(self._pieces if any(self._pieces) else self._drawn())
        ended = all(blocked == BOARD for blocked in self._blocked)
        return self._observation(), float(len(full)), ended, False, {}

    def action_masks(self) -> np.ndarray:
        """Which actions are legal now, (243,) bool."""
        return planes(*self._blocked).ravel() == 0

    def render(self) -> np.ndarray | None:
        """The board and the pieces on offer below it, (192, 144, 3) uint8."""
        if self.render_mode is None:
            return None
        board, *pieces = planes(self._board, *self._pieces)
        box = np.arange(SIZE) // BOX
        picture = GROUNDS[(box[:, None] + box) % 2]
        picture[board > 0] = PLACED
        picture = picture.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        shelf = np.hstack([np.pad(piece[:5, :5], ((1, 0), (1, 0))) for piece in pieces])
        shelf = np.where(shelf[:, :, None] > 0, PIECE, GROUNDS[0]).repeat(SMALL, axis=0).repeat(SMALL, axis=1)
        picture[::PIXELS] = picture[:, ::PIXELS] = shelf[::SMALL] = shelf[:, ::SMALL] = GROUNDS[0] // 2
        return np.vstack([picture, shelf])

    def _drawn(self) -> list[int]:
        return [SHAPES[PIECES[which]] for which in self.np_random.integers(len(PIECES), size=OFFERED)]

    def _offer(self, pieces: list[int]) -> None:
        """Have these pieces, and find where each does not fit."""
        self._pieces = pieces
        taken = self._board | WALL
        self._blocked = [BOARD] * OFFERED
        for number, piece in enumerate(pieces):
            if piece:
                blocked = 0
                while piece:
                    lowest = piece & -piece
                    blocked |= taken >> lowest.bit_length() - 1  # that cell of the piece would lie on a taken one
                    piece ^= lowest
                self._blocked[number] = blocked & BOARD

    def _observation(self) -> np.ndarray:
        shown = np.empty((1 + OFFERED + 3, SIZE, SIZE), np.float32)
        shown[: 1 + OFFERED] = planes(self._board, *self._pieces)
        board = shown[0]
        shown[-3], shown[-2] = board.mean(axis=1, keepdims=True), board.mean(axis=0, keepdims=True)
        boxes = board.reshape(SIZE // BOX, BOX, SIZE // BOX, BOX).mean(axis=(1, 3))
        shown[-1] = boxes.repeat(BOX, axis=0).repeat(BOX, axis=1)
        return shown


gym.register("Blocks-v0", f"{__name__}:Blocks", max_episode_steps=1000)
