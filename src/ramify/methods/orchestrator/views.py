"""What a page shows of an orchestrator's run: each worker, and each conversation with the route it took and who saw what;
and the same for `ramify orchestrator show trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.methods.orchestrator.kept import CallFailure, CallNote, answer_notes, call_note
from ramify.render.result import MOST_ROWS, Cell, Folded, Result, Section, from_data, table
from ramify.trace.db import Run
from ramify.trace.node import Node, Score

Calls = list[tuple[Node, CallNote]]
"""Replies of one conversation, in order."""


@dataclass(frozen=True)
class SeenCall:
    """A call of a conversation: who, why, what it was shown, its reply, tokens and USD."""

    worker: str
    workflow: int | None
    step: int | None
    role: str
    why: str
    usd: float
    given_tokens: int
    sampled_tokens: int
    failure: CallFailure | None
    number: int
    node: str
    saw: tuple[Mapping[str, Any], ...]
    """Messages as OpenAI's clients write them."""
    reply: str
    answer: bool

    @classmethod
    def of(cls, run: Run, node: Node, note: CallNote, answers: Collection[str]) -> SeenCall:
        """Of a reply; ``answers`` are the nodes at which attempts ended."""
        place = (note.who, note.workflow, note.step, note.role, note.why, note.usd, note.given_tokens, note.sampled_tokens)
        saw = tuple(one.to_openai() for one in run.shown(node.id).messages)
        answer = node.id in answers and note.failure is None
        return cls(*place, note.failure, node.index, node.id, saw, node.text, answer)

    def __str__(self) -> str:
        """In some lines."""
        head = f"{self.number}. {self.worker}" + (f", step {self.step}" if self.step is not None else "")
        head += (f", {self.role}" if self.role else "") + (f" ({self.why})" if self.why else "")
        lines = [head + (": THE ANSWER" if self.answer else "")]
        lines += [f"   saw {one['role']}: {' '.join(str(one['content']).split())[:160]}" for one in self.saw]
        lines.append(f"   failed: {self.failure}" if self.failure else f"   said: {' '.join(self.reply.split())[:400]}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ConversationSum:
    """A conversation of a run, and what its answer took; None where it has none."""

    trace: str
    prompt: str
    tokens: int | None
    usd: float | None


@dataclass(frozen=True)
class ConversationList(Result):
    """The conversations of a run."""

    KEPT = False
    traces: tuple[ConversationSum, ...]

    def sections(self) -> Iterable[Section]:
        """A row a conversation."""
        rows = ((one.trace, one.prompt[:60], one.tokens, one.usd) for one in self.traces)
        yield Section.of("", table(("trace", "prompt", "tokens", "USD"), rows))


@dataclass(frozen=True)
class ConversationTrace(Result):
    """The calls of a conversation, in order."""

    KEPT = False
    trace: str
    calls: tuple[SeenCall, ...]

    def sections(self) -> Iterable[Section]:
        """Who saw what."""
        yield Section.of("", "\n\n".join(map(str, self.calls)) or "no call was made")


def trace(folder: Path, name: str | None) -> ConversationList | ConversationTrace:
    """The conversation ``name`` of a run, or without a name all. Raises UserError with the nearest name."""
    with Run.open(folder) as run:
        if name is None:
            return ConversationList(tuple(_sums(run)))
        names = [info.name for info in run.trees()]
        if name not in names:
            raise UserError(f"{run.folder} has no conversation '{name}' ({nearest(name, names)})")
        return ConversationTrace(name, tuple(_seen(run, name, _calls(run, name))))


def _sums(run: Run) -> Iterable[ConversationSum]:
    answered = {run.node(node).tree: note for node, note in answer_notes(run).items()}
    for info in run.trees():
        note = answered.get(info.name)
        tokens, usd = (None, None) if note is None else (note.tokens, note.usd)
        yield ConversationSum(info.name, str((info.task.get("data") or {}).get("prompt", "")), tokens, usd)


def _calls(run: Run, tree: str) -> Calls:
    noted = ((node, call_note(node)) for node in run.tree(tree).nodes.values())
    return sorted(((node, note) for node, note in noted if note is not None), key=lambda one: one[0].index)


def _seen(run: Run, tree: str, calls: Calls) -> Iterable[SeenCall]:
    answers = {attempt.leaf for attempt in run.attempts(tree=tree)}
    return (SeenCall.of(run, node, note, answers) for node, note in calls)


def sections(run: Run) -> list[Section]:
    """Of runs of `orchestrator collect`, `run` and `eval`, finished or not; first what a comparison came to."""
    calls = {info.name: _calls(run, info.name) for info in run.trees()}
    if not any(calls.values()):
        return []
    made: list[Section] = []
    if run.kind == "orchestrator eval":
        for kept in run.results(maker=run.kind):
            made += from_data(kept.sections, f"{run.folder}, the result of {kept.maker}")
    made.append(_workers(run, [call for own in calls.values() for call in own]))
    if run.kind != "orchestrator collect":  # there every worker answers every task by itself
        made.append(_conversations(run, calls))
    return made


def _workers(run: Run, calls: Calls) -> Section:
    rewards: dict[str, list[float]] = {}
    for score in run.each(Score):
        if score.value is not None:
            rewards.setdefault(score.node, []).append(score.value)
    by: dict[str, Calls] = {}
    for node, note in calls:
        by.setdefault(note.who, []).append((node, note))
    rows: list[tuple[Cell, ...]] = []
    for worker, own in sorted(by.items()):
        notes = [note for _, note in own]
        scored = [value for node, _ in own for value in rewards.get(node.id, ())]
        failed = Counter(note.failure.kind for note in notes if note.failure)
        failures = ", ".join(f"{kind} {n}" for kind, n in failed.items()) or 0
        tokens = sum(note.given_tokens for note in notes), sum(note.sampled_tokens for note in notes)
        mean = fmean(scored) if scored else None
        rows.append((worker, len(own), failures, mean, *tokens, float(sum(note.usd for note in notes))))
    head = ("worker", "calls", "failed", "mean score", "tokens in", "tokens out", "USD")
    says = "Scores are of answers: a step of a workflow and a call that failed have none."
    return Section.of("Workers", says, table(head, rows))


def _conversations(run: Run, calls: Mapping[str, Calls]) -> Section:
    sums = {one.trace: one for one in _sums(run)}
    rows: list[tuple[Cell, ...]] = []
    folded: list[Folded] = []
    for name, own in calls.items():
        route = " → ".join(
            note.who + (f" ({note.role})" if note.role else "") + (" failed" if note.failure else "") for _, note in own
        )
        rows.append((name, " ".join(sums[name].prompt.split())[:80], route, sums[name].tokens, sums[name].usd))
        if len(folded) < MOST_ROWS:
            folded.append(Folded(f"{name}: who saw what", "\n\n".join(map(str, _seen(run, name, own)))))
    head = ("conversation", "asked", "route", "tokens", "USD")
    says = "Workers in the order in which they were asked; a call sees only what is listed below."
    return Section.of("Routes, and who saw what", says, table(head, rows), *folded)
