"""What the verbs of diagnose find: records with the text and tables that people read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.methods.diagnose.algorithm import AGENTS, METRICS, SolveRates, threshold
from ramify.methods.diagnose.case import BugSearch
from ramify.methods.diagnose.phases import CLASSES, AttemptCost
from ramify.render.numbers import interval, number, percent
from ramify.render.result import Folded, Result, Section, Verbatim, table
from ramify.stats.intervals import Interval, bootstrap

# -- how right locations are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricMean:
    """Mean of a metric over ``n`` issues, with a 95 % bootstrap interval where there are two of them."""

    value: float | None
    interval: Interval | None
    n: int


@dataclass(frozen=True)
class RepositoryScores:
    """Means over the ``n`` issues of one repository."""

    n: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True)
class LocationScores(Result):
    """How right case files are; ``metrics`` and those of a repository have the names of
    :data:`ramify.methods.diagnose.algorithm.METRICS`."""

    n: int
    metrics: Mapping[str, MetricMean]
    turns: float | None = None
    """Mean over the case files that know it; so are the next two."""
    zero_tool: float | None = None
    tokens: float | None = None
    by_repository: Mapping[str, RepositoryScores] = field(default_factory=dict)
    """Empty where all issues are of one."""
    missing: int = 0
    """Issues without a case file."""

    def sections(self) -> Iterable[Section]:
        """Every metric, what the search took, and the repositories."""
        spent = {"turns": self.turns, "zero-tool": self.zero_tool, "tokens": self.tokens}
        means = ", ".join(f"{name} {number(value)}" for name, value in spent.items() if value is not None)
        few = (*METRICS[:3], "coverage recall")
        yield Section.of(
            "",
            plural(self.n, "issue") + (f", {self.missing} of them without a case file" if self.missing else ""),
            table(
                ("metric", "mean", "95 % interval", "n"),
                [(name, one.value, interval(one.interval), one.n) for name, one in self.metrics.items()],
            ),
            f"mean {means}" if means else "",
            table(
                ("repository", "n", *few),
                [(repo, own.n, *(own.metrics[name] for name in few)) for repo, own in self.by_repository.items()],
            ),
        )


def summary(
    rows: Sequence[Mapping[str, float | None]], metas: Sequence[BugSearch] = (), repos: Sequence[str] = ()
) -> LocationScores:
    """Means over issues with 95 % bootstrap intervals, how many had a tightness, engagement, and a table by repository.

    Raises UserError without rows.
    """
    if not rows:
        raise UserError("there is no issue to score")
    known = [meta for meta in metas if meta.turns]
    by = {repo: [row for row, own in zip(rows, repos, strict=True) if own == repo] for repo in sorted(set(repos))}
    return LocationScores(
        n=len(rows),
        metrics={name: _metric(name, rows) for name in METRICS},
        turns=_mean([meta.turns for meta in known]),
        zero_tool=_mean([meta.zero_tool for meta in known]),
        tokens=_mean([meta.tokens_in + meta.tokens_out for meta in known]),
        by_repository={
            repo: RepositoryScores(len(own), {name: _mean([row[name] for row in own]) for name in METRICS})
            for repo, own in by.items()
            if len(by) > 1
        },
    )


def _metric(name: str, rows: Sequence[Mapping[str, float | None]]) -> MetricMean:
    values = np.array([row[name] for row in rows if row[name] is not None], float)
    ends = bootstrap(values, seed=0) if len(values) > 1 else None
    return MetricMean(float(values.mean()) if len(values) else None, ends, len(values))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# -- what a repair agent is told -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepairPrompt:
    """The prompt for one issue, with ``told`` findings."""

    issue_id: str
    prompt: str
    told: int


@dataclass(frozen=True)
class RepairPrompts(Result):
    """Prompts for a repair agent, with the findings above ``threshold``."""

    threshold: float
    prompts: tuple[RepairPrompt, ...]

    def sections(self) -> Iterable[Section]:
        """The prompts alone: what is printed is for the agent."""
        yield Section.of("", *(Verbatim(one.prompt.rstrip("\n")) for one in self.prompts))


@dataclass(frozen=True)
class TellingThreshold(Result):
    """How likely a finding must be right before telling it helps ``agent``."""

    agent: SolveRates
    threshold: float
    price: float = 0.0
    saved: float = 0.0

    def sections(self) -> Iterable[Section]:
        """The agent beside those of the paper."""
        rows = [
            (name, one.nothing, one.right, one.wrong, threshold(one, self.price, self.saved))
            for name, one in {**AGENTS, "yours": self.agent}.items()
        ]
        yield Section.of("", table(("agent", "told nothing", "right", "wrong", "tell from q"), rows))


@dataclass(frozen=True)
class MaskedIssue(Result):
    """An issue without what gives the place away, and what was taken out."""

    text: str
    masked: tuple[str, ...]

    def sections(self) -> Iterable[Section]:
        """The text alone."""
        yield Section.of("", Verbatim(self.text.rstrip("\n")), Folded("masked", "\n".join(self.masked)) if self.masked else None)


# -- the four tools ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolSchemas(Result):
    """The tools as OpenAI's function schemas."""

    tools: tuple[Mapping[str, Any], ...]

    def sections(self) -> Iterable[Section]:
        """The same as JSON."""
        yield Section.of("", Verbatim(json.dumps(list(self.tools), indent=2), "json"))


@dataclass(frozen=True)
class CalledTool(Result):
    """What one call replied, and a hash of it."""

    text: str
    digest: str

    def sections(self) -> Iterable[Section]:
        """The reply."""
        yield Section.of("", Verbatim(self.text))


# -- what looking costs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookingCost(Result):
    """What agents spend before their first edit, over all attempts; ``share_of_tokens`` is None where there are none."""

    PART: ClassVar[str] = "cost"
    attempts: int
    edited: int
    replies: int
    share_of_replies: float
    share_of_tokens: float | None
    tokens: int
    tokens_before_edit: int
    estimated: bool
    """Whether tokens of any attempt are characters / 4."""
    classes: Mapping[str, int]
    rows: tuple[AttemptCost, ...]

    @classmethod
    def of(cls, rows: Sequence[AttemptCost]) -> LookingCost:
        """The sum of attempts that have a reply each. Raises ZeroDivisionError without any."""
        replies, tokens = sum(row.replies for row in rows), sum(row.tokens for row in rows)
        before = sum(row.tokens_before_edit for row in rows)
        counts = Counter[str]()
        for row in rows:
            counts.update(row.classes)
        return cls(
            attempts=len(rows),
            edited=sum(row.edited for row in rows),
            replies=replies,
            share_of_replies=sum(row.before_edit for row in rows) / replies,
            share_of_tokens=before / tokens if tokens else None,
            tokens=tokens,
            tokens_before_edit=before,
            estimated=any(row.estimated for row in rows),
            classes={name: counts[name] for name in CLASSES},
            rows=tuple(rows),
        )

    @property
    def why(self) -> str:
        """The shares in one sentence."""
        return (
            f"{percent(self.share_of_replies, 0)} of {self.replies} replies and {percent(self.share_of_tokens, 0)} of "
            f"{self.tokens} tokens{' (estimated)' if self.estimated else ''} come before the first edit"
        )

    def sections(self) -> Iterable[Section]:
        """Actions by class, and the shares."""
        never = self.attempts - self.edited
        yield Section.of(
            "",
            table(("action", "replies"), self.classes.items()),
            f"{plural(self.attempts, 'attempt')}: {self.why}" + (f"; {never} never edited anything" if never else ""),
        )
