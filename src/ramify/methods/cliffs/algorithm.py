"""Formulas of cliffs: the test, the screen, confirmation, classes, candidates, controls. No I/O.

Source: Ko, Kang, Lee, "Cliff Tokens" (arXiv 2606.25524), sections of our spec (``3.2`` ...) named at each formula. Positions of a
reply of T tokens are 0..T; token t (1..T) leads from position t - 1 to position t.
The potential V_t is the chance of a right end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ramify.stats.drops import Counts, ZTest, standard_error
from ramify.stats.evidence import benjamini_hochberg

#: Entropy in nats below which a greedy token is deterministic: H_b(0.99) (3.4).
H_STAR = -(0.99 * math.log(0.99) + 0.01 * math.log(0.01))
TIE = 1e-9
"""Log-probabilities this near the highest tie with it at rank 1."""
Status = Literal["found", "confirmed", "refuted"]
KINDS = ("deterministic", "uncertain", "sampled_off", "other")


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What the model says of one sampled token."""

    pi: float | None = None
    """Its probability under the sampler: what bounds the drop."""
    q: float | None = None
    """Its probability under the model at temperature 1."""
    entropy: float | None = None
    """Of the model's distribution before it, in nats."""
    greedy: bool | None = None
    """Whether no other token is likelier (competition rank 1)."""

    @property
    def kind(self) -> str | None:
        """Class of a cliff at this token (3.4); None where the model returns no probabilities."""
        if self.greedy is None or self.entropy is None:
            return None
        return KINDS[(0 if self.entropy <= H_STAR else 1) if self.greedy else (3 if self.entropy <= H_STAR else 2)]


@dataclass(frozen=True, slots=True)
class Cliff:
    """A drop at token ``t`` of a trace, and what became of it."""

    trace_id: str
    t: int
    """The token: ``response_ids[t - 1]``."""
    token_id: int | None
    start: int
    """Position of the estimate before; t - 1 unless nothing nearer was measured."""
    interval: bool
    """The drop belongs to tokens start + 1 to t together, not to one token."""
    prev: Counts
    cur: Counts
    facts: TokenFacts = TokenFacts()
    fresh: tuple[Counts, Counts] | None = None
    """Before and after the token, from forks sampled for the confirmation only."""
    p: float | None = None
    """Of the confirmation."""
    p_fdr: float | None = None
    """The same after Benjamini and Hochberg over the candidates of the whole scan."""
    status: Status = "found"
    """Found is not decided yet, or not checked."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.t:
            raise ValueError(f"a cliff cannot be at token {self.t} since position {self.start}")

    @property
    def drop(self) -> float:
        """d: observed when it was found; selected for being large."""
        return self.prev.rate - self.cur.rate

    @property
    def fresh_drop(self) -> float | None:
        """From the confirmation's forks: an unbiased estimate; None without graded ones."""
        return None if self.fresh is None or not all(c.n for c in self.fresh) else self.fresh[0].rate - self.fresh[1].rate

    @property
    def suspect(self) -> bool:
        """The drop exceeds what the token can lose by more than 3 SE: noise, re-encoded text or another sampler (8).

        V is the mean over the tokens that could stand here, so this one alone fails in at most all of 1 - V: pi (1 - W) <= 1 - V
        for the potential W after it, or V - W <= (1 - pi) (1 - V) / pi, never more than 1 - pi. Truncated forks count as not
        right here: the chance to end, and right, is a martingale; that of the ones that end is none.
        """
        prev, cur = (Counts(c.k, c.n + c.truncated) for c in self.fresh or (self.prev, self.cur))
        if self.facts.pi is None or self.interval or not prev.n or not cur.n:
            return False
        # with one right and one wrong fork more: all right before and none after would have a standard error of 0
        before, after = (rate * (1 - rate) / n for rate, n in (((c.k + 1) / (c.n + 2), c.n + 2) for c in (prev, cur)))
        se = math.sqrt(before + self.facts.pi**2 * after)
        return self.facts.pi * (1 - cur.rate) - (1 - prev.rate) > 3 * se + TIE

    def evidence(self, test: ZTest) -> CliffEvidence:
        """The record of 3.8, for the test that found it."""
        se = standard_error(self.prev, self.cur)
        threshold = test.delta0 + test.z * se
        return CliffEvidence(self, self.facts.kind, self.drop, se, threshold, self.fresh_drop, self.suspect)


@dataclass(frozen=True, slots=True)
class CliffEvidence:
    """A cliff with what follows from its counts."""

    cliff: Cliff
    kind: str | None
    """Its class."""
    drop: float
    """As it was found."""
    se: float
    """Standard error of it."""
    threshold: float
    """What it had to exceed."""
    fresh_drop: float | None
    suspect: bool


