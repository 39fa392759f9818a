"""What a page shows of a loop: its theories, its experiments with their gate, what was decided, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.methods.theory_loop.domain import PROBLEMS
from ramify.methods.theory_loop.loop import CANDIDATE, COLLECTED, CONFIRMED, DECIDED, KIND, PROBLEM, REPLACED, pool_of, rows_of
from ramify.methods.theory_loop.proposer import Experiment, TheoryPool
from ramify.render.result import Folded, Grid, Section, table
from ramify.trace.db import Run

Known = Mapping[tuple[str, str], Any]


def sections(run: Run) -> list[Section]:
    """Of a run of `theory-loop run`, finished or not."""
    if run.kind != KIND:
        return []
    pool, known = pool_of(run), {(one.kind, one.key): one.payload for one in run.journal()}
    found = [_theories(pool), _experiments(pool, known), _rounds(known), _claims(known), _problems(known)]
    return [one for one in found if any(isinstance(part, Grid) for part in one.parts)]


def _theories(pool: TheoryPool) -> Section:
    rows = [
        [
            row["label"],
            row["score"],
            row["mean_distance"],
            "survives" if row["label"] in pool.slots else "",
            pool.theories[row["label"]].description,
            ", ".join(f"{name} {text}" for name, text in pool.theories[row["label"]].parameters.items()),
        ]
        for row in rows_of(pool)
    ]
    return Section.of(
        "Theories",
        "By score over all experiments: 1 the best possible, 0 the worst of those here. A parameter has the range from which "
        "every simulated subject draws its own value.",
        table(("theory", "score", "mean distance", "", "says", "parameters"), rows),
        *(Folded(f"program of {label}", theory.file()) for label, theory in pool.theories.items()),
    )


def _experiments(pool: TheoryPool, known: Known) -> Section:
    passed = sum(bool(one.gate["passed"]) for one in pool.observations)
    return Section.of(
        "Experiments and their gate",
        f"{passed} of {len(pool.observations)} passed the gate: before anybody chooses, a Welch test must tell both theories "
        "apart on simulated people. "
        "It filters designs and is no evidence. The own theory is the proposer's.",
        table(
            ("experiment", "proposed by", "pairs", "gate p", "passed", "own predicts", "rival predicts", "measured", "people"),
            [_row(one, known) for one in pool.observations],
        ),
        *(Folded(f"experiment {one.key}: design and metric", _design(one)) for one in pool.observations),
    )


def _row(one: Experiment, known: Known) -> list[Any]:
    gate, people = one.gate, known.get((COLLECTED, one.key), {}).get("people")
    real = None if one.real is None else one.real.value
    return [
        one.key,
        one.proposer,
        one.design.pairs,
        gate["p"],
        bool(gate["passed"]),
        gate["own"]["value"],
        gate["rival"]["value"],
        real,
        people,
    ]


def _design(one: Experiment) -> str:
    pairs = zip(one.design.a, one.design.b, strict=True)
    lines = [f"{list(a)} or {list(b)}" for a, b in pairs]
    reason = "\n".join(text for text in (one.design.rationale, one.metric.rationale) if text)
    return (
        f"{reason}\n\nvalidities {list(one.design.validities)}, ratings 0 to {one.design.rating_max}\n"
        + "\n".join(lines)
        + f"\n\n{one.metric.code}"
    )


def _rounds(known: Known) -> Section:
    rows = []
    for (kind, number), verdict in known.items():
        if kind != DECIDED:
            continue
        tried = [one for (other, key), one in known.items() if other == CANDIDATE and key.partition(".")[0] == number]
        made = known.get((REPLACED, number), {})
        rows.append(
            [
                int(number),
                made.get("replaced"),
                made.get("label"),
                len(tried),
                sum(one["accepted"] for one in tried),
                made.get("loss"),
                verdict["interpretation"],
            ]
        )
    head = ("round", "replaced", "by", "candidates", "accepted", "loss", "why")
    says = (
        "The arbiter chooses which theory to replace; of the candidates the one that loses least on all experiments so far "
        "takes its place."
    )
    return Section.of("What was decided", says, table(head, rows))


def _claims(known: Known) -> Section:
    rows = []
    for (kind, _), one in known.items():
        if kind == CONFIRMED:
            claim = one.get("claim") or f"{one['label']} predicts better than its rivals"
            p = max(row["holm"] for row in one["rivals"]) if one.get("rivals") else one.get("p")
            rows.append([claim, one["people"], p, bool(one.get("holds", one.get("winner")))])
    says = "Fixed before their data, tested once on fresh participants. p is the largest of all rivals, corrected."
    return Section.of("Registered claims", says, table(("claim", "people", "p", "holds"), rows))


def _problems(known: Known) -> Section:
    found = [one for (kind, _), one in known.items() if kind == PROBLEM]
    rows = [[one["where"], PROBLEMS.get(one["problem"], one["problem"]), one["why"]] for one in found]
    code = [Folded(f"{one['where']}: the source", str(one["code"])) for one in found if one.get("code")]
    return Section.of("What went wrong, and was recorded", table(("where", "what", "why"), rows), *code)
