"""Random programs, their mutants and what critics say of them: the task family of the specification's section 7.

A program is a prefix expression over two whole numbers, kept as text, parsed and run here by a small interpreter (nothing is
executed). A candidate is a reference after 0 to 3 mutations, one in twenty with a bracket lost;
a rewrite undoes one change, adds one or does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.verify_or_ship.calibration import CandidateAttempt, CodeCandidate

OPS = ("+", "-", "*", "%", "min", "max")
DEPTH, HIDDEN, SPAN = 3, 60, 20
UNDO, ADD, BROKEN = 0.45, 0.12, 0.05
TESTS: Mapping[str, tuple[int, int, int]] = {"weak": (1, 0, 3), "strong": (2, 0, 5), "near-oracle": (8, -SPAN, SPAN)}
"""Public test -> how many points, from, to."""
Expr = tuple[Any, ...]


def _leaf(rng: np.random.Generator) -> Expr:
    return (("x",), ("y",), (str(int(rng.integers(0, 10))),))[int(rng.choice(3, p=[0.38, 0.38, 0.24]))]


def expression(rng: np.random.Generator, depth: int) -> Expr:
    """A random program at most ``depth`` operators deep."""
    if depth == 0 or (depth < DEPTH and rng.random() < 0.15):
        return _leaf(rng)
    if rng.random() < 0.15:
        return ("if", *(expression(rng, depth - 1) for _ in range(4)))  # if a > b then c else d
    return (OPS[int(rng.integers(len(OPS)))], expression(rng, depth - 1), expression(rng, depth - 1))


def text_of(program: Expr) -> str:
    """The program's text."""
    return program[0] if len(program) == 1 else f"({' '.join([program[0], *map(text_of, program[1:])])})"


def parse(text: str) -> Expr | None:
    """The program of a text; None where it is none."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()

    def read(at: int) -> tuple[Expr, int]:
        if words[at] != "(":
            if words[at] not in ("x", "y") and not words[at].isdigit():
                raise ValueError(words[at])
            return (words[at],), at + 1
        head, parts, at = words[at + 1], [], at + 2
        for _ in range({"if": 4}.get(head, 2)):
            part, at = read(at)
            parts.append(part)
        if (head != "if" and head not in OPS) or words[at] != ")":
            raise ValueError(head)
        return (head, *parts), at + 1

    try:
        found, end = read(0)
    except (ValueError, IndexError):
        return None
    return found if end == len(words) else None


def run(program: Expr, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What the program gives at points (n,). A remainder by 0 is 0."""
    if len(program) == 1:
        return x if program[0] == "x" else y if program[0] == "y" else np.full(len(x), int(program[0]))
    parts = [run(part, x, y) for part in program[1:]]
    if program[0] == "if":
        return np.where(parts[0] > parts[1], parts[2], parts[3])
    one, other = parts
    if program[0] == "%":
        return np.where(other == 0, 0, np.remainder(one, np.where(other == 0, 1, other)))
    found: np.ndarray = {"+": np.add, "-": np.subtract, "*": np.multiply, "min": np.minimum, "max": np.maximum}[program[0]](
        one, other
    )
    return found


def _places(program: Expr, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    return [path, *(place for i, part in enumerate(program[1:], 1) for place in _places(part, (*path, i)))]


def _replaced(program: Expr, path: tuple[int, ...], change: Any) -> Expr:
    if not path:
        return tuple(change(program))
    return (*program[: path[0]], _replaced(program[path[0]], path[1:], change), *program[path[0] + 1 :])


def mutated(program: Expr, rng: np.random.Generator) -> Expr:
    """One operator, variable or number changed."""
    places = _places(program)

    def change(part: Expr) -> Expr:
        if len(part) == 1:
            return next(leaf for leaf in iter(lambda: _leaf(rng), None) if leaf != part)
        if part[0] == "if":
            return ("if", part[2], part[1], *part[3:])
        others = [op for op in OPS if op != part[0]]
        return (others[int(rng.integers(len(others)))], *part[1:])

    return _replaced(program, places[int(rng.integers(len(places)))], change)


@dataclass(frozen=True)
class Draft:
    """A candidate: the programs it went through, the last of which it is, and whether a bracket was lost."""

    history: tuple[Expr, ...]
    lost: bool = False

    @property
    def text(self) -> str:
        """Its text."""
        found = text_of(self.history[-1])
        return found[:-1] if self.lost and found.endswith(")") else f"({found}" if self.lost else found


def first_draft(reference: Expr, rng: np.random.Generator, mutations: Sequence[float] = (0.25, 0.25, 0.25, 0.25)) -> Draft:
    """A reference after as many mutations as ``mutations``, probabilities of 0, 1, ..., say."""
    history = [reference]
    for _ in range(int(rng.choice(len(mutations), p=list(mutations)))):
        history.append(mutated(history[-1], rng))
    return Draft(tuple(history), bool(rng.random() < BROKEN))


def rewritten(draft: Draft, rng: np.random.Generator) -> Draft:
    """One change undone, one added, or nothing done."""
    luck = float(rng.random())
    if luck < UNDO:
        return (
            Draft(draft.history)
            if draft.lost
            else Draft(draft.history[:-1] or draft.history)
            if len(draft.history) > 1
            else draft
        )
    if luck < UNDO + ADD:
        return Draft((*draft.history, mutated(draft.history[-1], rng)), draft.lost)
    return draft


@cache
def _points(seed: int, instance: int, purpose: str, n: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(seed, "verify-or-ship", purpose, instance)
    return rng.integers(low, high + 1, n), rng.integers(low, high + 1, n)


def judged(draft: Draft | str, reference: Expr, seed: int, instance: int, test: str, coins: int = 0) -> CodeCandidate:
    """The candidate, a draft or a text, with what the verifier, syntax, public test and reviewer (parity at two points) say;
    ``coins``: critics that know nothing."""
    text = draft if isinstance(draft, str) else draft.text
    program = parse(text)
    rng = generator(seed, "verify-or-ship", "coins", instance, text)

    def agrees(purpose: str, n: int, low: int, high: int, parity: bool = False) -> bool:
        if program is None:
            return False
        x, y = _points(seed, instance, purpose, n, low, high)
        one, other = run(program, x, y), run(reference, x, y)
        return bool((one % 2 == other % 2).all() if parity else (one == other).all())

    checks: dict[str, bool | float | None] = {
        "syntax": program is not None,
        "tests": agrees(f"public {test}", *TESTS[test]),
        "review": agrees("review", 2, -SPAN, SPAN, parity=True),
    }
    checks |= {f"coin {i}": bool(rng.random() < 0.5) for i in range(coins)}
    return CodeCandidate(agrees("hidden", HIDDEN, -SPAN, SPAN), checks, text)


def trajectories(
    seed: int,
    instances: Sequence[int],
    test: str,
    steps: int = 3,
    mutations: Sequence[float] = (0.25, 0.25, 0.25, 0.25),
    coins: int = 0,
) -> list[CandidateAttempt]:
    """One attempt of ``steps`` candidates at each instance."""
    found = []
    for instance in instances:
        rng = generator(seed, "verify-or-ship", "program", instance)
        reference = expression(rng, DEPTH)
        draft, candidates = first_draft(reference, rng, mutations), []
        for step in range(steps):
            draft = rewritten(draft, rng) if step else draft
            candidates.append(judged(draft, reference, seed, instance, test, coins))
        _points.cache_clear()
        found.append(CandidateAttempt(f"program {instance}", tuple(candidates)))
    return found
