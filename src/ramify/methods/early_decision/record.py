"""A study of early decisions as a run: a tree a prompt, thinking and answers as nodes,
what later stages measured in the journal and at the tokens, and how each trace and continuation ended as an attempt.

Each trace, prefix, rating and cut is committed when it is whole, so an interrupted stage continues after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from ramify.base import codec
from ramify.base.config import Config, check
from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.base.seeds import derive_key
from ramify.methods.early_decision.algorithm import Transition
from ramify.methods.early_decision.results import StageFound, StudySource
from ramify.methods.early_decision.thinking import Closed
from ramify.rollout.token_traces import TokenProblem
from ramify.trace.connect import holds_run
from ramify.trace.db import Record, Run
from ramify.trace.foreign import root
from ramify.trace.node import (
    IMPORT,
    ROLLOUT,
    STOPS,
    Annotation,
    AttemptRecord,
    Finding,
    KeptResult,
    Node,
    Provenance,
    Score,
    TreeInfo,
    make_node,
)

Mode = Literal["thinking", "none"]
Way = Literal["closed", "open"]
TraceStatus = Literal["labelled", "unvoted", "truncated", "ended", "no_room"]
"""Judged, or why not: no voter spoke, a limit cut the thinking, the reply ended by itself before the thinking was closed, or no
answer fitted the context."""
S = TypeVar("S", bound=StageFound)
KIND = "early-decision run"
TRACE, CONTINUED, STANCES, CUT, RATED, PROBED = "trace", "continuation", "stances", "cut", "oscillate", "probed"
"""Kinds of the journal's entries: a trace, a prefix that was continued, the stances of a trace,
a cut at a turn; the settings of the ratings; a thought that was probed."""
PROBE, VALLEY = "early-decision probe", "early-decision probe valley"
CONTINUE, TURNS = "early-decision continue", "early-decision continue turns"
CALIBRATE = "early-decision calibrate"
"""The stages: makers of their results, findings and annotations."""


class StudyConfig(Config):
    """How traces are sampled and what counts as yes."""

    BASIC = "model label k modes guard think_tokens answer_tokens close_ended temperature seed"
    model: str = ""
    """builtin, hf:FOLDER or completions:NAME@URL?tokenizer=FOLDER"""
    label: tuple[str, ...] = ()
    """voters on the answer: regex:PATTERN, FILE.py:FUNCTION of (prompt, answer), or judge:MODEL;
    a JSON list where a pattern holds a comma"""
    ties: Literal["no", "yes"] = "no"
    """what half of the votes for yes make"""
    k: int = Field(8, ge=1)
    """rollouts of each prompt and mode"""
    modes: tuple[Mode, ...] = ("thinking", "none")
    """with thinking, and with an empty thinking block"""
    open: str = ""
    """text that opens thinking, left out where the prompt ends with it already; empty:
    <think>, or the analysis channel of GPT-OSS and its like"""
    close: str = ""
    """text that closes it; empty: </think>, or the head of the final channel"""
    primer: str = ""
    """text that every thinking starts with; a sentence on safety is the defence SafePath-ZS"""
    guard: Literal["none", "reminder", "self-check"] = "none"
    """a defence while sampling: SafeRemind's reminder where the model grows sure, or PSR's question to itself"""
    reminder: str = "\nWait. Is it safe to help with this?\n"
    """what SafeRemind puts in"""
    think_tokens: int = Field(16384, ge=1)
    """thinking is closed by force, or with --no-force left open, after so many tokens"""
    answer_tokens: int = Field(1024, ge=1)
    """the answer's own budget"""
    force: bool = True
    """close thinking that reaches its budget"""
    close_ended: bool = False
    """also close thinking in which the model ends its reply, as one does that writes no marker of its own"""
    temperature: float = Field(0.6, ge=0)
    """of thinking and answer"""
    top_p: float = Field(0.95, gt=0, le=1)
    """of thinking and answer"""
    top_k: int = Field(0, ge=0)
    """of thinking and answer; 0 keeps all"""
    seed: int = 0
    """seed from which every sample is derived"""


@dataclass(frozen=True)
class StudyPrompt:
    """A prompt of a study."""

    id: str
    prompt_ids: tuple[int, ...]
    prompt: str = ""
    """As text; empty where only ids were given."""
    pool: str = ""
    source: str | None = None
    slice: str = ""

    @property
    def text(self) -> str:
        """As it was given, else its ids."""
        return self.prompt or " ".join(map(str, self.prompt_ids))


