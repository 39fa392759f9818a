"""What is behind the verbs: detectors by name, and audits of what replies say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError
from ramify.render.terminal import say
from ramify.score.attempts import Traces
from ramify.score.traces import Detector, Judge, Lexicon, Marked, against_keys, agreement, audit_texts, detect, labelled, mark_all
from ramify.trace.lines import read_lines


def find_detector(name: str | None, traces: Traces) -> Detector | None:
    """The detector of that name; without one, phrases where every trace is a single reply and so shows no states, else None.

    Raises UserError where there is no such model.
    """
    if name is None:
        if any(len(trace.steps) > 1 for trace in traces.traces):
            return None
        say("every trace is one reply, so what its text says is read (--detector lexicon)")
        name = "lexicon"
    if name == "lexicon":
        return Lexicon()
    from ramify.engine.named import find_model

    return Judge(*find_model(name))


def mark(traces: Traces, detector: Detector) -> list[list[Marked]]:
    """What ``detector`` sees in every reply. Says how many it could not label; raises NeedsError where that is all of them."""
    replies = [[step.reply.text for step in trace.steps] for trace in traces.traces]
    marks, faults = asyncio.run(detect(replies, detector))
    if faults and len(faults) == sum(map(len, replies)):
        raise NeedsError(f"{detector.name} labelled no reply: {faults[0]}")
    if faults:
        say(f"warning: {len(faults)} replies could not be labelled and count as having no steps ({faults[0]})")
    return marks


def audit_replies(traces: Traces, detector: Detector, labels: Path | None = None) -> dict[str, Any]:
    """Audit by what replies say, with the detector's agreement with ``labels`` (a file), else with the state keys where some recur."""
    measured = (
        None if labels is None else _on_labels(detector, labels)
    )  # first: a fault there is known before all replies are read
    marks = mark(traces, detector)
    found = audit_texts(traces, marks, detector.name)
    if labels is None:
        measured = against_keys(traces, marks)
    found |= {"agreement": measured, "agreement_with": "labels" if labels else None if measured is None else "state keys"}
    if measured is None:
        found["warnings"].append("what the detector saw was measured against nothing: give --labels, or traces with states")
    return found


def _on_labels(detector: Detector, labels: Path) -> dict[str, Any]:
    known = labelled(read_lines(labels), str(labels))
    seen, faults = asyncio.run(mark_all([[text for text, _ in own] for own in known], detector))
    pairs = [
        (step.kind, kind)
        for own, steps in zip(known, seen, strict=True)
        if steps is not None
        for step, (_, kind) in zip(steps, own, strict=True)
    ]
    if not pairs:
        raise NeedsError(f"{detector.name} marked none of the labelled steps: {faults[0]}")
    if faults:
        say(f"warning: {len(faults)} labelled traces could not be marked and are left out ({faults[0]})")
    return agreement([found for found, _ in pairs], [truth for _, truth in pairs])
