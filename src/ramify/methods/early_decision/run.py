"""The stages of a study of early decisions, each resumed from the rows it stored in the run:
rollouts, continuations, oscillation cuts.

Hidden states are collected by :mod:`ramify.methods.early_decision.states`,
and what all stages say is put together in ``report.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import InfrastructureError, UserError
from ramify.methods.early_decision.algorithm import LOOP, chunk_spans, settle, transitions
from ramify.methods.early_decision.judges import stances
from ramify.methods.early_decision.record import CONTINUE, CONTINUED, CUT, OSCILLATE, STANCES, Mode, Rows, Study, Written, counted
from ramify.methods.early_decision.thinking import Closed, Thinking, Thought, cut_at, tokens_up_to
from ramify.model.protocol import Tokenizer
from ramify.rollout.potential import Fixed, potential
from ramify.rollout.sampler import SamplePosition, Sampler, token_ids
from ramify.score.judge import Item, Judge, Jury, judged
from ramify.stats.drops import Counts
from ramify.trace.db import Record

Way = Literal["closed", "open"]
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Progress = Callable[[int], None]


# -- rollouts


async def rollout(study: Study, sampler: Sampler, thinking: Thinking, jury: Jury, progress: Progress = lambda done: None) -> None:
    """Sample and label what is missing of ``k`` traces of every prompt in every mode (3.1, 3.2).
    What fails is tried again next time."""

    async def one(name: str, mode: Mode) -> None:
        missing = [i for i in range(study.config.k) if f"{name}/{mode}/{i}" not in study.traces]
        if not missing:
            return
        ids, first = study.prompts[name]["prompt_ids"], missing[0]
        n = study.config.k - first  # a sample is keyed by its index, so those in between are sampled again and left
        generated: list[Thought | None] = [Thought((), "forced", None)] * n
        if mode == "thinking":
            made = await sampler.sample(thinking.opened(ids), n, thinking.left(), (name, mode), first, policy=thinking)
            generated = thinking.thoughts(made)
        elif thinking.fits(closed := thinking.closed(ids, ())):
            made = await sampler.sample(closed, n, thinking.answering, (name, mode, "answer"), first)
            generated = [one if one is None else Thought((), "forced", one) for one in thinking.answers(made)]
        for i in missing:
            record = await _labelled(study, jury, name, generated[i - first], sampler)
            if record is not None:
                trace = {"prompt": name, "mode": mode, "sample": i, **record}
                study.add(trace, _written(thinking, ids, trace))
        progress(len(study.traces))

    await asyncio.gather(*(one(name, mode) for name in study.prompts for mode in study.config.modes))


def _written(thinking: Thinking, prompt: Sequence[int], row: dict[str, Any]) -> Written:
    """A sampled trace as text of the reply, with the tags that open and close it."""
    before, kept = len(thinking.marks.start(prompt)) - len(prompt), row["thinking"]
    open_ = row["closed"] == "never"
    tokens: Any = (thinking.opened(prompt, kept) if open_ else thinking.closed(prompt, kept, row["closed"])).tokens
    whole = tokens[len(prompt) :].tolist()
    ends = None if thinking.tokenizer is None else thinking.tokenizer.ends(whole)
    return Written(whole, before, thinking.text(whole), ends)


async def _labelled(study: Study, jury: Jury, prompt: str, thought: Thought | None, sampler: Sampler) -> dict[str, Any] | None:
    """A trace's row, None where it or the judges failed.

    Only an answer is ever labelled: thinking that was never closed has none (``truncated``).
    """
    if thought is None:
        return None
    row: dict[str, Any] = {"thinking": list(thought.thinking), "closed": thought.closed, "outcome": None}
    if thought.answer is None:
        return row | {"status": "truncated" if thought.closed == "never" else "no_room"}
    row |= {"answer": thought.answer.text, "answer_ids": list(thought.answer.tokens), "stop": thought.answer.stop}
    judged = await _judged(study, jury, prompt, thought.answer.text, sampler)
    return judged and row | judged


async def _judged(study: Study, jury: Jury, prompt: str, answer: str, sampler: Sampler) -> dict[str, Any] | None:
    """What the jury says of an answer, None where its judges failed; ``sampler`` keeps what that cost."""
    (found,) = await judged(jury, [Item(answer, prompt, study.prompt_text(prompt))], sampler.ledger, sampler.budget)
    if found.failure:
        return None
    label = {"votes": found.evidence["votes"], "soft": found.evidence["share"] or 0.0, "judge": jury.identity}
    return label | ({"status": "unvoted"} if found.value is None else {"status": "labelled", "outcome": found.value})


async def adopt(study: Study, rows: Sequence[dict[str, Any]], tokenizer: Tokenizer, sampler: Sampler, jury: Jury) -> None:
    """Take over traces sampled elsewhere: ``prompt`` (an id of the study), ``thinking``, ``response`` texts.

    The thinking is encoded once, as a whole; the tokens may not be those that were sampled. A row without a response is
    ``truncated``, and its thinking is not labelled instead of it.
    Raises UserError where the study has another trace at a row's position.
    """
    known = {row["sample"]: row for row in study.traces.values() if row["mode"] == "thinking"}
    for i, given in enumerate(rows):
        prompt, thinking, response = given["prompt"], list(tokenizer.encode(given["thinking"])), given.get("response") or None
        if i in known:
            if (prompt, thinking, response) != (known[i]["prompt"], known[i]["thinking"], known[i].get("answer")):
                raise UserError(
                    f"{study.folder} holds other traces: trace {i + 1} is not the one given; name another folder with --out"
                )
            continue
        row = {"prompt": prompt, "mode": "thinking", "sample": i, "thinking": thinking, "closed": "own", "outcome": None}
        judged: dict[str, Any] | None = {"closed": "never", "status": "truncated"}
        if response is not None:
            row["answer"] = response
            judged = await _judged(study, jury, prompt, response, sampler)
        if judged is not None:
            study.add(row | judged, Written(thinking, 0, given["thinking"], generated=False))


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
    progress: Progress = lambda done: None,
) -> Rows:
    """Sample what is missing; rows of (prefix, share, way) with counts of yes. Share 0 needs no samples of its own.

    A prefix of which a sample or a vote failed has no row, so the next call tries it again.
    """
    found = study.rows(CONTINUED)
    if any(share < 0 for share in config.shares):
        raise UserError("--shares lie at 0 or above: 0.2 keeps a fifth of the thinking")

    cuts = CutForks(study, sampler, thinking, jury)

    async def one(trace: dict[str, Any], share: float, way: Way) -> None:
        key, prompt, length = f"{trace['key']}|{way}|{share:g}|{config.n}", trace["prompt"], len(trace["thinking"])
        if key in found:
            return
        ids, position = study.prompts[prompt]["prompt_ids"], (trace["key"], way, f"{share:g}")
        kept: Sequence[int] = trace["thinking"][: cut_at(length, min(share, 1.0))]
        if share > 1:
            more = max(1, round((share - 1) * length))
            begun, settings = thinking.opened(ids, trace["thinking"]), thinking.open_for(more)
            (longer,) = await sampler.sample(begun, 1, settings, (*position, "extend", more))
            if longer is None:
                return
            kept = [*trace["thinking"], *token_ids(longer)]
        closed: Closed = trace["closed"] if share == 1 else "forced"
        counts = await _measured(cuts, prompt, ThinkingCut(tuple(kept), position, closed if way == "closed" else None), config.n)
        if counts is None:
            return
        missing = config.n - counts["n"] if counts["status"] == "done" else 0
        record = {"trace": trace["key"], "prompt": prompt, "share": share, "way": way, "tokens": len(kept)}
        record |= counts | {"missing": missing}
        found.add(key, record, *study.mark(trace, len(kept), f"potential {way} at {share:g}", CONTINUE, counted(record)))
        progress(len(found.rows))

    traces = [trace for trace in study.prefixes(config.m) if trace["thinking"]]
    await asyncio.gather(*(one(trace, *point) for trace in traces for point in config.points()))
    return found


class NoRoomError(UserError):
    """A closed prefix with the answer's tokens does not fit the model's context."""


@dataclass(frozen=True)
class ThinkingCut:
    """A position in a trace: so much of its thinking is kept, then it is closed, or with ``closed`` None the model thinks on."""

    kept: tuple[int, ...]
    position: SamplePosition
    closed: Closed | None = "forced"


@dataclass(frozen=True)
class CutForks:
    """Counts the answers after cuts that say yes, for :func:`ramify.rollout.potential.potential`; a path is a prompt's name."""

    study: Study
    sampler: Sampler
    thinking: Thinking
    jury: Jury

    async def count(self, path: str, t: ThinkingCut, n: int, purpose: str, start: int = 0) -> Counts:
        """Yes among answers that were judged; the others, and thinking that came to no answer, are missing.

        Raises InfrastructureError where a sample or a voter failed, which the same call may mend,
        and NoRoomError where no answer fits.
        """
        ids, thinking = self.study.prompts[path]["prompt_ids"], self.thinking
        if t.closed is None:
            begun, left = thinking.opened(ids, t.kept), thinking.left(t.kept)
            completions = await self.sampler.sample(begun, n, left, t.position, start, policy=thinking)
            answers = [one if one is None else one.answer for one in thinking.thoughts(completions, t.kept)]
        else:
            closed = thinking.closed(ids, t.kept, t.closed)
            if not thinking.fits(closed):
                raise NoRoomError(f"{path}: {len(t.kept)} tokens of thinking and an answer do not fit the model's context")
            completions = await self.sampler.sample(closed, n, thinking.answering, (*t.position, "answer"), start)
            answers = thinking.answers(completions)
        if None in completions:
            raise InfrastructureError("provider", self.sampler.first_failure)
        texts = [answer.text for answer in answers if answer is not None]
        each = [Item(text, path, self.study.prompt_text(path)) for text in dict.fromkeys(texts)]
        verdicts = await judged(self.jury, each, self.sampler.ledger, self.sampler.budget)
        by_text = {item.text: found for item, found in zip(each, verdicts, strict=True)}
        if failure := next((found.failure for found in by_text.values() if found.failure), ""):
            raise InfrastructureError("scorer", failure)
        values = [by_text[text].value for text in texts]
        return Counts.of(None if value is None else value is True for value in values) + Counts(0, 0, n - len(values))


