"""A run as a log of inspect (``inspect_ai``), which its own reader, ``inspect view`` and ``inspect log`` open.

A tree is a sample, a path to a leaf one epoch of it. Ids come from the run, so a run written twice is the same log: a sample's
uuid is the id of the attempt's last node, a message's id that of the node that opened it.
The log is made in memory before it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ramify.base.errors import NeedsError, UserError
from ramify.base.files import whole_file
from ramify.base.ids import stable_hash
from ramify.trace.connect import FILE
from ramify.trace.db import Run
from ramify.trace.message import number, plain
from ramify.trace.node import Node, Score, TreeInfo
from ramify.trace.notes import lost
from ramify.trace.offered import tools_of
from ramify.trace.path import Path as TracePath
from ramify.trace.view import View, messages_of

_REASONS = {"eos": "stop", "stop": "stop", "terminated": "stop", "length": "max_tokens"}
_MESSAGE_FIELDS = ("id", "source", "metadata", "model", "tool_call_id", "error")
T = TypeVar("T")
_WRITTEN_FIELDS = ("content", "tool_calls", "name", "sample")


def require_inspect() -> Any:
    """inspect's module of logs. Raises NeedsError where it is not installed."""
    try:
        import inspect_ai.log
    except ImportError as error:
        raise NeedsError("inspect logs need inspect_ai: pip install 'ramify[serve]'") from error
    return inspect_ai.log


def checked(who: str, make: Callable[[], T]) -> T:
    """A third-party record validated by inspect; whatever its validators raise becomes one sentence."""
    try:
        return make()
    except Exception as error:
        errors = getattr(error, "errors", None)
        if callable(errors):
            first = errors()[0]
            where = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
            raise UserError(f"{who}: '{where}': {first['msg']}") from None
        raise UserError(f"{who}: {type(error).__name__}: {str(error)[:200]}") from None


def worth(value: Any) -> float | None:
    """A score's value as a number: C, P, I and N as inspect counts them, None where it is none."""
    if isinstance(value, str):
        known = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
        if value in known or value.lower() in known:
            return known[value if value in known else value.lower()]
        try:
            return number(float(value))
        except ValueError:
            return None
    return number(value)


def write_log(run: Run, out: Path, task: str | None = None) -> int:
    """Write ``run`` as an inspect log, JSON where ``out`` ends so, whole or not at all. Returns how many samples.

    Raises NeedsError where inspect is not installed, UserError when the run holds no attempt or the file cannot be written.
    """
    logs = require_inspect()
    config = run.meta.get("config")
    imported = config.get("imported") if isinstance(config, Mapping) else None
    stated = imported if isinstance(imported, Mapping) and imported.get("form") == "inspect" else {}
    samples = [sample for info in run.trees() for sample in _samples(run, info, bool(stated), logs)]
    if not samples:
        raise UserError(f"{run.folder} holds no attempt to write")
    log = checked(f"{run.folder}: what was imported", lambda: _log(run, samples, task, stated, logs))
    with whole_file(out) as part:
        logs.write_eval_log(log, str(part), format="json" if out.suffix.lower() == ".json" else "eval")
    return len(samples)


def _log(run: Run, samples: list[Any], task: str | None, stated: Mapping[str, Any], logs: Any) -> Any:
    return logs.EvalLog(
        status=stated.get("status", "success"),
        eval=_spec(run, samples, task, stated.get("eval") or {}, logs),
        results=_results(samples, logs),
        samples=samples,
        **({"error": {"traceback_ansi": "", **stated["error"]}} if stated.get("error") else {}),
        **{name: stated[name] for name in ("plan", "stats") if stated.get(name)},
    )


def _spec(run: Run, samples: list[Any], task: str | None, stated: Mapping[str, Any], logs: Any) -> Any:
    """The log's description of the evaluation: that of the imported log, or this run's."""
    ids = list(dict.fromkeys(sample.id for sample in samples))
    models = sorted({sample.output.model for sample in samples} - {"", "unknown"})
    seed = stable_hash(*sorted(sample.uuid for sample in samples))
    known = {
        "created": datetime.fromtimestamp(int((run.folder / FILE).stat().st_mtime), UTC).isoformat(),
        "task": run.folder.resolve().name,
        "model": ", ".join(models) or "unknown",
        "dataset": {"samples": len(ids), "sample_ids": ids, "shuffled": False},
        "config": {"epochs": max(sample.epoch for sample in samples)},
        **{name: stable_hash(name, seed)[:22] for name in ("eval_id", "run_id", "task_id")},
    }
    return logs.EvalSpec.model_validate(known | dict(stated) | ({"task": task} if task else {}))


