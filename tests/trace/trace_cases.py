"""Records for the store's tests: hypothesis strategies, and one run that holds every kind of record."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ramify.trace.db import Run
from ramify.trace.node import (
    STOPS,
    Annotation,
    AttemptRecord,
    Context,
    Finding,
    Insert,
    Node,
    Provenance,
    Score,
    Span,
    TokenValues,
    make_node,
)

TEXT = st.text(st.characters(), max_size=12)  # lone surrogates and NUL included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FLOAT32 = st.floats(width=32)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


def same_array(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None and b is None) or (
        a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    )


def same_node(a: Node, b: Node) -> bool:
    arrays = ("tokens", "sampled", "logprobs", "ends")
    plain = [name for name in Node.__slots__ if name not in arrays]
    return all(getattr(a, n) == getattr(b, n) for n in plain) and all(same_array(getattr(a, n), getattr(b, n)) for n in arrays)


@st.composite
def trees(draw: Any, provenance: str | None = None, name: str = "t") -> list[Node]:
    """Nodes of one tree, parents first, of every shape a node can have."""
    nodes = [make_node(name, None, 0, "root", "")]
    for index in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from(nodes))
        fields: dict[str, Any] = {
            "index": index,
            "opens": draw(st.booleans()),
            "provenance": draw(st.sampled_from([None, provenance])),
            "snapshot": draw(st.none() | TEXT),
            "state_key": draw(st.none() | TEXT),
            "stop": draw(st.sampled_from(STOPS)),
            "reward": draw(st.none() | NUMBER),
            "data": draw(st.dictionaries(TEXT, JSON, max_size=2)),
        }
        if draw(st.booleans()):
            n = draw(st.integers(0, 20))
            fields["tokens"] = draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n))
            for key, entry in (("sampled", st.booleans()), ("logprobs", FLOAT32), ("ends", st.integers(0, 99))):
                if draw(st.booleans()):
                    fields[key] = draw(st.lists(entry, min_size=n, max_size=n))
        role = draw(st.sampled_from(["user", "assistant", "tool"]))
        nodes.append(make_node(name, parent.id, draw(st.integers(0, len(parent))), role, draw(TEXT), **fields))
    return nodes


PROVENANCE = Provenance("tiny", "w1", {"temperature": 1.0, "stop_tokens": [3]}, 7, {"layer": 1})


def fill(run: Run) -> dict[str, str]:
    """Every kind of record; returns ids by name. The committed schema-v1 fixture holds exactly this."""
    run.add_tree("update-000/task-1", {"id": "task-1", "data": {"goal": "dör"}}, "update-000", {"budget": 3})
    run.add_tree("chat", {}, "chats")
    root = make_node("update-000/task-1", None, 0, "root", "")
    ask = make_node(
        root.tree, root.id, 0, "user", "hi", tokens=[1, 5, 6, 2], ends=[0, 1, 2, 2], snapshot='{"door":1}', state_key="k0"
    )
    blob = run.put_blob(b"\x00state\xff")
    sampled = [
        make_node(
            root.tree, ask.id, 4, "assistant", text, tokens=[1, 9, 9, 2], sampled=[False, True, True, True],
            logprobs=[0, -0.5, -0.25, -float("inf")], ends=[0, 1, 2, 2], provenance=PROVENANCE.hash, index=i, stop="eos",
            snapshot=f"blob:{blob}", data={"calls": [{"span": [1, 3]}]},
        )
        for i, text in enumerate(["go", "go", "no"])
    ]  # fmt: skip
    context = Context((Insert("so far: ", (7, 8), "user"), Span(ask.id, 1, 3), Insert("!")))
    fork = make_node(
        root.tree, sampled[0].id, 2, "assistant", "oo", tokens=[4], sampled=[True], logprobs=[-1.5], ends=[2], opens=False,
        context=context.hash, provenance=PROVENANCE.hash, index=0, stop="terminated", reward=1.0,
    )  # fmt: skip
    odd = make_node("chat", None, 0, "user", "lone \ud800 and \x00", data={"né": [None, 1.5]})
    run.add(PROVENANCE, context, root, ask, *sampled, fork, odd)
    run.add(TokenValues(fork.id, "credit", "graph", np.array([0.5])), TokenValues(odd.id, "credit", "graph", np.array([np.nan])))
    run.add(Annotation(ask.id, 2, "why", "graph", {"V": 0.25}), Annotation(ask.id, 4, "note", "me", "end"))
    run.add(Score(fork.id, "env", 1.0, judges={"env": "j0"}, evidence={"steps": 2}))
    run.add(*attempts({"drawn": sampled[0].id, "fork": fork.id}))
    run.add(Score(fork.id, "judge", None, "points", 0.5, cost={"tokens": 12.0}, judges={"a": "j1", "b": "j2"}))
    run.log("update", "000", {"done": True})
    run.commit()
    return {"root": root.id, "ask": ask.id, "drawn": sampled[0].id, "fork": fork.id, "odd": odd.id, "blob": blob}


def attempts(ids: dict[str, str]) -> list[AttemptRecord]:
    """Attempts that end at nodes of :func:`fill`."""
    tree, by = "update-000/task-1", PROVENANCE.hash
    return [
        AttemptRecord(ids["drawn"], tree, failure="lone \ud800", provenance=by),
        AttemptRecord(ids["fork"], tree, ids["drawn"], 2, "why: \x00", 7, True, 1.0, True, None, by),
    ]


def findings(ids: dict[str, str]) -> list[Finding]:
    """Findings at nodes of :func:`fill`, and of the whole run."""
    evidence, identity = {"p": 0.01}, {"level": 0.05, "judges": ["j1"]}
    return [
        Finding(
            "decisive step", "graph-credit mark", "it stands out", ids["fork"], 1, "fork here", 0.5, "reward", evidence, identity
        ),
        Finding("nothing found", "audit", "lone \ud800"),
    ]
