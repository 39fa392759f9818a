"""Ending the thinking early: rules, when each of them stops, and the setting that a calibration certifies.

A thinking is looked at every so many tokens: it is closed there, and a short answer is sampled (a probe). A rule reads the probes
so far. What it costs is known from thoughts whose probes were all made: a stop is *wrong* where the answer after it is another
than that of the whole thought. The setting is chosen by Learn then Test (Angelopoulos et al. 2021, arXiv 2110.01052): settings
are tested one after another, the safest first, each by an exact binomial test of "more than ``alpha`` of the thoughts are stopped
wrongly", until one is not rejected; the last rejected is taken. With probability ``level`` over the calibration, at most
``alpha`` of new thoughts of the same kind are then stopped wrongly.

Rules: answers that agree (Dynasor's, arXiv 2412.20993), an answer that the model is sure of (DEER, arXiv 2504.15895), and as
the baseline a budget of thinking tokens, which needs no probe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ramify.base.errors import UserError
from ramify.stats.intervals import Interval, Proportion, bootstrap, clopper_pearson

RuleName = Literal["consistency", "confidence", "budget"]
SETTINGS: Mapping[RuleName, tuple[float, ...]] = {
    "consistency": (16, 12, 8, 6, 5, 4, 3, 2),
    "confidence": (0.9999, 0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7),
}
"""Settings that are tested, the safest first; those of a budget are the places where the thoughts were probed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the model would answer were its thinking closed after ``tokens`` tokens."""

    tokens: int
    answer: str
    """As answers are compared; "" is none."""
    confidence: float | None = None
    """Geometric mean of the probabilities of the probe's tokens; None where the model reports none."""
    spent: int = 0
    """Tokens of the probe."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a thinking ends: ``setting`` probes in a row agree (consistency), the last probe's confidence reaches it (confidence),
    or so many tokens were thought (budget)."""

    name: RuleName
    setting: float

    def stops(self, probes: Sequence[Probe]) -> bool:
        """Whether the thinking ends at the last of ``probes``."""
        last = probes[-1]
        if self.name == "budget":
            return last.tokens >= self.setting
        if not last.answer:
            return False
        if self.name == "confidence":
            return last.confidence is not None and last.confidence >= self.setting
        row = probes[-int(self.setting) :]
        return len(row) == self.setting and all(probe.answer == last.answer for probe in row)

    def first(self, probes: Sequence[Probe]) -> int | None:
        """Index of the probe at which a thinking with all these probes ends; None where it does not."""
        return next((i for i in range(len(probes)) if self.stops(probes[: i + 1])), None)

    def __str__(self) -> str:
        return {
            "consistency": f"{self.setting:g} probes in a row agree",
            "confidence": f"a probe of confidence {self.setting:g}",
            "budget": f"{self.setting:g} tokens of thinking",
        }[self.name]


@dataclass(frozen=True, slots=True)
class ProbedThought:
    """A whole thought with its probes, and what was answered after a stop at each."""

    length: int
    """Tokens of the thinking."""
    answer: str
    """After all of it."""
    answer_tokens: int
    probes: tuple[Probe, ...]
    stopped: tuple[str, ...]
    """The answer where the thinking is closed at each probe, sampled as the answer is."""
    stopped_tokens: tuple[int, ...]

    def wrong(self, rule: StopRule) -> bool:
        """Whether ``rule`` stops it and the answer is then another."""
        at = rule.first(self.probes)
        return at is not None and self.stopped[at] != self.answer

    def tokens(self, rule: StopRule) -> tuple[int, int, int]:
        """Tokens of the thinking under ``rule``, of what is spent on probes, and of the answer. The probe that stops counts
        twice: the model thinks on while it is made."""
        at = rule.first(self.probes)
        probes = self.probes if at is None else self.probes[: at + 1]
        probing = 0 if rule.name == "budget" else sum(probe.spent for probe in probes)
        if at is None:
            return self.length, probing, self.answer_tokens
        return self.probes[at].tokens, probing + (rule.name != "budget") * self.probes[at].spent, self.stopped_tokens[at]


