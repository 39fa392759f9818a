"""Traces of verifiers into a run: version 1 (``traces.jsonl``, a graph of messages) and the older ``results.jsonl``.

A task is a tree, each trace of it an attempt; where a trace's graph has branches (a compaction, a subagent) the tree has them
too. Tokens, masks and log-probs are kept where the trace has them; its other numbers per token become per-token values. The file
is read line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.base.secrets import redact
from ramify.integrations.trainers.reading import SINGLE
from ramify.trace.aliases import ENDINGS, FAILURES, IMPORTED, KNOWN, NOTHING, RECORD
from ramify.trace.chats import FINISHED, open_calls
from ramify.trace.db import Run
from ramify.trace.foreign import Thread, end_attempt, import_records, root
from ramify.trace.formats import Reader
from ramify.trace.lines import field, first_record
from ramify.trace.message import Message, number, plain, read_message
from ramify.trace.node import Annotation, Node, Provenance, Score, TokenValues
from ramify.trace.notes import unread

TRACE_VERSION = 1
FILES = ("traces.jsonl", "results.jsonl")
MAKER = "verifiers"
#: Numbers a trace may hold for each sampled token, alongside its log-probs.
_STREAMS = ("advantages", "reference_logprobs", "trainer_logprobs", "entropies")


def read_traces(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from a file of verifiers, or the folder one is in.
    Returns how many episodes (or results) it holds.

    Raises UserError naming file, line and field; nothing is left in ``folder`` then.
    """
    file = _file(path)
    importer = _Traces()
    return import_records(file, folder, "verifiers", importer.add)


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = next((path / name for name in FILES if (path / name).is_file()), None)
    if found is None:
        raise UserError(f"{path} holds none of verifiers' files ({', '.join(FILES)})")
    return found


def _matches(path: Path, first: Mapping[str, Any] | None) -> bool:
    if path.is_dir():
        found = next((path / name for name in FILES if (path / name).is_file()), None)
        first = None if found is None else first_record(found)[1]
    return first is not None and any(
        names <= first.keys()
        for names in ({"traces", "task"}, {"nodes", "task", "agent"}, {"example_id", "prompt", "completion"})
    )


