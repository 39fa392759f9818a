"""The stages of a study of early decisions, each resumed from the rows it stored in the run:
rollouts, continuations, oscillation cuts.

Hidden states are collected by :mod:`ramify.methods.early_decision.states`,
and what all stages say is put together in ``report.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.words import plural
from ramify.methods.early_decision.algorithm import LOOP, chunk_spans, settle, transitions
from ramify.methods.early_decision.judges import stances
from ramify.methods.early_decision.record import (
    CONTINUE,
    CONTINUED,
    CUT,
    STANCES,
    TURNS,
    CutCounts,
    Mode,
    NewTrace,
    PrefixCounts,
    RatingSettings,
    StanceRatings,
    Study,
    StudyTrace,
    TraceStatus,
    TurnCounts,
    Way,
    Written,
    trace_key,
)
from ramify.methods.early_decision.thinking import Closed, Thinking, Thought, cut_at, tokens_up_to
from ramify.rollout.potential import Fixed, ForkEnd, Forks, potential
from ramify.rollout.sampler import SamplePosition, Sampler, token_ids
from ramify.score.judge import Item, Judge, Jury, judged
from ramify.trace.db import Record
from ramify.trace.node import STOPS, AttemptRecord, make_node

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


# -- rollouts


async def rollout(study: Study, sampler: Sampler, thinking: Thinking, jury: Jury, progress: Progress = SILENT) -> None:
    """Sample and label what is missing of ``k`` traces of every prompt in every mode (3.1, 3.2).
    What fails is tried again next time."""
    groups = [(name, mode) for name in study.prompts for mode in study.config.modes]
    progress.begin(len(groups) * study.config.k, len(study.traces), unit="traces")

    async def one(name: str, mode: Mode) -> None:
        missing = [i for i in range(study.config.k) if trace_key(name, mode, i) not in study.traces]
        if not missing:
            return
        ids, first = study.prompts[name].prompt_ids, missing[0]
        n = study.config.k - first  # a sample is keyed by its index, so those in between are sampled again and left
        generated: list[Thought | None] = [Thought((), "forced", None)] * n
        if mode == "thinking":
            made = await sampler.sample(thinking.opened(ids), n, thinking.left(), (name, mode), first, policy=thinking)
            generated = thinking.thoughts(made)
        elif thinking.fits(closed := thinking.closed(ids, ())):
            made = await sampler.sample(closed, n, thinking.answering, (name, mode, "answer"), first)
            generated = [one if one is None else Thought((), "forced", one) for one in thinking.answers(made)]
        for i in missing:
            thought = generated[i - first]
            trace = None if thought is None else await _labelled(study, jury, (name, mode, i), thought, sampler)
            if trace is not None:
                study.add(trace, _written(thinking, ids, trace))
        progress.at(len(study.traces))

    await asyncio.gather(*(one(*group) for group in groups))


def _written(thinking: Thinking, prompt: Sequence[int], row: NewTrace, generated: bool = True) -> Written:
    """A trace as text of the reply, with the tags that open and close it."""
    before, kept = len(thinking.marks.start(prompt)) - len(prompt), row.thinking
    whole = _after(thinking, prompt, Thought(tuple(kept), row.closed, None), len(prompt))
    ends = None if thinking.tokenizer is None else thinking.tokenizer.ends(whole)
    return Written(whole, before, thinking.text(whole), ends, generated)


def _after(thinking: Thinking, prompt: Sequence[int], thought: Thought, start: int) -> list[int]:
    """The tokens of prompt, thinking and its close from ``start`` on."""
    prefix = thinking.opened(prompt, thought.thinking)
    if thought.closed != "never":
        prefix = thinking.closed(prompt, thought.thinking, thought.closed)
    assert prefix.tokens is not None
    tokens: list[int] = prefix.tokens[start:].tolist()
    return tokens


async def _labelled(
    study: Study, jury: Jury, place: tuple[str, Mode, int], thought: Thought, sampler: Sampler
) -> NewTrace | None:
    """A trace, None where the judges failed.

    Only an answer is ever labelled: thinking that was never closed has none (``truncated``, or ``ended`` by the model itself).
    """
    name, mode, i = place
    lacking: TraceStatus = "ended" if thought.ended else "truncated" if thought.closed == "never" else "no_room"
    row = NewTrace(prompt=name, mode=mode, sample=i, thinking=thought.thinking, closed=thought.closed, status=lacking)
    if thought.answer is None:
        return row
    answer = thought.answer
    return await _judged(study, jury, replace(row, answer=answer.text, answer_ids=answer.tokens, stop=answer.stop), sampler)


async def _judged(study: Study, jury: Jury, row: NewTrace, sampler: Sampler) -> NewTrace | None:
    """A trace with what the jury says of its answer, None where its judges failed; ``sampler`` keeps what that cost."""
    item = Item(row.answer or "", row.prompt, study.prompts[row.prompt].text)
    (found,) = await judged(jury, [item], sampler.ledger, sampler.budget)
    if found.failure:
        return None
    said = None if found.value is None else found.value is True
    return replace(row, status="unvoted" if said is None else "labelled", outcome=said, votes=found.evidence, judge=jury.identity)


@dataclass(frozen=True)
class GivenTrace:
    """A trace sampled elsewhere; ``prompt`` is an id of the study."""

    prompt: str
    thinking: str
    response: str


async def adopt(study: Study, rows: Sequence[GivenTrace], thinking: Thinking, sampler: Sampler, jury: Jury) -> None:
    """Take over traces sampled elsewhere.

    The thinking is encoded once, as a whole; the tokens may not be those that were sampled. A row without a response is
    ``truncated``, and its thinking is not labelled instead of it.
    Raises UserError where the study has another trace at a row's position, or the model has no tokenizer.
    """
    if thinking.tokenizer is None:
        raise UserError("traces sampled elsewhere are text, and this model has no tokenizer")
    known = {row.sample: row for row in study.traces.values() if row.mode == "thinking"}
    for i, given in enumerate(rows):
        tokens, response = tuple(thinking.tokenizer.encode(given.thinking)), given.response or None
        if i in known:
            if (given.prompt, tokens, response) != (known[i].prompt, known[i].thinking, known[i].answer):
                raise UserError(
                    f"{study.folder} holds other traces: trace {i + 1} is not the one given; name another folder with --out"
                )
            continue
        closed: Closed = "never" if response is None else "own"
        row: NewTrace | None = NewTrace(
            prompt=given.prompt,
            mode="thinking",
            sample=i,
            thinking=tokens,
            closed=closed,
            status="truncated",
            answer=response,
        )
        if row is not None and response is not None:
            row = await _judged(study, jury, row, sampler)
        if row is not None:
            study.add(row, _written(thinking, study.prompts[given.prompt].prompt_ids, row, generated=False))


# -- continuations


class ContinueConfig(Config):
    """Nested continuations of traces (3.6)."""

    shares: tuple[float, ...] = SHARES
    """how much of the thinking is kept; 0 is read off the rollouts, above 1 it is extended first"""
    ways: tuple[Way, ...] = ("closed", "open")
    """closed: close and answer, the paper's; open: think on to the end"""
    m: int = Field(8, ge=1)
    """traces of each prompt"""
    n: int = Field(8, ge=2)
    """continuations of each prefix"""

    def points(self) -> list[tuple[float, Way]]:
        """Shares and ways that take samples of their own: at 0 the rollouts serve, and after the whole no thinking remains."""
        return [(share, way) for share in self.shares if share for way in self.ways if way == "closed" or share < 1]

    def cost_estimate(self, study: Study) -> dict[str, int]:
        """Most that will be sampled."""
        prefixes = len(study.prefixes(self.m)) * len(self.points())
        return {"prefixes": prefixes, "answers": prefixes * self.n}


