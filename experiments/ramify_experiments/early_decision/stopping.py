"""Ending the thinking early, calibrated on some prompts and served on others: how often the answer changes, and what is saved.

Two kinds of thinking of the real model: sums that are checked once they are worked out (settled before the end), and sums that
are worked out to the last token (the null: nothing is settled before the end). Two trained here: locked and weighing organisms.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import derive_key, generator
from ramify.engine.named import find_sampled
from ramify.methods.early_decision.middleware import StopPlan, StopThinking
from ramify.methods.early_decision.stopping import Rule
from ramify.model.protocol import Completion, Model, Prefix, Sampling
from ramify.score.steps import write_rows
from ramify_experiments.early_decision.organisms import CLOSE, REFUSE, THINK, OrganismRecipe, ask
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import raw_ids

ALPHA, LEVEL = 0.1, 0.95
CALIBRATED, SERVED = 64, 48
"""Prompts that calibrate, and others that are served."""
RULES = ("consistency", "confidence", "budget")
WORKED = ((3, 4, 2), (5, 1, 3), (2, 6, 1))
ARMS = {
    "checked": " So it is {t}. Let me check that again: {t} - {c} = {s}, and {s} - {b} = {a}, which is right.",
    "worked out": "",
}
"""What follows the sum in the thinking that is shown."""
SETTINGS = {
    "open": "\nThought:",
    "close": "\nAnswer:",
    "think-tokens": 72,
    "answer-tokens": 4,
    "temperature": 0.6,
    "k": 1,
    "modes": "thinking",
}
EVERY, PROBE = 6, 4


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


def calibrated(model: str, arm: str, seed: int) -> dict[str, Any]:
    """Calibrate each rule on some sums and serve others by it, beside the same thoughts to their end."""
    texts = sums(arm, CALIBRATED + SERVED, seed)
    rows = [{"id": f"q{i}", "prompt_ids": raw_ids(model, text), "prompt": text} for i, text in enumerate(texts)]
    return _study(model, rows, {**SETTINGS, "label": json.dumps([r"regex:\d"])}, EVERY, PROBE, r"regex:\d+", seed)


def organism(seed: int, kind: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """The same of an organism, whose answer is one word."""
    made = OrganismRecipe(**recipe, kind=kind, seed=seed)
    module = made.model()
    asks = [ask(generator(seed, "stopping", i)) for i in range(CALIBRATED + SERVED)]
    rows = [{"id": f"p{i}", "prompt_ids": list(one.ids), "prompt": " ".join(one.words)} for i, one in enumerate(asks)]
    settings = {
        "open": THINK,
        "close": CLOSE,
        "think-tokens": 4 * made.longest,
        "answer-tokens": 1,
        "k": 1,
        "temperature": 1,
        "top-p": 1,
        "modes": "thinking",
        "label": json.dumps([f"regex:{REFUSE}"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        from ramify_experiments.early_decision.organisms import tokenizer

        module.save(Path(folder), tokenizer())
        return _study(f"hf:{folder}", rows, settings, 2, 1, "text", seed)


def _study(
    model: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any], every: int, probe: int, answer: str, seed: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        prompts, out = Path(folder) / "prompts.jsonl", Path(folder) / "run"
        write_rows(prompts, rows[:CALIBRATED])
        flags = [text for name, value in settings.items() for text in (f"--{name}", value)]
        call_verb("early-decision", "run", "--model", model, "--prompts", prompts, "--seed", seed, "--out", out, *flags)
        found, by_rule = {}, {}
        for rule in RULES:
            given = ("--rule", rule, "--alpha", ALPHA, "--level", LEVEL, "--every", every, "--probe-tokens", probe)
            found = call_verb("early-decision", "calibrate", out, *given, "--answer", answer, "--held-out", 0)
            row = next(one for one in found["rules"] if one["name"] == rule)
            by_rule[rule] = {"calibration": row["calibration"], "served": None}
            if row["calibration"] is not None:
                inner = find_sampled(model)[0]
                heads = [row["prompt_ids"] for row in rows[CALIBRATED:]]
                by_rule[rule]["served"] = asyncio.run(_served(inner, out, heads, seed))
        return {"rules": by_rule, "anew": found["anew"], "prompts": found["prompts"]}


async def _served(inner: Model, run: Path, prompts: Sequence[Sequence[int]], seed: int) -> dict[str, Any]:
    """Replies through the middleware, and the same thoughts to their end (the same sample keys, a rule that never stops)."""
    stops, whole = StopThinking(inner, str(run)), StopThinking(inner, str(run))
    assert stops.plan is not None
    whole.plan = replace(stops.plan, rule=Rule("budget", float("inf")))
    config = stops.plan.config
    settings = Sampling(
        config.temperature,
        config.top_p,
        config.top_k,
        config.think_tokens + config.answer_tokens + len(stops.plan.thinking.marks.close),
    )
    keys = [derive_key(seed, "stopping served", i) for i in range(len(prompts))]

    async def both(prompt: Sequence[int], key: int) -> dict[str, Any] | None:
        given = Prefix(np.array(prompt, np.int32))
        (a,), (b,) = [await one.sample(given, 1, settings, [key]) for one in (stops, whole)]
        answers = [await _answer(stops.plan, prompt, one) for one in (a, b)]
        notes = [(one.data or {})["stop_thinking"] for one in (a, b)]
        if not answers[1]:
            return None
        return {
            "stopped": notes[0]["stopped"],
            "wrong": answers[0] != answers[1],
            "thinking": [one["thinking"] for one in notes],
            "tokens": [len(one.tokens) + note.get("probe_tokens", 0) for one, note in zip((a, b), notes, strict=True)],
        }

    done = await asyncio.gather(*(both(prompt, key) for prompt, key in zip(prompts, keys, strict=True)))
    kept = [one for one in done if one is not None]
    return {"n": len(kept), "left_out": len(done) - len(kept), "rows": kept}


async def _answer(plan: StopPlan | None, prompt: Sequence[int], reply: Completion) -> str:
    """The answer of a reply as it is compared."""
    assert plan is not None
    assert reply.tokens is not None
    marks, row = plan.thinking.marks, reply.tokens.tolist()
    ends = [i + len(mark) for mark in (marks.close, marks.mark) for i in range(len(row)) if tuple(row[i : i + len(mark)]) == mark]
    if not ends:
        return ""
    text = plan.thinking.text(
        [token for token in row[min(ends) :] if token not in plan.thinking.eos][: plan.config.answer_tokens]
    )
    (answer,) = await plan.answers.of([text], "served", "")
    return answer


def checked(checks: Checks, arm: str, found: dict[str, Any], least: float | None, most: float | None) -> None:
    """What a study of an arm says: the wrong stops of new prompts within the bound, tokens saved at least ``least`` or at most
    ``most``."""
    if found["anew"]:
        checks.share(f"{arm}: answers that change when sampled once more", found["anew"]["k"], found["anew"]["n"])
    for rule, one in found["rules"].items():
        name = f"{arm}, {rule}"
        if one["calibration"] is None:
            checks.value(f"{name}: certified", 0, found["prompts"])
            continue
        checks.value(f"{name}: certified at", one["calibration"]["rule"]["setting"], found["prompts"])
        rows = one["served"]["rows"]
        wrong = sum(row["wrong"] for row in rows)
        checks.share(f"{name}: answers changed, new prompts", wrong, len(rows), "<=", ALPHA, exact=True)
        checks.share(f"{name}: thoughts ended early", sum(row["stopped"] for row in rows), len(rows))
        for what in ("thinking", "tokens"):
            spent = np.array([row[what] for row in rows], float)
            saved = 1 - spent[:, 0].sum() / spent[:, 1].sum()
            picks = generator(0, "stopping saved").integers(0, len(rows), (2000, len(rows)))
            ends = np.quantile(1 - spent[picks, 0].sum(1) / spent[picks, 1].sum(1), [0.025, 0.975]).tolist()
            judged = what == "thinking" and rule == "consistency"
            op, limit = (
                (">=", least)
                if judged and least is not None
                else ("<=", most)
                if judged and most is not None
                else ("report", None)
            )
            what = "thinking saved" if what == "thinking" else "all tokens saved, probes taken off"
            checks.value(f"{name}: {what}", saved, len(rows), op, limit, tuple(ends))


def real_stopping(model: str, cells: ResultCache, checks: Checks, seed: int) -> None:
    """Both arms of the real model."""
    done = cells.map(calibrated, {f"stop, {arm}": {"model": model, "arm": arm, "seed": seed} for arm in ARMS})
    checked(checks, "checked sums", done["stop, checked"], 0.2, None)
    checked(checks, "sums to the last token (null)", done["stop, worked out"], None, 0.1)
