"""How often `ramify why` names the right step, at what cost, beside simple rules and the nearest peer's estimator."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ramify
from ramify.base.seeds import generator
from ramify.jobs.decline import Decline
from ramify.jobs.why import Why
from ramify.jobs.why.records import LEAST
from ramify.stats.drops import Counts
from ramify.stats.intervals import clopper_pearson
from ramify_experiments.lab import Checks, ResultCache, sized
from ramify_experiments.why.errands import KINDS, Errand, ErrandEnvironment, agent, errand, peers_case, recorded
from ramify_experiments.why.rivals import first_error, last_call, last_rescue, unlikeliest
from ramify_experiments.why.shares import exact_shares, shared

EACH = 48
"""Errands of a kind: 240 in all."""
PLAYED = {"quick": 4, "cpu": 48}
"""Errands of a kind that the verb's library function itself plays, in a run."""
K = 16
"""Resamples of a step by the peer's default; its own tests take 80."""
SHARED = {"single": 24, "two": 48, "none": 48}
"""Errands of a kind over whose steps credit is shared."""
REPEATS = {"quick": 5, "cpu": 40}
"""Times that each of the peer's own synthetic cases is played."""
PEERS = {f"pivotal, {p} bad": (p, False) for p in (0.3, 0.5, 0.7)} | {"both bad": (0.3, True)}
"""The peer's synthetic cases: one pivotal step (its tests take 0.3), and two bad picks that fail only together. Of the latter the
second is where the attempt was lost: resampling it helps more."""


def search(one: Errand, rng: np.random.Generator) -> tuple[int | None, int]:
    """What the rule of `ramify why` names on the failed attempt, and how many continuations that took: none repeat a state."""
    potentials = one.potentials
    last = len(potentials) - 1
    known = frozenset({last}) if one.flaky is None else frozenset()
    looks = Decline(known=known).looks(range(last + 1))
    own: dict[int, Counts] = {}
    wanted = next(looks)
    while True:
        for t, n in wanted.items():
            have = own.get(t, Counts(0, 0))
            more = n - have.forks
            own[t] = have + Counts(int(rng.binomial(more, min(1.0, potentials[t]))), more)
        try:
            wanted = looks.send(dict(own))
        except StopIteration as end:
            stood: tuple[int, ...] = end.value
            return (stood[0] if stood else None), sum(c.forks for t, c in own.items() if t != last)


def compared(seed: int) -> dict[str, Any]:
    """Every way on every errand: by kind, [right, named, continuations] of each errand."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for kind in KINDS:
        for i in range(EACH):
            one = errand(kind, 1000 * seed + i)
            v, rng = one.potentials, generator(seed, "why", kind, i)
            peer = last_rescue(v, K, rng)
            results = {
                "why": search(one, rng),
                "peer": peer,
                "peer, K=80": last_rescue(v, 80, rng),
                "peer, K=5": last_rescue(v, 5, rng),
                "last call": (last_call(one), 0),
                "first error": (first_error(one), 0),
                "least likely": (unlikeliest(one), 0),
            }
            for name, (step, cost) in results.items():
                row = [float(step == one.answer), float(step is not None), float(cost)]
                found.setdefault(name, {}).setdefault(kind, []).append(row)
    return found


def peers_cases(seed: int, repeats: int) -> dict[str, list[list[float]]]:
    """The peer's synthetic cases: [right, continuations] of the library function on runs of them, and of the peer by K."""
    found: dict[str, list[list[float]]] = {}
    for name, (bad, both) in PEERS.items():
        one = peers_case(bad, both)
        for i in range(repeats):
            result = why_of(one, False, seed=repeats * seed + i)
            found.setdefault("why", []).append([float(_named(result) == one.answer), float(result.samples)])
            rng = generator(seed, "peers", name, i)
            for k in (80, K, 5):
                step, cost = last_rescue(one.potentials, k, rng)
                found.setdefault(f"peer, K={k}", []).append([float(step == one.answer), float(cost)])
    return found


def played(seed: int, each: int, states: bool) -> dict[str, list[list[float]]]:
    """The library function on runs of errands: by kind, [right, named, continuations].
    ``states``: the environment reports its states."""
    found: dict[str, list[list[float]]] = {}
    for kind in KINDS:
        for i in range(each):
            one = errand(kind, 1000 * seed + i)
            result = why_of(one, states)
            step = _named(result)
            found.setdefault(kind, []).append([float(step == one.answer), float(step is not None), float(result.samples)])
    return found


def shares(seed: int) -> dict[str, list[list[float]]]:
    """Credit shared over the steps of errands, from their closed form: by kind, [steps with credit whose share exceeds LEAST,
    such steps, whether any other step got credit, steps whose interval holds their share, steps,
    continuations] of each errand."""
    found: dict[str, list[list[float]]] = {}
    for kind, each in SHARED.items():
        for i in range(each):
            one = errand(kind, 1000 * seed + i)
            exact = exact_shares(one)
            _, intervals, credited, cost = shared(one, seed)
            due = [-value > LEAST for value in exact]
            right = sum(a and b for a, b in zip(credited, due, strict=True))
            false = any(a and not b for a, b in zip(credited, due, strict=True))
            held = sum(low <= value <= high for (low, high), value in zip(intervals, exact, strict=True))
            row = [float(right), float(sum(due)), float(false), float(held), float(one.steps), float(cost)]
            found.setdefault(kind, []).append(row)
    return found


def _named(result: Why) -> int | None:
    """The step that a result names, from 1."""
    return next((t for t, step in enumerate(result.steps, 1) if step.node == result.node), None)


