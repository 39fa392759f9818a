"""The numbers of diagnose: settings of the search, how right locations are,
and whether a finding is worth telling. Pure functions.

Gold spans are of the version before the repair; lines count from 1, both ends included.
Sections are those of the method's description.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError, nearest


class LocalizeConfig(Config):
    """How a localizer is run; the defaults are the paper's."""

    BASIC = "turns seed temperature max_tokens"
    turns: int = Field(20, ge=1, le=200)
    """most calls of the model, before the one that the final prompt asks for"""
    seed: int = 0
    """decides every sample"""
    temperature: float = Field(0.99, ge=0)
    """of the model"""
    top_p: float = Field(0.95, gt=0, le=1)
    """of the model"""
    max_tokens: int = Field(81_920, ge=16)
    """of one reply, thought included"""
    context: int = Field(400_000, ge=4_000)
    """most characters of the conversation; beyond, the oldest observations are dropped"""
    zero_tool: bool = False
    """take an answer that was given before any tool was called; it is flagged either way"""
    without: tuple[str, ...] = ()
    """tools that are not offered"""
    keep_first: bool = True
    """context: drop observations from the middle where the conversation is too long"""
    warn_loops: bool = True
    """warn of a call that was made before"""
    implicit_calls: bool = True
    """run a call without its wrapper where it can be read in one way only"""
    shorten: bool = True
    """ask for the same step with less thinking where a reply was cut off"""
    final_prompt: bool = True
    """ask for the answer where the turns are spent"""


# -- how right locations are (section 3.6): files as sets, spans by containment, engagement ------------------------------------

Span = tuple[str, int, int]
METRICS = (
    "file precision",
    "file recall",
    "file F1",
    "exact set",
    "Jaccard",
    "hit@1",
    "recall@1",
    "coverage recall",
    "span precision",
    "tightness",
)


def scores(predicted: Sequence[Span], gold: Sequence[Span]) -> dict[str, float | None]:
    """Every metric of one issue; ``predicted`` best first. Tightness is None where no gold span is covered.

    Raises ValueError without gold spans.
    """
    if not gold:
        raise ValueError("an issue without a gold span has no score")
    files, wanted = list(dict.fromkeys(one[0] for one in predicted)), {one[0] for one in gold}
    right = len(wanted & set(files))
    precision, recall = right / len(files) if files else 0.0, right / len(wanted)
    spans, golden = list(dict.fromkeys(predicted)), list(dict.fromkeys(gold))
    covering = [[p for p in spans if _contains(p, g)] for g in golden]
    tight = [max((g[2] - g[1] + 1) / (p[2] - p[1] + 1) for p in ps) for g, ps in zip(golden, covering, strict=True) if ps]
    useful = sum(any(_contains(p, g) for g in golden) for p in spans)
    return {
        "file precision": precision,
        "file recall": recall,
        "file F1": 2 * precision * recall / (precision + recall) if right else 0.0,
        "exact set": float(set(files) == wanted),
        "Jaccard": right / len(wanted | set(files)),
        "hit@1": float(bool(files) and files[0] in wanted),
        "recall@1": float(bool(files) and files[0] in wanted) / len(wanted),
        "coverage recall": len(tight) / len(golden),
        "span precision": useful / len(spans) if spans else 0.0,
        "tightness": float(np.mean(tight)) if tight else None,
    }


def _contains(outer: Span, inner: Span) -> bool:
    return outer[0] == inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2]


_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def gold_spans(patch: str) -> list[Span]:
    """The lines that a unified diff changes, in the version before it;
    a pure insertion is the line it follows (line 1 at the top).

    A new file has no line before the patch, so it is none. Raises UserError on a text that is not a diff.
    """
    spans: list[Span] = []
    file, at, left = "", 0, 0
    open_span: list[int] | None = None
    seen = inserted = False

    def close() -> None:
        nonlocal open_span
        if open_span is not None and file:
            spans.append((file, open_span[0], open_span[1]))
        open_span = None

    for line in patch.replace("\r\n", "\n").split("\n"):
        if (left > 0 and line[:1] in " -+\\") or (left > 0 and line == ""):
            if line[:1] == "-":
                open_span = [at, at] if open_span is None or inserted else [open_span[0], at]
                at, left, inserted = at + 1, left - 1, False
            elif line[:1] == "+":
                if open_span is None:
                    open_span, inserted = [max(1, at - 1)] * 2, True
            elif line[:1] != "\\":
                close()
                at, left = at + 1, left - 1
            continue
        if line[:1] == "+" and not line.startswith("+++"):  # the last lines of a hunk
            if open_span is None and seen:
                open_span = [max(1, at - 1)] * 2
            continue
        if line.startswith("\\"):
            continue
        close()
        if line.startswith("--- "):
            name = line[4:].split("\t")[0].strip().strip('"')
            file = "" if name == "/dev/null" else name.removeprefix("a/")
        elif found := _HUNK.match(line):
            seen = True
            count = 1 if found[2] is None else int(found[2])
            at, left = (int(found[1]) + 1 if count == 0 else int(found[1])), count
    close()
    if not seen:
        raise UserError("the patch holds no hunk: a unified diff is needed")
    return list(dict.fromkeys(spans))