async def continuations(
    study: Study,
    sampler: Sampler,
    thinking: Thinking,
    jury: Jury,
    config: ContinueConfig,
    progress: Progress = SILENT,
) -> None:
    """Sample what is missing: rows of (prefix, share, way) with counts of yes, and each continuation as a fork of its trace.
    Share 0 needs no samples of its own.

    A prefix of which a sample or a vote failed has no row, so the next call tries it again.
    """
    if any(share < 0 for share in config.shares):
        raise UserError("--shares lie at 0 or above: 0.2 keeps a fifth of the thinking")
    cuts = Cuts(study, sampler, thinking, jury)

    async def one(trace: StudyTrace, share: float, way: Way) -> None:
        async def make() -> tuple[PrefixCounts, list[Record]]:
            cut, records = await _prefix(cuts, trace, share, way)
            row, made = await cuts.measured(trace, cut, config.n)
            found = PrefixCounts(**vars(row), prompt=trace.prompt, share=share, way=way)
            mark = study.mark(trace, row.tokens, f"potential {way} at {share:g}", CONTINUE, found)
            return found, [*records, *made, *mark]

        with suppress(InfrastructureError):
            key = f"{trace.key}|{way}|{share:g}|{config.n}"
            await study.run.once_awaited(CONTINUED, key, PrefixCounts, make)

    traces = [trace for trace in study.prefixes(config.m) if trace.thinking]
    work = [one(trace, *point) for trace in traces for point in config.points()]
    progress.begin(len(work), 0, unit="prefixes")
    await gathered(work, progress)


