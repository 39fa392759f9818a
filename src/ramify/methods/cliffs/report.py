"""What a scan says in numbers and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ramify.base.words import plural
from ramify.methods.cliffs.algorithm import KINDS
from ramify.methods.cliffs.passk import pass_at_k
from ramify.methods.cliffs.run import ScanConfig, Scanned
from ramify.render.potential import Estimate, Potential, Spot
from ramify.stats.intervals import bootstrap, wilson


def summary(scanned: Sequence[Scanned], config: ScanConfig) -> dict[str, Any]:
    """Cliffs of wrong and right traces, cliffs by class before and after confirmation, what was measured and what it took.

    ``wrong`` and ``right`` hold traces, the share with a cliff that was kept (its Wilson interval) and cliffs a trace; ``ratio``
    is that of cliffs a trace. ``solved`` counts the traces whose forks of the bare prompt end right never, or always.
    ``share_of_forks`` is the cost against all positions with all forks.
    """
    sides = {name: _side([s for s in scanned if s.trace.correct is want]) for name, want in (("wrong", False), ("right", True))}
    counts = [c for s in scanned for c in (s.trace.potentials or ()) if c is not None]
    whole = sum(config.n * (s.trace.length + 1) for s in scanned)
    forks = sum(s.forks for s in scanned)
    v_0 = [s.trace.potentials[0].rate for s in scanned if s.trace.potentials and s.trace.potentials[0]]
    wrong, right = (sides[name]["cliffs_per_trace"] for name in ("wrong", "right"))
    return {
        "verdict": sentence(scanned, config),
        "cliffs": sum(len(s.kept) for s in scanned),
        "traces": len(scanned),
        "unjudged": sum(s.trace.correct is None for s in scanned),
        **sides,
        "ratio": wrong / right if wrong is not None and right else None,
        "classes": [_class(scanned, kind) for kind in (*KINDS, None)],
        "solve_rate": _mean(v_0),
        "solved": {"none": v_0.count(0.0), "all": v_0.count(1.0)},
        "tokens": sum(s.trace.length for s in scanned),
        "tested": sum(s.tested for s in scanned),
        "positions": len(counts),
        "forks": forks,
        "share_of_forks": forks / whole if whole else None,
        "missing": sum(c.missing for c in counts),
        "truncated": sum(c.truncated for c in counts),
        "gap": max((s.gap for s in scanned), default=0.0),
    }


def sentence(scanned: Sequence[Scanned], config: ScanConfig) -> str:
    """What a scan comes to, in one sentence."""
    cliffs, having = sum(len(s.kept) for s in scanned), sum(bool(s.kept) for s in scanned)
    if not cliffs:
        return f"nothing stands out: no token was shown to lose more than {config.delta0:g}"
    checked = "confirmed on fresh forks" if config.fresh else "found, none of them checked on fresh forks"
    return f"{plural(cliffs, 'cliff')} in {having} of {len(scanned)} traces, {checked}"


def _side(scanned: Sequence[Scanned]) -> dict[str, Any]:
    n, having = len(scanned), sum(bool(s.kept) for s in scanned)
    return {
        "traces": n,
        "with_cliff": having,
        "interval": list(wilson(having, n)),
        "cliffs_per_trace": sum(len(s.kept) for s in scanned) / n if n else None,
    }


def _class(scanned: Sequence[Scanned], kind: str | None) -> dict[str, Any]:
    """One class; None are cliffs whose class is unknown."""
    cliffs = [c for s in scanned for c in s.cliffs if c.facts.kind == kind]
    return {
        "class": kind or "not known",
        "found": len(cliffs),
        "confirmed": sum(c.status == "confirmed" for c in cliffs),
        "refuted": sum(c.status == "refuted" for c in cliffs),
        "suspect": sum(c.suspect for c in cliffs),
        "drop": _mean([c.drop for c in cliffs]),
        "fresh_drop": _mean([c.fresh_drop for c in cliffs if c.fresh_drop is not None]),
    }


def _mean(values: Iterable[float]) -> float | None:
    known = [v for v in values if v == v]
    return float(np.mean(known)) if known else None


def ablation_table(records: Sequence[dict[str, Any]], ks: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """pass@k of every arm over the records of :func:`ramify.methods.cliffs.run.ablate`, and the gap del - keep at k = 1.

    An arm that is undefined for a cliff scores 0 there (``undefined`` counts them). An arm with fewer than k graded forks counts
    with all of them, a lower bound (``short`` counts these cliffs for each k); a cliff of which some arm has none is left out of
    every arm (``left_out``), so that all arms are of the same cliffs. Intervals are 95 % bootstrap over traces, since cliffs of
    one trace are not independent.
    """
    arms = [arm for arm in ("del", "keep", "random", "critical", "tangent") if records and arm in records[0]]
    whole = [r for r in records if min(_graded(r, arms)) > 0]
    rows = []
    for arm in arms:
        own = [r for r in whole if arm in r]
        row: dict[str, Any] = {"arm": arm, "cliffs": len(own), "undefined": sum(r[arm] is None for r in own)}
        for k in ks:
            values = [(r["trace_id"], _pass(r[arm], k)) for r in own]
            row[f"pass@{k}"], row[f"interval@{k}"] = _over_traces(values, seed)
        rows.append(row)
    gap, interval = _over_traces([(r["trace_id"], _pass(r["del"], 1) - _pass(r["keep"], 1)) for r in whole], seed)
    short = {str(k): sum(min(_graded(r, arms)) < k for r in whole) for k in ks}
    left_out = len(records) - len(whole)
    return {"arms": rows, "gap": gap, "gap_interval": interval, "cliffs": len(whole), "left_out": left_out, "short": short}


def _graded(record: dict[str, Any], arms: Sequence[str]) -> list[int]:
    return [record[arm]["n"] for arm in arms if record.get(arm)]


def _pass(counts: dict[str, int] | None, k: int) -> float:
    return pass_at_k(counts["n"], counts["k"], min(k, counts["n"])) if counts else 0.0


def _over_traces(values: Sequence[tuple[str, float]], seed: int) -> tuple[float | None, list[float] | None]:
    """Mean of (trace, value), and its interval: traces are sampled anew, each with all its values."""
    groups: dict[str, list[float]] = {}
    for name, value in values:
        groups.setdefault(name, []).append(value)
    if not groups:
        return None, None
    total, n = np.array([(sum(group), len(group)) for group in groups.values()]).T

    def mean(samples: np.ndarray) -> np.ndarray:
        return np.asarray(total[samples.astype(int)].sum(axis=1) / n[samples.astype(int)].sum(axis=1))

    return float(total.sum() / n.sum()), list(bootstrap(np.arange(len(n)), mean, seed))


def spots(scanned: Scanned) -> list[Spot]:
    """Cliffs and rebounds as things to point at in a picture."""
    out = [Spot(rise.t, "rebound", f"{rise.prev.rate:.2f} to {rise.cur.rate:.2f}") for rise in scanned.rebounds]
    for cliff in scanned.cliffs:
        note = f"{(cliff.facts.kind or 'cliff').replace('_', '-')}, {cliff.prev.rate:.2f} to {cliff.cur.rate:.2f}, {cliff.status}"
        if cliff.fresh_drop is not None:
            note += f" (fresh drop {cliff.fresh_drop:.2f})"
        out.append(Spot(cliff.t, "doubtful" if cliff.status == "refuted" else "cliff", note))
    return out


def picture(scanned: Scanned, tokens: Sequence[str]) -> Potential:
    """What :mod:`ramify.render.potential` shows of a trace, given the text of each token."""
    estimates = [
        Estimate(t, c.rate, *wilson(c.k, c.n)) for t, c in enumerate(scanned.trace.potentials or ()) if c is not None and c.n
    ]
    outcome = {True: "right", False: "wrong", None: "not judged"}[scanned.trace.correct]
    found = "" if scanned.kept else "; nothing stands out"
    return Potential(tokens, estimates, spots(scanned), f"{scanned.trace.id}: ended {outcome}{found}")
