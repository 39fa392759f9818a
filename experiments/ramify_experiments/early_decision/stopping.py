"""Ending the thinking early, calibrated on some prompts and served on others: how often the answer changes, and what is saved.

Two kinds of thinking of the real model: sums that are checked once they are worked out (settled before the end), and sums that
are worked out to the last token (the null: nothing is settled before the end).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.engine.named import find_sampled
from ramify.methods.early_decision.middleware import StopPlan, StopThinking
from ramify.methods.early_decision.stopping import StopRule
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.rollout.sampler import token_ids
from ramify.score.steps import write_rows
from ramify.stats.intervals import bootstrap, clopper_pearson
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import raw_ids

ALPHA, LEVEL = 0.1, 0.95
CALIBRATED, SERVED = 46, 32
"""Prompts that calibrate, and others that are served."""
RULES = ("consistency", "confidence", "budget")
WORKED = ((3, 4, 2), (5, 1, 8))
ARMS = {
    "checked": " So it is {t}. Let me check that again: {t} - {c} = {s}, and {s} - {b} = {a}, which is right.",
    "worked out": "",
}
"""What follows the sum in the thinking that is shown."""
SETTINGS = {
    "open": "\nThought:",
    "close": "\nAnswer:",
    "think-tokens": 64,
    "answer-tokens": 3,
    "k": 1,
    "modes": "thinking",
}
EVERY, PROBE = 8, 3


def _thought(a: int, b: int, c: int, arm: str) -> str:
    """The thinking shown for a sum of three numbers."""
    s, t = a + b, a + b + c
    return f" {a} + {b} = {s}. {s} + {c} = {t}." + ARMS[arm].format(a=a, b=b, c=c, s=s, t=t)


def sums(arm: str, n: int, seed: int) -> list[str]:
    """Sums of three numbers from 1 to 9, after worked ones."""
    rng = generator(seed, "stopping sums")
    head = "".join(
        f"Q: What is {a} + {b} + {c}?\nThought:{_thought(a, b, c, arm)}\nAnswer: {a + b + c}\n\n" for a, b, c in WORKED
    )
    return [f"{head}Q: What is {a} + {b} + {c}?" for a, b, c in rng.integers(1, 10, (n, 3)).tolist()]


def calibrated(model: str, arm: str, temperature: float, seed: int) -> dict[str, Any]:
    """Calibrate each rule on some sums and serve others by it, beside the same thoughts to their end."""
    texts = sums(arm, CALIBRATED + SERVED, seed)
    rows = [{"id": f"q{i}", "prompt_ids": raw_ids(model, text), "prompt": text} for i, text in enumerate(texts)]
    return _study(
        model,
        rows,
        {**SETTINGS, "temperature": temperature, "label": json.dumps([r"regex:\d"])},
        EVERY,
        PROBE,
        r"regex:\d+",
        seed,
    )


def _study(
    model: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any], every: int, probe: int, answer: str, seed: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        prompts, out = Path(folder) / "prompts.jsonl", Path(folder) / "run"
        write_rows(prompts, rows[:CALIBRATED])
        flags = [text for name, value in settings.items() for text in (f"--{name}", value)]
        call_verb("early-decision", "run", "--model", model, "--prompts", prompts, "--seed", seed, "--out", out, *flags)
        given = [
            "--alpha",
            ALPHA,
            "--level",
            LEVEL,
            "--every",
            every,
            "--probe-tokens",
            probe,
            "--answer",
            answer,
            "--held-out",
            0,
        ]
        found = call_verb("early-decision", "calibrate", out, *given)
        rows_of = {one["name"]: one["calibration"] for one in found["rules"] if one["calibration"] is not None}
        served: dict[str, Any] = {}
        if rows_of:
            if "consistency" not in rows_of:  # a run without a certified rule is refused, whatever other rules could do
                call_verb("early-decision", "calibrate", out, *given, "--rule", next(iter(rows_of)))
            rules = {name: StopRule(**row["rule"]) for name, row in rows_of.items()} | {"whole": StopRule("budget", float("inf"))}
            heads = [row["prompt_ids"] for row in rows[CALIBRATED:]]
            served = asyncio.run(_served(StopThinking(find_sampled(model)[0], str(out)), rules, heads, seed))
        return {
            "rules": {name: rows_of.get(name) for name in RULES},
            "served": served,
            "anew": found["anew"],
            "prompts": found["prompts"],
        }


async def _served(
    model: StopThinking, rules: Mapping[str, StopRule], prompts: Sequence[Sequence[int]], seed: int
) -> dict[str, Any]:
    """What the middleware replies to new prompts under each rule, with the same sample keys: so thoughts are the same up to where
    they end."""
    assert model.plan is not None
    plan, config = model.plan, model.plan.config
    room = config.think_tokens + config.answer_tokens + len(plan.thinking.marks.open) + len(plan.thinking.marks.close)
    settings, out = Sampling(config.temperature, config.top_p, config.top_k, room), {}
    for name, rule in rules.items():
        model.plan = replace(plan, rule=rule)
        given = [(Prefix(np.array(ids, np.int32)), derive_key(seed, "stopping served", i)) for i, ids in enumerate(prompts)]
        replies = [one for (one,) in await asyncio.gather(*(model.sample(prefix, 1, settings, [key]) for prefix, key in given))]
        out[name] = [await _reply(plan, one) for one in replies]
    return out


async def _reply(plan: StopPlan, reply: Completion) -> dict[str, Any]:
    """How a reply ended, its answer, and what it took."""
    note = (reply.data or {})["stop_thinking"]
    tokens = len(token_ids(reply)) + note.get("probe_tokens", 0)
    return {"stopped": note["stopped"], "answer": await _answer(plan, reply), "thinking": note["thinking"], "tokens": tokens}


async def _answer(plan: StopPlan, reply: Completion) -> str:
    """The answer of a reply as it is compared; "" where its thinking was not closed."""
    marks, row = plan.thinking.marks, token_ids(reply)
    ends = [i + len(mark) for mark in (marks.close, marks.mark) for i in range(len(row)) if tuple(row[i : i + len(mark)]) == mark]
    if not ends:
        return ""
    text = plan.thinking.text(
        [token for token in row[min(ends) :] if token not in plan.thinking.eos][: plan.config.answer_tokens]
    )
    (answer,) = await plan.answers.of([text], "served", "")
    return answer


def checked(checks: Checks, arm: str, found: dict[str, Any], least: float | None, most: float | None) -> None:
    """What a study of an arm says: the wrong stops of new prompts within the bound, thinking saved by the default rule at least
    ``least`` or at most ``most``."""
    if found["anew"]:
        checks.share(f"{arm}: answers that change when sampled once more", found["anew"]["k"], found["anew"]["n"])
    for rule, row in found["rules"].items():
        name = f"{arm}, {rule}"
        if row is None:
            checks.value(f"{name}: settings certified", 0, found["prompts"])
            continue
        checks.value(f"{name}: certified at", row["rule"]["setting"], found["prompts"])
        pairs = [(a, b) for a, b in zip(found["served"][rule], found["served"]["whole"], strict=True) if b["answer"]]
        wrong, n = sum(a["answer"] != b["answer"] for a, b in pairs), len(pairs)
        checks.share(f"{name}: answers changed, new prompts", wrong, n, exact=True)
        low = clopper_pearson(wrong, n)[0]
        checks.value(f"{name}: lower end of that, within the bound", low, n, "<=", ALPHA)
        checks.share(f"{name}: thoughts ended early", sum(a["stopped"] for a, _ in pairs), n)
        for what, says in (("thinking", "thinking saved"), ("tokens", "all tokens saved, probes taken off")):
            spent = np.array([(a[what], b[what]) for a, b in pairs], float)

            def saved(picks: np.ndarray, spent: np.ndarray = spent) -> np.ndarray:
                at = spent[picks.astype(int)].sum(axis=1)
                return np.asarray(1 - at[:, 0] / at[:, 1])

            value = float(saved(np.arange(n)[None])[0])
            limit: tuple[str, float | None] = ("report", None)
            if what == "thinking" and rule == "consistency" and (least, most) != (None, None):
                limit = ("<=", most) if least is None else (">=", least)
            checks.value(f"{name}: {says}", value, n, *limit, bootstrap(np.arange(n), saved))


def real_stopping(model: str, cells: ResultCache, checks: Checks, seed: int) -> None:
    """Both arms of the real model, greedy; the first also sampled, where its answers change by themselves."""
    arms = {"checked": ("checked", 0.0), "worked out": ("worked out", 0.0), "checked, sampled": ("checked", 0.6)}
    plan = {f"stop, {name}": {"model": model, "arm": arm, "temperature": t, "seed": seed} for name, (arm, t) in arms.items()}
    done = cells.map(calibrated, plan)
    checked(checks, "checked sums", done["stop, checked"], 0.2, None)
    checked(checks, "sums to the last token (null)", done["stop, worked out"], None, 0.1)
    checked(checks, "checked sums, temperature 0.6", done["stop, checked, sampled"], None, None)
