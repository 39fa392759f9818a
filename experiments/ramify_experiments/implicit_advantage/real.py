"""On a real model: a checkpoint that `ramify improve` trained on sums grades its own attempts against its base, and conversations
with one wrong answer, whose place is known.

Thresholds are those of the specification's sections 7 and 8, fixed before any figure was seen. A number alone has no nuisance
wording, so no edge over the log-prob is asked for (section 7(a), arm N0).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.base.seeds import generator
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.run import read_scores
from ramify.score.steps import write_rows
from ramify.stats.checks import Check
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import asked_sum, graded_environment, improved, two_digits

METHOD = "implicit-advantage"
TASKS, ATTEMPTS = 25, 4
CONVERSATIONS, SUMS_EACH, TWICE = 44, 3, 12
"""Conversations, of which every other has one wrong answer, sums in each, and those that the base grades against itself."""
TRAINED = 1200
"""Sums that `improve` could be trained or validated on."""
HELD = f"python:{__name__}:held"

_NEW = two_digits(TRAINED + TASKS + CONVERSATIONS * SUMS_EACH)[TRAINED:]


held = graded_environment(
    Task(f"new-sum-{a}-{b}", {"prompt": asked_sum(a, b), "want": a + b, "split": "train"}) for a, b in _NEW[:TASKS]
)
"""Sums that the improved model was not trained on; the split is the one that `rollout` plays."""


def conversations(seed: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Conversations of three sums with their answers as attempts, and where the wrong answer is of those that have one."""
    rng, rows, wrong = generator(seed, "wrong sums"), [], {}
    for i in range(CONVERSATIONS):
        sums = _NEW[TASKS + SUMS_EACH * i : TASKS + SUMS_EACH * (i + 1)]
        at = int(rng.integers(SUMS_EACH)) if i % 2 else -1
        messages = []
        for number, (a, b) in enumerate(sums):
            off = int(rng.choice([-11, -10, -9, -2, -1, 1, 2, 9, 10, 11])) if number == at else 0
            messages += [{"role": "user", "content": asked_sum(a, b)}, {"role": "assistant", "content": str(a + b + off)}]
        name = f"conversation-{i}"
        rows.append({"task_id": name, "messages": messages, "reward": float(at < 0)})
        if at >= 0:
            wrong[name] = at
    return rows, wrong


def ranked(model: str, seed: int) -> dict[str, Any]:
    """How the grade and its rivals rank the improved model's own attempts at new sums."""
    tuned = improved(model)
    with tempfile.TemporaryDirectory() as folder:
        run, pair = Path(folder) / "run", ("--policy", tuned, "--reference", model)
        play = ("--count", TASKS, "--attempts", ATTEMPTS, "--seed", seed, "--temperature", 1, "--max-reply", 12)
        call_verb("rollout", "--model", tuned, "--env", HELD, *play, "--out", run)
        call_verb(METHOD, "score", "--trajectories", run, *pair, "--confidence", "--out", Path(folder) / "scores")
        report = call_verb(METHOD, "report", "--scores", Path(folder) / "scores")
        choice = call_verb(METHOD, "select", "--scores", Path(folder) / "scores", "--best-of", ATTEMPTS)
        return {"report": report, "by": choice["by"]}


def _against_itself(model: str, attempts: Path, out: Path) -> dict[str, Any]:
    """The largest grade of a step where the base is policy and reference, and what the verbs then say."""
    call_verb(METHOD, "score", "--trajectories", attempts, "--policy", model, "--reference", model, "--out", out)
    report = call_verb(METHOD, "report", "--scores", out)
    largest = max(abs(step.A_sum) for record in read_scores(out) for step in record.steps)
    found = [report["better"] == "advantage", bool(report["beyond_chance"])]
    return {"largest": largest, "found": sum(found) + len(call_verb(METHOD, "blame", "--scores", out)["blamed"])}