async def _prefix(cuts: Cuts, trace: StudyTrace, share: float, way: Way) -> tuple[ThinkingCut, list[Record]]:
    """The cut of a trace at a share of its thinking; above 1 it is extended first, which is a node of its own.
    Raises InfrastructureError where that failed."""
    thinking, length = cuts.thinking, len(trace.thinking)
    position, purpose = (trace.key, way, f"{share:g}"), f"{CONTINUE}, {way} at {share:g}"
    if share <= 1:
        kept = cut_at(length, share)
        closed: Closed = trace.closed if share == 1 else "forced"
        return cut_of(trace, kept, position, closed if way == "closed" else None, purpose), []
    more = max(1, round((share - 1) * length))
    begun = thinking.opened(cuts.study.prompts[trace.prompt].prompt_ids, trace.thinking)
    (longer,) = await cuts.sampler.sample(begun, 1, thinking.open_for(more), (*position, "extend", more))
    if longer is None:
        raise InfrastructureError("provider", cuts.sampler.first_failure)
    tokens, by = token_ids(longer), cuts.study.provenance("think_tokens")
    node = make_node(
        trace.prompt, trace.thought, trace.start + length, "assistant", thinking.text(tokens), tokens=tokens, opens=False,
        sampled=np.ones(len(tokens), bool), ends=None if thinking.tokenizer is None else thinking.tokenizer.ends(tokens),
        provenance=by.hash, purpose=purpose, index=0,
    )  # fmt: skip
    return ThinkingCut((*trace.thinking, *tokens), position, "forced", node.id, len(tokens), purpose), [by, node]


class NoRoomError(UserError):
    """A closed prefix with the answer's tokens does not fit the model's context."""


@dataclass(frozen=True)
class ThinkingCut:
    """A position in a trace: so much of its thinking is kept, then it is closed, or with ``closed`` None the model thinks on.
    What follows hangs at ``offset`` of ``node``."""

    kept: tuple[int, ...]
    position: SamplePosition
    closed: Closed | None
    node: str
    offset: int
    purpose: str


def cut_of(trace: StudyTrace, kept: int, position: SamplePosition, closed: Closed | None, purpose: str) -> ThinkingCut:
    """After ``kept`` tokens of a trace's thinking."""
    return ThinkingCut(trace.thinking[:kept], position, closed, trace.thought, trace.start + kept, purpose)


