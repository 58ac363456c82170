"""Blocks: place pieces on a 9 x 9 board. Full rows, columns and boxes are cleared.

Importing this module registers Blocks-v0, whose episodes are truncated after 1000 moves. Few of its 243 actions are
legal, and an illegal one raises an error. An agent has to ask `action_masks()` for the legal ones.

Boards and pieces are stored as integers, one bit per cell: the cell (row, column) is bit 16 * row + column. The bits
outside the board are set in WALL. A piece that hangs over the edge collides with WALL as it would with another piece.
"""

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SIZE, BOX, OFFERED = 9, 3, 3
STRIDE = 16  # bits per row
PICTURES = """
    #  ##  #/#  ###  #/#/#  ##/#.  ##/.#  #./##  .#/##  ##/##  ####  #/#/#/#
    ###/#..  ###/..#  #../###  ..#/###  ##/#./#.  ##/.#/.#  #./#./##  .#/.#/##
    ###/.#.  .#./###  #./##/#.  .#/##/.#  .##/##.  ##./.##  #./##/.#  .#/##/#.
    #####  #/#/#/#/#  .#./###/.#.  ###/#../#..  ###/..#/..#  #../#../###  ..#/..#/###
"""


def to_bits(cells: Iterable[tuple[int, int]]) -> int:
    """Return the integer that represents a set of cells (row, column)."""
    return sum(1 << STRIDE * row + column for row, column in cells)


