"""What is behind the verbs: detectors by name, and audits of what replies say."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError
from ramify.render.terminal import say
from ramify.score.attempts import Traces
from ramify.score.traces import Detector, Judge, Lexicon, Marked, against_keys, agreement, audit_texts, detect, labelled
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
    marks = mark(traces, detector)
    found = audit_texts(traces, marks, detector.name)
    measured = None
    if labels is not None:
        known = labelled(read_lines(labels), str(labels))
        seen = asyncio.run(detector.mark([text for text, _ in known]))
        measured = agreement([step.kind for step in seen], [kind for _, kind in known])
    elif len(traces.graph.keys) < len(traces.graph.visit_group):
        measured = against_keys(traces, marks)
    found |= {"agreement": measured, "agreement_with": "labels" if labels else None if measured is None else "state keys"}
    if measured is None:
        found["warnings"].append("what the detector saw was measured against nothing: give --labels, or traces with states")
    return found


def __getattr__(name: str) -> Any:
    if name == "app":
        from ramify.methods.maze_recovery.verbs import app

        return app
    raise AttributeError(name)