@dataclass(frozen=True)
class Cuts:
    """What continues the traces of a study after cuts of their thinking, and judges the answers."""

    study: Study
    sampler: Sampler
    thinking: Thinking
    jury: Jury

    async def measured(self, trace: StudyTrace, cut: ThinkingCut, n: int) -> tuple[CutCounts, list[Record]]:
        """What ``n`` answers after a cut say, and the continuations. Answers that nobody could judge, and thinking that came to
        none, are missing. Raises InfrastructureError where one of them failed, which the same call may mend."""
        records: list[Record] = []

        async def play(prompt: str, cut: ThinkingCut, numbers: range, purpose: str) -> list[ForkEnd]:
            thoughts, outcomes = await self._answered(prompt, cut, numbers)
            records.extend(self._records(prompt, cut, thoughts, outcomes, numbers.start))
            return list(map(ForkEnd, outcomes))

        try:
            counts, _ = await potential(Forks(play), trace.prompt, [cut], Fixed(n), "cut")
        except NoRoomError:
            return CutCounts(trace.key, len(cut.kept), "no_room", 0, 0, 0), []
        found = counts[cut]
        return CutCounts(trace.key, len(cut.kept), "done", found.k, found.n, n - found.n), records

    async def sampled(self, prompt: str, cut: ThinkingCut, n: int) -> tuple[list[Thought], list[Record]]:
        """``n`` continuations of a cut, and their records. Raises what :meth:`measured` does, and NoRoomError."""
        thoughts, outcomes = await self._answered(prompt, cut, range(n))
        return thoughts, self._records(prompt, cut, thoughts, outcomes, 0)

    async def _answered(self, name: str, t: ThinkingCut, numbers: range) -> tuple[list[Thought], list[bool | None]]:
        """The continuations of a cut, and which of their answers say yes.

        Raises InfrastructureError where a sample or a voter failed, and NoRoomError where no answer fits.
        """
        prompt, thinking, n, start = self.study.prompts[name], self.thinking, len(numbers), numbers.start
        if t.closed is None:
            begun, left = thinking.opened(prompt.prompt_ids, t.kept), thinking.left(t.kept)
            completions = await self.sampler.sample(begun, n, left, t.position, start, policy=thinking)
            thoughts = thinking.thoughts(completions, t.kept)
        else:
            closed = thinking.closed(prompt.prompt_ids, t.kept, t.closed)
            if not thinking.fits(closed):
                raise NoRoomError(f"{name}: {len(t.kept)} tokens of thinking and an answer do not fit the model's context")
            completions = await self.sampler.sample(closed, n, thinking.answering, (*t.position, "answer"), start)
            thoughts = [None if one is None else Thought(t.kept, t.closed, one) for one in thinking.answers(completions)]
        whole = [one for one in thoughts if one is not None]
        if len(whole) < len(thoughts):
            raise InfrastructureError("provider", self.sampler.first_failure)
        texts = dict.fromkeys(one.answer.text for one in whole if one.answer is not None)
        each = [Item(text, name, prompt.text) for text in texts]
        verdicts = await judged(self.jury, each, self.sampler.ledger, self.sampler.budget)
        if failure := next((found.failure for found in verdicts if found.failure), ""):
            raise InfrastructureError("scorer", failure)
        said = {item.text: found.value for item, found in zip(each, verdicts, strict=True)}
        values = [None if one.answer is None else said[one.answer.text] for one in whole]
        return whole, [None if value is None else value is True for value in values]

    def _records(
        self, path: str, t: ThinkingCut, thoughts: Sequence[Thought], outcomes: Sequence[bool | None], start: int
    ) -> list[Record]:
        """Continuations as forks of the trace: a node each, with what it was given to close its thinking, and how it ended."""
        thinking, ids = self.thinking, self.study.prompts[path].prompt_ids
        by = self.study.provenance("think_tokens" if t.closed is None else "answer_tokens")
        records: list[Record] = [by]
        kept = len(thinking.marks.start(ids)) + len(t.kept)
        for i, (thought, outcome) in enumerate(zip(thoughts, outcomes, strict=True), start):
            head, answer = _after(thinking, ids, thought, kept), () if thought.answer is None else thought.answer.tokens
            tokens, stop = [*head, *answer], "" if thought.answer is None else thought.answer.stop
            own = len(head) if t.closed is None and thought.closed == "own" else len(thought.thinking) - len(t.kept)
            sampled = np.ones(len(tokens), bool)
            sampled[own : len(head)] = False
            node = make_node(
                path, t.node, t.offset, "assistant", thinking.text(tokens), tokens=tokens, sampled=sampled, opens=False,
                ends=None if thinking.tokenizer is None else thinking.tokenizer.ends(tokens),
                provenance=by.hash, purpose=t.purpose, index=i, stop=stop if stop in STOPS else "",
            )  # fmt: skip
            cut = (thought.answer is None and not thought.ended) or stop == "length"
            ended = AttemptRecord(node.id, path, t.node, t.offset, t.purpose, i, outcome, truncated=cut, provenance=by.hash)
            records += [node, ended]
        return records