class _Traces:
    """Adds episodes, traces and results. Remembers the task of each tree, a few words each."""

    def __init__(self) -> None:
        self._attempts = count()
        self._trees: dict[str, tuple[str, dict[str, Any], str]] = {}

    def add(self, run: Run, record: dict[str, Any], where: str, _: int) -> None:
        if "example_id" in record:
            self._add_result(run, record, where)
            return
        if "nodes" in record:
            self._add_trace(run, self._tree(run, record, where), record, {}, where)
            return
        traces = field(record, "traces", list, where)
        tree = self._tree(run, record, where)
        about = {k: v for k, v in record.items() if k not in ("traces", "task")}
        for at, trace in enumerate(traces):
            if not isinstance(trace, dict):
                raise UserError(f"{where}: trace {at} is not an object")
            self._add_trace(run, tree, trace, about, f"{where}: trace {at}")
        if not traces:  # it failed before an agent began
            stop = "" if record.get("ok") else "failed"
            message = Message("user", "", {"episode": _about(about)})
            end_attempt(run, Thread(run, tree, next(self._attempts)).hang(message, False, True, stop=stop))

    def _tree(self, run: Run, record: dict[str, Any], where: str) -> str:
        """The tree of a record's task: called as the task is, and apart from another task of that name."""
        task = field(record, "task", dict, where)
        data = field(task, "data", dict, f"{where}: 'task'")
        env = field(record, "env", dict, where, {}).get("id") or ""
        key = str(task.get("key") or task.get("hash") or json_hash(plain(data)))
        name = next((str(data[k]) for k in ("name", "id", "idx") if data.get(k) is not None), key[:12])
        name = f"{env}/{name}" if env else name
        return self._grow(run, name, key, {"id": name, "data": plain(data)}, str(env))

    def _grow(self, run: Run, name: str, key: str, task: dict[str, Any], group: str) -> str:
        if name in self._trees and self._trees[name][0] != key:
            name = f"{name}#{key[:12]}"
        _, task, group = self._trees.setdefault(name, (key, task, group))
        run.add_tree(name, task, group)  # again and again: the record that came first may have been a bad one
        root(run, name)
        return name

    # version 1

    def _add_trace(self, run: Run, tree: str, trace: dict[str, Any], episode: dict[str, Any], where: str) -> None:
        version = field(trace, "version", int, where, TRACE_VERSION)
        if version != TRACE_VERSION:
            raise UserError(f"{where}: 'version' is {version}; only traces of version {TRACE_VERSION} are readable here")
        raws = field(trace, "nodes", list, where)
        calls = _calls(trace, len(raws), where)
        parents = [_parent(raw, at, f"{where}: node {at}") for at, raw in enumerate(raws)]
        leaves = sorted(set(range(len(raws))) - set(parents) - {None}, key=lambda at: (bool(raws[at].get("sampled")), at))
        end = leaves[-1] if leaves else None
        tokens = any(raw.get("token_ids") for raw in raws)
        about = {k: v for k, v in trace.items() if k not in ("nodes", "calls", "task", "rewards", "metrics", "tools", "version")}
        unread(about, RECORD | {"agent", "env", "timing", "info", "state"}, "trace")
        closing = {"trace": _about(about | ({"episode": _about(episode)} if episode else {}))}
        nodes: list[Node] = []
        for at, (raw, parent) in enumerate(zip(raws, parents, strict=True)):
            spot = f"{where}: node {at}"
            call = calls.get(at, {})
            message = read_message(field(raw, "message", dict, spot), spot)
            data = _about({k: raw[k] for k in ("tools", "timestamp") if raw.get(k)} | ({"call": call} if call else {}))
            fields = _arrays(raw, spot) if tokens else {}
            sampled = field(raw, "sampled", bool, spot, False)
            if sampled:
                fields |= {
                    "provenance": self._provenance(run, call, trace),
                    "stop": FINISHED.get(str(call.get("finish_reason")), ""),
                }
            if at == end:
                data |= closing
                fields["stop"] = _stop(trace) or fields.get("stop", "")
            thread = Thread(run, tree, next(self._attempts), None if parent is None else nodes[parent])
            nodes.append(thread.hang(message, sampled, at == end, data, **fields))
            for token_values in _token_values(raw, nodes[-1], fields.get("sampled"), spot):
                run.add(token_values)
        if end is None:
            nodes.append(
                Thread(run, tree, next(self._attempts)).hang(Message("user", "", closing), False, True, stop=_stop(trace))
            )
        for annotation in _links(raws, nodes, where):
            run.add(annotation)
        failure = KNOWN.judged({name: trace.get(name) for name in (*FAILURES, *ENDINGS)}, where).failure
        last = nodes[-1 if end is None else end]
        total: dict[str, float | None] = {}
        for score in _judged(trace, last, where):
            run.add(score if failure is None or score.unit == "metric" else replace(score, value=None, evidence=None))
            total |= {IMPORTED: score.value} if score.scorer == IMPORTED else {}
        by = next((node.provenance for node in reversed(nodes) if node.provenance), None)
        end_attempt(run, last, NOTHING._replace(scores=total, failure=failure), provenance=by)

    def _provenance(self, run: Run, call: Mapping[str, Any], trace: Mapping[str, Any]) -> str:
        agent = trace.get("agent")
        config = agent.get("config") if isinstance(agent, Mapping) else None
        model = call.get("model") or (config.get("model") if isinstance(config, Mapping) else None)
        settings = call.get("sampling") if isinstance(call.get("sampling"), Mapping) else {}
        provenance = Provenance(str(model or "unknown"), "", redact(plain(settings)), 0)
        run.add(provenance)
        return provenance.hash

    # results.jsonl

    def _add_result(self, run: Run, record: dict[str, Any], where: str) -> None:
        example = field(record, "example_id", (int, str), where)
        task = field(record, "task", str, where, None)
        facts = {k: record[k] for k in ("answer", "info") if k in record}
        name = f"{task}/{example}" if task else str(example)
        tree = self._grow(run, name, json_hash(plain([example, facts])), {"id": name, "data": plain(facts)}, task or "")
        given, replies = _messages(record, "prompt", "user", where), _messages(record, "completion", "assistant", where)
        metrics = field(record, "metrics", dict, where, {})
        left_out = {"example_id", "task", "answer", "info", "prompt", "completion", "reward", "metrics", "trajectory", *metrics}
        closing = {"result": _about({k: v for k, v in record.items() if k not in left_out and v is not None})}
        for side in ("prompt", "completion"):
            if side not in record:
                raise UserError(f"{where}: '{side}' is missing")
        judged = KNOWN.judged({k: v for k, v in record.items() if k != "task"}, where)
        stop = judged.stop or ("truncated" if record.get("is_truncated") else "")
        unread(closing["result"], RECORD | {"stop_condition", "timing", "token_usage", "tool_defs"}, "result")
        closing |= open_calls([*given, *replies])
        thread = Thread(run, tree, next(self._attempts))
        for at, one in enumerate([*given, *replies]):
            last = at == len(given) + len(replies) - 1
            ends: dict[str, Any] = {"about": closing, "stop": stop} if last else {}
            thread.hang(one, one.role == "assistant" and at >= len(given), last, **ends)
        if not given and not replies:
            thread.hang(Message("user", "", closing), False, True, stop=stop)
        reward = field(record, "reward", (float, int), where, None)
        given_ = {} if reward is None else {IMPORTED: number(reward)}
        end_attempt(run, thread.node, judged._replace(scores=given_, success=None))
        for metric, value in metrics.items():
            run.add(Score(thread.node.id, metric, number(value), "metric"))