def to_planes(*bitboards: int) -> np.ndarray:
    """Convert integers to boards, (len(bitboards), 9, 9) uint8."""
    stored = b"".join(bits.to_bytes(SIZE * STRIDE // 8, "little") for bits in bitboards)
    cells = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")
    return cells.reshape(len(bitboards), SIZE, STRIDE)[:, :, :SIZE]


def parse_piece(picture: str) -> int:
    """Convert a picture such as "##/.#" to an integer."""
    rows = picture.split("/")
    return to_bits((row, column) for row, line in enumerate(rows) for column, cell in enumerate(line) if cell == "#")


BOARD = to_bits((row, column) for row in range(SIZE) for column in range(SIZE))
WALL = to_bits((row, column) for row in range(2 * SIZE) for column in range(STRIDE)) & ~BOARD
ROWS = [to_bits((row, column) for column in range(SIZE)) for row in range(SIZE)]
COLUMNS = [to_bits((row, column) for row in range(SIZE)) for column in range(SIZE)]
CORNERS = [(row, column) for row in range(0, SIZE, BOX) for column in range(0, SIZE, BOX)]
BOXES = [to_bits((top + row, left + column) for row in range(BOX) for column in range(BOX)) for top, left in CORNERS]
PIECES = PICTURES.split()
SHAPES = {piece: parse_piece(piece) for piece in PIECES}

BOARD_PIXELS, PIECE_PIXELS = 16, 8  # per cell of the board, and of a piece on offer
GROUNDS = np.array([(24, 26, 32), (36, 39, 48)], np.uint8)  # alternating from box to box
PLACED, PIECE = np.array([(88, 152, 232), (240, 184, 72)], np.uint8)


class Blocks(gym.Env):
    """Board with three pieces on offer. When all three are placed, three new ones are drawn.

    Observations are (7, 9, 9) float32 in [0, 1]. Plane 0 is the board. Planes 1 to 3 are the pieces on offer, each in
    the upper left corner; a placed piece leaves an empty plane. Planes 4 to 6 give, for each cell, the filled share of
    its row, column and box, so that the network need not learn to count.

    Action piece * 81 + row * 9 + column places the upper left corner of the piece's bounding box on that cell. All
    rows, columns and 3 x 3 boxes that are full after a move are cleared together. The reward is their number. An
    episode terminates if no piece on offer fits anywhere.

    Args:
        render_mode: "rgb_array" or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "cell_actions": True, "render_fps": 4}  # noqa: RUF012 - declared by gym.Env without ClassVar

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1 + OFFERED + 3, SIZE, SIZE), np.float32)
        self.action_space = spaces.Discrete(OFFERED * SIZE**2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._board = 0  # empty
        self._offer(self._draw_pieces())
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Place a piece.

        Raises:
            ValueError: if the action is illegal.
        """
        piece, cell = divmod(int(action), SIZE**2)
        row, column = divmod(cell, SIZE)
        shift = STRIDE * row + column
        if not 0 <= piece < OFFERED or self._blocked[piece] >> shift & 1:
            legal = [int(mask.sum()) for mask in np.split(self.action_masks(), OFFERED)]
            raise ValueError(
                f"action {action}, which places piece {piece} at row {row}, column {column}, is illegal. The three "
                f"pieces have {legal} legal places now; choose an action for which action_masks() is True"
            )
        board = self._board | self._pieces[piece] << shift
        full = [line for line in ROWS + COLUMNS + BOXES if board & line == line]
        for line in full:
            board &= ~line
        self._board = board
        self._pieces[piece] = 0
        self._offer(self._pieces if any(self._pieces) else self._draw_pieces())
        terminated = all(blocked == BOARD for blocked in self._blocked)
        return self._observation(), float(len(full)), terminated, False, {}

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (243,) bool."""
        mask: np.ndarray = to_planes(*self._blocked).ravel() == 0
        return mask

    def render(self) -> np.ndarray | None:
        """Draw the board and the pieces on offer below it, (192, 144, 3) uint8."""
        if self.render_mode is None:
            return None
        board, *pieces = to_planes(self._board, *self._pieces)
        box = np.arange(SIZE) // BOX
        frame = GROUNDS[(box[:, None] + box) % 2]
        frame[board > 0] = PLACED
        frame = frame.repeat(BOARD_PIXELS, axis=0).repeat(BOARD_PIXELS, axis=1)
        shelf = np.hstack([np.pad(piece[:5, :5], ((1, 0), (1, 0))) for piece in pieces])
        shelf = np.where(shelf[:, :, None] > 0, PIECE, GROUNDS[0])
        shelf = shelf.repeat(PIECE_PIXELS, axis=0).repeat(PIECE_PIXELS, axis=1)
        for picture, pixels in ((frame, BOARD_PIXELS), (shelf, PIECE_PIXELS)):
            picture[::pixels] = picture[:, ::pixels] = GROUNDS[0] // 2
        return np.vstack([frame, shelf])

    def _draw_pieces(self) -> list[int]:
        return [SHAPES[PIECES[index]] for index in self.np_random.integers(len(PIECES), size=OFFERED)]

    def _offer(self, pieces: list[int]) -> None:
        self._pieces = pieces
        self._blocked = [self._blocked_places(piece) for piece in pieces]

    def _blocked_places(self, piece: int) -> int:
        """Return the cells on which the piece's corner cannot be placed. A placed piece is 0 and fits nowhere."""
        if not piece:
            return BOARD
        taken = self._board | WALL
        blocked = 0
        while piece:
            lowest = piece & -piece
            blocked |= taken >> lowest.bit_length() - 1  # places where this cell of the piece would hit a taken one
            piece ^= lowest
        return blocked & BOARD

    def _observation(self) -> np.ndarray:
        observation = np.empty((1 + OFFERED + 3, SIZE, SIZE), np.float32)
        observation[: 1 + OFFERED] = to_planes(self._board, *self._pieces)
        board = observation[0]
        observation[-3] = board.mean(axis=1, keepdims=True)
        observation[-2] = board.mean(axis=0, keepdims=True)
        boxes = board.reshape(SIZE // BOX, BOX, SIZE // BOX, BOX).mean(axis=(1, 3))
        observation[-1] = boxes.repeat(BOX, axis=0).repeat(BOX, axis=1)
        return observation


gym.register("Blocks-v0", f"{__name__}:Blocks", max_episode_steps=1000, reward_threshold=13.8)  # ten times random play