# -- oscillations


class OscillateConfig(Config):
    """Stances along the thinking and cuts where they turn (3.8)."""

    judges: tuple[str, ...] = ()
    """who rates stances: judge:MODEL or FILE.py:FUNCTION of (prompt, chunks), three in the paper; the first decides ties"""
    answers: int = Field(100, ge=2)
    """answers at each cut"""
    show_prompt: bool = True
    """the judges see the prompt"""
    limit: int = Field(200, ge=1)
    """longest chunk in characters, but for a longer sentence"""
    least: int = Field(20, ge=0)
    """chunks of so few characters are dropped"""
    before: int = Field(1, ge=1)
    """least chunks before a turn"""
    after: int = Field(1, ge=1)
    """least chunks after it"""
    traces: int = Field(8, ge=1)
    """traces of each prompt that are rated"""
    ties_refuse: bool = False
    """half of the votes at a cut make a yes, as in the paper's cut analysis"""

    def cost_estimate(self, study: Study) -> dict[str, int]:
        """Most that will be rated, and the answers at each turn: how many there are is known only once stances are."""
        traces = len(study.prefixes(self.traces))
        return {"traces": traces, "ratings": traces * len(self.judges), "answers_a_turn": 2 * self.answers}


async def oscillations(
    study: Study,
    sampler: Sampler,
    thinking: Thinking,
    jury: Jury,
    judges: Sequence[Judge],
    config: OscillateConfig,
    progress: Progress = SILENT,
) -> int:
    """Rate stances and sample answers at both cuts of every turn: rows of traces, and of cuts with counts of yes; each answer is
    a fork of its trace. Returns how many traces no judge rated.

    Such a trace and a cut of which a sample or a vote failed have no row, so the next call tries them again. A
    trace of one chunk is not rated: no stance can turn in it. Raises UserError where all traces are such, where the study's
    stances are of other settings (but ``answers`` and ``traces``,
    which may grow) or of other chunks, or the model has no tokenizer.
    """
    if thinking.tokenizer is None:
        raise UserError("stances are read off text, and this model has no tokenizer")
    chosen = [trace for trace in study.prefixes(config.traces) if trace.thinking]
    progress.begin(len(chosen), 0, unit="traces")
    traces = [_Chunked.of(trace, thinking, config) for trace in chosen]
    if traces and max(len(one.spans) for one in traces) < 2 and not study.rated:
        raise UserError(
            f"no stance can turn: each of {plural(len(traces), 'trace')} is one chunk or none; chunks are sentences and lines, "
            f"packed up to --limit {config.limit} characters, and those of at most --least {config.least} are dropped: lower "
            "these"
        )
    names = ("judges", "show_prompt", "limit", "least", "before", "after")
    study.settle(RatingSettings(**{name: getattr(config, name) for name in names}, ties_refuse=bool(jury.ties)))
    cuts = Cuts(study, sampler, thinking, jury)
    return sum(await gathered([_oscillated(cuts, one, judges, config) for one in traces], progress))


