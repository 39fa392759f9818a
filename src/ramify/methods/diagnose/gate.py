"""Whether a finding is worth telling to a repair agent (section 3.8): the probability that it is right, from signals that need no patch.

Every signal is a critic that reports one of a few levels; how often it does so of right and of wrong findings is calibrated on issues whose
repair is known, never on those it is used on. Bayes' rule combines them as if they were independent given the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ramify.base.errors import UserError, nearest
from ramify.methods.diagnose.case import CaseFile, Diagnosis
from ramify.methods.diagnose.code import identifiers, words
from ramify.methods.diagnose.loop import FINAL, TOLD, Speaker, opening, written_call
from ramify.methods.diagnose.replies import Located, read_reply
from ramify.methods.diagnose.tools import RepoTools
from ramify.trace.message import Message

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
"""Of the paper's table: weak, Qwen3-Coder-30B under SWE-agent told nothing, the oracle's finding, another issue's; strong, Qwen3-Coder-480B
under OpenHands told nothing, a finding judged 4 or better, a finding judged worse."""


def threshold(agent: SolveRates, price: float = 0.0, saved: float = 0.0) -> float:
    """q*: the least probability of being right at which telling pays: ``(s0 - s- - price * saved) / (s+ - s-)``, between 0 and 1.

    ``saved`` tokens are worth ``price`` each in solved issues. Where a wrong finding does no harm it is 0; where a right one does not help, 1.
    """
    lost = agent.nothing - agent.wrong - price * saved
    if lost <= 0:
        return 0.0
    gained = agent.right - agent.wrong
    return 1.0 if gained <= 0 else min(1.0, lost / gained)


PRIOR, RULES = 0.634, 0.335
"""Share of first findings that are right: of a model, 317 of 500 in the paper; of the rule policy, on the calibration's issues."""
LIKELIHOODS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "consistency": {"none": (0.157, 0.423), "file": (0.012, 0.018), "span": (0.831, 0.558)},
    "anchor": {"none": (0.012, 0.055), "span": (0.976, 0.939)},
    "discrimination": {"other": (0.012, 0.167), "same": (0.988, 0.833)},
}
"""Levels that occurred on either side; a span that nobody viewed, or an answer without a tool call, is not told at all (:func:`unfounded`).
``python -m ramify_experiments.diagnose.calibrate`` prints it."""


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
        """Whether a finding that is right with probability ``q`` is told. One that is certainly wrong is told only where that does no harm."""
        return q > self.threshold or self.agent.nothing <= self.agent.wrong


def unfounded(signals: Signals) -> bool:
    """Whether a finding rests on nothing that was looked at: the span was never displayed, or no tool was called."""
    return signals.get("coverage") == "unseen" or signals.get("recall_risk") == "memory"


# -- the signals ---------------------------------------------------------------------------------------------------------------


def agreement(cases: Sequence[CaseFile]) -> str:
    """``consistency``: what the first findings of several independent localizations share: the span, the file, or nothing."""
    first = [case.findings[0] for case in cases if case.findings]
    if len(first) < len(cases) or len(first) < 2:
        return "none"
    if len({one.file for one in first}) > 1:
        return "none"
    latest, earliest = max(one.start for one in first), min(one.end for one in first)
    return "span" if latest <= earliest else "file"


def signals_of(
    case: CaseFile, tools: RepoTools, others: Sequence[CaseFile] = (), executed: str | None = None, rival: bool | None = None
) -> dict[str, str]:
    """The signals of the first finding of ``case``; empty without one.

    ``others`` are further localizations of the same issue; ``executed`` what a reproduction says of the span (a level of ``self_check``);
    ``rival`` whether the same place was picked again beside its nearest rivals.
    """
    if not case.findings:
        return {}
    first = case.findings[0]
    found = {"coverage": _coverage(first), "anchor": _anchor(first, case.issue, tools)}
    found["recall_risk"] = "memory" if case.meta.get("zero_tool") else "evidence"
    if others:
        found["consistency"] = agreement([case, *others])
    if executed is not None:
        found["self_check"] = executed
    if rival is not None:
        found["discrimination"] = "same" if rival else "other"
    return found


def rival_messages(case: CaseFile, tools: RepoTools) -> list[Message]:
    """A conversation that shows the first finding's file and its two or three nearest rivals, and asks for the answer."""
    own = case.findings[0].file
    siblings = [path for path in tools.snapshot.paths if PurePosixPath(path).parent == PurePosixPath(own).parent and path != own]
    near = [] if tools.snapshot.large else [*tools.code.imports.get(own, ()), *tools.code.importers.get(own, ())]
    at = tools.snapshot.paths.index(own)
    siblings.sort(key=lambda path: (abs(tools.snapshot.paths.index(path) - at), path))
    chosen = list(dict.fromkeys([own, *siblings[:2], *near[:1]]))
    messages = opening(tools, case.issue)
    for path in sorted(chosen):
        shown = tools.call("view_file", {"path": path})
        messages += [
            Message("assistant", written_call("view_file", path=path)),
            Message(TOLD, f"<observation>\n{shown.text}\n</observation>"),
        ]
    return [*messages, Message(TOLD, FINAL)]


def picks_same(case: CaseFile, message: Message) -> bool:
    """``discrimination``: whether a reply to :func:`rival_messages` names the same lines again."""
    done, own = read_reply(message), case.findings[0]
    if not isinstance(done, Located):
        return False
    best = done.found[0]
    return best.file == own.file and best.start <= own.end and own.start <= best.end


def rivals(case: CaseFile, tools: RepoTools, speaker: Speaker) -> bool | None:
    """:func:`picks_same` of what a function in this process answers; None without a finding."""
    return picks_same(case, speaker(rival_messages(case, tools)).message) if case.findings else None


def _coverage(one: Diagnosis) -> str:
    """``coverage``: how much of the span ``view_file`` displayed."""
    seen = {
        line
        for shown in one.evidence
        if shown.get("tool") == "view_file"
        for line in range(shown["lines"][0], shown["lines"][1] + 1)
    }
    lines = range(one.start, one.end + 1)
    held = sum(line in seen for line in lines)
    return "seen" if held == len(lines) else "part" if held else "unseen"


def _anchor(one: Diagnosis, issue: str, tools: RepoTools) -> str:
    """``anchor``: whether names or words of the issue occur in the span, or in the files that import it."""
    text = "\n".join(tools.snapshot.lines(one.file)[one.start - 1 : one.end])
    named = {name for name in identifiers([issue]) if "_" in name or any(c.isupper() for c in name[1:])}
    if named & identifiers([text]):
        return "span"
    common = {word for word in words(issue) if len(word) > 3} & {word for word in words(text) if len(word) > 3}
    if len(common) >= 3:
        return "span"
    if tools.snapshot.large:
        return "none"
    callers = "\n".join("\n".join(tools.snapshot.lines(path)) for path in tools.code.importers.get(one.file, ())[:20])
    return "callers" if named & identifiers([callers]) else "none"
