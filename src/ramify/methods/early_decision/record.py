"""A study of early decisions as a run: a tree a prompt, thinking and answers as nodes,
what later stages measured in the journal and at the tokens.

Each trace, prefix, rating and cut is committed when it is whole, so an interrupted stage continues after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ramify.base.config import Config, check
from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.base.seeds import derive_key
from ramify.rollout.token_traces import TokenProblem
from ramify.trace.connect import holds_run
from ramify.trace.db import Record, Run
from ramify.trace.foreign import root
from ramify.trace.node import STOPS, Annotation, Finding, Node, Provenance, Score, TreeInfo, make_node

Mode = Literal["thinking", "none"]
KIND = "early-decision run"
TRACE, CONTINUED, STANCES, CUT, RATED = "trace", "continuation", "stances", "cut", "oscillate"
"""Kinds of the journal's entries: a trace, a prefix that was continued, the stances of a trace,
a cut at a turn; the settings of the ratings."""
CONTINUE, OSCILLATE = "early-decision continue", "early-decision oscillate"
"""Maker of the annotations and findings of these stages."""


class StudyConfig(Config):
    """How traces are sampled and what counts as yes."""

    BASIC = "model label k modes guard think_tokens answer_tokens temperature seed"
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
    temperature: float = Field(0.6, ge=0)
    """of thinking and answer"""
    top_p: float = Field(0.95, gt=0, le=1)
    """of thinking and answer"""
    top_k: int = Field(0, ge=0)
    """of thinking and answer; 0 keeps all"""
    seed: int = 0
    """seed from which every sample is derived"""


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


class Rows:
    """Rows of one kind in a run's journal, by key; each is committed with the records that belong to it.
    ``rows`` holds all there are."""

    def __init__(self, run: Run, kind: str) -> None:
        self._run, self._kind = run, kind
        self.rows: dict[str, dict[str, Any]] = {entry.key: {"key": entry.key, **entry.payload} for entry in run.journal(kind)}

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def add(self, key: str, row: Mapping[str, Any], *records: Record) -> None:
        """Store one row; one that is there stays. Raises as :meth:`ramify.trace.db.Run.add`."""
        with self._run.transaction():
            self._run.add(*records)
            self._run.log(self._kind, key, dict(row))
        self.rows.setdefault(key, {"key": key, **row})


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
        self.source: dict[str, Any] = {name: value for name, value in run.parts.items() if name != "prompts"}
        """The model and voters the traces are of."""

    @classmethod
    def begin(
        cls, folder: Path, config: StudyConfig, problems: Sequence[TokenProblem], source: Mapping[str, Any] | None = None
    ) -> Study:
        """The study in ``folder``, open for writing: a new one, or the one that the same settings, prompts and ``source`` began.

        Raises UserError where these are others (:meth:`ramify.trace.db.Run.begin`).
        """
        rows = [prompt_row(p.id, p.prompt_ids, p.data) for p in problems]
        run = Run.begin(folder, KIND, config.to_json(), parts={**(source or {}), "prompts": json_hash(rows)})
        try:
            study = cls(run)
            study.add_prompts(rows)
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
    def prompts(self) -> dict[str, dict[str, Any]]:
        """Prompts by id, in the order of the file they came in: ``id``, ``prompt_ids``, ``data``."""
        ids = {node.tree: node.tokens for node in self._nodes.values() if node.role == "user" and node.tokens is not None}
        return {
            tree.name: {"id": tree.name, "prompt_ids": ids[tree.name].tolist(), "data": dict(tree.task["data"])}
            for tree in self.run.each(TreeInfo)
        }

    @cached_property
    def traces(self) -> dict[str, dict[str, Any]]:
        """Traces by key (prompt/mode/sample)."""
        return {entry.key: _row(entry.key, entry.payload, self._nodes) for entry in self.run.journal(TRACE)}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.id: node for node in self.run.each(Node)}

    def rows(self, kind: str) -> Rows:
        """What a stage measured: rows of CONTINUED, STANCES or CUT."""
        return Rows(self.run, kind)

    def labelled(self, mode: Mode = "thinking") -> list[dict[str, Any]]:
        """Traces whose answer was judged, in an order that does not depend on when they were sampled."""
        rows = [row for row in self.traces.values() if row["mode"] == mode and row["status"] == "labelled"]
        order = {name: i for i, name in enumerate(self.prompts)}
        return sorted(rows, key=lambda row: (order[row["prompt"]], row["sample"]))

    def prefixes(self, m: int) -> list[dict[str, Any]]:
        """``m`` traces of each prompt, chosen by a hash of model, prompt and sample (3.6)."""
        model = str(self.source.get("model", ""))

        def rank(row: dict[str, Any]) -> int:
            return derive_key(self.config.seed, model, row["prompt"], row["sample"])

        of = groupby(self.labelled(), lambda row: row["prompt"])
        return [row for _, rows in of for row in sorted(sorted(rows, key=rank)[:m], key=lambda row: row["sample"])]

    @property
    def pools(self) -> dict[str, list[str]]:
        """Prompts by the pool they belong to, "" where none is named."""
        pools = sorted({self.pool(name) for name in self.prompts})
        return {pool: [name for name in self.prompts if self.pool(name) == pool] for pool in pools}

    def pool(self, prompt: str) -> str:
        """The pool a prompt belongs to."""
        return str(self.prompts[prompt]["data"].get("pool", ""))

    def prompt_text(self, prompt: str) -> str:
        """A prompt as text: as it was given, else its ids."""
        row = self.prompts[prompt]
        return str(row["data"].get("prompt") or " ".join(map(str, row["prompt_ids"])))

    def add(self, row: Mapping[str, Any], written: Written) -> None:
        """Store a trace and commit: ``prompt``, ``mode``, ``sample``, ``thinking`` and what came of it."""
        name, key = row["prompt"], f"{row['prompt']}/{row['mode']}/{row['sample']}"
        prompt = self._nodes[self._prompt_nodes[name]]
        length, generated = len(row["thinking"]), written.generated and row["mode"] == "thinking"
        sampled = np.zeros(len(written.tokens), bool)
        sampled[written.before : len(sampled) if row["closed"] == "own" else written.before + length] = True
        by = self._provenance("think_tokens") if generated else None
        thought = make_node(
            name,
            prompt.id,
            len(prompt),
            "assistant",
            written.text,
            tokens=written.tokens,
            sampled=sampled if generated else None,
            ends=written.ends,
            provenance=by and by.hash,
            index=row["sample"] if row["mode"] == "thinking" else -1,
            data={"mode": row["mode"], "closed": row["closed"], "thinking": [written.before, written.before + length]},
        )
        records: list[Record] = [*filter(None, [by]), thought]
        kept = {part: value for part, value in row.items() if part not in ("key", "thinking", "answer", "answer_ids")}
        kept |= {"thought": thought.id}
        if "answer" in row:
            tokens, by = row.get("answer_ids"), self._provenance("answer_tokens") if written.generated else None
            stop = row.get("stop", "")
            answer = make_node(
                name, thought.id, len(thought), "assistant", row["answer"], tokens=tokens, opens=False,
                sampled=None if tokens is None or not written.generated else np.ones(len(tokens), bool),
                provenance=by and by.hash, index=row["sample"], stop=stop if stop in STOPS else "",
            )  # fmt: skip
            records += [*filter(None, [by]), answer]
            kept |= {"said": answer.id}
            if "votes" in row:
                value, evidence = row["outcome"], {"votes": row["votes"], "share": row["soft"]}
                judges = {"jury": str(row["judge"])} if row.get("judge") else {}
                records.append(
                    Score(answer.id, "label", None if value is None else float(value), "outcome", None, evidence, judges=judges)
                )
        with self.run.transaction():
            self.run.add(*records)
            self.run.log(TRACE, key, kept)
        self._nodes.update((node.id, node) for node in records if isinstance(node, Node))
        self.traces[key] = _row(key, kept, self._nodes)

    def mark(self, trace: Mapping[str, Any], tokens: int, name: str, maker: str, value: Mapping[str, Any]) -> list[Record]:
        """Something to remember after ``tokens`` of a trace's thinking; none where these are more than it has."""
        return (
            [Annotation(trace["node"], trace["start"] + tokens, name, maker, value)] if tokens <= len(trace["thinking"]) else []
        )

    def found(self, stage: str) -> Any:
        """All that a stage found (``probe``, ``valley``), None where it has not run."""
        known = [one for one in self.run.findings(maker=f"early-decision {stage}") if one.node is None]
        return known[-1].evidence if known else None

    def conclude(self, stage: str, why: str, evidence: Any, settings: Mapping[str, Any], *more: Finding) -> None:
        """Store what a stage found, and its verdict in a sentence, instead of what it found before."""
        maker = f"early-decision {stage}"
        self.run.conclude(maker, [Finding(stage, maker, why, evidence=evidence, identity=settings), *more])

    def settle(self, settings: Mapping[str, Any]) -> None:
        """Keep what decides the ratings. Raises UserError where others are there, naming them."""
        known = next((dict(entry.payload) for entry in self.run.journal(RATED)), None)
        if known is None:
            self.run.log(RATED, "settings", settings)
            self.run.commit()
            return
        flags = [
            f"--{name.replace('_', '-')}" for name, value in json.loads(json.dumps(settings)).items() if known.get(name) != value
        ]
        if flags:
            raise UserError(
                f"{self.folder} holds stances of other settings ({', '.join(flags)}): begin another run, or rate with these"
            )

    @property
    def rated(self) -> bool:
        """Whether stances were rated."""
        return bool(self.run.journal(RATED))

    @cached_property
    def _prompt_nodes(self) -> dict[str, str]:
        return {node.tree: node.id for node in self._nodes.values() if node.role == "user"}

    def add_prompts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store prompts: a tree each, and its tokens as a given message. Those that are there stay as they are."""
        with self.run.transaction():
            for one in rows:
                name, data = str(one["id"]), dict(one["data"])
                self.run.add_tree(name, {"id": name, "data": data})
                text = str(data.get("prompt") or " ".join(map(str, one["prompt_ids"])))
                self.run.add(make_node(name, root(self.run, name).id, 0, "user", text, tokens=one["prompt_ids"]))

    def _provenance(self, limit: str) -> Provenance:
        config = self.config.to_json()
        settings = {name: config[name] for name in ("temperature", "top_p", "top_k", limit, "guard", "primer")}
        return Provenance(str(self.source.get("model", "")), str(self.source.get("weights", "")), settings, self.config.seed)


def prompt_row(name: str, ids: Sequence[int], data: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt as its run's hash of all prompts takes it."""
    return {"id": name, "prompt_ids": [int(token) for token in ids], "data": dict(data)}


def _row(key: str, kept: Mapping[str, Any], nodes: Mapping[str, Node]) -> dict[str, Any]:
    """A trace as the stages read it: its entry in the journal, with what its nodes say."""
    thought = nodes[kept["thought"]]
    start, end = thought.data["thinking"] if kept["mode"] == "thinking" else (0, 0)
    row = {name: value for name, value in kept.items() if name not in ("thought", "said")}
    row |= {
        "key": key,
        "node": thought.id,
        "start": start,
        "thinking": [] if thought.tokens is None else thought.tokens[start:end].tolist(),
    }
    if "said" in kept:
        answer = nodes[kept["said"]]
        row |= {"answer": answer.text} | ({} if answer.tokens is None else {"answer_ids": answer.tokens.tolist()})
    return row


def counted(row: Mapping[str, Any]) -> dict[str, Any]:
    """What an annotation of a potential says: counts of yes at this position."""
    return {name: row[name] for name in ("share", "chunk", "status", "k", "n", "missing") if name in row}