def _results(samples: list[Any], logs: Any) -> Any:
    """The mean of each score over the samples where it is a number."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in (sample.scores or {}).items():
            if (value := worth(score.value)) is not None:
                values.setdefault(name, []).append(value)
    means = {name: {"mean": logs.EvalMetric(name="mean", value=sum(found) / len(found))} for name, found in values.items()}
    return logs.EvalResults(
        total_samples=len(samples),
        completed_samples=sum(sample.error is None for sample in samples),
        scores=[
            logs.EvalScore(name=name, scorer=name, scored_samples=len(values[name]), metrics=metrics)
            for name, metrics in means.items()
        ],
    )


def _samples(run: Run, info: TreeInfo, imported: bool, logs: Any) -> Iterator[Any]:
    tree = run.tree(info.name)
    scores: dict[str, list[Score]] = {}
    for score in run.scores(tree=info.name):
        scores.setdefault(score.node, []).append(score)
    leaves = [leaf for leaf in tree.leaves() if leaf.role != "root" or leaf.text]
    stated = {leaf.id: _imported(leaf) if imported else {} for leaf in leaves}
    taken = {one["epoch"] for one in stated.values() if one}
    free = (epoch for epoch in range(1, len(leaves) + len(taken) + 1) if epoch not in taken)
    for leaf in leaves:
        path, epoch = tree.path(leaf.id), stated[leaf.id]["epoch"] if stated[leaf.id] else next(free)
        judged = scores.get(leaf.id, [])
        lost("attempt's list of tools", bool(tools_of(run, View(info, tree, path))))
        who = f"{run.folder}: node {leaf.id}"
        yield checked(who, partial(_sample, run, info, path, epoch, judged, stated[leaf.id], logs))


def _imported(leaf: Node) -> Mapping[str, Any]:
    """inspect's imported data of the sample that ends here; empty for an attempt that was added since."""
    found = leaf.data.get("sample")
    return found if isinstance(found, Mapping) and type(found.get("epoch")) is int else {}


def _sample(
    run: Run, info: TreeInfo, path: TracePath, epoch: int, scores: list[Score], stated: Mapping[str, Any], logs: Any
) -> Any:
    leaf = path.segments[-1][0]
    messages = [] if stated.get("messages") == 0 else list(_messages(path))
    data = info.task.get("data")
    given = data if isinstance(data, Mapping) else {}
    opening = messages[: next((i for i, m in enumerate(messages) if m.role == "assistant"), len(messages))]
    plain_input = opening[0].content if len(opening) == 1 and isinstance(opening[0].content, str) else opening
    fields: dict[str, Any] = {
        "id": stated.get("id", info.task.get("id") if isinstance(info.task.get("id"), (str, int)) else info.name),
        "epoch": epoch,
        "uuid": stated.get("uuid", leaf.id),
        "input": given.get("input", plain_input) if stated else plain_input,
        "target": given.get("target", "") if stated else "",
        "messages": messages,
        "output": _output(run, path, messages, stated),
        "scores": _scores(path, scores) or None,
        "metadata": stated["metadata"]
        if "metadata" in stated
        else {"task": plain(info.task), "group": info.group, "tree": info.name},
    }
    copied = ("started_at", "completed_at", "total_time", "working_time", "model_usage", "role_usage", "limit", "turn_count")
    fields |= {name: stated[name] for name in copied if name in stated}
    if stated.get("choices") or given.get("choices"):
        fields["choices"] = given.get("choices")
    if stated.get("error"):
        fields["error"] = {"traceback_ansi": "", **stated["error"]}
    elif leaf.stop == "failed":
        failure = leaf.data.get("failure", "the attempt failed")
        fields["error"] = {
            "message": failure if isinstance(failure, str) else json.dumps(failure),
            "traceback": "",
            "traceback_ansi": "",
        }
    elif leaf.stop in ("budget", "truncated", "cancelled") and not stated:
        fields["limit"] = {"type": "operator" if leaf.stop == "cancelled" else "custom", "limit": 0, "reason": leaf.stop}
    return logs.EvalSample.model_validate(_utf8(fields))


