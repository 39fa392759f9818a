"""Four in a row on a 6 by 6 board without gravity: lines, threats, a quick engine, and a search for forced wins.

A board is a text of 36 characters, row by row: ``X``, ``O`` or ``.``. Inside, the cells of a side are the bits of a number.
"""

from __future__ import annotations

from functools import cache

SIDE, CELLS = 6, 36
EMPTY = "." * CELLS
_ALL = (1 << CELLS) - 1
#: Weight of a line that holds n marks of one side and none of the other, n from 0 to 4.
_WEIGHTS = (0, 1, 6, 30, 10_000)
_STEPS = ((0, 1), (1, 0), (1, 1), (1, -1))
LINES = tuple(
    sum(1 << ((r + k * dr) * SIDE + c + k * dc) for k in range(4))
    for r in range(SIDE)
    for c in range(SIDE)
    for dr, dc in _STEPS
    if r + 3 * dr < SIDE and 0 <= c + 3 * dc < SIDE
)
"""The 54 lines of four cells, as bits."""


def winner(board: str) -> str:
    """X, O, ``draw`` for a full board, or nothing while the game continues."""
    for mark in "XO":
        held = _bits(board, mark)
        if any(held & line == line for line in LINES):
            return mark
    return "" if "." in board else "draw"


def put(board: str, cell: int, mark: str) -> str:
    """``board`` with ``mark`` in ``cell``."""
    return board[:cell] + mark + board[cell + 1 :]


def wins_at(board: str, mark: str) -> list[int]:
    """Free cells at which ``mark`` would have four in a row."""
    return _cells(_threats(*_sides(board, mark)))


def candidates(board: str, mark: str, width: int) -> list[int]:
    """The ``width`` free cells whose open lines weigh most for either side, best first."""
    return [move.bit_length() - 1 for move in _candidates(*_sides(board, mark), width)]


@cache
def best_move(board: str, mark: str, depth: int = 3, width: int = 6) -> int:
    """Win, else block, else win by ``depth`` threats, else look ``depth`` half-moves ahead at the ``width`` best candidates. The
    board must have a free cell."""
    own, foe = _sides(board, mark)
    if near := _threats(own, foe) or _threats(foe, own):
        return _cells(near)[0]
    if forced := _forced(own, foe, depth):
        return forced.bit_length() - 1
    limit = 10**9
    moves = _candidates(own, foe, width)
    best = max(moves, key=lambda move: (-_search(foe, own | move, depth - 1, width, -limit, limit), -move))
    return best.bit_length() - 1


def forced_win(board: str, mark: str, depth: int = 8) -> int | None:
    """The first move of a win by threats, each of which leaves the opponent one answer; None where there is none that short."""
    own, foe = _sides(board, mark)
    move = _forced(own, foe, depth)
    return move.bit_length() - 1 if move else None


def _bits(board: str, mark: str) -> int:
    return sum(1 << cell for cell, held in enumerate(board) if held == mark)


def _sides(board: str, mark: str) -> tuple[int, int]:
    return _bits(board, mark), _bits(board, "O" if mark == "X" else "X")


def _cells(bits: int) -> list[int]:
    return [cell for cell in range(CELLS) if bits >> cell & 1]


def _threats(own: int, foe: int) -> int:
    """Free cells at which ``own`` would win."""
    found = 0
    for line in LINES:
        if not line & foe and (line & own).bit_count() == 3:
            found |= line & ~own
    return found


def _value(own: int, foe: int) -> int:
    """Weights of one's open lines less those of the opponent."""
    total = 0
    for line in LINES:
        mine, theirs = line & own, line & foe
        if not theirs:
            total += _WEIGHTS[mine.bit_count()]
        elif not mine:
            total -= _WEIGHTS[theirs.bit_count()]
    return total


def _candidates(own: int, foe: int, width: int) -> list[int]:
    weight = {1 << cell: 0 for cell in _cells(_ALL & ~(own | foe))}
    for line in LINES:
        mine, theirs = line & own, line & foe
        if not (mine and theirs):
            gain = _WEIGHTS[min(3, (mine | theirs).bit_count()) + 1] + 1
            free = line & ~(mine | theirs)
            while free:
                lowest = free & -free
                weight[lowest] += gain
                free ^= lowest
    return sorted(weight, key=lambda move: (-weight[move], move))[:width]


def _search(own: int, foe: int, depth: int, width: int, low: int, high: int) -> int:
    """Negamax with alpha and beta; a win in hand is worth more the sooner it comes."""
    if _threats(own, foe):
        return 100_000 + depth
    if depth == 0 or own | foe == _ALL:
        return _value(own, foe)
    must = _threats(foe, own)
    for move in [must & -must] if must else _candidates(own, foe, width):
        low = max(low, -_search(foe, own | move, depth - 1, width, -high, -low))
        if low >= high:
            break
    return low


def _forced(own: int, foe: int, depth: int) -> int:
    if near := _threats(own, foe):
        return near & -near
    must = _threats(foe, own)
    if depth == 0 or must & (must - 1):
        return 0
    for move in [must] if must else [1 << cell for cell in _cells(_ALL & ~(own | foe))]:
        threats = _threats(own | move, foe)
        if threats & (threats - 1) or (threats and _forced(own | move, foe | threats, depth - 1)):
            return move
    return 0
