"""One conversation: its only log, calls with who saw what, and their nodes in a run. The router and the composer both work on it.

What a worker is shown is computed from the log, stored as the explicit context of its reply's node, and read back from there
(`ramify orchestrator show trace`): nothing is copied, so a leak would show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, UserError
from ramify.methods.orchestrator.algorithm import CallEvent, Workflow, choose, probabilities
from ramify.methods.orchestrator.kept import ANSWER, MAKER, AnswerNote, CallNote, provenance_of
from ramify.methods.orchestrator.pool import CallResult, ModelPool
from ramify.model.protocol import Completion, Sampling
from ramify.render.result import Result, Section, Verbatim, table
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import ROLLOUT, Annotation, AttemptRecord, Context, Insert, Provenance, Span, make_node

STEP = "step"
"""Purpose of a conversation within another: a step of a composer that it plans itself."""
TOOL_TURNS = 12
"""Most tool calls in a row of one step."""
Tools = Callable[[Message], Awaitable[Sequence[Message]]]
"""Runs the tool calls of a message: one message of role tool for each."""


@dataclass(frozen=True)
class ToolUse:
    """Tools of a conversation: their schemas (OpenAI's form) and what runs a call.
    Steps then run one after the other: an environment is shared."""

    schemas: Sequence[Mapping[str, Any]]
    run: Tools


@dataclass
class WorkerCall:
    """One call: who was asked, at which step, what it saw, what it said, and what that cost."""

    workflow: int
    step: int
    worker: str
    saw: list[Message]
    result: CallResult
    why: str = ""
    """Why this worker: probabilities of the router, the composer's plan, or a fallback."""
    role: str = ""
    node: str = ""


@dataclass(frozen=True)
class AnswerCandidate:
    """A reply with its worker."""

    worker: str
    step: int
    text: str


@dataclass
class Orchestrated:
    """What a system made of a conversation: the answer, every candidate with who saw what, and what it cost."""

    answer: str
    calls: list[WorkerCall] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What went otherwise than planned: fallbacks, workers that failed, plans that could not be read."""
    workflows: list[Workflow] = field(default_factory=list)
    completion: Completion | None = None
    """The completion that the answer is."""
    trace: str = ""
    """Its tree in the run."""
    node: str = ""
    """The answer's node in the run."""
    planned: tuple[int, int, float] = (0, 0, 0.0)
    """The composer's own tokens, given (estimated, where its model does not count them) and sampled, and their USD."""

    @property
    def usd(self) -> float:
        """USD of all calls, and of the composer's."""
        return sum(one.result.usd for one in self.calls) + self.planned[2]

    @property
    def tokens(self) -> int:
        """Tokens of all calls, prompts included, and of the composer's."""
        return sum(one.result.given + one.result.sampled for one in self.calls) + sum(self.planned[:2])

    @property
    def candidates(self) -> list[AnswerCandidate]:
        """All replies with their worker, in order."""
        return [AnswerCandidate(one.worker, one.step, one.result.text) for one in self.calls if not one.result.failure]


@dataclass(frozen=True)
class CallReport:
    """A call for a report; ``reply`` is None where it failed."""

    workflow: int
    step: int
    worker: str
    role: str | None
    why: str
    saw: tuple[Mapping[str, Any], ...]
    """Messages as OpenAI's clients write them."""
    reply: str | None
    failure: str | None
    failure_why: str | None
    given_tokens: int
    sampled_tokens: int
    usd: float
    cached: bool

    @classmethod
    def of(cls, call: WorkerCall) -> CallReport:
        """Of a call."""
        end, saw = call.result, tuple(message.to_openai() for message in call.saw)
        reply = None if end.failure else end.text
        place, failed = (
            (call.workflow, call.step, call.worker, call.role or None, call.why),
            (end.failure or None, end.why or None),
        )
        return cls(*place, saw, reply, *failed, end.given, end.sampled, end.usd, end.cached)


@dataclass(frozen=True)
class AnsweredQuery(Result):
    """What a system made of a conversation, for a reader; ``caveats`` say what went otherwise than planned."""

    answer: str
    trace: str
    usd: float
    tokens: int
    workflows: tuple[Workflow, ...]
    calls: tuple[CallReport, ...]

    @classmethod
    def of(cls, made: Orchestrated) -> AnsweredQuery:
        """Of what a system made."""
        plans, calls = tuple(made.workflows), tuple(map(CallReport.of, made.calls))
        return cls(made.answer, made.trace, made.usd, made.tokens, plans, calls, caveats=tuple(made.notes))

    def sections(self) -> Iterable[Section]:
        """The answer, the calls, the workflows, what it cost."""
        head = ("step", "worker", "role", "messages seen", "tokens in", "tokens out", "USD", "reply")
        rows = [
            (one.step, one.worker, one.role or "", len(one.saw), one.given_tokens, one.sampled_tokens, one.usd,
             one.failure or " ".join((one.reply or "").split())[:60])
            for one in self.calls
        ]  # fmt: skip
        plans = [f"workflow {at}: {plan.written()}" for at, plan in enumerate(self.workflows)]
        cost = f"{len(self.calls)} calls, {self.tokens} tokens, {self.usd:.4g} USD"
        told = "\n".join([*plans, cost + (f"; trace {self.trace}" if self.trace else "")])
        yield Section.of("", Verbatim(self.answer), table(head, rows), told)


@dataclass(frozen=True)
class Shows:
    """A piece of what a worker is shown: a message of ``role``; ``node`` where it is one of the run's."""

    role: str
    text: str
    node: str = ""


def messages_of(pieces: Sequence[Shows]) -> list[Message]:
    """Pieces as messages; of two in a row by one role the second continues the first, as templates that alternate demand."""
    found: list[Message] = []
    for one in pieces:
        if found and found[-1].role == one.role and one.role == "user":
            found[-1] = Message(one.role, f"{found[-1].text}\n\n{one.text}")
        else:
            found.append(Message(one.role, one.text))
    return found


def new_tree(run: Run, name: str) -> str:
    """A name for a conversation that the run does not have yet: ``name``, or that with a number."""
    return next(one for one in chain([name], (f"{name}/{at}" for at in count(1))) if not run.has_tree(one))


class Orchestration:
    """A conversation under way. ``key`` (with workflow, step and attempt) decides every sample; ``run`` keeps it, where given."""

    def __init__(
        self,
        pool: ModelPool,
        messages: Sequence[Message],
        key: str,
        *,
        settings: Sampling | None = None,
        exclude: Collection[str] = (),
        budget: Budget | None = None,
        run: Run | None = None,
        tools: ToolUse | None = None,
        fallback: int = 0,
        tree: str = "",
    ) -> None:
        """``tree`` is its name in the run (default: ``key``). ``fallback``: the worker that answers where a plan cannot be had,
        such as the best single one. Raises UserError without a message, and where ``exclude`` leaves no worker."""
        if not messages:
            raise UserError("there is no message to answer")
        self.tree = tree or key
        self.pool, self.key, self.exclude, self.budget, self.run, self.tools = pool, key, tuple(exclude), budget, run, tools
        self.settings, self.fallback = settings or Sampling(max_tokens=4096), fallback
        self.given = list(messages)
        self.failed: set[int] = set()
        self.passed_over: set[int] = set()
        self.calls: list[WorkerCall] = []
        self.notes: list[str] = []
        self.log: list[CallEvent] = []
        self.offered: Sequence[Mapping[str, Any]] = () if tools is None else tools.schemas
        self.tell: Callable[[str], None] | None = None
        """Called with the text of the answer as it comes, where its reader wants that."""
        self.spent: list[tuple[int, int, float]] = []
        """Tokens given and sampled, and USD, of each plan of a composer."""
        self.begun = False
        """Whether some of the answer was told: it can no longer be another's."""
        self._nodes: list[str] = []
        self._last = ""
        """The newest reply's node."""
        self._hung = 0
        self.available()
        if run is not None:
            self._begin(run)

    @property
    def outage(self) -> bool:
        """Whether a worker failed or was passed over, so that the answer says nothing about who was chosen."""
        return bool(self.failed or self.passed_over)

    def available(self) -> list[bool]:
        """Workers that may be chosen now: of those that are down one only where no other is left. Raises InfrastructureError
        where every one that was allowed has failed."""
        allowed = self.pool.available(self.exclude)
        found = [ok and at not in self.failed for at, ok in enumerate(allowed)]
        if not any(found):
            asked = [f"'{one.worker}' ({one.result.failure})" for one in self.calls if one.result.failure]
            last = f"{', '.join(asked)}; the last: {self.calls[-1].result.why}" if asked else "none was asked"
            raise InfrastructureError("provider", f"every worker failed: {last}")
        down = [ok and bool(rest.why) for ok, rest in zip(found, self.pool.rests, strict=True)]
        if down == found:
            return found
        for at, rest in enumerate(self.pool.rests):
            if down[at] and at not in self.passed_over:
                self.passed_over.add(at)
                self.notes.append(f"'{self.pool.names[at]}' was passed over (down): {rest.why}")
        return [ok and not off for ok, off in zip(found, down, strict=True)]

    def likeliest(self, logits: np.ndarray) -> tuple[int, str]:
        """The worker a router's scores choose, and why in words."""
        allowed = self.available()
        worker, p = choose(logits, allowed), probabilities(logits, allowed)
        return worker, "router: " + ", ".join(
            f"{name} {share:.2f}" for name, share in zip(self.pool.names, p, strict=True) if share > 0
        )

    def or_fallback(self, worker: int) -> tuple[int, str]:
        """The worker, or where it may not be asked the fallback, or the first that may."""
        allowed = self.available()
        for one, why in (
            (worker, ""),
            (self.fallback, "fallback: the best single worker"),
            (allowed.index(True), "fallback: the first left"),
        ):
            if allowed[one]:
                return one, why
        raise AssertionError("available() has one")

    def question(self) -> list[Shows]:
        """The conversation as it was given."""
        nodes = self._nodes or [""] * len(self.given)
        return [Shows(one.role, one.text, node) for one, node in zip(self.given, nodes, strict=True)]

    async def ask(
        self, worker: int, pieces: Sequence[Shows], workflow: int, step: int, why: str, *, role: str = "", attempt: int = 0,
        answers: bool = False,
    ) -> WorkerCall:  # fmt: skip
        """Call a worker, and keep it; ``answers``: its reply is the answer, to be told as it comes. A failure masks the worker
        for the rest of the conversation; raises InfrastructureError where that is after the answer had begun."""
        plain = not any(piece.role not in ("system", "user") for piece in pieces) or len(pieces) != len(self.given)
        messages = (
            messages_of(pieces) if plain else list(self.given)
        )  # tool calls of a conversation as it was given stay as they are
        position = (self.key, workflow, step, attempt)
        tell = self._told if answers and self.tell is not None else None
        result = await self.pool.call(
            worker, messages, self.settings, position, tools=self.offered, budget=self.budget, tell=tell
        )
        made = WorkerCall(workflow, step, self.pool.names[worker], messages, result, why, role)
        self.calls.append(made)
        if result.failure:
            self.failed.add(worker)
            self.notes.append(f"'{made.worker}' failed ({result.failure}): {result.why}")
        made.node = self._keep(made, pieces)
        if result.failure and tell is not None and self.begun:
            failed = InfrastructureError("provider", f"'{made.worker}' failed amid its reply ({result.failure}): {result.why}")
            failed.kind, failed.final = result.failure, True
            raise failed
        return made

    def _told(self, text: str) -> None:
        assert self.tell is not None
        self.begun = True
        self.tell(text)

    # -- the run

    def _begin(self, run: Run) -> None:
        run.add_tree(self.tree, {"id": self.tree, "data": {"prompt": self.given[-1].text}})
        above = root(run, self.tree)
        for one in self.given:
            node = make_node(self.tree, above.id, len(above), one.role, one.text, data=dict(one.data))
            run.add(node)
            above = node
            self._nodes.append(node.id)
        run.commit()

    def _keep(self, call: WorkerCall, pieces: Sequence[Shows]) -> str:
        if self.run is None:
            return ""
        result = call.result
        provenance = provenance_of(self.pool, result.worker, self.settings)
        note = CallNote.of(self.pool, result, workflow=call.workflow, step=call.step, why=call.why, role=call.role)
        tools = {} if result.completion is None else result.completion.data or {}
        data = {**note.to_data(), **{name: tools[name] for name in ("tool_calls",) if name in tools}}
        context = None if pieces == self.question() and not result.dropped else context_of(pieces, call)
        return self._hang(result.text, data, provenance, context, bool(result.failure))

    def planned(self, text: str, prompt: Sequence[Message], provenance: Provenance, note: CallNote) -> str:
        """Keep a composer's plan, shown its own prompt."""
        if self.run is None:
            return ""
        context = Context(tuple(Insert(one.text, None, one.role) for one in prompt))
        return self._hang(text, note.to_data(), provenance, context, False)

    def _hang(self, text: str, data: Mapping[str, Any], provenance: Provenance, context: Context | None, failed: bool) -> str:
        assert self.run is not None
        asked = self.run.node(self._nodes[-1])
        index, self._hung = self._hung, self._hung + 1
        node = make_node(
            self.tree, asked.id, len(asked), "assistant", text, index=index, provenance=provenance.hash,
            context=None if context is None else context.hash, stop="failed" if failed else "eos", data=dict(data),
        )  # fmt: skip
        with self.run.transaction():
            self.run.add(provenance, *([] if context is None else [context]), node)
        self._last = node.id
        return node.id

    def extend(self, reply: Message, node: str, results: Sequence[Message]) -> None:
        """The conversation continues after a reply, which is ``node`` of the run, and what its tool calls gave."""
        self.given += [reply, *results]
        if self.run is not None:
            self._nodes.append(node)
            above = self.run.node(node)
            for one in results:
                above = make_node(self.tree, above.id, len(above), one.role, one.text, data=dict(one.data))
                self.run.add(above)
                self._nodes.append(above.id)
            self.run.commit()

    def result(self, call: WorkerCall, workflows: Sequence[Workflow] = ()) -> Orchestrated:
        """The end: ``call`` is the answer."""
        planned = (sum(one[0] for one in self.spent), sum(one[1] for one in self.spent), sum(one[2] for one in self.spent))
        made = Orchestrated(
            call.result.text,
            self.calls,
            self.notes,
            list(workflows),
            call.result.completion,
            self.tree if self.run else "",
            call.node,
            planned,
        )
        if self.run is not None and call.node:
            note = AnswerNote(tuple(self.notes), tuple(workflows), made.usd, made.tokens)
            self.run.add(Annotation(call.node, 1, ANSWER, MAKER, codec.to_json(note)))
            self.run.commit()
        return made

    def attempt(self, run: Run, made: Orchestrated | None, purpose: str = ROLLOUT, **ended: Any) -> AttemptRecord:
        """The record of the conversation as an attempt, which ends at its answer, without one at its newest reply; ``ended``: how
        (fields of the record)."""
        leaf = run.node((made and made.node) or self._last or self._nodes[-1])
        if leaf.tree != self.tree:  # the answer of a conversation within this one
            leaf = run.node(self._last or self._nodes[-1])
        return AttemptRecord(leaf.id, self.tree, None, 0, purpose, 0, provenance=leaf.provenance, **ended)

    async def concluded(self, work: Awaitable[Orchestrated], purpose: str = ROLLOUT) -> Orchestrated:
        """What ``work`` on this conversation comes to. Its run has the record of the attempt, of one that failed, too."""
        try:
            made = await work
        except InfrastructureError as error:
            self._end(None, purpose, failure=error.message)
            raise
        self._end(made, purpose)
        return made

    def _end(self, made: Orchestrated | None, purpose: str, **ended: Any) -> None:
        if self.run is not None:
            self.run.add(self.attempt(self.run, made, purpose, **ended))
            self.run.commit()


def context_of(pieces: Sequence[Shows], call: WorkerCall) -> Context:
    """What a worker was shown, as spans of nodes and inserted text;
    where text was left out to fit, the messages as they were sent."""
    if call.result.dropped:
        return Context(tuple(Insert(one.text, None, one.role) for one in call.result.shown))
    parts: list[Span | Insert] = []
    before = ""
    for one in pieces:
        if one.role == before == "user":
            parts.append(Insert(f"\n\n{one.text}", None, ""))
        else:
            parts.append(Span(one.node, 0, 1) if one.node else Insert(one.text, None, one.role))
        before = one.role
    return Context(tuple(parts))
