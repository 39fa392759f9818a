"""Measure potentials: fork at many positions of one path, by a rule that says how often,
and count how many continuations succeed.

A position is whatever forks are counted at: a token of a reply, a cut of the thinking, a sentence, a step of an agent. What it
means to continue there is a function (:data:`PlayForks`); :class:`Forks` counts what it returns. A rule
requests a fixed number of forks, a few first and more where they may matter,
or positions in order until nothing succeeds any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from ramify.base.errors import UserError
from ramify.base.ledger import Ledger
from ramify.stats.drops import Counts, ZTest
from ramify.stats.sequential import chance_of
from ramify.trace.node import Annotation

if TYPE_CHECKING:
    from ramify.trace.db import Run

P = TypeVar("P", bound=Hashable)
R = TypeVar("R", covariant=True)
Forked = TypeVar("Forked", contravariant=True)
Place = TypeVar("Place", bound=Hashable, contravariant=True)
#: Yields the total number of forks per position, is sent the counts so far, returns the rule's further results.
Looks = Generator[Mapping[P, int], dict[P, Counts], R]


@dataclass(frozen=True, slots=True)
class ForkEnd:
    """How one fork ended, and what it took."""

    outcome: bool | None
    """None where a failure ended it, or nobody could judge it."""
    truncated: bool = False
    """A limit of turns or tokens ended it."""
    failure: str = ""
    """Why it has no outcome, where something failed."""
    sampled_tokens: int = 0
    turns: int = 0
    played: bool = True
    """False where nothing was sampled: the path had ended there, or the fork was stored."""


@dataclass(frozen=True)
class ForksSpent:
    """What forks took: how many, tokens sampled and given, by purpose and in all."""

    forks: int = 0
    sampled_tokens: int = 0
    forward_tokens: int = 0
    """Run through the model: scored ones, given ones that no cache held, and sampled ones."""
    given_tokens: int = 0
    turns: int = 0
    shared: bool = False
    """Whether the model says what it had cached; else it is taken to share nothing."""
    by_purpose: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    first_failure: str = ""


#: Continues a path at a position: once for each of these indices of a purpose, and says in their order how each ended. Forks of
#: another index or purpose are other samples.
PlayForks = Callable[[Forked, Place, range, str], Awaitable[Sequence[ForkEnd]]]


class Forks(Generic[Forked, Place]):
    """Counts successes among forks of a path. What a path and a position are, and what it means to continue there, says ``play``.

    ``truncated`` says what becomes of forks that a limit ended: counted apart, or by their outcome like the others.
    """

    def __init__(self, play: PlayForks[Forked, Place], truncated: Literal["apart", "graded"] = "apart") -> None:
        self.play, self.truncated = play, truncated
        self.ledger = Ledger()
        self._failure = ""

    @property
    def first_failure(self) -> str:
        """The first sentence with which a fork failed."""
        return self._failure

    async def count(self, path: Forked, t: Place, n: int, purpose: str, start: int = 0) -> Counts:
        """Successes among ``n`` forks of ``path`` at position ``t``, those of index ``start`` and up. A fork without an outcome
        is missing, not failed.

        ``purpose`` names the use of the forks: forks of another purpose are different samples. Counting 16 and then 48 more with
        ``start=16`` equals counting 64.
        Raises UserError on a number of forks or a position there is none of, and what continuing raises.
        """
        if n < 1 or start < 0:
            raise UserError(f"{n} forks from index {start} cannot be sampled; at least one from 0 on")
        ends = await self.play(path, t, range(start, start + n), purpose)
        if played := [end for end in ends if end.played]:
            sampled, turns = sum(end.sampled_tokens for end in played), sum(end.turns for end in played)
            self.ledger.add(purpose, forks=len(played), sampled_tokens=sampled, turns=turns)
        self._failure = self._failure or next((end.failure for end in ends if end.failure), "")
        kept = [end.outcome for end in ends if not end.truncated or self.truncated == "graded"]
        return replace(Counts.of(kept), truncated=len(ends) - len(kept))

    def spent(self) -> ForksSpent:
        """What was spent: forks, turns and tokens sampled; ``forward_tokens`` are the latter,
        as prompts are counted by the model alone."""
        forks, sampled, turns = (int(self.ledger.total(unit)) for unit in ("forks", "sampled_tokens", "turns"))
        by = self.ledger.to_json()["spent"]
        return ForksSpent(forks, sampled, sampled, turns=turns, by_purpose=by, first_failure=self.first_failure)


class ForkRule(Protocol[P, R]):
    """Decides how many forks each position gets."""

    def looks(self, positions: Sequence[P]) -> Looks[P, R]:
        """The requests, round by round."""
        ...


class Store(Protocol[P]):
    """Stores counts between calls: of one path and purpose, for forks from index 0 on."""

    def load(self, path: Any, purpose: str) -> Mapping[P, Counts]:
        """The stored counts."""
        ...

    def keep(self, path: Any, purpose: str, counts: Mapping[P, Counts]) -> None:
        """Keep counts; they replace earlier ones of the same positions."""
        ...


class Measured(Protocol):
    """A path that lies in a run: positions are offsets of nodes."""

    @property
    def tree(self) -> str:
        """The tree it is in."""
        ...

    def at(self, t: int) -> tuple[str, int]:
        """Node and offset of a position."""
        ...

    @property
    def length(self) -> int:
        """The last position."""
        ...


class RunCounts:
    """Counts as annotations of a run: at the node and offset of a position, ``{"k", "n"}``, and what is missing or truncated.

    The annotation is called ``potential`` (pages draw it as a curve),
    that of another purpose than ``scan`` ``potential:PURPOSE``.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def load(self, path: Measured, purpose: str) -> dict[int, Counts]:
        """See :class:`Store`."""
        annotations = {(m.node, m.offset): m for m in self.run.annotations(tree=path.tree, name=_named(purpose), maker=MAKER)}
        return {t: Counts(**annotations[path.at(t)].value) for t in range(path.length + 1) if path.at(t) in annotations}

    def keep(self, path: Measured, purpose: str, counts: Mapping[int, Counts]) -> None:
        """See :class:`Store`."""
        self.run.add(*(counts_annotation(*path.at(t), found, purpose) for t, found in counts.items()))


