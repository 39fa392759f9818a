"""Every call of a model in an inspect log (``inspect_ai``), with what the model was shown: what compaction did is seen nowhere else.

The reader ``inspect`` makes the conversation that a sample ended with; after a compaction that is not what the model saw earlier. This one
reads the log's model events, for ``ramify governance audit LOG --from inspect-calls``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ramify.base import registry
from ramify.integrations import inspect as logs
from ramify.integrations.inspect_out import checked, require_inspect
from ramify.trace.chats import Calls
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader
from ramify.trace.messages import content_of


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
        for event in sample.events:
            if event.event != "model" or not event.output.choices:
                continue
            number += 1
            shown = [_openai(message, who) for message in event.input]
            said = _openai(event.output.choices[0].message, who)
            request = {"model": event.model, "messages": shown}
            yield (
                number,
                {
                    "task": f"{sample.id}#{sample.epoch}",
                    "request": request,
                    "response": {"model": event.model, "choices": [{"message": said}]},
                },
            )


def _sample(raw: dict[str, Any], form: Any) -> Any:
    sample = form.EvalSample.model_validate(raw, context={"deserializing": True})
    return form.resolve_sample_attachments(form.resolve_sample_events_data(sample), "full")


def _openai(said: Any, who: str) -> dict[str, Any]:
    data = logs.message_data(said, who)
    kept = {name: data[name] for name in ("tool_calls", "tool_call_id", "name") if name in data}
    return {"role": said.role, "content": content_of(data.get("content", said.content), who)[0]} | kept


def _never(path: Path, first: Any) -> bool:
    return False  # a log of inspect is the conversation, unless this is asked for


registry.register("reader", "inspect-calls")(
    Reader(
        "inspect-calls",
        "Logs of inspect_ai, call by call: what the model was shown each time (name it: --from).",
        _never,
        read_model_calls,
    )
)
