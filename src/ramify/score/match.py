"""Deterministic judges that compare what was said with an answer: exactly, as a number, in a box."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.score.judge import Each, Item, Judgement, plain

_NUMBER = re.compile(
    r"""(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))  # 42, 1,234, or nothing before .5
    (?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s?/\s?\d+)?(?!\w)""",
    re.VERBOSE,
)
_ALL_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d{1,3})?(?:\s?/\s?\d+)?")
_LONGEST = 400
"""Digits of a number that is still read; an agent cannot make a grader compute a huge power."""


def last_number(text: str) -> Fraction | None:
    """The last number in ``text``: 42, -1,234.5, 6.02e23, 3/4. None where there is none."""
    for digits in reversed(_NUMBER.findall(text[-20_000:])):
        top, _, bottom = digits.replace(",", "").replace(" ", "").partition("/")
        if len(digits) > _LONGEST or (bottom and int(bottom) == 0):
            continue
        return Fraction(top) / (int(bottom) if bottom else 1)
    return None


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete ``\boxed{...}``, braces inside balanced; None where there is none."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for at in range(start + 6, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if not depth:
                return text[start + 7 : at]
        start = text.rfind("\\boxed{", 0, start)
    return None


class _Match(Each):
    """Compares the text with ``data["answer"]``; the value is True or False."""

    version = 1

    @property
    def identity(self) -> str:
        """Hash of the judge and its settings."""
        return stable_hash("score.match", self.name, self.version)

    async def one(self, item: Item) -> Judgement:
        """Raises UserError where the item has no usable answer."""
        if "answer" not in item.data:
            raise UserError(f"'{item.id}' has no 'answer' in its data to compare with")
        answer = item.data["answer"]
        return Judgement(self.agrees(item.text, answer), evidence={"said": item.text[-200:], "answer": answer}, confidence=1.0)

    def agrees(self, text: str, answer: Any) -> bool:
        """Whether what was said holds the answer. Raises UserError on an answer that cannot be compared with."""
        raise NotImplementedError


@register("judge", "exact")
class ExactMatch(_Match):
    """The text is the answer, up to case and whitespace."""

    name = "exact"

    def agrees(self, text: str, answer: Any) -> bool:
        """Whether they are one."""
        return plain(text) == plain(str(answer))


@register("judge", "number")
class NumberMatch(_Match):
    """The last number of the text equals the answer within ``tolerance`` (absolute)."""

    name = "number"

    def __init__(self, tolerance: float = 0.0) -> None:
        if not tolerance >= 0:
            raise UserError(f"tolerance must be 0 or more, not {tolerance}")
        self.tolerance = Fraction(tolerance)

    @property
    def identity(self) -> str:
        """Hash of the judge and its settings."""
        return stable_hash("score.match", self.name, self.version, str(self.tolerance))

    def agrees(self, text: str, answer: Any) -> bool:
        """Whether the last number is the answer."""
        wanted = last_number(str(answer))
        if wanted is None:
            raise UserError(f"the answer {answer!r} is not a number")
        number = last_number(text)
        return number is not None and abs(number - wanted) <= self.tolerance


@register("judge", "boxed")
class Boxed(_Match):
    r"""The content of the last ``\boxed{...}`` is the answer: as text, or as a number where both are one."""

    name = "boxed"

    def agrees(self, text: str, answer: Any) -> bool:
        """Whether the box holds it."""
        boxed, answer = last_boxed(text), str(answer)
        if boxed is None:
            return False
        if plain(boxed).replace(" ", "") == plain(answer).replace(" ", ""):
            return True
        sides = [side.strip().strip("$").strip() for side in (boxed, answer)]
        if not all(_ALL_NUMBER.fullmatch(side) for side in sides):
            return False
        values = [last_number(side) for side in sides]
        return values[0] is not None and values[0] == values[1]