MAKER = "rollout.potential"


def counts_annotation(node: str, offset: int, counts: Counts, purpose: str = "scan") -> Annotation:
    """Counts as an annotation, see :class:`RunCounts`."""
    value = {name: number for name, number in asdict(counts).items() if number or name in ("k", "n")}
    return Annotation(node, offset, _named(purpose), MAKER, value)


def _named(purpose: str) -> str:
    return "potential" if purpose == "scan" else f"potential:{purpose}"


async def potential(
    forks: Forks[Any, P],
    path: Any,
    positions: Sequence[P],
    rule: ForkRule[P, R],
    purpose: str = "scan",
    store: Store[P] | None = None,
) -> tuple[dict[P, Counts], R]:
    """Counts by position, and the rule's further results. All positions of one round are forked at once.

    With a ``store``, counts that are in it are loaded, only what the rule wants beyond them is sampled, and each look is kept.
    """
    counts = {} if store is None else dict(store.load(path, purpose))
    looks = rule.looks(positions)
    try:
        wanted = next(looks)
        while True:
            more = {t: n - (counts[t].forks if t in counts else 0) for t, n in wanted.items()}
            due = [t for t, n in more.items() if n > 0]
            made = await asyncio.gather(
                *(forks.count(path, t, more[t], purpose, start=counts[t].forks if t in counts else 0) for t in due)
            )
            for t, new in zip(due, made, strict=True):
                counts[t] = counts[t] + new if t in counts else new
            if store is not None:
                store.keep(path, purpose, {t: counts[t] for t in due})
            wanted = looks.send(counts)
    except StopIteration as end:
        found: R = end.value
        return counts, found


@dataclass(frozen=True)
class Fixed:
    """``n`` forks of every position."""

    n: int

    def looks(self, positions: Sequence[P]) -> Looks[P, None]:
        """See :class:`ForkRule`."""
        yield dict.fromkeys(positions, self.n)


@dataclass(frozen=True)
class UntilLost:
    """``n`` forks of positions in order, until ``zeros`` of them in a row had no success.
    It finds that last one, None where there is none."""

    n: int
    zeros: int

    def looks(self, positions: Sequence[P]) -> Looks[P, P | None]:
        """See :class:`ForkRule`."""
        row = 0
        for t in positions:
            counts = yield {t: self.n}
            row = row + 1 if counts[t].n and not counts[t].k else 0
            if row == self.zeros and t != positions[-1]:
                return t
        return None


@dataclass(frozen=True)
class Staged:
    """``first`` forks of all positions, twice as many up to ``n`` where a drop may yet turn out;
    finds the pairs (start, t) tested.

    A pair of ``pairs`` stays open while the predictive chance that ``n`` forks of each would make the test fire is at least
    ``miss``. A start before t - 1 is an estimate carried on; it serves the first look only, then the pair gets the position just
    before its token. ``pi`` are the probabilities of the tokens, entry t - 1 that of token t: they bound what a token can lose
    (:func:`ramify.stats.sequential.chance_of`), within ``slack`` for what was carried on. A pair is closed as well once the
    test's p-value is at most ``sure``.
    """

    n: int
    first: int
    miss: float
    test: ZTest
    pairs: Sequence[tuple[int, int]]
    pi: Sequence[float] | None = None
    slack: float = 0.0
    sure: float = 0.0

    def looks(self, positions: Sequence[int]) -> Looks[int, list[tuple[int, int]]]:
        """See :class:`ForkRule`."""
        tested, live, size = {t: start for start, t in self.pairs}, list(self.pairs), min(self.first, self.n)
        wanted = list(positions)
        while True:
            counts = yield dict.fromkeys(wanted, size)
            if size == self.n and all(start == t - 1 for start, t in live):
                return [(start, t) for t, start in tested.items()]
            live = [
                (t - 1, t)
                for start, t in live
                if not self._sure(counts[start], counts[t]) and self._open(counts[start], counts[t], t)
            ]
            tested.update((t, start) for start, t in live)
            size = min(2 * size, self.n)
            wanted = sorted({t for pair in live for t in pair})

    def _open(self, prev: Counts, cur: Counts, t: int) -> bool:
        ends = [c.n + max(0, self.n - c.forks) for c in (prev, cur)]
        # the chance among the forks that end is not a martingale
        bound = None if self.pi is None or prev.truncated or cur.truncated else self.pi[t - 1]
        return chance_of(self.test.table(*ends), prev.k, prev.n, cur.k, cur.n, bound, self.slack) >= self.miss

    def _sure(self, prev: Counts, cur: Counts) -> bool:
        """With one right and one wrong fork more on either side, since a few forks all right, and none, have no error at all."""
        return self.test.p_value(*(Counts(c.k + 1, c.n + 2) for c in (prev, cur))) <= self.sure