def detect(
    trace_id: str,
    potentials: Sequence[Counts | None],
    test: ZTest,
    *,
    token_ids: Sequence[int] | None = None,
    facts: Sequence[TokenFacts] | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
    rises: bool = False,
) -> list[Cliff]:
    """Cliffs of one trace by position (the first cliff is the first in the text, not the largest), status ``found`` (3.2).

    ``potentials`` has entries 0..T, None where not measured: the previous estimate then stands in, and a drop since an earlier
    position than t - 1 is that of an interval. ``pairs`` (start, t) name the tests instead; there the tokens between are known to
    move nothing that matters (the screen), and the drop is the token's. ``rises`` finds rebounds: the same test upwards.
    """
    tests = pairs
    if tests is None:
        known = [t for t, counts in enumerate(potentials) if counts is not None and counts.n]
        tests = list(itertools.pairwise(known))
    out = []
    for start, t in tests:
        prev, cur = potentials[start], potentials[t]
        if prev is None or cur is None or not (test.fires(cur, prev) if rises else test.fires(prev, cur)):
            continue
        out.append(
            Cliff(
                trace_id, t, None if token_ids is None else token_ids[t - 1], start, pairs is None and start < t - 1, prev, cur,
                TokenFacts() if facts is None else facts[t - 1],
            )
        )  # fmt: skip
    return sorted(out, key=lambda cliff: cliff.t)


def confirm(cliffs: Sequence[Cliff], fresh: Sequence[tuple[Counts, Counts]], test: ZTest, sure: float = 0.0) -> list[Cliff]:
    """Cliffs of one trace with the p-value of the same test on fresh forks, (before, after) each. :func:`correct` decides.

    Where the forks were sampled in up to three looks and no more once p was at most ``sure``, the p-value of the last look is
    raised to pay for those before: p + min(2 p, 2 sure), which is below x with a chance of at most x.
    """
    p = [test.p_value(*pair) for pair in fresh]
    return [
        replace(cliff, fresh=pair, p=min(1.0, one + min(2 * one, 2 * sure)))
        for cliff, pair, one in zip(cliffs, fresh, p, strict=True)
    ]


def correct(cliffs: Sequence[Cliff], fdr: float) -> list[Cliff]:
    """Cliffs of a whole scan, decided: ``confirmed`` or ``refuted``, or still ``found`` where no fresh fork could be graded.

    ``fdr`` bounds the expected share of false ones (a true drop of at most delta0) among the confirmed: Benjamini and Hochberg
    over all of ``cliffs``. Over one trace at a time it would not: a scan has many traces, and each would bring its own share.
    """
    p = [cliff.p for cliff in cliffs if cliff.p is not None]
    corrected = iter(benjamini_hochberg(p) if p else ())
    out = []
    for cliff in cliffs:
        if cliff.fresh is not None and cliff.p is not None:
            p_fdr = next(corrected)
            status: Status = ("confirmed" if p_fdr < fdr else "refuted") if all(c.n for c in cliff.fresh) else "found"
            cliff = replace(cliff, p_fdr=p_fdr, status=status)
        out.append(cliff)
    return out


def screen(pi: Sequence[float], delta0: float, carry: float) -> tuple[list[int], list[tuple[int, int]]]:
    """What the budgeted scan measures: (positions, tests (start, t)) (6).

    A token of probability 1 - delta0 or more under the sampler cannot lose delta0: V is a martingale, so a drop is at most 1 - pi
    (where every fork is graded: among the graded ones only, the chance may drop further, as where the others are truncated). Over
    a run of such tokens the last estimate is carried on while their summed 1 - pi stays below ``carry``; else the position just
    before the next token to be tested is measured too, or slow drift would be blamed on that token.
    """
    positions, tests, last, mass = [0], [], 0, 0.0
    for t, chance in enumerate(pi, 1):
        if chance >= 1 - delta0:
            mass += 1 - chance
            continue
        if last < t - 1 and mass >= carry:
            positions.append(t - 1)
            last = t - 1
        tests.append((last, t))
        positions.append(t)
        last, mass = t, 0.0
    return positions, tests


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have stood at a cliff, and the potential after it (3.5)."""

    token_id: int
    q: float
    """Its probability under the model."""
    counts: Counts
    is_cliff: bool
    """Whether the test fires against the position before."""


def cliff_mass(candidates: Sequence[Candidate], cliff_token: int, probabilities: dict[int, float] | None = None) -> float:
    """CPM: summed probability of the candidates that are cliffs and of the sampled cliff token (3.5).

    ``probabilities`` (token -> probability) are another model's at the same prefix;
    delta-CPM is the difference of the two masses.
    """
    inside = {c.token_id: c.q for c in candidates if c.is_cliff or c.token_id == cliff_token}
    return sum(q if probabilities is None else probabilities.get(token, 0.0) for token, q in inside.items())


def critical_cut(potentials: Sequence[Counts | None]) -> int | None:
    """Control critical-del: the first position t >= 1 with p_t = 0 after which every estimate is below 0.05 (3.3)."""
    known = [(t, c.rate) for t, c in enumerate(potentials) if c is not None and c.n and t]
    for i, (t, rate) in enumerate(known):
        if rate == 0 and all(later < 0.05 for _, later in known[i + 1 :]):
            return t
    return None


def tangent_cut(potentials: Sequence[Counts | None], chunks: int = 20, drop: float = 0.3) -> int | None:
    """Control tangent-del: the start of the first of 20 chunks whose drop from start to end is at least 0.3 (3.3)."""
    known = [(t, c.rate) for t, c in enumerate(potentials) if c is not None and c.n]
    if not known:
        return None
    at = np.array([t for t, _ in known])
    edges = np.unique(np.linspace(0, len(potentials) - 1, chunks + 1).round().astype(int))
    rates = [known[max(0, int(np.searchsorted(at, edge, side="right")) - 1)][1] for edge in edges]
    for i in range(len(edges) - 1):
        if rates[i] - rates[i + 1] >= drop - TIE:
            return int(edges[i])
    return None