# -- tables of published results, and their aggregation ------------------------------------------------------------------------

CONDITIONS = ("Baseline", "Shuffled", "All", "Filtered", "Oracle")
PAPER = {
    "Qwen3-Coder-30B SA": (44.7, 40.2, 54.0, 52.2, 76.0), "Qwen3-Coder-30B OH": (49.4, 40.2, 53.0, 52.4, 73.4),
    "Qwen3-Coder-Next SA": (45.2, 43.2, 53.2, 52.0, 64.6), "Qwen3-Coder-Next OH": (44.6, 39.2, 53.2, 54.6, 68.4),
    "Qwen3-Next-80B SA": (38.8, 33.8, 49.4, 50.6, 71.0), "Qwen3-Next-80B OH": (38.6, 39.2, 50.4, 47.8, 68.4),
    "MiniMax-M2.5 SA": (74.4, 61.0, 70.4, 76.6, 89.2), "MiniMax-M2.5 OH": (72.2, 64.0, 67.2, 72.8, 87.8),
    "Qwen3-Coder-480B SA": (63.0, 58.6, 63.0, 64.0, 86.2), "Qwen3-Coder-480B OH": (61.6, 57.8, 62.6, 62.8, 82.6),
}  # fmt: skip
"""Resolved issues in per cent by agent, under each of :data:`CONDITIONS` (section 4)."""


def gains(cells: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean gain over Baseline of All, of Filtered, and of the better of the two in each cell,
    which no one can choose beforehand."""
    base, everything, filtered = (
        np.array([row[CONDITIONS.index(name)] for row in cells.values()]) for name in ("Baseline", "All", "Filtered")
    )
    return {
        "All": float((everything - base).mean()),
        "Filtered": float((filtered - base).mean()),
        "max(All, Filtered)": float((np.maximum(everything, filtered) - base).mean()),
    }


# -- whether a finding is worth telling to a repair agent (section 3.8) --------------------------------------------------------
#
# Every signal is a critic that reports one of a few levels; how often it does so of right and of wrong findings is calibrated on
# issues whose repair is known, never on those it is used on. Bayes' rule combines them as if they were independent given the
# truth.

Signals = Mapping[str, str]
"""Signal -> its level; a signal that could not be measured is left out and says nothing."""
LEVELS = {
    "consistency": ("none", "file", "span"),
    "coverage": ("unseen", "part", "seen"),
    "anchor": ("none", "callers", "span"),
    "discrimination": ("other", "same"),
    "self_check": ("passes", "elsewhere", "executes"),
    "recall_risk": ("memory", "evidence"),
}
"""Every signal with its levels, least convincing first."""


@dataclass(frozen=True, slots=True)
class SolveRates:
    """Solve rates of a repair agent: told nothing, told a right finding, told a wrong one."""

    nothing: float
    right: float
    wrong: float

    def __post_init__(self) -> None:
        if not all(0 <= value <= 1 for value in (self.nothing, self.right, self.wrong)):
            raise UserError("solve rates of a repair agent lie between 0 and 1")


AGENTS = {"weak": SolveRates(0.447, 0.760, 0.402), "strong": SolveRates(0.616, 0.804, 0.313)}
"""Of the paper's table: weak, Qwen3-Coder-30B under SWE-agent told nothing, the oracle's finding, another issue's; strong,
Qwen3-Coder-480B under OpenHands told nothing, a finding judged 4 or better, a finding judged worse."""


def threshold(agent: SolveRates, price: float = 0.0, saved: float = 0.0) -> float:
    """q*: the least probability of being right at which telling pays: ``(s0 - s- - price * saved) / (s+ - s-)``, between 0 and 1.

    ``saved`` tokens are worth ``price`` each in solved issues.
    Where a wrong finding does no harm it is 0; where a right one does not help, 1.
    """
    lost = agent.nothing - agent.wrong - price * saved
    if lost <= 0:
        return 0.0
    gained = agent.right - agent.wrong
    return 1.0 if gained <= 0 else min(1.0, lost / gained)


PRIOR, RULES = 0.634, 0.335
"""Share of first findings that are right: of a model, 317 of 500 in the paper;
of the rule policy, on the calibration's issues."""
LIKELIHOODS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "consistency": {"none": (0.157, 0.423), "file": (0.012, 0.018), "span": (0.831, 0.558)},
    "anchor": {"none": (0.012, 0.055), "span": (0.976, 0.939)},
    "discrimination": {"other": (0.012, 0.167), "same": (0.988, 0.833)},
}
"""Levels that occurred on either side; a span that nobody viewed, or an answer without a tool call, is not told at all
(:func:`unfounded`). ``python -m ramify_experiments.diagnose.calibrate`` prints it."""


