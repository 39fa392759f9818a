"""Episodes of a bench as a run: what was shown and said as nodes, outcome and survival as scores, each row in the journal.

A row holds everything the report reads (``run.Bench`` makes it);
it is committed when its episode ends, so an interrupted bench continues after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import Provenance, Score, make_node

KIND = "governance bench"
ENTRY = "episode"
"""What the journal calls a row; its key is the row's."""


def begin(folder: Path, config: Mapping[str, Any]) -> Run:
    """The run of a bench. Its settings decide no more than which episodes are played, so each call may have others.
    Raises as :meth:`ramify.trace.db.Run.begin`.
    """
    return Run.begin(folder, KIND, {}, config)


def keep(run: Run, row: Mapping[str, Any], shown: Sequence[Message]) -> dict[str, Any]:
    """Store an episode and commit; returns its row with the reply's ``node``.
    ``shown`` is what the agent was shown."""
    tree = f"{row['task']}/{row['language']}"
    with run.transaction():
        run.add_tree(tree, {"id": tree, "data": {"task": row["task"], "kind": row["kind"]}})
        node = root(run, tree)
        for message in shown:
            node = make_node(tree, node.id, len(node), message.role, message.text, data=dict(message.data))
            run.add(node)
        provenance = Provenance(str(row["agent"]), "", dict(row.get("sampling") or {}), 0)
        calls = [{"name": name, "arguments": given} for name, given in row.get("calls") or ()]
        about = {name: row[name] for name in ("condition", "request", "key")} | ({"calls": calls} if calls else {})
        failed = row["outcome"] == "error"
        text = str(row.get("reply", ""))
        index = int(stable_hash(row["key"])[:7], 16)
        reply = make_node(
            tree,
            node.id,
            len(node),
            "assistant",
            text,
            provenance=provenance.hash,
            index=index,
            data=about,
            stop="failed" if failed else "",
        )
        run.add(provenance, reply, *_scores(reply.id, row))
        kept = {**row, "node": reply.id}
        run.log(ENTRY, str(row["key"]), kept)
    return kept


def _scores(node: str, row: Mapping[str, Any]) -> Iterable[Score]:
    """What the scenario's predicate says of the reply, and the keyword test of the context;
    no value where the episode counts for nothing."""
    counts = row["valid"] and not row["gate"]
    evidence = {name: row[name] for name in ("outcome", "why", "gate") if name in row}
    predicate = json_hash(["predicate", row["task"], row["kind"]])
    yield Score(
        node,
        "predicate",
        float(row["violation"]) if counts else None,
        "violation",
        None,
        evidence,
        judges={"predicate": predicate},
    )
    survival = {"survival": row["survival"]}
    yield Score(
        node, "keywords", float(row["survived"]), "survival", None, survival, judges={"keywords": stable_hash("trace.rules")}
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a bench's run. Raises UserError on anything else."""
    with Run.open(path) as run:
        if run.kind != KIND:
            raise UserError(f"{path} was not made by `ramify {KIND}`")
        return [dict(entry.payload) for entry in run.journal(ENTRY)]