def _messages(record: dict[str, Any], name: str, role: str, where: str) -> list[Message]:
    value = field(record, name, (list, str), where, [])
    if isinstance(value, str):
        return [Message(role, value)] if value else []
    return [read_message(message, f"{where}: '{name}', message {at}") for at, message in enumerate(value)]


def _parent(raw: Any, at: int, spot: str) -> int | None:
    if not isinstance(raw, dict):
        raise UserError(f"{spot} is not an object")
    parent: int | None = field(raw, "parent", int, spot, None)
    if parent is not None and not 0 <= parent < at:
        raise UserError(f"{spot}: 'parent' is {parent}, which is no node before it")
    return parent


def _calls(trace: dict[str, Any], nodes: int, where: str) -> dict[int, dict[str, Any]]:
    """The model call that made each node."""
    found = {}
    for at, call in enumerate(field(trace, "calls", list, where, [])):
        if not isinstance(call, dict):
            raise UserError(f"{where}: call {at} is not an object")
        node = field(call, "node", int, f"{where}: call {at}", None)
        if node is not None and not 0 <= node < nodes:
            raise UserError(f"{where}: call {at}: 'node' is {node}, and there are {nodes} nodes")
        if node is not None:
            found[node] = call
    return found


def _arrays(raw: dict[str, Any], spot: str) -> dict[str, Any]:
    """Tokens, mask and log-probs of a node, shape (T,). Raises UserError where they do not fit each other."""
    tokens = field(raw, "token_ids", list, spot, [])
    if any(type(token) is not int or not 0 <= token < 1 << 31 for token in tokens):
        raise UserError(f"{spot}: 'token_ids' holds something that is not a token id")
    mask = field(raw, "mask", list, spot, [])
    if mask and (len(mask) != len(tokens) or any(type(sampled) is not bool for sampled in mask)):
        raise UserError(f"{spot}: 'mask' must be true or false for each of {len(tokens)} tokens")
    sampled = np.array(mask, np.bool_) if mask else np.zeros(len(tokens), np.bool_)
    arrays = {"tokens": np.array(tokens, np.int32), "sampled": sampled if sampled.any() else None}
    logprobs = _spread(raw, "logprobs", sampled, spot)
    return arrays | ({} if logprobs is None else {"logprobs": logprobs})