def why_of(one: Errand, states: bool, seed: int = 0) -> Why:
    """What ``ramify.why`` says of the errand's failed attempt, recorded in a run of its own, with the continuations to the
    verdict alone. ``seed`` decides the continuations."""
    environment = ErrandEnvironment(one, states, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ramify.play(recorded(one), ErrandEnvironment(one, states), [{"id": "errand"}], out=run, seed=seed)
        return ramify.why(run, model=agent(one), env=environment, describe=0)


def _column(rows: dict[str, list[list[float]]], at: int, *kinds: str) -> list[float]:
    return [row[at] for kind in kinds for row in rows[kind]]


SURE = (
    "a step is named only where its loss is sure at the corrected level; the peer at K=16 names where about one in four rescues "
    "(docs/why.md)"
)
KNOWN = {
    "why: continuations, of peer's": f"without states that repeat: {SURE}",
    "peer's cases, continuations, of K=16": f"three steps only: {SURE}",
    "peer's cases, why - peer, K=80: right": f"three steps, a success of 3 in 10: {SURE}",
}
"""Checks that fail, with the reason."""


@sized("why", quick=1, cpu=3)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """240 errands a seed. ``quick`` plays a few of them in runs, ``cpu`` all, with and without states."""
    checks = Checks(seeds, KNOWN)
    each = cells.grid(compared, {"errands": {}}, seeds)["errands"]
    ways = {way: {kind: [row for one in each for row in one[way][kind]] for kind in KINDS} for way in each[0]}
    arms = {name: {"each": PLAYED[size], "states": states} for name, states in (("why, played", False), ("why, states", True))}
    for arm, results in cells.grid(played, arms, seeds).items():
        ways[arm] = {kind: [row for one in results for row in one[kind]] for kind in KINDS}
    for way, rows in ways.items():
        _share(checks, f"{way}: right", _column(rows, 0, *KINDS))
        for kind in KINDS:
            _share(checks, f"{way}: right, {kind}", _column(rows, 0, kind))
        _share(checks, f"{way}: named a step where none did", _column(rows, 1, "none"))
        if rows["single"][0][2]:
            checks.mean(f"{way}: continuations", _column(rows, 2, *KINDS))
    right = {way: float(np.mean(_column(rows, 0, *KINDS))) for way, rows in ways.items()}
    cost = {way: float(np.mean(_column(rows, 2, *KINDS))) for way, rows in ways.items()}
    n = len(_column(ways["why"], 0, *KINDS))
    false = _column(ways["why"], 1, "none")
    low = clopper_pearson(int(sum(false)), len(false))[0]
    checks.value("why: lower bound of its false namings", low, len(false), "<=", 0.05)
    simple = max(right[way] for way in ("last call", "first error", "least likely"))
    checks.value("why - best simple rule: right", right["why"] - simple, n, ">=", 0.2)
    for way in ("why", "why, states"):
        for peer in ("peer", "peer, K=80"):
            checks.value(f"{way} - {peer}: right", right[way] - right[peer], n, ">=", 0.0)
            checks.value(f"{way}: continuations, of {peer}'s", cost[way] / cost[peer], n, "<=", 1 / 3)
    _shares(checks, cells.grid(shares, {"shares": {}}, seeds)["shares"])
    theirs = cells.grid(peers_cases, {"peer's cases": {"repeats": REPEATS[size]}}, seeds)["peer's cases"]
    cases = {way: [row for one in theirs for row in one[way]] for way in theirs[0]}
    for way, one_way in cases.items():
        _share(checks, f"peer's cases, {way}: right", [row[0] for row in one_way])
        checks.mean(f"peer's cases, {way}: continuations", [row[1] for row in one_way])
    gap, share = (np.mean([row[i] for row in cases["why"]]) for i in (0, 1))
    for k in (K, 80):
        other = [np.mean([row[i] for row in cases[f"peer, K={k}"]]) for i in (0, 1)]
        checks.value(f"peer's cases, why - peer, K={k}: right", float(gap - other[0]), len(cases["why"]), ">=", 0.0)
        checks.value(f"peer's cases, continuations, of K={k}", float(share / other[1]), len(cases["why"]), "<=", 1 / 3)
    return checks


def _shares(checks: Checks, each: Sequence[dict[str, list[list[float]]]]) -> None:
    """The checks of credit that is shared."""
    for kind in SHARED:
        right, due, false, held, steps, cost = np.array([row for one in each for row in one[kind]]).T
        if due.sum():
            checks.share(f"share: steps with credit, {kind}", int(right.sum()), int(due.sum()))
        checks.share(f"share: errands with false credit, {kind}", int(false.sum()), len(false))
        checks.share(f"share: intervals that hold the exact share, {kind}", int(held.sum()), int(steps.sum()))
        checks.mean(f"share: continuations, {kind}", cost.tolist())
    rows = {kind: np.array([row for one in each for row in one[kind]]) for kind in SHARED}
    two, none = rows["two"], rows["none"]
    checks.value(
        "share: of the steps that lost it together", float(two[:, 0].sum() / two[:, 1].sum()), int(two[:, 1].sum()), ">=", 0.5
    )
    low = clopper_pearson(int(none[:, 2].sum()), len(none))[0]
    checks.value("share: lower bound of its false credit", low, len(none), "<=", 0.05)
    every = np.concatenate(list(rows.values()))
    checks.value("share: intervals that hold", float(every[:, 3].sum() / every[:, 4].sum()), int(every[:, 4].sum()), ">=", 0.95)


def _share(checks: Checks, name: str, values: Sequence[float]) -> None:
    checks.share(name, int(sum(values)), len(values))
