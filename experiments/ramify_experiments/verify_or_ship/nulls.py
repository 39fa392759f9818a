"""Made records whose truth is known, given to the verbs: critics that know nothing,
critics that are independent, and the opposite of both."""

from __future__ import annotations

import json
from pathlib import Path

from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition

INSTANCES, STEPS = 400, 3
PRIOR, FIX, BROKEN = 0.4, 0.25, 0.08
CRITICS = {"syntax": (0.99, 0.90), "tests": (0.90, 0.35), "review": (0.75, 0.35)}
"""P(pass | right), P(pass | wrong), where critics know anything."""


def _records(rep: Repetition, informative: bool, copied: bool = False) -> Path:
    """A file of attempts. ``informative``: critics know the truth as CRITICS says, else none does;
    ``copied``: review repeats tests on three candidates of four."""
    rng = generator(rep.seed, "verify-or-ship", "nulls")
    lines = []
    for instance in range(INSTANCES):
        right = bool(rng.random() < PRIOR)
        for step in range(STEPS):
            if step:
                right = bool(rng.random() < (1 - BROKEN if right else FIX))
            answers = {}
            for name, (t, f) in CRITICS.items():
                answers[name] = int(rng.random() < ((t if right else f) if informative else (t + f) / 2))
            if copied and rng.random() < 0.75:
                answers["review"] = answers["tests"]
            lines.append({"instance_id": f"task {instance}", "step": step, "Y": int(right), "critics": answers})
    path = rep.folder / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _pays(rep: Repetition, informative: bool) -> bool:
    """Whether `replay` says that planning gains over the best fixed rule."""
    path = _records(rep, informative)
    costs = "syntax=1,tests=2,review=5"
    return bool(rep.verb("verify-or-ship", "replay", path, "--costs", costs, "--c-ver", 55)["pays"])


def _asks_ignorant(rep: Repetition) -> bool:
    """Whether the plan asks a critic that knows nothing."""
    tables = rep.folder / "tables.json"
    rep.verb("verify-or-ship", "calibrate", _records(rep, False), "--out", tables)
    found = rep.verb("verify-or-ship", "plan", tables, "--costs", "syntax=1,tests=2,review=5", "--c-ver", 30)
    return any(one["action"] in CRITICS for one in found["policy"])


def _dependent(rep: Repetition, copied: bool) -> bool:
    found = rep.verb("verify-or-ship", "calibrate", _records(rep, True, copied))["dependent"]
    return any(set(one["critics"]) == {"tests", "review"} for one in found) if copied else bool(found)


_SAME = f"{INSTANCES} tasks of {STEPS} candidates"
CASES = (
    KnownCase(
        "critics that know nothing",
        "nothing",
        f"{_SAME}; what critics say does not depend on the truth: a gain of planning over the best fixed rule is false.",
        lambda rep: _pays(rep, False),
        wanted=0.05,
        full=200,
        quick=10,
    ),
    KnownCase(
        "no signal, no question",
        "nothing",
        f"{_SAME} with the same critics, at their usual prices: a plan that asks one of a first candidate is false.",
        _asks_ignorant,
        wanted=0.05,
        full=200,
        quick=10,
    ),
    KnownCase(
        "independent critics",
        "nothing",
        f"{_SAME}; critics are independent given the truth: a dependent pair is false.",
        lambda rep: _dependent(rep, False),
        wanted=0.05,
        full=400,
        quick=20,
    ),
    KnownCase(
        "a dear verifier and critics that are worth asking",
        "planted",
        f"{_SAME}; critics know the truth in part and the verifier costs 55 of 100: a gain of planning over the best fixed rule "
        "must be found.",
        lambda rep: _pays(rep, True),
        wanted=0.8,
        full=200,
        quick=10,
    ),
    KnownCase(
        "a critic that copies another",
        "planted",
        f"{_SAME}; on three candidates of four the review repeats the tests: that pair must be named.",
        lambda rep: _dependent(rep, True),
        wanted=0.8,
        full=200,
        quick=10,
    ),
)
