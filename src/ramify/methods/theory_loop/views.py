"""What a page shows of a loop: its theories, its experiments with their gate, what was decided, and what went wrong."""

from __future__ import annotations

from ramify.methods.theory_loop.confirmation import ClaimTest
from ramify.methods.theory_loop.domain import PROBLEMS
from ramify.methods.theory_loop.loop import (
    CANDIDATE,
    CONFIRMED,
    DECIDED,
    KIND,
    PROBLEM,
    REPLACED,
    CandidateTheory,
    Replacement,
    pool_of,
    ranked,
)
from ramify.methods.theory_loop.proposer import Experiment, LoopProblem, TheoryPool, Verdict
from ramify.render.numbers import p_value
from ramify.render.result import Cell, Folded, Grid, Section, table
from ramify.trace.db import Run


def sections(run: Run) -> list[Section]:
    """Of a run of `theory-loop run`, finished or not."""
    if run.kind != KIND:
        return []
    pool = pool_of(run)
    found = [_theories(pool), _experiments(pool), _rounds(run), _claims(run), _problems(run)]
    return [one for one in found if any(isinstance(part, Grid) for part in one.parts)]


def _theories(pool: TheoryPool) -> Section:
    rows = [
        (
            row.label,
            row.score,
            row.mean_distance,
            "survives" if row.label in pool.slots else "",
            row.theory,
            ", ".join(f"{name} {text}" for name, text in pool.theories[row.label].parameters.items()),
        )
        for row in ranked(pool)
    ]
    return Section.of(
        "Theories",
        "By score over all experiments: 1 the best possible, 0 the worst of those here. A parameter has the range from which "
        "every simulated subject draws its own value.",
        table(("theory", "score", "mean distance", "", "says", "parameters"), rows),
        *(Folded(f"program of {label}", theory.file()) for label, theory in pool.theories.items()),
    )


def _experiments(pool: TheoryPool) -> Section:
    passed = sum(one.gate.passed for one in pool.observations)
    return Section.of(
        "Experiments and their gate",
        f"{passed} of {len(pool.observations)} passed the gate: before anybody chooses, a Welch test must tell both theories "
        "apart on simulated people. It filters designs and is not evidence. The own theory is the proposer's.",
        table(
            ("experiment", "proposed by", "pairs", "gate p", "passed", "own predicts", "rival predicts", "measured", "people"),
            [_row(one) for one in pool.observations],
        ),
        *(Folded(f"experiment {one.key}: design and metric", _design(one)) for one in pool.observations),
    )


def _row(one: Experiment) -> tuple[Cell, ...]:
    gate = one.gate
    values = (None if estimate is None else estimate.value for estimate in (gate.own, gate.rival, one.real))
    return one.key, one.proposer, one.design.pairs, p_value(gate.p), gate.passed, *values, one.people


def _design(one: Experiment) -> str:
    pairs = zip(one.design.a, one.design.b, strict=True)
    lines = [f"{list(a)} or {list(b)}" for a, b in pairs]
    reason = "\n".join(text for text in (one.design.rationale, one.metric.rationale) if text)
    return (
        f"{reason}\n\nvalidities {list(one.design.validities)}, ratings 0 to {one.design.rating_max}\n"
        + "\n".join(lines)
        + f"\n\n{one.metric.code}"
    )


def _rounds(run: Run) -> Section:
    candidates, replaced = run.memo(CANDIDATE, CandidateTheory), run.memo(REPLACED, Replacement)
    rows = []
    for number, verdict in run.memo(DECIDED, Verdict).items():
        tried = [one for key, one in candidates.items() if key.partition(".")[0] == number]
        made = replaced.get(number)
        by = (None, None, None) if made is None else (made.replaced, made.label, made.loss)
        accepted = sum(one.accepted for one in tried)
        rows.append((int(number), *by[:2], len(tried), accepted, by[2], verdict.interpretation))
    head = ("round", "replaced", "by", "candidates", "accepted", "loss", "why")
    says = (
        "The arbiter chooses which theory to replace; of the candidates the one that loses least on all experiments so far "
        "takes its place."
    )
    return Section.of("What was decided", says, table(head, rows))


def _claims(run: Run) -> Section:
    rows = [(one.claim, one.people, p_value(one.p), one.holds) for one in run.memo(CONFIRMED, ClaimTest).values()]
    says = "Fixed before their data, tested once on fresh participants. p is the largest of all rivals, corrected."
    return Section.of("Registered claims", says, table(("claim", "people", "p", "holds"), rows))


def _problems(run: Run) -> Section:
    found = run.memo(PROBLEM, LoopProblem).values()
    rows = [(one.where, PROBLEMS.get(one.problem, one.problem), one.why) for one in found]
    code = [Folded(f"{one.where}: the source", one.code) for one in found if one.code]
    return Section.of("What went wrong, and was recorded", table(("where", "what", "why"), rows), *code)
