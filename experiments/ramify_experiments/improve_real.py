"""``ramify repro improve --real``: what training brings a real pretrained model on sums and on a task of several turns, what it
costs, what sampling more sharply brings for nothing, and what comes of rewards that are coins.

One training an arm: intervals are over held-out episodes, so they say what this agent gained, and not what another seed would.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ramify.jobs.improve import ImproveConfig, Job, improve
from ramify.jobs.results import EvaluationEntry
from ramify.stats.intervals import difference_of_proportions, paired_proportions
from ramify.trace.db import Run
from ramify_experiments.lab import Checks, ResultCache
from ramify_experiments.real import COIN_DOORS, DOORS, DOORS_SAMPLING, SUMS, improved

ARMS = ("imitate", "grpo", "auto")
SHARP = 0.05
"""Temperature of the start, sampled sharply: nearly greedy."""
BOUND = 1.1
"""Most perplexity of general texts, as a multiple of the start's: the bound that ``improve`` keeps by default."""
SETTINGS: dict[str, Any] = {
    **DOORS_SAMPLING,
    "tokens": 1200,
    "updates": 3,
    "tasks_per_update": 4,
    "eval_episodes": 48,
    "changes": 0,
    "keep": {"checkpoint": "last", "episodes": 1},
}
"""Of a training at the doors. The last checkpoint is kept, so that arms differ in their rule alone."""


def trained(model: str, env: str, arm: str, seed: int) -> dict[str, Any]:
    """One training: outcomes of the held-out episodes before and after, perplexity of general texts before and after."""
    with tempfile.TemporaryDirectory() as folder:
        result = improve(ImproveConfig(model=model, env=env, arm=arm, seed=seed, **SETTINGS), Path(folder) / "run")
        with Run.open(Path(folder) / "run") as run:
            played = run.memo("eval", EvaluationEntry)
            outcomes = {when: [bool(one) for one in played[when].outcomes] for when in ("before", "after")}
    assert result.lost is not None
    before, after = result.lost.before, result.lost.after
    return outcomes | {"ratio": after.perplexity / before.perplexity, "kl": after.kl, "tokens": result.tokens}


def sharpened(model: str, env: str, seed: int, episodes: int, max_reply: int) -> list[bool]:
    """Outcomes of the same held-out episodes at :data:`SHARP`, without any training."""
    sampling: dict[str, Any] = {"temperature": SHARP, "max_reply": max_reply, "eval_episodes": episodes}
    config = ImproveConfig(model=model, env=env, seed=seed, **sampling)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with Job(config, path) as job, Run.create(path, config.to_json()) as run:
            return [bool(one) for one in job.evaluate(run, "before").outcomes]


def on_sums(model: str) -> dict[str, Any]:
    """What ``improve`` with its defaults found on sums, as it is kept with the agent that other studies use."""
    found: dict[str, Any] = json.loads((Path(improved(model).removeprefix("hf:")) / "improved.json").read_text(encoding="utf-8"))
    return found


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Three arms at the doors at the same tokens, coins instead of rewards, sums with the defaults, and the start sampled
    sharply."""
    checks = Checks((first,))
    arms = {f"doors, {arm}": {"model": model, "env": DOORS, "arm": arm, "seed": first} for arm in ARMS}
    coins = {"coins, imitate": {"model": model, "env": COIN_DOORS, "arm": "imitate", "seed": first}}
    done = cells.map(trained, {**arms, **coins}, workers=1)  # each takes 3 to 4 GB of memory
    rest: dict[str, dict[str, Any]] = {
        "doors, sharp": {"model": model, "env": DOORS, "seed": first, "episodes": 48, "max_reply": SETTINGS["max_reply"]},
        "sums, sharp": {"model": model, "env": SUMS, "seed": 0, "episodes": 60, "max_reply": 24},
    }
    sharp = cells.map(sharpened, rest, workers=1)
    sums = cells.get("sums, imitate", on_sums, model=model)

    n = sums["gain"]["n"]
    checks.share("sums, before", round(sums["before"]["success"] * n), n)
    checks.share("sums, after", round(sums["after"]["success"] * n), n)
    low, high = sums["gain"]["interval"]
    checks.value("sums: gain", sums["gain"]["success"], n, interval=(low, high))
    checks.value("sums: gain, lower end of the interval", low, n, ">", 0.0)
    lost = sums["lost"]
    checks.value("sums: perplexity after / before", lost["after"]["perplexity"] / lost["before"]["perplexity"], n, "<=", BOUND)
    wins = sum(sharp["sums, sharp"])
    checks.share("sums, the start sampled sharply", wins, len(sharp["sums, sharp"]))
    after = round(sums["after"]["success"] * n)
    gap = difference_of_proportions(after, n, wins, len(sharp["sums, sharp"]))
    checks.value("sums: trained - the start sampled sharply", after / n - wins / len(sharp["sums, sharp"]), n, interval=gap)

    start = done["doors, imitate"]["before"]
    checks.share("doors, before", sum(start), len(start))
    for arm in ARMS:
        one = done[f"doors, {arm}"]
        _difference(checks, f"doors, {arm}: gain", one["after"], one["before"])
        checks.value(f"doors, {arm}: tokens", one["tokens"], 1)
        checks.value(f"doors, {arm}: perplexity after / before", one["ratio"], 16, "<=", BOUND)
    default = done["doors, imitate"]
    low = paired_proportions(default["after"], default["before"])[0]
    checks.value("doors, imitate: gain, lower end of the interval", low, len(start), ">", 0.0)
    for arm in ARMS[1:]:
        _difference(checks, f"doors, {arm} - imitate: after", done[f"doors, {arm}"]["after"], default["after"])
    checks.share("doors, the start sampled sharply", sum(sharp["doors, sharp"]), len(start))
    _difference(checks, "doors, imitate - the start sampled sharply", default["after"], sharp["doors, sharp"])

    null = done["coins, imitate"]
    _difference(checks, "coins, imitate: gain", null["after"], null["before"])
    low, high = paired_proportions(null["after"], null["before"])
    checks.value("coins, imitate: gain, distance of its interval from 0", max(low, -high, 0.0), len(start), "<=", 0.0)
    checks.value("coins, imitate: perplexity after / before", null["ratio"], 16, "<=", BOUND)
    return checks


def _difference(checks: Checks, name: str, a: list[bool], b: list[bool]) -> None:
    """Of two lists of outcomes of the same episodes, with the paired interval."""
    ones, others = list(map(float, a)), list(map(float, b))
    checks.value(name, (sum(ones) - sum(others)) / len(ones), len(ones), interval=paired_proportions(ones, others))
