"""What a case found, as findings of its run: its rate, tests, controls, sentences and questions,
each replaced by a newer one of its name.

A finding's evidence is the whole of it, as the verbs print it; what the report says is read from there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.words import plural
from ramify.methods.forensics.ach import BENIGN
from ramify.methods.forensics.case import CaseConfig
from ramify.methods.forensics.experiment import ALPHA, Control, TestResult, corrected, result_from_json
from ramify.methods.forensics.report import sentences_text, share_text, table_of
from ramify.stats.evidence import holm
from ramify.trace.db import Run
from ramify.trace.node import Finding, Node
from ramify.trace.schema import stored

Record = Mapping[str, Any]
KIND = "forensics"
TESTS, BASELINE, CONTROLS, SENTENCES, QUESTIONS = (KIND, *(f"{KIND} {verb}" for verb in ("run", "control", "resample", "ask")))
"""Makers of findings."""
SENTENCE = "sentence"
"""What a finding of one sentence is called; that of its whole reply holds them all."""


def safe(name: str) -> str:
    """A name of a tree: letters that mean something there become dashes, and a hash keeps names apart that differ in them."""
    plain = re.sub(r"[^A-Za-z0-9_.=+/-]", "-", name)
    return plain if plain == name else f"{plain}-{stable_hash(name)[:6]}"


@stored
def found(run: Run, maker: str) -> list[dict[str, Any]]:
    """All that was found of one sort, by name."""
    return _ordered(maker, (dict(one.evidence) for one in run.findings(maker=maker) if one.name != SENTENCE))


def keep(run: Run, maker: str, *records: Record) -> None:
    """Store what was found, replacing what has the same name, and commit."""
    everything = _ordered(maker, [*found(run, maker), *map(_plain, records)])
    run.conclude(maker, [finding for one in everything for finding in _SORTS[maker].findings(one)])


@stored
def kept_tests(run: Run, newer: Iterable[TestResult] = ()) -> list[TestResult]:
    """Every test kept so far, and ``newer`` ones, by name, corrected over all of them;
    controls that were measured since are put to them."""
    known = controls(run)
    every = _ordered(TESTS, [*found(run, TESTS), *(_plain(one.to_json()) for one in newer)])
    return [
        replace(one, control=known[one.name].at(one)) if one.name in known else one
        for one in corrected(map(result_from_json, every))
    ]


def keep_tests(run: Run, newer: Iterable[TestResult] = ()) -> list[TestResult]:
    """Add tests to those stored: all are corrected over their number. Returns :func:`kept_tests`."""
    known = kept_tests(run, newer)
    keep(run, TESTS, *(one.to_json() for one in known))
    return known


@stored
def controls(run: Run) -> dict[str, Control]:
    """The positive controls, by the test that they are of."""
    return {one.pop("test"): Control(**one) for one in found(run, CONTROLS)}


def keep_controls(run: Run, measured: Mapping[str, Control]) -> None:
    """Store positive controls, and say of the tests that they are of what they now mean."""
    with run.transaction():
        keep(run, CONTROLS, *({"test": test, **asdict(one)} for test, one in measured.items()))
        keep_tests(run)


@stored
def questions(run: Run) -> list[dict[str, Any]]:
    """Questions and counts, by name; comparisons of the two sides corrected over all of them that the case holds (Holm's
    ``p``)."""
    rows = found(run, QUESTIONS)
    raw = [one["p_raw"] for one in rows if "p_raw" in one]
    adjusted = iter(holm(raw))
    return [one | {"p": next(adjusted), "looks": len(raw)} if "p_raw" in one else one for one in rows]


def keep_question(run: Run, question: Record) -> dict[str, Any]:
    """Store a comparison of the two sides; as :func:`questions` has it then."""
    keep(run, QUESTIONS, question)
    (own,) = [one for one in questions(run) if one["name"] == question["name"]]
    return own


def report(run: Run, config: CaseConfig) -> dict[str, Any]:
    """Everything known of a case: baseline, tests, traces, questions, and the table of evidence.
    ``report.as_text`` writes it out."""
    results = kept_tests(run)
    return {
        "question": config.question,
        "baseline": next(iter(found(run, BASELINE)), {}),
        "tests": [result.to_json() for result in results],
        "traces": found(run, SENTENCES),
        "probes": questions(run),
        "ach": table_of(config, results).report(config.benign, BENIGN),
    }


def reply_of(run: Run, leaf: str, turn: int) -> Node:
    """The node that opens reply ``turn``, from 0, of the attempt that ends at ``leaf``. Raises UserError where there is none."""
    replies = [node for node, _ in run.path(leaf).segments if node.role == "assistant" and node.opens]
    if turn not in range(len(replies)):
        raise UserError(f"the run that ends at {leaf} has replies 0 to {len(replies) - 1}, not {turn}")
    return replies[turn]


def _plain(record: Record) -> dict[str, Any]:
    """``value`` as JSON returns it when read back; values of a case's file that JSON cannot hold (a date) become text."""
    plain: dict[str, Any] = json.loads(json.dumps(record, default=str))
    return plain


