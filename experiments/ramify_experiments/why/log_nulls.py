"""Logs that nobody can run again of which it is known what their broken rules mean (nothing, the loss), given to ``ramify why``,
and a judge that guesses, given to ``ramify why --judge``."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from ramify.base.ids import stable_hash
from ramify_experiments.cases import KnownCase, Repetition

ATTEMPTS = 60
"""Attempts of a log, each at a task of its own, so that no two can be compared."""
STEPS = 5
RATES = {"ignored": 0.04, "repeated": 0.1, "mentioned": 0.2}
"""Chance that an attempt of the null has such a step, whatever its outcome."""
GUESS = 0.0125
"""Chance that a judge who guesses calls a step wrong."""


def attempt(task: int, success: bool, odd: Mapping[str, int]) -> dict[str, Any]:
    """One attempt of calls, with odd things at their steps: an error that is ignored or mentioned, a call that is repeated."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Order {task} has to be shipped."}]
    text = ""
    for step in range(STEPS):
        arguments = json.dumps({"order": task, "part": step - (odd.get("repeated") == step)})
        function = {"name": f"tool_{step - (odd.get('repeated') == step)}", "arguments": arguments}
        messages.append(
            {"role": "assistant", "content": text, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
        )
        wrong = step in (odd.get("ignored"), odd.get("mentioned"))
        text = "That failed, so I try another way." if odd.get("mentioned") == step else ""
        messages.append({"role": "tool", "tool_call_id": "c", "content": "Error: not now" if wrong else "ok"})
    messages.append({"role": "assistant", "content": f"{text} It is shipped.".strip()})
    return {"task_id": f"order {task}", "messages": messages, "success": success}


def _written(rep: Repetition, lost_by_error: bool) -> dict[str, int]:
    """Import a log; returns the step of the error that lost each attempt, by its task."""
    rng, logs, truth = random.Random(rep.seed), [], {}
    for task in range(ATTEMPTS):
        success = rng.random() < 0.5
        rates = {**RATES, "ignored": 0.0 if success else 1.0, "repeated": 0.0} if lost_by_error else RATES
        odd = {what: rng.randrange(1, STEPS) for what, rate in rates.items() if rng.random() < rate}
        if "ignored" in odd and not success:
            truth[f"order {task}"] = odd["ignored"] + 1
        logs.append(attempt(task, success, odd))
    rng.shuffle(logs)
    path = rep.folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(log)}\n" for log in logs), encoding="utf-8")
    rep.verb("import", path, "--run", rep.folder / "run")
    return truth


def broken_whatever(rep: Repetition) -> bool:
    """Whether a rule names a step where rules are broken whatever the outcome."""
    _written(rep, False)
    return bool(rep.verb("why", rep.folder / "run")["verdict"] == "step")


def error_loses(rep: Repetition) -> bool:
    """Whether the step whose ignored error lost the attempt is named."""
    truth = _written(rep, True)
    answer = rep.verb("why", rep.folder / "run")
    return bool(answer["named_by"] == "rule" and answer["broken"][0]["step"] == truth[answer["tree"]])


def guesses(text: str, data: Mapping[str, Any]) -> bool:
    """A judge that calls a step wrong by chance."""
    return int(stable_hash("guess", NOW["seed"], text)[:8], 16) / 16**8 < GUESS


NOW = {"seed": "0"}
"""Of the repetition that is running: what the judge's guesses depend on."""


def judge_guesses(rep: Repetition) -> bool:
    """Whether a step is named for certain by a judge that guesses."""
    NOW["seed"] = str(rep.seed)
    _written(rep, False)
    judge = "python:ramify_experiments.why.log_nulls:guesses"
    answer = rep.verb("why", rep.folder / "run", "--judge", judge, "--way", "steps", "--successes", 19)
    return bool(answer["verdict"] == "step")


CASES = (
    KnownCase(
        "a log: rules broken whatever the outcome",
        "nothing",
        "Errors that are ignored and calls that are repeated are as frequent in attempts that succeed; a step that a rule names "
        "is a false finding.",
        broken_whatever,
        0.05,
        full=100,
        quick=10,
    ),
    KnownCase(
        "a log: an ignored error loses it",
        "planted",
        "Every failed attempt has an error that is ignored, no successful one has; its step must be named.",
        error_loses,
        0.9,
        full=60,
        quick=5,
    ),
    KnownCase(
        "a log, --judge: a judge that guesses",
        "nothing",
        "A judge calls a step in twenty logs wrong by chance, of 19 successful attempts too; a step that is more than an opinion "
        "is a false finding.",
        judge_guesses,
        0.05,
        full=60,
        quick=5,
    ),
)
