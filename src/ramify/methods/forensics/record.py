"""What a case found, as findings of its run: its rate, tests, controls, sentences and questions,
each replaced by a newer one of its name.

A finding's evidence is the whole of it, as the verbs print it; what the report says is read from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.words import plural
from ramify.methods.forensics.ach import BENIGN
from ramify.methods.forensics.case import CaseConfig
from ramify.methods.forensics.experiment import ALPHA, Control, TestResult, corrected
from ramify.methods.forensics.found import AskedQuestion, Baseline, CaseReport, ComparedTexts, Question, ReplyScores, share_text
from ramify.methods.forensics.report import table_of
from ramify.stats.evidence import holm
from ramify.stats.intervals import Proportion
from ramify.trace.db import Run
from ramify.trace.node import Finding, Node

KIND = "forensics"
TESTS, BASELINE, CONTROLS, SENTENCES, QUESTIONS = (KIND, *(f"{KIND} {what}" for what in ("run", "control", "sentences", "ask")))
"""Makers of findings."""
SENTENCE = "sentence"
"""What a finding of one sentence is called; that of its whole reply holds them all."""


@dataclass(frozen=True)
class TestControl:
    """The positive control of a test."""

    test: str
    control: Control
    __test__ = False


def safe(name: str) -> str:
    """A name of a tree: letters that mean something there become dashes, and a hash keeps names apart that differ in them."""
    plain = re.sub(r"[^A-Za-z0-9_.=+/-]", "-", name)
    return plain if plain == name else f"{plain}-{stable_hash(name)[:6]}"


def found(run: Run, maker: str) -> list[Any]:
    """All that was found of one sort, by name. Raises UserError on a stored finding that is none of the sort."""
    where, of = f"{run.folder}, a finding of {maker}", _SORTS[maker].of
    stored = (codec.from_json(of, one.evidence, where) for one in run.findings(maker=maker) if one.name != SENTENCE)
    return _ordered(maker, stored)


def keep(run: Run, maker: str, *records: Any) -> None:
    """Store what was found, replacing what has the same name, and commit."""
    everything = _ordered(maker, [*found(run, maker), *records])
    run.conclude(maker, [finding for one in everything for finding in _SORTS[maker].findings(one)])


def kept_tests(run: Run, newer: Iterable[TestResult] = ()) -> list[TestResult]:
    """Every test kept so far, and ``newer`` ones, by name, corrected over all of them;
    controls that were measured since are put to them."""
    known = controls(run)
    every: list[TestResult] = _ordered(TESTS, [*found(run, TESTS), *newer])
    return [replace(one, control=known[one.name].at(one)) if one.name in known else one for one in corrected(every)]


def keep_tests(run: Run, newer: Iterable[TestResult] = ()) -> list[TestResult]:
    """Add tests to those stored: all are corrected over their number. Returns :func:`kept_tests`."""
    known = kept_tests(run, newer)
    keep(run, TESTS, *known)
    return known


def controls(run: Run) -> dict[str, Control]:
    """The positive controls, by the test that they are of."""
    return {one.test: one.control for one in found(run, CONTROLS)}


def keep_controls(run: Run, measured: Mapping[str, Control]) -> None:
    """Store positive controls, and say of the tests that they are of what they now mean."""
    with run.transaction():
        keep(run, CONTROLS, *(TestControl(test, one) for test, one in measured.items()))
        keep_tests(run)


def questions(run: Run) -> list[AskedQuestion]:
    """Questions and counts, by name; comparisons of the two sides corrected over all of them that the case holds (Holm's
    ``p``)."""
    rows: list[AskedQuestion] = found(run, QUESTIONS)
    raw = [one.p_raw for one in rows if isinstance(one, ComparedTexts)]
    adjusted = iter(holm(raw))
    return [replace(one, p=next(adjusted), looks=len(raw)) if isinstance(one, ComparedTexts) else one for one in rows]


def keep_question(run: Run, question: ComparedTexts) -> ComparedTexts:
    """Store a comparison of the two sides; as :func:`questions` has it then."""
    keep(run, QUESTIONS, question)
    (own,) = [one for one in questions(run) if isinstance(one, ComparedTexts) and one.name == question.name]
    return own


def report(run: Run, config: CaseConfig) -> CaseReport:
    """Everything known of a case: baseline, tests, traces, questions, and the table of evidence."""
    results = kept_tests(run)
    return CaseReport(
        question=config.question,
        baseline=next(iter(found(run, BASELINE)), None),
        tests=tuple(results),
        traces=tuple(found(run, SENTENCES)),
        probes=tuple(questions(run)),
        ach=table_of(config, results).report(config.benign, BENIGN),
    )


def reply_of(run: Run, leaf: str, turn: int) -> Node:
    """The node that opens reply ``turn``, from 0, of the attempt that ends at ``leaf``. Raises UserError where there is none."""
    replies = [node for node, _ in run.path(leaf).segments if node.role == "assistant" and node.opens]
    if turn not in range(len(replies)):
        raise UserError(f"the run that ends at {leaf} has replies 0 to {len(replies) - 1}, not {turn}")
    return replies[turn]


def _ordered(maker: str, records: Iterable[Any]) -> list[Any]:
    last = {_SORTS[maker].name(one): one for one in records}
    return [last[name] for name in sorted(last, key=lambda name: f"{safe(name)}.")]


@dataclass(frozen=True, slots=True)
class _Sort:
    """What one maker finds: its type, the name by which a newer one replaces it, and the findings that it becomes."""

    of: Any
    name: Callable[[Any], str]
    findings: Callable[[Any], Iterator[Finding]]


def _rate(rate: Proportion | None) -> float | None:
    return None if rate is None else rate.value


def _baseline(result: Baseline) -> Iterator[Finding]:
    """The rate in the incident."""
    yield Finding("baseline", BASELINE, result.sentence, value=_rate(result.rate), unit="rate", evidence=codec.to_json(result))


def _test(result: TestResult) -> Iterator[Finding]:
    """What was changed, and how far the behaviour moved."""
    unit = "z" if result.kind == "dose" else "change of the rate"
    why = f"{result.statement} ({plural(result.n, 'run')}, corrected p {result.p:.2g}): {result.seen}"
    evidence = codec.to_json(result)
    yield Finding(f"{result.kind} {result.name}", TESTS, why, value=result.value, unit=unit, evidence=evidence)


def _control(result: TestControl) -> Iterator[Finding]:
    """What a test does on an agent that has the property."""
    test, one = result.test, result.control
    did = "fires" if one.fired else "does not fire"
    why = f"{test} {did} on {one.source} ({plural(one.n, 'run')}), its power is at least {one.power:.2f}"
    evidence = codec.to_json(result)
    yield Finding(f"control {test}", CONTROLS, why, value=one.power, unit="power", evidence=evidence)


def _sentences(result: ReplyScores) -> Iterator[Finding]:
    """A reply that was forked at its sentences, and those that move the rate, where they begin."""
    yield Finding("sentences", SENTENCES, result.verdict, result.node, evidence=codec.to_json(result))
    for row, offset in zip(result.sentences, result.offsets, strict=False):
        if row.p < ALPHA:
            why = f"'{row.sentence[:120]}' moves the rate by {row.held_out:+.2f} (corrected p {row.p:.2g})"
            evidence = codec.to_json(row)
            yield Finding(
                SENTENCE, SENTENCES, why, result.node, offset, "", row.held_out, "change of the rate", evidence=evidence
            )


def _question(result: AskedQuestion) -> Iterator[Finding]:
    """How often the agent answers so, which is no cause."""
    why = f"asked '{result.question[:120]}', answers of the kind: {share_text(result.rate)}"
    if isinstance(result, ComparedTexts):
        why = (
            f"{result.kind} '{result.question[:120]}': {share_text(result.rate)} of runs that did it, "
            f"{share_text(result.others)} of the others"
        )
    evidence = codec.to_json(result)
    yield Finding(f"question {result.name}", QUESTIONS, why, value=_rate(result.rate), unit="rate", evidence=evidence)


_SORTS = {
    BASELINE: _Sort(Baseline, lambda result: "", _baseline),
    TESTS: _Sort(TestResult, lambda result: str(result.name), _test),
    CONTROLS: _Sort(TestControl, lambda result: str(result.test), _control),
    SENTENCES: _Sort(ReplyScores, lambda result: f"{result.leaf[:12]}-{result.turn}", _sentences),
    QUESTIONS: _Sort(Question, lambda result: str(result.name), _question),
}
