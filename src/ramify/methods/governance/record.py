"""Episodes of a bench as a run: what was shown and said as nodes, outcome and survival as scores, each row in the journal.

A row holds everything the report reads (``run.Bench`` makes it);
it is committed when its episode ends, so an interrupted bench continues after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.ids import json_hash, stable_hash
from ramify.base.registry import register
from ramify.methods.governance.algorithm import CONDITIONS
from ramify.trace.connect import FILE
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.formats import Reader
from ramify.trace.jsonl import new_run
from ramify.trace.lines import at_place, field, read_lines
from ramify.trace.message import Message
from ramify.trace.node import Provenance, Score, make_node

KIND = "governance bench"
ENTRY = "episode"
"""What the journal calls a row; its key is the row's."""
_FIELDS: dict[str, type] = dict.fromkeys(
    (
        "key",
        "task",
        "kind",
        "language",
        "condition",
        "request",
        "channel",
        "strategy",
        "outcome",
        "survival",
        "agent",
        "summarizer",
        "gate",
    ),
    str,
)
_FIELDS |= {"violation": bool, "valid": bool, "survived": bool, "completed": bool, "words": int, "rounds": int}


def begin(folder: Path, config: Mapping[str, Any]) -> Run:
    """The run of a bench. Its settings decide no more than which episodes are played, so each call may have others.

    Raises UserError where ``folder`` is a file, such as one of rows of an older ramify.
    """
    if folder.is_file():
        raise UserError(
            f"{folder} is a file and no run: `ramify import {folder} --run DIR` makes one of rows, which continues under --out "
            "DIR"
        )
    return Run.begin(folder, KIND, {}, config)


def keep(run: Run, row: Mapping[str, Any], shown: Sequence[Message] = ()) -> dict[str, Any]:
    """Store an episode and commit; returns its row with the reply's ``node``.
    ``shown`` is what the agent was shown (of an older row the summary, where it has one)."""
    tree = f"{row['task']}/{row['language']}"
    with run.transaction():
        run.add_tree(tree, {"id": tree, "data": {"task": row["task"], "kind": row["kind"]}})
        node = root(run, tree)
        for message in shown or ([Message("user", str(row["context"]))] if row.get("context") else []):
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
    """The rows of a bench's run, or of a file that an older ramify wrote; there a last line that a crash cut off is left out.

    Raises UserError on anything else.
    """
    if (path / FILE).is_file():
        with Run.open(path) as run:
            if run.kind != KIND:
                raise UserError(f"{path} was not made by `ramify {KIND}`")
            return [dict(entry.payload) for entry in run.journal(ENTRY)]
    rows = []
    for number, row in read_lines(path, ended=True):
        where = f"{path}:{number}"
        for name, kind in _FIELDS.items():
            field(row, name, kind, where)
        if row["condition"] not in CONDITIONS:
            raise UserError(f"{where}: unknown condition '{row['condition']}' ({nearest(row['condition'], CONDITIONS)})")
        for name in ("context", "reply"):
            field(row, name, str, where, "")
        field(row, "sampling", dict, where, {})
        for call in field(row, "calls", list, where, []):
            if not isinstance(call, list) or len(call) != 2 or not isinstance(call[0], str):
                raise UserError(f"{where}: 'calls' must hold pairs of a name and its arguments")
        rows.append(row)
    return rows


def import_rows(path: Path, folder: Path) -> int:
    """Make a run of a file of rows. Returns how many; raises as :func:`read_rows`."""
    rows = read_rows(path)
    if not rows:
        raise UserError(f"{path} holds no record")
    with new_run(folder, {"imported": {"form": "governance", "file": path.name}}, KIND) as run:
        for row in rows:
            with at_place(f"{path}, episode '{row['key']}'"):
                keep(run, row)
    return len(rows)


register("reader", "governance")(
    Reader(
        "governance",
        "Rows that `ramify governance bench` of version 0.1.0 wrote: episodes with their scores.",
        lambda path, first: first is not None and {"key", "condition", "survival", "summarizer"} <= first.keys(),
        import_rows,
    )
)