def _output(run: Run, path: TracePath, messages: list[Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    sampled = next((node for node, _ in reversed(path.segments) if node.provenance is not None), None)
    model = "" if sampled is None or sampled.provenance is None else run.provenance(sampled.provenance).model
    output = {k: v for k, v in (stated.get("output") or {}).items() if k in ("model", "usage", "time", "error")}
    reply = next((m for m in reversed(messages) if m.role == "assistant"), None)
    if reply is not None:
        reason = (stated.get("output") or {}).get("stop_reason") or _REASONS.get(path.segments[-1][0].stop, "unknown")
        output["choices"] = [{"message": reply, "stop_reason": reason}]
    return {"model": model, **output}


def _scores(path: TracePath, given: list[Score]) -> dict[str, dict[str, Any]]:
    """Scores of an attempt's last node as inspect's; rewards along the path are a separate score."""
    scores: dict[str, dict[str, Any]] = {}
    whole = {score.scorer for score in given if _score_of(score)}
    for score in given:
        imported = _score_of(score)
        value = float("nan") if score.value is None else score.value
        if imported:
            scores[score.scorer] = _unplain(imported)
        elif score.scorer not in whole:
            name = score.scorer if score.scorer not in scores else f"{score.scorer}/{score.unit}"
            about = {"unit": score.unit, "confidence": score.confidence, "evidence": score.evidence}
            about |= {"cost": dict(score.cost), "judges": dict(score.judges)}
            scores[name] = {"value": value, "metadata": {"ramify": {k: v for k, v in about.items() if v not in (None, {})}}}
    rewards = [node.reward for node, _ in path.segments if node.reward is not None]
    if rewards and "reward" not in scores:
        scores["reward"] = {"value": sum(rewards), "metadata": {"ramify": {"unit": "reward"}}}
    return scores


def _score_of(score: Score) -> dict[str, Any]:
    """inspect's score from which a score was imported."""
    found = score.evidence.get("score") if isinstance(score.evidence, Mapping) and score.unit == "score" else None
    return dict(found) if isinstance(found, Mapping) and "value" in found else {}


def _unplain(score: dict[str, Any]) -> dict[str, Any]:
    value = score["value"]
    return score | {"value": float(value)} if value in ("nan", "inf", "-inf") else score


def _messages(path: TracePath) -> Iterator[Any]:
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser

    kinds: dict[str, Any] = {
        "system": ChatMessageSystem,
        "assistant": ChatMessageAssistant,
        "tool": ChatMessageTool,
        "user": ChatMessageUser,
    }
    for message in messages_of(path):
        kind = kinds.get(message.role, ChatMessageSystem)
        fields = {name: message.data[name] for name in _MESSAGE_FIELDS if name in message.data and name in kind.model_fields}
        rest = {
            name: value for name, value in message.data.items() if name not in _MESSAGE_FIELDS and name not in _WRITTEN_FIELDS
        }
        if rest:
            fields["metadata"] = {**(fields.get("metadata") or {}), "ramify": rest}
        fields |= {"id": fields.get("id") or message.nodes[0].id, "content": _content(message.data.get("content"), message.text)}
        if message.role == "assistant" and isinstance(message.data.get("tool_calls"), list):
            fields["tool_calls"] = [_call(call) for call in message.data["tool_calls"]]
        if message.role == "tool" and isinstance(message.data.get("name"), str):
            fields["function"] = message.data["name"]
        yield _valid(kind, _utf8(fields))


def _valid(kind: Any, fields: dict[str, Any]) -> Any:
    """A message; what inspect does not take as one of its fields goes where it keeps anything."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(fields)
    except ValidationError:
        odd = {name: value for name, value in fields.items() if name not in ("id", "content", "tool_calls")}
        kept: dict[str, Any] = {name: fields[name] for name in ("content", "tool_calls") if name in fields}
        return kind.model_validate({**kept, "id": str(fields["id"]), "metadata": {"ramify": odd}})


def _utf8(value: Any) -> Any:
    """``value`` with lone surrogates replaced, which inspect's records refuse."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {str(_utf8(key)): _utf8(item) for key, item in value.items()}
    return [_utf8(item) for item in value] if isinstance(value, list) else value


def _content(parts: Any, text: str) -> Any:
    """Parts as inspect has them, OpenAI's images among them; the text alone where one is of another kind."""
    if not isinstance(parts, list):
        return text
    from inspect_ai.model import ChatMessageUser
    from pydantic import ValidationError

    found = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type") == "image_url":
            url = part.get("image_url")
            part = {"type": "image", "image": url.get("url") if isinstance(url, Mapping) else url}
        found.append({"type": "text", "text": part} if isinstance(part, str) else _utf8(part))
    try:
        return ChatMessageUser.model_validate({"content": found}).content
    except ValidationError:
        return text


def _call(call: Any) -> dict[str, Any]:
    """A tool call as inspect has it. Arguments that are not JSON object are reported as the call's error, as inspect does."""
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function") if isinstance(call.get("function"), Mapping) else {}
    arguments, error = function.get("arguments", {}), call.get("parse_error")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments, error = {"raw": arguments}, error or "the arguments are not JSON"
    if not isinstance(arguments, Mapping):
        arguments, error = {"raw": arguments}, error or "the arguments are no object"
    kind = call.get("type") if call.get("type") in ("function", "custom") else "function"
    named = {
        "id": str(call.get("id") or ""),
        "function": str(function.get("name") or ""),
        "arguments": dict(arguments),
        "type": kind,
    }
    return named | ({"parse_error": str(error)} if error else {})
