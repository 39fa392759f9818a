"""Findable is not obeyed: how often a rule was broken before any compaction, after one that left it readable, and once lost.

Before is the control. Counted are the calls that the rule's predicate decides, or, of a rule without one, replies that a judge
read. Calls of one session hang together, so the intervals are too narrow where few sessions have many calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.env.protocol import CHAT, chat_of
from ramify.methods.governance.judges import find_rule_juries
from ramify.methods.governance.predicates import Call, concerns
from ramify.methods.governance.written_rules import Rule, breaks
from ramify.render.numbers import p_value, percent
from ramify.rollout.prompt import chat_shown
from ramify.score.judge import Item, Jury, judged
from ramify.stats.evidence import each_against
from ramify.stats.intervals import Interval, wilson
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node

BEFORE, FINDABLE, LOST = PHASES = ("before", "findable", "lost")
"""Before any compaction; after one, and the rule can be read; after one, and it cannot."""
LEVEL = 0.05


@dataclass(frozen=True)
class RulePhase:
    """What was done about one rule in one phase. Of ``before`` there is nothing to compare with."""

    phase: str
    """One of :data:`PHASES`."""
    replies: int
    broken: int
    of: int
    """Calls that the predicate decides; of a rule that was judged, replies."""
    unread: int = 0
    """Calls that could not be read, or replies that the judges left open: counted in no rate."""
    rate: float | None = None
    interval: Interval | None = None
    """Wilson's, of 95 %, as if calls of a session were independent."""
    difference: float | None = None
    """From ``before``; None where either phase has nothing to count."""
    difference_interval: Interval | None = None
    """Newcombe's."""
    corrected: float | None = None
    """Fisher's p, corrected over the report (Holm)."""
    found: bool = False
    """Whether the rule is broken more often than before."""

    @property
    def share(self) -> str:
        """In words: k of n, and the interval."""
        if self.interval is None:
            return "-"
        return f"{self.broken} of {self.of} ({' to '.join(percent(end, 0) for end in self.interval)})"


@dataclass
class _Counted:
    replies: list[str] = field(default_factory=list)
    """Nodes."""
    broken: int = 0
    of: int = 0
    unread: int = 0


class Obedience:
    """Counts one rule while the replies of sessions go by."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.judged = rule, False
        self.phases = {name: _Counted() for name in PHASES}

    def see(self, node: str, phase: str, calls: Sequence[Call], earlier: Sequence[Call]) -> None:
        """A reply in a phase, its calls, and those of the session before it."""
        counted = self.phases[phase]
        counted.replies.append(node)
        before = list(earlier)
        for name, arguments in calls:
            if self.rule.predicate is not None and concerns(self.rule.predicate, name):
                broken = breaks(self.rule, name, arguments, before)
                counted.unread += broken is None
                counted.of += broken is not None
                counted.broken += broken is True
            before.append((name, arguments))

    def report(self) -> tuple[RulePhase, ...]:
        """A record for each phase; none where nothing decides whether the rule was broken."""
        if self.rule.predicate is None and not self.judged:
            return ()
        return tuple(
            RulePhase(
                name,
                len(each.replies),
                each.broken,
                each.of,
                each.unread,
                each.broken / each.of if each.of else None,
                wilson(each.broken, each.of) if each.of else None,
            )
            for name, each in self.phases.items()
        )


def compared(phases: Sequence[tuple[RulePhase, ...]]) -> list[tuple[RulePhase, ...]]:
    """The phases of each rule, those after a compaction against the one before, corrected over all of them."""
    pairs = {
        f"{at}/{later.phase}": ((rule[0].broken, rule[0].of), (later.broken, later.of))
        for at, rule in enumerate(phases)
        for later in rule[1:]
        if rule[0].of and later.of
    }
    rows = {row.intervention: row for row in each_against(pairs)}

    def told(at: int, each: RulePhase) -> RulePhase:
        if (row := rows.get(f"{at}/{each.phase}")) is None:
            return each
        more = row.p_corrected <= LEVEL and row.difference > 0
        return replace(
            each,
            difference=row.difference,
            difference_interval=row.difference_interval,
            corrected=row.p_corrected,
            found=more,
        )

    return [tuple(told(at, each) for each in rule) for at, rule in enumerate(phases)]


def sentence(rule: str, phases: Sequence[RulePhase]) -> list[str]:
    """What stands out of one rule, a line each."""
    where = {FINDABLE: "after a compaction that left it readable", LOST: "where it was lost"}
    return [
        f"broken more often: {rule!r} by {each.share} {where[each.phase]}, {phases[0].share} before, "
        f"p = {p_value(each.corrected or 0)}"
        for each in phases
        if each.found
    ]


def verdict(phases: Sequence[tuple[RulePhase, ...]]) -> str:
    """What the comparisons come to; "" where there is none."""
    every = [each for rule in phases for each in rule]
    if not any(each.corrected is not None for each in every):
        return ""
    worse = sum(any(each.found for each in rule) for rule in phases)
    if worse:
        return f"{plural(worse, 'rule')} {'is' if worse == 1 else 'are'} broken more often after it than before"
    return "none is known to be broken more often after it than before"


# -- judges


@dataclass
class RuleJudges:
    """Models that read what no predicate decides."""

    survives: Jury
    broken: Jury
    most: int
    """Replies that are judged of each rule and phase."""

    @classmethod
    def of(cls, names: Sequence[str], most: int, opener: Any = None) -> RuleJudges:
        """By name. Raises UserError."""
        if most < 1:
            raise UserError("of each rule and phase at least one reply must be judged")
        return cls(*find_rule_juries(names, opener), most)

    def obeyed(self, run: Run, each: Obedience) -> None:
        """Judge replies of a rule that has no predicate, evenly spaced over each phase."""
        each.judged = True
        for counted in each.phases.values():
            chosen = _spread(counted.replies, self.most)
            items = [Item(run.node(name).message.spoken(), name, each.rule.text) for name in chosen]
            for judgement in wait_for(judged(self.broken, items)):
                counted.unread += judgement.value is None
                counted.of += judgement.value is not None
                counted.broken += judgement.value is True

    def kept(self, run: Run, rule: str, nodes: Sequence[str]) -> Mapping[str, bool | None]:
        """Of replies at which the keyword test finds a rule no more: whether the judges still find it in what was shown."""
        items = [Item("\n\n".join(m.text for m in shown_at(run, run.node(name))), name, rule) for name in nodes]
        values = [judgement.value for judgement in wait_for(judged(self.survives, items))]
        return {name: None if value is None else bool(value) for name, value in zip(nodes, values, strict=True)}

    @property
    def failures(self) -> list[str]:
        """Judges that could not run, and why."""
        failed = {**self.survives.failed, **self.broken.failed}
        return [f"the judge '{name}' could not run: {why}" for name, why in failed.items()]


def shown_at(run: Run, node: Node) -> Sequence[Message]:
    """What the model was shown at a reply; of a recorded command the messages of its request, which may not be the path's."""
    path = run.shown(node.id).messages
    for at in reversed(range(len(path))):  # what stands before a request that says all of its messages need not be read
        if '"shown":' in str(path[at].data.get(CHAT, "")) and "shown" in chat_of(path[at].data):
            return chat_shown(path[at:])[0]
    return chat_shown(path)[0]


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most so many, evenly spaced."""
    step = max(len(names) / most, 1.0)
    return [names[int(at * step)] for at in range(min(len(names), most))]