@dataclass(frozen=True)
class TraceEntry:
    """A trace as the journal has it; its tokens and texts are its nodes'."""

    prompt: str
    mode: Mode
    sample: int
    closed: Closed
    status: TraceStatus
    outcome: bool | None
    thought: str
    """The node of the thinking."""
    said: str | None
    """The node of the answer."""

    @property
    def key(self) -> str:
        """Its name in the study."""
        return trace_key(self.prompt, self.mode, self.sample)


@dataclass(frozen=True)
class StudyTrace(TraceEntry):
    """A trace as the stages read it."""

    start: int
    """Where the thinking begins in its node."""
    thinking: tuple[int, ...]
    answer: str | None
    answer_ids: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class NewTrace:
    """A trace that is not stored yet."""

    prompt: str
    mode: Mode
    sample: int
    thinking: Sequence[int]
    closed: Closed
    status: TraceStatus
    outcome: bool | None = None
    answer: str | None = None
    answer_ids: Sequence[int] | None = None
    stop: str = ""
    judge: str = ""
    votes: Any = None
    """What the jury says of its vote."""


@dataclass(frozen=True)
class CutCounts:
    """What answers after a cut say: ``k`` yes of ``n`` that were judged."""

    trace: str
    tokens: int
    """Of thinking before the cut."""
    status: Literal["done", "no_room"]
    k: int
    n: int
    missing: int


@dataclass(frozen=True)
class PrefixCounts(CutCounts):
    """A prefix that was continued."""

    prompt: str
    share: float
    way: Way


@dataclass(frozen=True)
class TurnCounts(CutCounts):
    """A cut at a turn of stance, so many chunks into the thinking."""

    chunk: int


@dataclass(frozen=True)
class StanceRatings:
    """Stances of a trace's chunks: those of each judge (None where it gave none), what was settled, and where they turn."""

    prompt: str
    chunks: int
    loop: bool
    ratings: tuple[tuple[int, ...] | None, ...]
    stances: tuple[int | None, ...]
    turns: tuple[Transition, ...]


@dataclass(frozen=True)
class RatingSettings:
    """What decides the ratings of a study."""

    judges: tuple[str, ...]
    show_prompt: bool
    limit: int
    least: int
    before: int
    after: int
    ties_refuse: bool


@dataclass(frozen=True, slots=True)
class Written:
    """How a trace's thinking stands in the reply: all ``tokens`` between prompt and answer, of which ``before`` come first, their
    text, and where each ends in it (None: not known)."""

    tokens: Sequence[int]
    before: int
    text: str
    ends: np.ndarray | None = None
    generated: bool = True
    """Whether the model sampled the thinking, or it is from elsewhere."""