@dataclass(frozen=True, slots=True)
class RuleMeasured:
    """A rule on some thoughts."""

    rule: StopRule
    stopped: Proportion | None
    wrong: Proportion | None
    """Of all thoughts, stopped or not."""
    upper: float
    """One-sided upper bound of that share (Clopper and Pearson) at the level of the calibration."""
    thinking_saved: float
    """Share of the thinking's tokens that are not sampled ..."""
    thinking_interval: Interval | None
    saved: float
    """... and of all tokens, with what probes cost taken off: below 0 it costs more than it saves."""
    saved_interval: Interval | None


def measured(rule: StopRule, thoughts: Sequence[ProbedThought], level: float = 0.95, seed: int = 0) -> RuleMeasured:
    """What ``rule`` does to ``thoughts``, one a prompt. Intervals are of 95 %: Wilson's, and the bootstrap over thoughts."""
    n, wrong = len(thoughts), sum(thought.wrong(rule) for thought in thoughts)
    stopped = sum(rule.first(thought.probes) is not None for thought in thoughts)
    spent = np.array([thought.tokens(rule) for thought in thoughts], np.float64).reshape(-1, 3)
    whole = np.array([(thought.length, thought.length + thought.answer_tokens) for thought in thoughts], np.float64).reshape(
        -1, 2
    )
    thinking = _saved(whole[:, 0], spent[:, 0], seed)
    total = _saved(whole[:, 1], spent.sum(axis=1), seed)
    upper = clopper_pearson(wrong, n, 2 * level - 1)[1] if n else 1.0
    return RuleMeasured(rule, Proportion.of(stopped, n), Proportion.of(wrong, n), upper, *thinking, *total)


def _saved(whole: np.ndarray, spent: np.ndarray, seed: int) -> tuple[float, Interval | None]:
    """1 - sum of ``spent`` (n,) over sum of ``whole`` (n,), with its interval."""
    if not whole.sum():
        return 0.0, None

    def share(picks: np.ndarray) -> np.ndarray:
        at = picks.astype(int)
        return np.asarray(1 - spent[at].sum(axis=1) / np.maximum(whole[at].sum(axis=1), 1))

    value = float(1 - spent.sum() / whole.sum())
    return value, bootstrap(np.arange(len(whole)), share, seed) if len(whole) > 1 else None


def least_thoughts(alpha: float, level: float) -> int:
    """The fewest thoughts with which a rule that is never wrong can be certified: 59 for 5 % at level 95 %."""
    return math.ceil(math.log(1 - level) / math.log(1 - alpha) - 1e-9)


def exceeds_p(wrong: int, n: int, alpha: float) -> float:
    """Exact p-value of "the share of wrong stops is above ``alpha``": P(Bin(n, alpha) <= wrong)."""
    from scipy.special import bdtr

    return float(bdtr(wrong, n, alpha))


def certified(name: RuleName, thoughts: Sequence[ProbedThought], alpha: float, level: float) -> StopRule | None:
    """The boldest setting of a rule that the fixed sequence certifies on ``thoughts``, one a prompt; None where it is none.

    Raises UserError where ``alpha`` or ``level`` does not lie between 0 and 1.
    """
    if not (0 < alpha < 1 and 0 < level < 1):
        raise UserError(f"alpha and level lie between 0 and 1, not at {alpha:g} and {level:g}")
    places = sorted({probe.tokens for thought in thoughts for probe in thought.probes}, reverse=True)
    best = None
    for setting in SETTINGS.get(name, tuple(places)):
        rule = StopRule(name, setting)
        if exceeds_p(sum(thought.wrong(rule) for thought in thoughts), len(thoughts), alpha) > 1 - level:
            break
        best = rule
    return best


def answer_in(text: str, how: str) -> str:
    """What of an answer's text is compared: with ``text`` all of it, without case, spaces at its ends and between words, and a
    full stop; with ``regex:PATTERN`` the last match (its first group where it has one), "" where there is none. Raises UserError
    on anything else."""
    kind, _, pattern = how.partition(":")
    if kind == "regex":
        try:
            matches = list(re.finditer(pattern, text))
        except re.error as error:
            raise UserError(f"--answer: '{pattern}' is not a regular expression ({error})") from error
        if not matches:
            return ""
        text = matches[-1].group(1 if matches[-1].re.groups else 0) or ""
    elif how != "text":
        raise UserError(f"--answer is text, outcome or regex:PATTERN, not '{how}'")
    return " ".join(text.casefold().split()).rstrip(".")
