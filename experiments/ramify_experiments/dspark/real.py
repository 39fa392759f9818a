"""On a real model: whether drafting can pay at 1, 4 and 16 requests, told before a drafter is trained, and what a drafter that
was trained for a minute then gains on word problems.

The verdict before is by the times of an untrained drafter; what it needs to pay is held against what `bench` measures. Thresholds
were fixed before any figure was seen.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.score.steps import write_rows
from ramify.stats.checks import Check
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.models import place
from ramify_experiments.real import pretrained_name
from ramify_experiments.real_texts import WORD_PROBLEMS

METHOD = "dspark"
LOADS = (1, 4, 16)
SHAPE = ("--layers", 1, "--block", 2, "--vocabulary", 4096)
TRAIN = ("--sequences", 40, "--length", 28, "--steps", 24, "--rows", 4, "--anchors", 12, "--rank", 32)
TIMES = ("--repeats", 6)
BENCH = ("--turns", 3, "--tokens", 6, "--n", 40, "--schedule", "fixed:2")


def _problems(folder: Path) -> Path:
    write_rows(folder / "problems.jsonl", [{"id": str(i), "prompt": text} for i, text in enumerate(WORD_PROBLEMS)])
    return folder / "problems.jsonl"


def told(model: str, seed: int) -> dict[str, Any]:
    """What the verb says before anything is trained: of a drafter with a vocabulary of 4,096, and of one with the whole one."""
    with tempfile.TemporaryDirectory() as folder:
        common = (METHOD, "profile", model, "--prompts", _problems(Path(folder)), *TIMES, "--seed", seed)
        small = call_verb(*common, "--loads", ",".join(map(str, LOADS)), *SHAPE)
        whole = call_verb(*common, "--loads", 1, *SHAPE[:-1], 0)
    return {"small": small, "whole": whole}


def measured(model: str, seed: int) -> dict[str, Any]:
    """A drafter that was trained for a minute, and what it gains."""
    kept = place("dspark-real", {"model": pretrained_name(model), "seed": seed, "train": json.dumps([*SHAPE, *TRAIN])}, __name__)
    with tempfile.TemporaryDirectory() as folder:
        prompts = ("--prompts", _problems(Path(folder)), "--seed", seed)
        trained = call_verb(METHOD, "train", model, "--out", kept, *SHAPE, *TRAIN, *prompts)
        found = call_verb(METHOD, "bench", model, kept, *BENCH, "--loads", ",".join(map(str, LOADS)), *prompts)
    return {"trained": trained, "bench": found}


def real(model: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
    """Say whether drafting can pay, then train, draft and time it."""
    before = cells.get("told", told, model=model, seed=first)
    after = cells.get("measured", measured, model=model, seed=first)
    checks = Checks([first], _KNOWN)
    needs = {row["requests"]: row for row in before["small"]["loads"]}
    for load in LOADS:
        row = needs[load]
        needed = 1.0 if row["acceptance"] is None else row["acceptance"]
        checks.value(f"told before, {load} at once: accepted drafts needed", needed, 1, interval=tuple(row["interval"]))
        checks.value(f"told before, {load} at once: gain if all are accepted", row["gains"][-1], 1)
    whole = before["whole"]["loads"][0]
    needed = 1.0 if whole["acceptance"] is None else whole["acceptance"]
    checks.value("told before, 1 at once, whole vocabulary: accepted drafts needed", needed, 1, interval=tuple(whole["interval"]))
    alone = next(row for row in after["bench"]["domains"] if row["name"] != "plain")
    share = _share(alone["tau"])
    checks.value("tokens a pass, one at a time", alone["tau"], alone["turns"], ">=", 1.05)
    checks.value("accepted drafts, one at a time", share, alone["turns"])
    wrong = 0
    for load in LOADS:
        rows = [row for row in after["bench"]["loads"] if row["place"] == str(load) and row["name"] != "plain"]
        best = max(rows, key=lambda row: row["ratio"])
        checks.value(
            f"tokens a second over plain, {load} at once", best["ratio"], best["turns"], interval=tuple(best["interval"])
        )
        unlikely = needs[load]["possible"] is False or needs[load]["interval"][0] > share
        wrong += unlikely and best["verdict"] == "faster"
    checks.value("loads that were told not to pay and do", wrong, len(LOADS), "==", 0)
    return checks


def _share(tau: float) -> float:
    """The share of accepted drafts, alike at both positions, that gives ``tau`` tokens a pass: 1 + a + a^2."""
    return ((4 * tau - 3) ** 0.5 - 1) / 2 if tau > 1 else 0.0


_KNOWN: dict[str, str] = {}
