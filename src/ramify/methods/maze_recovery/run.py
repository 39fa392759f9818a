"""The work of the verbs: detectors by name, and audits of what replies say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ramify.base.errors import NeedsError
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.methods.maze_recovery.attempts import Traces
from ramify.methods.maze_recovery.traces import (
    BACK,
    Agreement,
    Marked,
    ReplyAudit,
    against_keys,
    agreement,
    audit_texts,
    detect,
    find_detector,
    labelled,
    mark_all,
    mask_precision,
)
from ramify.render.terminal import say
from ramify.score.judge import Judge
from ramify.stats.intervals import clustered_share
from ramify.trace.lines import read_lines

UNMEASURED = "what the detector saw was measured against nothing: give --labels, or traces with states"


def detector_for(name: str | None, traces: Traces) -> Judge | None:
    """The detector of that name; without one, phrases where every trace is a single reply and so shows no states, else None.

    Raises UserError where there is no such model.
    """
    if name is None:
        if any(len(trace.steps) > 1 for trace in traces.traces):
            return None
        say("every trace is one reply, so what its text says is read (--detector lexicon)")
        name = "lexicon"
    return find_detector(name)


def mark(traces: Traces, detector: Judge, ledger: Ledger | None = None) -> tuple[list[list[Marked]], tuple[str, ...]]:
    """What ``detector`` sees in every reply, and the caveat of those that it could not label; the cost goes to ``ledger``.
    Raises NeedsError where it could label none."""
    replies = [[step.reply.text for step in trace.steps] for trace in traces.traces]
    marks, faults = wait_for(detect(replies, detector, ledger=ledger))
    if faults and len(faults) == sum(map(len, replies)):
        raise NeedsError(f"{detector.name} labelled no reply: {faults[0]}")
    caveat = f"{plural(len(faults), 'reply')} could not be labelled, taken as without steps"
    return marks, (f"{caveat} ({faults[0]})",) if faults else ()


def audit_replies(traces: Traces, detector: Judge, labels: Path | None = None) -> ReplyAudit:
    """Audit by what replies say, with the detector's agreement with ``labels`` (a file),
    else with the state keys where some recur."""
    spent = Ledger()
    # first: a fault there is known before all replies are read
    measured = None if labels is None else on_labels(detector, labels, spent)
    marks, unread = mark(traces, detector, spent)
    if labels is None:
        measured = against_keys(traces, marks)
    found, verdict = _verdict(traces, marks, measured, by_reply=labels is None and measured is not None)
    return replace(
        audit_texts(traces, marks, detector.name),
        judge=detector.identity,
        spent=spent.spent,
        agreement=measured,
        agreement_with="labels" if labels else None if measured is None else "state keys",
        found=found,
        verdict=verdict,
        caveats=(*unread, *doubts(measured)),
    )


def doubts(measured: Agreement | None) -> tuple[str, ...]:
    """What a reader must know of how a detector was measured."""
    return (UNMEASURED,) if measured is None else (measured.left_out,) if measured.left_out else ()


def _verdict(t: Traces, marks: Sequence[Sequence[Marked]], measured: Agreement | None, by_reply: bool) -> tuple[bool, str]:
    """Whether more is labelled than false labels explain: the lower end of the difference of both shares (Zou and Donner 2008) is
    above 0."""
    each = [[[step.kind in BACK for step in reply.steps] for reply in own] for own in marks]
    units = [[any(reply) for reply in own] if by_reply else [back for reply in own for back in reply] for own in each]
    marked = clustered_share([back for own in units for back in own], np.repeat(t.clusters, list(map(len, units))))
    false = None if measured is None else measured.false_marks
    if marked is None or not marked.k:
        return False, "nothing stands out: the detector sees no step that takes anything back"
    seen = f"{marked.k} of {marked.n} {'replies' if by_reply else 'steps'} look as if they took something back"
    if false is None:
        return False, f"nothing is known: {seen}, and how often such marks are false is not measured"
    if marked.interval is None or false.interval is None:
        return False, f"nothing is known: {seen}, and one trace shows no spread to compare false marks with"
    lower = marked.value - false.value - math.hypot(marked.value - marked.interval[0], false.interval[1] - false.value)
    rate = f"false marks ({false.value:.3g}, at most {false.interval[1]:.3g})"
    if lower > 0:
        return True, f"{seen}, more than {rate} explain"
    return False, f"nothing stands out: {seen}, which {rate} explain"


def on_labels(detector: Judge, labels: Path, ledger: Ledger | None = None) -> Agreement:
    """How well ``detector`` agrees with the labelled steps of a file, and the ``masks`` it would set
    (:func:`ramify.methods.maze_recovery.traces.mask_precision`).

    Raises UserError naming the wrong file and line, NeedsError where the detector could label none.
    """
    known = labelled(read_lines(labels), str(labels))
    seen, faults = wait_for(mark_all([[text for text, _ in own] for own in known], detector, ledger=ledger))
    truth = [[step for _, step in own] for own, steps in zip(known, seen, strict=True) if steps is not None]
    marked = [steps for steps in seen if steps is not None]
    if not truth:
        raise NeedsError(f"{detector.name} marked none of the labelled steps: {faults[0]}")
    left_out = f"{plural(len(faults), 'labelled trace')} left out, could not be marked ({faults[0]})" if faults else ""
    found, wanted = ([step.kind for own in side for step in own] for side in (marked, truth))
    traces = [number for number, own in enumerate(truth) for _ in own]
    return replace(agreement(found, wanted, traces), masks=mask_precision(marked, truth), left_out=left_out)
