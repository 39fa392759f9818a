"""Deterministic graders that compare the last thing the agent said with the task's answer: exactly, or as a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.env.protocol import Task
from ramify.trace.node import Stream, Verdict
from ramify.trace.path import Path

_NUMBER = re.compile(
    r"""(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))  # 42, 1,234, or nothing before .5
    (?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s?/\s?\d+)?(?!\w)""",
    re.VERBOSE,
)
_LONGEST = 400
"""Digits of a number that is still read; an agent cannot make a grader compute a huge power."""


def last_number(text: str) -> Fraction | None:
    """The last number in ``text``: 42, -1,234.5, 6.02e23, 3/4. None where there is none."""
    for found in reversed(_NUMBER.findall(text[-20_000:])):
        top, _, bottom = found.replace(",", "").replace(" ", "").partition("/")
        if len(found) > _LONGEST or (bottom and int(bottom) == 0):
            continue
        return Fraction(top) / (int(bottom) if bottom else 1)
    return None


def plain(text: str) -> str:
    """``text`` with case and runs of whitespace made equal, for comparing."""
    return " ".join(text.split()).casefold()


class _Match:
    """Compares the agent's last message with ``task.data["answer"]``."""

    name = ""
    version = 1

    @property
    def judge(self) -> str:
        """Identity of the grader and its settings."""
        return stable_hash("score.match", self.name, self.version)

    async def score(self, path: Path, task: Task) -> Sequence[Verdict | Stream]:
        """One verdict of 1.0 or 0.0. Raises UserError when the task has no usable answer."""
        if "answer" not in task.data:
            raise UserError(f"task '{task.id}' has no 'answer' to grade against")
        said = next((m.text for m in reversed(path.messages()) if m.role == "assistant"), "")
        right = self.agrees(said, task)
        evidence = {"said": said[-200:], "answer": task.data["answer"]}
        return [
            Verdict(
                path.segments[-1][0].id,
                self.name,
                float(right),
                confidence=1.0,
                evidence=evidence,
                judges={self.name: self.judge},
            )
        ]

    def agrees(self, said: str, task: Task) -> bool:
        """Whether the reply holds the answer."""
        return plain(said) == plain(str(task.data["answer"]))


@register("scorer", "exact")
class ExactMatch(_Match):
    """The reply is the answer, up to case and whitespace."""

    name = "exact"


@register("scorer", "number")
class NumberMatch(_Match):
    """The last number of the reply equals the answer within ``tolerance`` (absolute)."""

    name = "number"

    def __init__(self, tolerance: float = 0.0) -> None:
        if not tolerance >= 0:
            raise UserError(f"tolerance must be 0 or more, not {tolerance}")
        self.tolerance = Fraction(tolerance)

    @property
    def judge(self) -> str:
        """Identity of the grader and its settings."""
        return stable_hash("score.match", self.name, self.version, str(self.tolerance))

    def agrees(self, said: str, task: Task) -> bool:
        """Whether the reply's last number is the answer."""
        answer = last_number(str(task.data["answer"]))
        if answer is None:
            raise UserError(f"task '{task.id}': the answer {task.data['answer']!r} is not a number")
        found = last_number(said)
        return found is not None and abs(found - answer) <= self.tolerance