@dataclass(frozen=True)
class InjectionGate:
    """Decides by q > q*. ``likelihoods``: signal -> level -> (share among right findings, among wrong ones)."""

    prior: float
    likelihoods: Mapping[str, Mapping[str, tuple[float, float]]]
    agent: SolveRates
    price: float = 0.0
    saved: float = 0.0
    source: str = field(default="", compare=False)

    @classmethod
    def fit(
        cls,
        signals: Sequence[Signals],
        right: Sequence[bool],
        agent: SolveRates,
        price: float = 0.0,
        saved: float = 0.0,
        source: str = "fitted",
    ) -> InjectionGate:
        """Calibrate on findings of which is known whether they are right; counts are smoothed by half an observation a level.

        Raises UserError where all are right or all are wrong, or where a signal or level is unknown.
        """
        if len(signals) != len(right) or not any(right) or all(right):
            raise UserError(f"a gate is fitted on right and on wrong findings: {sum(right)} of {len(right)} are right")
        for one in signals:
            for name, level in one.items():
                if level not in LEVELS.get(name, ()):
                    known = LEVELS.get(name)
                    raise UserError(
                        f"no signal '{name}' ({nearest(name, LEVELS)})"
                        if known is None
                        else f"'{name}' has no level '{level}' ({nearest(level, known)})"
                    )
        table = {}
        for name, levels in LEVELS.items():
            both = [(one[name], ok) for one, ok in zip(signals, right, strict=True) if name in one]
            counts = {
                level: [sum(own == level and ok == truth for own, ok in both) + 0.5 for truth in (True, False)]
                for level in levels
            }
            totals = [sum(pair[side] for pair in counts.values()) for side in (0, 1)]
            if both:
                table[name] = {level: (pair[0] / totals[0], pair[1] / totals[1]) for level, pair in counts.items()}
        return cls((sum(right) + 0.5) / (len(right) + 1), table, agent, price, saved, source)

    @classmethod
    def default(cls, agent: str = "strong", prior: float = PRIOR) -> InjectionGate:
        """The gate for a ``weak`` or a ``strong`` agent of the paper, with likelihoods measured on generated repositories.

        Raises UserError on another agent.
        """
        if agent not in AGENTS:
            raise UserError(f"there is no agent '{agent}' ({nearest(agent, AGENTS)})")
        return cls(prior, LIKELIHOODS, AGENTS[agent], source="ramify_experiments.diagnose.calibrate")

    @property
    def threshold(self) -> float:
        """q*, see :func:`threshold`."""
        return threshold(self.agent, self.price, self.saved)

    def probability(self, signals: Signals) -> float:
        """q: that a finding with these signals is right."""
        if unfounded(signals):
            return 0.0
        odds = math.log(self.prior / (1 - self.prior))
        for name, level in signals.items():
            if name in self.likelihoods and level in self.likelihoods[name]:
                good, bad = self.likelihoods[name][level]
                odds += math.log(good / bad)
        return 1 / (1 + math.exp(-odds))

    def injects(self, q: float) -> bool:
        """Whether a finding that is right with probability ``q`` is told.
        One that is certainly wrong is told only where that does no harm."""
        return q > self.threshold or self.agent.nothing <= self.agent.wrong


def unfounded(signals: Signals) -> bool:
    """Whether a finding rests on nothing that was looked at: the span was never displayed, or no tool was called."""
    return signals.get("coverage") == "unseen" or signals.get("recall_risk") == "memory"
