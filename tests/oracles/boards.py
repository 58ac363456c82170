"""Slow twins of the example games: their rules, cell by cell."""

import numpy as np

SIZE = 9


def cells(piece):
    """Return the cells (row, column) of a piece such as "##/#.", which has two cells above one."""
    return [
        (row, column) for row, line in enumerate(piece.split("/")) for column, cell in enumerate(line) if cell == "#"
    ]


def occupied(plane):
    """Return the cells (row, column) of a plane that are not 0."""
    return [tuple(cell) for cell in np.argwhere(plane).tolist()]


def fits(board, piece, row, column):
    for down, right in cells(piece):
        y, x = row + down, column + right
        if y >= SIZE or x >= SIZE or board[y, x]:
            return False
    return True


def legal(board, pieces):
    """Return the action mask, (243,) bool. A piece that is already placed is None."""
    places = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    return np.array([piece is not None and fits(board, piece, *place) for piece in pieces for place in places])


def place(board, piece, row, column):
    """Place a piece. Return the board and the number of cleared lines."""
    board = board.copy()
    for down, right in cells(piece):
        board[row + down, column + right] = 1
    cleared, lines = np.zeros_like(board, bool), 0
    for n in range(SIZE):
        y, x = n // 3 * 3, n % 3 * 3
        for line in (np.s_[n, :], np.s_[:, n], np.s_[y : y + 3, x : x + 3]):
            if board[line].all():
                cleared[line] = True
                lines += 1
    return np.where(cleared, 0, board), lines


class Snake:
    """A snake as a list of cells from tail to head."""

    def __init__(self, size, body):
        self.size, self.body = size, list(body)

    def move(self, action, food):
        """Move by one cell. Return False if the snake dies."""
        (row_before, column_before), (row, column) = self.body[-2:]
        down, right = [(-1, 0), (0, 1), (1, 0), (0, -1)][action]
        if (row + down, column + right) == (row_before, column_before):
            down, right = row - row_before, column - column_before
        head = (row + down, column + right)
        rest = self.body if head == food else self.body[1:]
        if head in rest or not all(0 <= at < self.size for at in head):
            return False
        self.body = [*rest, head]
        return True

    def plane(self):
        plane = np.zeros((self.size, self.size), np.float32)
        for position, cell in enumerate(self.body, start=1):
            plane[cell] = position / len(self.body)
        return plane