async def _measured(cuts: CutForks, prompt: str, cut: ThinkingCut, n: int) -> dict[str, Any] | None:
    """What ``n`` answers after a cut say; None where a sample or a voter failed."""
    try:
        counts, _ = await potential(cuts, prompt, [cut], Fixed(n), "cut")
    except NoRoomError:
        return {"status": "no_room", "k": 0, "n": 0}
    except InfrastructureError:
        return None
    return {"status": "done", "k": counts[cut].k, "n": counts[cut].n}


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
    progress: Progress = lambda done: None,
) -> tuple[Rows, Rows]:
    """Rate stances and sample answers at both cuts of every turn; rows of traces, and of cuts with counts of yes.

    A trace that no judge rated and a cut of which a sample or a vote failed have no row, so the next call tries them again. A
    trace of one chunk is not rated: no stance can turn in it. Raises UserError where all traces are such, where the study's
    stances are of other settings (but ``answers`` and ``traces``,
    which may grow) or of other chunks, or the model has no tokenizer.
    """
    if thinking.tokenizer is None:
        raise UserError("stances are read off text, and this model has no tokenizer")
    fixed = {name: value for name, value in config.to_json().items() if name not in ("answers", "traces")}
    chosen = [trace for trace in study.prefixes(config.traces) if trace["thinking"]]
    texts = {trace["key"]: thinking.text(trace["thinking"]) for trace in chosen}
    pieces = {key: chunk_spans(text, config.limit, config.least) for key, text in texts.items()}
    if chosen and max(map(len, pieces.values())) < 2 and not study.rated:
        raise UserError(
            f"no stance can turn: each of {len(chosen)} traces is one chunk or none; chunks are sentences and lines, packed up "
            "to "
            f"--limit {config.limit} characters, and those of at most --least {config.least} are dropped: lower these"
        )
    study.settle(fixed | {"ties_refuse": jury.ties})
    rated, cuts = study.rows(STANCES), study.rows(CUT)
    tokenizer, forks = thinking.tokenizer, CutForks(study, sampler, thinking, jury)

    async def one(trace: dict[str, Any]) -> None:
        text, spans, ends = texts[trace["key"]], pieces[trace["key"]], tokenizer.ends(trace["thinking"])
        if trace["key"] in rated and rated.rows[trace["key"]]["chunks"] != len(spans):
            raise UserError(
                f"{study.folder} holds stances of other chunks (trace {trace['key']}); name another folder with --out"
            )
        if trace["key"] not in rated:
            chunks = [text[a:b] for a, b in spans]
            loop = len(chunks) > LOOP
            shown = study.prompt_text(trace["prompt"]) if config.show_prompt else ""
            ratings = [
                None if loop or len(chunks) < 2 else await stances(judge, shown, chunks, sampler.ledger) for judge in judges
            ]
            if len(chunks) > 1 and not loop and all(one is None for one in ratings):
                return
            record = {"prompt": trace["prompt"], "chunks": len(chunks), "loop": loop, "ratings": ratings}
            settled = settle(ratings, len(chunks))
            turns = [] if loop else [[t.pre, t.post, t.stance] for t in transitions(settled, config.before, config.after)]
            rated.add(
                trace["key"],
                record | {"stances": settled, "turns": turns},
                *_leanings(study, trace, spans, ends, ratings, settled),
            )
        for chunk in (end for *both, _ in rated.rows[trace["key"]]["turns"] for end in both):
            kept = trace["thinking"][: tokens_up_to(ends, spans[chunk - 1][1])]
            key = f"{trace['key']}|{len(kept)}|{config.answers}"
            if key not in cuts:
                cut = ThinkingCut(tuple(kept), (trace["key"], "cut", len(kept)))
                counts = await _measured(forks, trace["prompt"], cut, config.answers)
                if counts is not None:
                    row = {"trace": trace["key"], "chunk": chunk} | counts
                    cuts.add(key, row, *study.mark(trace, len(kept), "potential cut", OSCILLATE, counted(row)))
        progress(len(rated.rows))

    await asyncio.gather(*(one(trace) for trace in chosen))
    return rated, cuts


def _leanings(
    study: Study,
    trace: dict[str, Any],
    spans: Sequence[tuple[int, int]],
    ends: np.ndarray,
    ratings: Sequence[Sequence[int] | None],
    settled: Sequence[int | None],
) -> list[Record]:
    """The stance of each chunk, at its last token: what was settled, and each judge's own (None where it gave none)."""
    marks: list[Record] = []
    for i, ((_, end), stance) in enumerate(zip(spans, settled, strict=True)):
        value = {"stance": stance, "ratings": [one and one[i] for one in ratings]}
        marks += study.mark(trace, tokens_up_to(ends, end), "stance", OSCILLATE, value)
    return marks
