"""What a page shows of an orchestrator's run: each worker, and each conversation with the route it took and who saw what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from ramify.methods.orchestrator.conversation import ANSWER, MAKER
from ramify.render.result import MOST_ROWS, Cell, Folded, Section, table
from ramify.trace.db import Run
from ramify.trace.node import Node, Score


def sections(run: Run) -> list[Section]:
    """Of runs of `orchestrator collect`, `run` and `eval`, finished or not."""
    trees = [info.name for info in run.trees()]
    calls = {name: _calls(run, name) for name in trees}
    if not any(calls.values()):
        return []
    found = [_workers(run, [node for nodes in calls.values() for node in nodes])]
    if run.kind != "orchestrator collect":  # there every worker answers every task by itself
        found.append(_conversations(run, calls))
    return found


def _calls(run: Run, tree: str) -> list[Node]:
    nodes = [node for node in run.tree(tree).nodes.values() if node.role == "assistant"]
    return sorted(nodes, key=lambda node: node.index)


def _workers(run: Run, nodes: Iterable[Node]) -> Section:
    rewards: dict[str, list[float]] = {}
    for score in run.each(Score):
        if score.value is not None:
            rewards.setdefault(score.node, []).append(score.value)
    by: dict[str, list[Node]] = {}
    for node in nodes:
        by.setdefault(worker_of(node), []).append(node)
    rows: list[tuple[Cell, ...]] = []
    for worker, own in sorted(by.items()):
        scored = [value for node in own for value in rewards.get(node.id, ())]
        failed = Counter(str(node.data["failure"]["kind"]) for node in own if node.data.get("failure"))
        rows.append(
            (
                worker,
                len(own),
                ", ".join(f"{kind} {n}" for kind, n in failed.items()) or 0,
                fmean(scored) if scored else None,
                sum(int(node.data.get("given_tokens") or 0) for node in own),
                sum(int(node.data.get("sampled_tokens") or 0) for node in own),
                float(sum(float(node.data.get("usd") or 0.0) for node in own)),
            )
        )
    head = ("worker", "calls", "failed", "mean score", "tokens in", "tokens out", "USD")
    says = "Scores are of answers: a step of a workflow and a call that failed have none."
    return Section.of("Workers", says, table(head, rows))


def _conversations(run: Run, calls: Mapping[str, list[Node]]) -> Section:
    ends = {one.node: one.value for one in run.annotations(name=ANSWER, maker=MAKER)}
    tasks = {info.name: info.task for info in run.trees()}
    rows: list[list[Any]] = []
    folded: list[Folded] = []
    for name, nodes in calls.items():
        value = next((ends[node.id] for node in nodes if node.id in ends), None)
        known = value if isinstance(value, Mapping) else {}
        prompt = str((tasks[name].get("data") or {}).get("prompt", ""))
        route = " → ".join(
            worker_of(node)
            + (f" ({node.data['role']})" if node.data.get("role") else "")
            + (" failed" if node.data.get("failure") else "")
            for node in nodes
        )
        rows.append([name, " ".join(prompt.split())[:80], route, known.get("tokens"), known.get("usd")])
        if len(folded) < MOST_ROWS:
            folded.append(Folded(f"{name}: who saw what", "\n\n".join(call_text(call_of(run, node, ends)) for node in nodes)))
    head = ("conversation", "asked", "route", "tokens", "USD")
    says = "Workers in the order in which they were asked; a call sees only what is listed below."
    return Section.of("Routes, and who saw what", says, table(head, rows), *folded)


def worker_of(node: Node) -> str:
    """Who a call asked."""
    return str(node.data.get("worker") or ("composer" if node.data.get("composer") else "?"))


def call_of(run: Run, node: Node, ends: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a conversation: who, why, what it was shown, its reply, tokens and USD;
    ``ends`` has the nodes that are answers."""
    names = ("workflow", "step", "role", "why", "usd", "given_tokens", "sampled_tokens", "failure")
    return {
        "worker": worker_of(node),
        **{name: node.data.get(name) for name in names},
        "number": node.index,
        "node": node.id,
        "saw": [one.to_openai() for one in run.shown(node.id).messages],
        "reply": node.text,
        "answer": node.id in ends,
    }


def call_text(one: Mapping[str, Any]) -> str:
    """A call in some lines."""
    head = (
        f"{one['number']}. {one['worker']}"
        + (f", step {one['step']}" if one["step"] is not None else "")
        + (f", {one['role']}" if one["role"] else "")
    )
    head += f" ({one['why']})" if one["why"] else ""
    lines = [head + (": THE ANSWER" if one["answer"] else "")]
    lines += [f"   saw {m['role']}: {' '.join(str(m['content']).split())[:160]}" for m in one["saw"]]
    failure = one["failure"]
    lines.append(
        f"   failed: {failure['kind']}: {failure['why']}" if failure else f"   said: {' '.join(one['reply'].split())[:400]}"
    )
    return "\n".join(lines)
