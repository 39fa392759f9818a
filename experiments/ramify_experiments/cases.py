"""What is known to be true of a made case, and how often a method says otherwise:
false findings where nothing is, power where something is.

A method's module ``nulls`` lists its cases as ``CASES``; ``ramify check method NAME`` runs them through the method's own verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ramify.stats.intervals import Interval, clopper_pearson
from ramify.trace.db import Run

Verb = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Repetition:
    """One independent sample of a case."""

    seed: int
    """Decides everything that is sampled in it."""
    folder: Path
    """Empty, and removed afterwards."""
    verb: Verb
    """``verb("cliffs", "scan", ...)`` runs ``ramify cliffs scan ... --json`` in this process and returns its last line. Raises
    what the verb raises."""


@dataclass(frozen=True, slots=True)
class KnownCase:
    """A made case whose truth is known, and how often the method's verb may, or must, report a finding on it."""

    name: str
    truth: Literal["nothing", "planted"]
    says: str
    """One sentence for a reader: what is true here, and what counts as a finding."""
    run: Callable[[Repetition], bool]
    """Whether the verb, at its default levels, reported a finding (of a planted case: the planted one)."""
    wanted: float
    """Of ``nothing`` the nominal level of the verb; of ``planted`` the least share to be found."""
    full: int = 200
    """Repetitions of the committed results."""
    quick: int = 20
    """Repetitions that fit into every change's checks."""
    known_failure: str = ""
    """Why a failure is expected, with the page that explains it; empty where none is."""

    def __post_init__(self) -> None:
        if not 0 <= self.wanted <= 1 or not 1 <= self.quick <= self.full:
            raise ValueError(f"case {self.name!r}: a share of {self.wanted} in {self.quick} of {self.full} repetitions is none")


class SingleReply:
    """What environments of one reply share: there is no state to go back to."""

    max_turns, system = 1, ""

    def snapshot(self) -> Any:
        """Nothing."""
        return 0

    def restore(self, snapshot: Any) -> None:
        """Nothing."""

    def key(self) -> str | None:
        """None."""
        return None


def first_reply(folder: Path) -> str:
    """The first reply of the run of one attempt in ``folder``."""
    with Run.open(folder) as run:
        (tree,) = run.trees()
        return next(node.id for node in run.tree(tree.name).nodes.values() if node.role == "assistant")


@dataclass(frozen=True)
class CaseVerdict:
    """What repetitions of a case come to; ``interval`` is exact, of 95 % (Clopper-Pearson)."""

    name: str
    truth: Literal["nothing", "planted"]
    says: str
    n: int
    false: int | None
    """Findings where nothing is; None of a planted case."""
    found: int | None
    """Repetitions in which the planted was found."""
    rate: float
    interval: Interval
    level: float | None
    """Of ``nothing``: the nominal level."""
    wanted: float | None
    """Of ``planted``: the least share to be found."""
    status: Literal["pass", "miss", "known_failure"]
    known_failure: str = ""


def verdict(case: KnownCase, found: Sequence[bool]) -> CaseVerdict:
    """What repetitions of a case come to.

    ``miss`` where the interval lies wholly above the nominal level (nothing) or wholly below the wanted share (planted): fewer
    repetitions can excuse more, never less. Raises ValueError without repetitions.
    """
    if not found:
        raise ValueError(f"case {case.name!r}: no repetitions")
    n, k, planted = len(found), sum(found), case.truth == "planted"
    low, high = clopper_pearson(k, n)
    holds = high >= case.wanted if planted else low <= case.wanted
    return CaseVerdict(
        name=case.name,
        truth=case.truth,
        says=case.says,
        n=n,
        false=None if planted else k,
        found=k if planted else None,
        rate=k / n,
        interval=(low, high),
        level=None if planted else case.wanted,
        wanted=case.wanted if planted else None,
        status="pass" if holds else "known_failure" if case.known_failure else "miss",
        known_failure=case.known_failure,
    )