def blamed(model: str, seed: int) -> dict[str, Any]:
    """Of conversations with a wrong answer: how often that is the step of the lowest grade, of the policy's lowest log-prob, and
    the one that the verb names; and how many others it names."""
    rows, wrong = conversations(seed)
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "attempts.jsonl", Path(folder) / "scores"
        write_rows(file, rows)
        call_verb(METHOD, "score", "--trajectories", file, "--policy", improved(model), "--reference", model, "--out", out)
        records = {record.trajectory_id: record for record in read_scores(out)}
        blame = call_verb(METHOD, "blame", "--scores", out)["blamed"]
        write_rows(file, rows[:TWICE])
        null = _against_itself(model, file, Path(folder) / "null")
    named = {records[row["trajectory_id"]].task_id: row["step"] for row in blame}
    hits = {"grade": 0, "log-prob": 0, "named": 0}
    for record in records.values():
        if record.task_id in wrong:
            steps = record.counted
            truth = steps[wrong[record.task_id]].i
            hits["grade"] += min(steps, key=lambda step: step.A_sum).i == truth
            hits["log-prob"] += min(steps, key=lambda step: step.logp_theta).i == truth
            hits["named"] += named.get(record.task_id) == truth
    return {"n": len(wrong), "hits": hits, "others": len(named) - hits["named"], "null": null}


def real(model: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
    """Grade the improved model against its base on new sums, and find the wrong answer of a conversation."""
    ranks, steps = cells.get("ranked", ranked, model=model, seed=first), cells.get("blamed", blamed, model=model, seed=first)
    checks = Checks([first], _KNOWN)
    scorers = {row["scorer"]: row for row in ranks["report"]["scorers"]}
    grade = scorers["advantage sum/mean"]
    n = grade["n"]
    for name, wanted in (
        ("advantage sum/mean", (">=", 0.6)),
        ("policy log-prob", ()),
        ("shortness", ()),
        ("few steps", ("==", 0.5)),
    ):
        row = scorers[name]
        checks.value(f"AUROC, {SHOWN[name]}", row["auroc"], n, *wanted, **_span(row["interval"]))
    rival = scorers["policy log-prob"]
    checks.value("AUROC, grade - policy's log-prob", rival["advantage_minus_this"], n, **_span(rival["difference_interval"]))
    within = grade["auroc_within_tasks"]
    checks.value("AUROC within tasks, grade", float("nan") if within is None else within, n)
    for name, wanted in (("sum/mean", (">=", 0.06)), ("policy log-prob", ()), ("shortness", ()), ("few steps", ("==", 0.0))):
        row = ranks["by"][name]
        checks.value(
            f"best of {ATTEMPTS} - mean, {SHOWN[name]}", row["gain"], row["counted"], *wanted, **_span(row["gain_interval"])
        )
    checks.value("attempts that succeed", ranks["report"]["positives"] / ranks["report"]["attempts"], ranks["report"]["attempts"])
    hits, wrong = steps["hits"], steps["n"]
    checks.share("wrong step is the lowest, by the grade", hits["grade"], wrong, ">=", 0.6)
    checks.share("wrong step is the lowest, by the policy's log-prob", hits["log-prob"], wrong)
    checks.value("wrong step is the lowest, by chance", 1 / SUMS_EACH, wrong)
    checks.share("wrong step named beyond the noise", hits["named"], wrong)
    checks.share("another step named beyond the noise", steps["others"], wrong)
    checks.value("base against base: largest grade", steps["null"]["largest"], TWICE, "<=", 1e-4)
    checks.value("base against base: findings", steps["null"]["found"], TWICE, "==", 0)
    return checks


SHOWN = {
    "advantage sum/mean": "grade",
    "sum/mean": "grade",
    "policy log-prob": "policy's log-prob",
    "shortness": "shortness",
    "few steps": "a constant",
}
"""Scorers of the verbs, and what they are called here; every attempt has one step, so their number is a constant."""
_PAGE = "docs/methods/implicit-advantage.md"
_KNOWN = {
    "AUROC, grade": f"what eight updates made likelier is said in wrong answers, too; {_PAGE}",
    f"best of {ATTEMPTS} - mean, grade": f"the improved model's attempts at a sum are mostly alike; {_PAGE}",
    "wrong step is the lowest, by the grade": f"eight updates of 135 M weights do not teach which sum is wrong; {_PAGE}",
}


def _span(found: Sequence[float] | None) -> dict[str, Any]:
    return {} if found is None else {"interval": (found[0], found[1])}