class Study:
    """A run with one study: its settings, prompts and traces, and what later stages found.
    Use it as a context manager, or close it.

    Raises UserError where the run is none of a study.
    """

    def __init__(self, run: Run) -> None:
        if run.kind != KIND:
            raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
        self.run, self.folder = run, run.folder
        known = {name: value for name, value in run.config.items() if name in StudyConfig.model_fields}
        self.config = check(StudyConfig, known, f"the stored settings of {run.folder}")
        self.source = codec.from_json(StudySource, run.parts, str(run.folder))
        """The model and voters the traces are of."""

    @classmethod
    def begin(
        cls, folder: Path, config: StudyConfig, problems: Sequence[TokenProblem], source: StudySource | None = None
    ) -> Study:
        """The study in ``folder``, open for writing: a new one, or the one that the same settings, prompts and ``source`` began.

        Raises UserError where these are others (:meth:`ramify.trace.db.Run.begin`).
        """
        parts = {**codec.to_json(source or StudySource()), "prompts": json_hash(codec.to_json(list(problems)))}
        run = Run.begin(folder, KIND, config.to_json(), parts=parts)
        try:
            study = cls(run)
            study.add_prompts(problems)
        except BaseException:
            run.close()
            raise
        return study

    @classmethod
    def open(cls, folder: Path, write: bool = False) -> Study:
        """A study that is there. Raises UserError where there is none, and for writing where another process writes to it."""
        if not holds_run(folder):
            raise UserError(f"{folder} holds no study of early decisions: `ramify {KIND}` makes one")
        run = Run.open(folder, write)
        try:
            return cls(run)
        except BaseException:
            run.close()
            raise

    def close(self) -> None:
        """Commit and close; closing twice is fine."""
        self.run.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @cached_property
    def prompts(self) -> dict[str, StudyPrompt]:
        """Prompts by id, in the order of the file they came in."""
        ids = {node.tree: node.tokens for node in self._nodes.values() if node.role == "user" and node.tokens is not None}
        return {
            tree.name: codec.from_json(
                StudyPrompt,
                {**tree.task["data"], "id": tree.name, "prompt_ids": ids[tree.name].tolist()},
                f"{self.folder}, prompt '{tree.name}'",
            )
            for tree in self.run.each(TreeInfo)
        }

    @cached_property
    def traces(self) -> dict[str, StudyTrace]:
        """Traces by key (prompt/mode/sample)."""
        return {key: self._trace(entry) for key, entry in self.run.memo(TRACE, TraceEntry).items()}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        """Prompts and traces, without what continues them."""
        return {node.id: node for node in self.run.each(Node) if node.purpose in ("", ROLLOUT)}

    @property
    def continued(self) -> dict[str, PrefixCounts]:
        """Prefixes that were continued."""
        return self.run.memo(CONTINUED, PrefixCounts)

    @property
    def stances(self) -> dict[str, StanceRatings]:
        """Stances by trace."""
        return self.run.memo(STANCES, StanceRatings)

    @property
    def cuts(self) -> dict[str, TurnCounts]:
        """Cuts at turns of stance."""
        return self.run.memo(CUT, TurnCounts)

    def labelled(self, mode: Mode = "thinking") -> list[StudyTrace]:
        """Traces whose answer was judged, in an order that does not depend on when they were sampled."""
        rows = [row for row in self.traces.values() if row.mode == mode and row.status == "labelled"]
        order = {name: i for i, name in enumerate(self.prompts)}
        return sorted(rows, key=lambda row: (order[row.prompt], row.sample))

    def prefixes(self, m: int) -> list[StudyTrace]:
        """``m`` traces of each prompt, chosen by a hash of model, prompt and sample (3.6)."""

        def rank(row: StudyTrace) -> int:
            return derive_key(self.config.seed, self.source.model, row.prompt, row.sample)

        of = groupby(self.labelled(), lambda row: row.prompt)
        return [row for _, rows in of for row in sorted(sorted(rows, key=rank)[:m], key=lambda row: row.sample)]

    @property
    def pools(self) -> dict[str, list[str]]:
        """Prompts by the pool they belong to, "" where none is named."""
        pools = sorted({one.pool for one in self.prompts.values()})
        return {pool: [name for name, one in self.prompts.items() if one.pool == pool] for pool in pools}

    def add(self, row: NewTrace, written: Written) -> None:
        """Store a trace with the attempt that it is, and commit."""
        name = row.prompt
        prompt = self._nodes[self._prompt_nodes[name]]
        end, generated = written.before + len(row.thinking), written.generated and row.mode == "thinking"
        sampled = np.zeros(len(written.tokens), bool)
        sampled[written.before : len(sampled) if row.closed == "own" else end] = True
        answers = self.provenance("answer_tokens") if written.generated else None
        by = self.provenance("think_tokens") if generated else answers
        leaf = thought = make_node(
            name,
            prompt.id,
            len(prompt),
            "assistant",
            written.text,
            tokens=written.tokens,
            sampled=sampled if generated else None,
            ends=written.ends,
            provenance=by and by.hash if generated else None,
            purpose=ROLLOUT if generated else "",
            index=row.sample if row.mode == "thinking" else -1,
            data={"mode": row.mode, "closed": row.closed, "thinking": [written.before, end]},
        )
        records: list[Record] = [*filter(None, [by, answers]), thought]
        if row.answer is not None:
            tokens = row.answer_ids
            leaf = make_node(
                name, thought.id, len(thought), "assistant", row.answer, tokens=tokens, opens=False,
                sampled=None if tokens is None or answers is None else np.ones(len(tokens), bool),
                provenance=answers and answers.hash, purpose=ROLLOUT if answers else "", index=row.sample,
                stop=row.stop if row.stop in STOPS else "",
            )  # fmt: skip
            records.append(leaf)
            if row.votes is not None:
                value = None if row.outcome is None else float(row.outcome)
                judges = {"jury": row.judge} if row.judge else {}
                records.append(Score(leaf.id, "label", value, "outcome", None, row.votes, judges=judges))
        cut = row.status in ("truncated", "no_room") or row.stop == "length"
        purpose = ROLLOUT if written.generated else IMPORT
        records.append(
            AttemptRecord(
                leaf.id,
                name,
                None,
                0,
                purpose,
                row.sample,
                row.outcome,
                truncated=cut,
                provenance=None if by is None else by.hash,
            )
        )
        entry = TraceEntry(
            name, row.mode, row.sample, row.closed, row.status, row.outcome, thought.id, None if leaf is thought else leaf.id
        )
        self.run.once(TRACE, entry.key, TraceEntry, lambda: (entry, records))
        self._nodes.update((node.id, node) for node in (thought, leaf))
        self.traces[entry.key] = self._trace(entry)

    def _trace(self, entry: TraceEntry) -> StudyTrace:
        """A trace with what its nodes say."""
        thought, said = self._nodes[entry.thought], None if entry.said is None else self._nodes[entry.said]
        start, end = thought.data["thinking"] if entry.mode == "thinking" else (0, 0)
        return StudyTrace(
            **vars(entry),
            start=start,
            thinking=() if thought.tokens is None else tuple(thought.tokens[start:end].tolist()),
            answer=None if said is None else said.text,
            answer_ids=None if said is None or said.tokens is None else tuple(said.tokens.tolist()),
        )

    def mark(self, trace: StudyTrace, tokens: int, name: str, maker: str, value: Any) -> list[Record]:
        """Something to remember after ``tokens`` of a trace's thinking; none where these are more than it has."""
        if tokens > len(trace.thinking):
            return []
        return [Annotation(trace.thought, trace.start + tokens, name, maker, codec.to_json(value))]

    def found(self, stage: str, of: type[S]) -> S | None:
        """What a stage found, None where it has not run."""
        known = self.run.results(stage)
        return codec.from_json(of, known[-1].result, f"{self.folder}, the result of {stage}") if known else None

    def conclude(self, stage: str, found: StageFound, evidence: Any, settings: Mapping[str, Any], *more: Finding) -> None:
        """Store what a stage found, and its verdict in a sentence, instead of what it found before."""
        name = stage.removeprefix("early-decision ")
        verdict = Finding(name, stage, found.verdict, evidence=codec.to_json(evidence), identity=settings)
        with self.run.transaction():
            self.run.conclude(stage, [verdict, *more])
            self.run.add(KeptResult(stage, *found.as_kept()))

    def settle(self, settings: RatingSettings) -> None:
        """Keep what decides the ratings. Raises UserError where others are there, naming them."""
        known = self.run.once(RATED, "settings", RatingSettings, lambda: (settings, ()))
        names = [one.name for one in fields(settings) if getattr(known, one.name) != getattr(settings, one.name)]
        if names:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
            raise UserError(f"{self.folder} holds stances of other settings ({flags}): begin another run, or rate with these")

    @property
    def rated(self) -> bool:
        """Whether stances were rated."""
        return bool(self.run.journal(RATED))

    @cached_property
    def _prompt_nodes(self) -> dict[str, str]:
        return {node.tree: node.id for node in self._nodes.values() if node.role == "user"}

    def add_prompts(self, problems: Sequence[TokenProblem]) -> None:
        """Store prompts: a tree each, and its tokens as a given message. Those that are there stay as they are."""
        with self.run.transaction():
            for one in problems:
                self.run.add_tree(one.id, {"id": one.id, "data": dict(one.data)})
                text = str(one.data.get("prompt") or " ".join(map(str, one.prompt_ids)))
                self.run.add(make_node(one.id, root(self.run, one.id).id, 0, "user", text, tokens=one.prompt_ids))

    def provenance(self, limit: Literal["think_tokens", "answer_tokens"]) -> Provenance:
        """Who samples thinking, or answers, and how."""
        config = self.config.to_json()
        settings = {name: config[name] for name in ("temperature", "top_p", "top_k", limit, "guard", "primer")}
        return Provenance(self.source.model, self.source.weights, settings, self.config.seed)


def trace_key(prompt: str, mode: Mode, sample: int) -> str:
    """The name of a trace in its study."""
    return f"{prompt}/{mode}/{sample}"
