"""Every call of a model in an inspect log (``inspect_ai``), with its prompt: the effect of compaction is visible only there.

The reader ``inspect`` makes the conversation that a sample ended with; after a compaction that is not what the model saw earlier.
This one reads the log's model events, for ``ramify governance audit LOG --from inspect-calls``, and what its other events tell of
them: which compactions happened, which calls are a scorer's or the summariser's own, which conversations are a tool's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

from ramify.base import registry
from ramify.integrations.inspect import logs
from ramify.integrations.inspect.writer import checked, require_inspect
from ramify.trace.chats import Calls
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader


def read_model_calls(path: Path, folder: Path) -> int:
    """Make a run in ``folder`` from the model events of an inspect log: a tree for each sample and epoch. Returns how many calls.

    Raises NeedsError where inspect is not installed, UserError naming file and sample; nothing is left in ``folder`` then.
    """
    form = require_inspect()
    _, samples = logs.header_and_samples(path)
    return import_records(path, folder, "inspect-calls", Calls().add, _calls(path, samples, form))


def _calls(path: Path, samples: Iterator[dict[str, Any]], form: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for raw in samples:
        who = f"{path}: sample {raw.get('id')!r}, epoch {raw.get('epoch')!r}"
        sample = checked(who, partial(_sample, raw, form))
        for event, about in _annotated(sample.events):
            number += 1
            shown = [logs.as_openai(message, who) for message in event.input]
            reply = logs.as_openai(event.output.choices[0].message, who)
            request = {"model": event.model, "messages": shown}
            response = {"model": event.model, "choices": [{"message": reply}]}
            yield number, {"task": f"{sample.id}#{sample.epoch}", "request": request, "response": response} | about


def _annotated(events: Sequence[Any]) -> list[tuple[Any, dict[str, Any]]]:
    """The calls that were answered, each with the log's other data about it.

    ``purpose``: of one that is not the agent's reply, ``compaction`` or ``scoring``; ``compactions``: those since the call before
    in the same span (``compactions_after``: since the last one); ``attempt_id``:
    which conversation, where a tool holds one of its own.
    """
    calls = [event for event in events if event.event == "model" and event.output.choices]
    spans = {event.id: event for event in events if event.event == "span_begin"}
    compactors = _compactors(events, {message.id for call in calls for message in call.input})
    waiting: dict[str | None, list[dict[str, str]]] = {}
    annotated: list[tuple[Any, dict[str, Any]]] = []
    tools: dict[str, str] = {}
    for event in events:
        if event.event == "compaction":
            waiting.setdefault(event.span_id, []).append({"type": event.type, "strategy": _strategy(event)})
        elif event.event == "model" and event.output.choices:
            inside = list(_inside(event.span_id, spans))
            about: dict[str, Any] = {}
            tool = next((span for span in inside if span.type == "tool"), None)
            if tool is not None:
                about["attempt_id"] = tools.setdefault(tool.id, f"{tool.name}-{len(tools) + 1}")
            if event.role == "grader" or any("scorers" in (span.type, span.name) for span in inside):
                about["purpose"] = "scoring"
            elif id(event) in compactors:
                about["purpose"] = "compaction"
            elif event.span_id in waiting:
                about["compactions"] = waiting.pop(event.span_id)
            annotated.append((event, about))
    agents = [about for _, about in annotated if "purpose" not in about]
    if agents and waiting:
        agents[-1]["compactions_after"] = [one for some in waiting.values() for one in some]
    return annotated


def _compactors(events: Sequence[Any], shown: Set[str]) -> set[int]:
    """The calls made by a compaction: in its span, right before it, of which no later call holds the reply as it was."""
    found: set[int] = set()
    recent: dict[str | None, list[Any]] = {}
    for event in events:
        if event.event == "model" and event.output.choices:
            recent.setdefault(event.span_id, []).append(event)
        elif event.event == "compaction":
            requests = recent.pop(event.span_id, [])
            while event.type == "summary" and _strategy(event) != "CompactionNative" and requests:
                message = (call := requests.pop()).output.choices[0].message
                if message.id in shown or message.tool_calls:
                    break
                found.add(id(call))
    return found


def _strategy(event: Any) -> str:
    about = event.metadata or {}
    return str(about.get("strategy_applied") or about.get("strategy") or event.type)


def _inside(span: str | None, spans: Mapping[str, Any]) -> Iterator[Any]:
    """The spans that hold what happened in ``span``, innermost first."""
    while span is not None and span in spans:
        yield spans[span]
        span = spans[span].parent_id


def _sample(raw: dict[str, Any], form: Any) -> Any:
    sample = form.EvalSample.model_validate(raw, context={"deserializing": True})
    return form.resolve_sample_attachments(form.resolve_sample_events_data(sample), "full")


def _never(path: Path, first: Any) -> bool:
    return False  # a log of inspect is the conversation, unless this is requested


registry.register("reader", "inspect-calls")(
    Reader(
        "inspect-calls",
        "Logs of inspect_ai, call by call with each prompt (only with --from).",
        _never,
        read_model_calls,
    )
)