async def _oscillated(cuts: Cuts, one: _Chunked, judges: Sequence[Judge], config: OscillateConfig) -> bool:
    """Rate a trace and sample what its cuts lack; whether no judge rated it."""
    study, trace = cuts.study, one.trace
    try:
        rated = await study.run.once_awaited(STANCES, trace.key, StanceRatings, lambda: _rated(cuts, one, judges, config))
    except InfrastructureError:
        return True
    if rated.chunks != len(one.spans):
        raise UserError(f"{study.folder} holds stances of other chunks (trace {trace.key}); name another folder with --out")
    for chunk in (end for turn in rated.turns for end in (turn.pre, turn.post)):
        kept = one.tokens(chunk)
        cut = cut_of(trace, kept, (trace.key, "cut", kept), "forced", TURNS)

        async def make(cut: ThinkingCut = cut, chunk: int = chunk) -> tuple[TurnCounts, list[Record]]:
            row, made = await cuts.measured(trace, cut, config.answers)
            found = TurnCounts(**vars(row), chunk=chunk)
            return found, [*made, *study.mark(trace, row.tokens, "potential cut", TURNS, found)]

        with suppress(InfrastructureError):
            await study.run.once_awaited(CUT, f"{trace.key}|{kept}|{config.answers}", TurnCounts, make)
    return False


@dataclass(frozen=True, eq=False)
class _Chunked:
    """A trace in chunks: its text, their spans, and where each token ends."""

    trace: StudyTrace
    text: str
    spans: Sequence[tuple[int, int]]
    ends: np.ndarray

    @classmethod
    def of(cls, trace: StudyTrace, thinking: Thinking, config: OscillateConfig) -> _Chunked:
        assert thinking.tokenizer is not None
        text = thinking.text(trace.thinking)
        spans = chunk_spans(text, config.limit, config.least)
        return cls(trace, text, spans, thinking.tokenizer.ends(list(trace.thinking)))

    def tokens(self, chunk: int) -> int:
        """How many tokens so many chunks take."""
        return tokens_up_to(self.ends, self.spans[chunk - 1][1])


async def _rated(
    cuts: Cuts, one: _Chunked, judges: Sequence[Judge], config: OscillateConfig
) -> tuple[StanceRatings, list[Record]]:
    """What the judges say of a trace's chunks, and the stance of each at its last token.
    Raises InfrastructureError where none of them gave a rating."""
    study, trace, chunks = cuts.study, one.trace, [one.text[a:b] for a, b in one.spans]
    loop, asked = len(chunks) > LOOP, 1 < len(chunks) <= LOOP
    shown = study.prompts[trace.prompt].text if config.show_prompt else ""
    ratings = [await stances(judge, shown, chunks, cuts.sampler.ledger) if asked else None for judge in judges]
    if asked and all(rating is None for rating in ratings):
        raise InfrastructureError("scorer", "no judge rated the trace")
    settled = settle(ratings, len(chunks))
    turns = [] if loop else transitions(settled, config.before, config.after)
    marks: list[Record] = []
    for i, stance in enumerate(settled):
        value = {"stance": stance, "ratings": [rating and rating[i] for rating in ratings]}
        marks += study.mark(trace, one.tokens(i + 1), "stance", TURNS, value)
    given = tuple(None if rating is None else tuple(rating) for rating in ratings)
    return StanceRatings(trace.prompt, len(chunks), loop, given, tuple(settled), tuple(turns)), marks