def _ordered(maker: str, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    last = {_SORTS[maker].name(one): one for one in records}
    return [last[name] for name in sorted(last, key=lambda name: f"{safe(name)}.")]


@dataclass(frozen=True, slots=True)
class _Sort:
    """What one maker finds: the name by which a newer one replaces it, and the findings that it becomes."""

    name: Callable[[Record], str]
    findings: Callable[[Record], Iterator[Finding]]


def _rate(result: Record) -> float | None:
    return None if result["rate"] is None else float(result["rate"]["value"])


def _baseline(result: Record) -> Iterator[Finding]:
    """The rate in the incident."""
    why = f"rate {share_text(result['rate'])}; {plural(result['invalid'], 'invalid run')} ({result['invalid_share']:.0%})"
    yield Finding("baseline", BASELINE, why, value=_rate(result), unit="rate", evidence=result)


def _test(result: Record) -> Iterator[Finding]:
    """What was changed, and how far the behaviour moved."""
    unit = "z" if result["kind"] == "dose" else "change of the rate"
    why = f"{result['statement']} ({plural(result['n'], 'run')}, corrected p {result['p']:.2g}): {result['seen']}"
    yield Finding(f"{result['kind']} {result['name']}", TESTS, why, value=result["value"], unit=unit, evidence=result)


def _control(result: Record) -> Iterator[Finding]:
    """What a test does on an agent that has the property."""
    did = "fires" if result.get("fired", True) else "does not fire"
    why = (
        f"{result['test']} {did} on {result['source']} ({plural(result['n'], 'run')}), its power is at least "
        f"{result['power']:.2f}"
    )
    yield Finding(f"control {result['test']}", CONTROLS, why, value=result["power"], unit="power", evidence=result)


def _sentences(result: Record) -> Iterator[Finding]:
    """A reply that was forked at its sentences, and those that move the rate, where they begin."""
    node = result.get("node")
    yield Finding("sentences", SENTENCES, sentences_text(result), node, evidence=result)
    for row, offset in zip(result["sentences"], result.get("offsets", ()), strict=False):
        if row["p"] < ALPHA:
            why = f"'{row['sentence'][:120]}' moves the rate by {row['held_out']:+.2f} (corrected p {row['p']:.2g})"
            yield Finding(SENTENCE, SENTENCES, why, node, offset, "", row["held_out"], "change of the rate", row)


def _question(result: Record) -> Iterator[Finding]:
    """How often the agent answers so, which is no cause."""
    why = f"asked '{result['question'][:120]}', answers of the kind: {share_text(result['rate'])}"
    if "others" in result:
        why = (
            f"{result['kind']} '{result['question'][:120]}': {share_text(result['rate'])} of runs that did it, "
            f"{share_text(result['others'])} of the others"
        )
    yield Finding(f"question {result['name']}", QUESTIONS, why, value=_rate(result), unit="rate", evidence=result)


_SORTS = {
    BASELINE: _Sort(lambda result: "", _baseline),
    TESTS: _Sort(lambda result: str(result["name"]), _test),
    CONTROLS: _Sort(lambda result: str(result["test"]), _control),
    SENTENCES: _Sort(lambda result: f"{result['leaf'][:12]}-{result['turn']}", _sentences),
    QUESTIONS: _Sort(lambda result: str(result["name"]), _question),
}