def _spread(raw: dict[str, Any], name: str, sampled: np.ndarray, spot: str) -> np.ndarray | None:
    """float32 (T,): one number for each sampled token, 0 elsewhere; None where there are none."""
    values = field(raw, name, list, spot, [])
    if not values:
        return None
    if len(values) != int(sampled.sum()) or any(type(value) not in (float, int) for value in values):
        raise UserError(f"{spot}: '{name}' must hold a number for each of {int(sampled.sum())} sampled tokens")
    if any(abs(value) >= SINGLE for value in values):
        raise UserError(f"{spot}: '{name}' holds a number that is infinite in 32 bits")
    spread = np.zeros(len(sampled), np.float32)
    spread[sampled] = values
    return spread


def _token_values(raw: dict[str, Any], node: Node, sampled: np.ndarray | None, spot: str) -> Iterator[TokenValues]:
    if sampled is None:
        return
    for name in _STREAMS:
        values = _spread(raw, name, sampled, spot)
        if values is not None:
            yield TokenValues(node.id, name, MAKER, values)


def _links(raws: list[Any], nodes: list[Node], where: str) -> Iterator[Annotation]:
    """What a harness declared of how turns caused each other, beyond who follows whom."""
    for at, raw in enumerate(raws):
        links = field(raw, "semantic_parents", list, f"{where}: node {at}", [])
        for index, link in enumerate(links):
            source = link.get("node") if isinstance(link, dict) else None
            if type(source) is not int or not 0 <= source < len(raws):
                raise UserError(f"{where}: node {at}: 'semantic_parents' names no node")
            yield Annotation(nodes[at].id, 0, f"link-{index}", MAKER, {"type": str(link.get("type")), "node": nodes[source].id})


def _judged(trace: dict[str, Any], node: Node, where: str) -> Iterator[Score]:
    """Rewards by name and their weighted sum, and metrics, as scores of the attempt's last node."""
    total, any_ = 0.0, False
    for name, reward in field(trace, "rewards", dict, where, {}).items():
        spot = f"{where}: reward '{name}'"
        if reward is None:
            yield Score(node.id, name, None)
            continue
        if not isinstance(reward, dict):
            raise UserError(f"{spot} is not an object with 'score' and 'weight'")
        score = number(field(reward, "score", (float, int), spot))
        weight = number(field(reward, "weight", (float, int), spot, 1.0))
        yield Score(node.id, name, score, evidence={"weight": weight})
        if score is not None and weight is not None:
            total, any_ = total + score * weight, True
    if any_:
        yield Score(node.id, IMPORTED, number(total))
    for name, value in field(trace, "metrics", dict, where, {}).items():
        yield Score(node.id, name, number(value), "metric")


def _stop(trace: dict[str, Any]) -> str:
    judged = KNOWN.judged({name: trace.get(name) for name in (*FAILURES, *ENDINGS)}, "a trace")
    return judged.stop or ("truncated" if trace.get("is_timeout") else "")


def _about(value: dict[str, Any]) -> dict[str, Any]:
    """The other data as JSON, without secrets: a trace may hold an endpoint's settings."""
    found: dict[str, Any] = redact(plain(value))
    return found


registry.register("reader", "verifiers")(
    Reader(
        "verifiers",
        "Traces of verifiers: traces.jsonl of version 1 with its branches and tokens, the older results.jsonl, or the folder of "
        "one.",
        _matches,
        read_traces,
        example='{"example_id": 0, "prompt": "1+2?", "completion": "3", "reward": 1.0, "metrics": {"turns": 1}}\n',
    )
)
