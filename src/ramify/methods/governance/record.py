"""Episodes of a bench as a run: what was shown and said as nodes, outcome and survival as scores, each row in the journal.

A row is committed when its episode ends, so an interrupted bench continues after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.rollout.compact import Compaction
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import EVAL, AttemptRecord, Provenance, Score, make_node

KIND = "governance bench"
ENTRY = "episode"
"""What the journal calls a row; its key is the row's."""
FAILED = "/failed"
"""Ends the key of an episode that a failure ended."""


@dataclass(frozen=True, kw_only=True)
class CellLabels:
    """What is varied: which episode a row is of."""

    task: str
    kind: str
    language: str
    condition: str
    request: str
    """``trigger``, which the rule forbids, or ``allowed``."""
    channel: str
    strategy: str
    words: int
    rounds: int
    rep: int
    note: str
    summarizer: str
    agent: str


@dataclass(frozen=True, kw_only=True)
class BenchRow(CellLabels):
    """One episode: everything that the report reads."""

    key: str
    """Hash of all that decides it."""
    outcome: str
    """One of :data:`ramify.methods.governance.calls.OUTCOMES`."""
    violation: bool
    valid: bool
    why: str
    gate: str
    """Why the episode is not what its condition says, "" where it is."""
    survival: str
    """What became of the rule in the context: one of :data:`ramify.rollout.rules.CLASSES`."""
    survived: bool
    completed: bool
    """Of an allowed request: whether it was done."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    """Name and arguments of each call of the reply."""
    reply: str
    context: str
    """What the agent was shown, where something was compacted."""
    compactions: tuple[Compaction, ...]
    messages: str
    """Hash of what the agent was shown."""
    tokens_in: int
    tokens_out: int
    sampling: Mapping[str, int | float]
    node: str = ""
    """The reply, of an episode that a run keeps."""

    @property
    def counts(self) -> bool:
        """Whether it says anything of the rule."""
        return self.valid and not self.gate


def begin(folder: Path, config: Mapping[str, Any]) -> Run:
    """The run of a bench. Its settings decide no more than which episodes are played, so each call may have others.
    Raises as :meth:`ramify.trace.db.Run.begin`.
    """
    return Run.begin(folder, KIND, {}, config)


def keep(run: Run, row: BenchRow, shown: Sequence[Message]) -> BenchRow:
    """Store an episode and commit; returns its row with the reply's ``node``.
    ``shown`` is what the agent was shown. One that failed is kept once, until it is played to its end."""
    tree, entry = f"{row.task}/{row.language}", f"{row.key}{FAILED if row.outcome == 'error' else ''}"
    if known := run.journal(ENTRY, entry):
        return codec.from_json(BenchRow, known[0].payload, f"{run.folder}, {ENTRY} '{entry}'")
    with run.transaction():
        run.add_tree(tree, {"id": tree, "data": {"task": row.task, "kind": row.kind}})
        node = root(run, tree)
        for message in shown:
            node = make_node(tree, node.id, len(node), message.role, message.text, data=dict(message.data))
            run.add(node)
        provenance = Provenance(row.agent, "", row.sampling, 0)
        calls = [{"name": name, "arguments": given} for name, given in row.calls]
        about = {"condition": row.condition, "request": row.request, "key": row.key} | ({"calls": calls} if calls else {})
        reply = make_node(
            tree,
            node.id,
            len(node),
            "assistant",
            row.reply,
            provenance=provenance.hash,
            index=int(stable_hash(entry)[:7], 16),
            data=about,
            stop="failed" if row.outcome == "error" else "",
        )
        attempt = AttemptRecord(
            reply.id,
            tree,
            purpose=EVAL,
            index=reply.index,
            outcome=not row.violation if row.counts else None,
            truncated=row.outcome == "truncated",
            failure=row.why if row.outcome == "error" else None,
            provenance=provenance.hash,
        )
        run.add(provenance, reply, *_scores(reply.id, row), attempt)
        kept = replace(row, node=reply.id)
        run.log(ENTRY, entry, codec.to_json(kept))
    return kept


def _scores(node: str, row: BenchRow) -> Iterable[Score]:
    """What the scenario's predicate says of the reply, and the keyword test of the context;
    no value where the episode counts for nothing."""
    evidence = {"outcome": row.outcome, "why": row.why, "gate": row.gate}
    predicate = json_hash(["predicate", row.task, row.kind])
    yield Score(
        node,
        "predicate",
        float(row.violation) if row.counts else None,
        "violation",
        None,
        evidence,
        judges={"predicate": predicate},
    )
    survival = {"survival": row.survival}
    yield Score(
        node, "keywords", float(row.survived), "survival", None, survival, judges={"keywords": stable_hash("trace.rules")}
    )


def rows_of(run: Run) -> list[BenchRow]:
    """The rows of a run, in the order in which they were played; an episode that failed only where it was not played again.
    Raises UserError on one that is none."""
    where = f"{run.folder}, {ENTRY}"
    rows = [codec.from_json(BenchRow, entry.payload, f"{where} '{entry.key}'") for entry in run.journal(ENTRY)]
    done = {row.key for row in rows if row.outcome != "error"}
    return [row for row in rows if row.outcome != "error" or row.key not in done]


def read_rows(path: Path) -> list[BenchRow]:
    """The rows of a bench's run. Raises UserError on anything else."""
    with Run.open(path) as run:
        if run.kind != KIND:
            raise UserError(f"{path} was not made by `ramify {KIND}`")
        return rows_of(run)
