"""``ramify repro early-decision --real``: whether prompted reasoning of a real pretrained model settles its answer, and when.

Questions follow worked ones. The positive control is told, and shown, to commit itself: to answer first and to explain then. The
null's outcomes are coins, whatever was thought.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ramify.base.seeds import generator
from ramify_experiments.early_decision.stopping import real_stopping
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import raw_ids

WORKED = ((12, 40), (75, 31), (58, 23), (36, 87))
"""Comparisons that are worked out before the one that is asked."""
ARMS = {"reason": "Explain first, then answer.", "commit": "Answer first, then explain."}
"""What is asked for, and shown in the worked comparisons."""
YES, COIN = r"regex:(?i)^\W*yes", "python:ramify_experiments.early_decision.real:coin"
QUESTIONS, ROLLOUTS, KEPT, PREFIXES, CONTINUED = 16, 5, 0.3, 2, 4
SAMPLING = (
    *("--modes", "thinking", "--think-tokens", 16, "--answer-tokens", 2, "--close-ended", "--temperature", 1),
    *("--open", "\nThought:", "--close", "\nAnswer:"),
)
KNOWN = {
    "coins: p of that fall": "equal answers are judged once, so after a kept prefix, whose answers are few, one coin stands for "
    "many: a judge that tosses is the wrong null here, and reasoning that only repeats the question the right one "
    "(docs/methods/early-decision.md)",
    "checked sums, consistency: thinking saved": "this model hardly says the same four times before its thought of some fifty "
    "tokens is over, and probes cost more than that saves (docs/methods/early-decision.md)",
}
REPORTED: tuple[str, float | None] = ("report", None)


class _Coin:
    """Yes or no by a coin of its own, whatever was said."""

    def __init__(self) -> None:
        self.tossed = 0

    def __call__(self, prompt: str, answer: str) -> bool:
        self.tossed += 1
        return bool(generator(0, "early-decision coin", self.tossed).random() < 0.5)


coin = _Coin()


def asked(arm: str, seed: int) -> list[str]:
    """Comparisons of two numbers from 10 to 99, as often yes as no, after the worked ones."""
    rng, head = generator(seed, "early-decision questions"), f"{ARMS[arm]}\n\n"
    for a, b in WORKED:
        said, than = ("Yes", "more") if a > b else ("No", "less")
        thought = f"{said}. {a} is {than} than {b}." if arm == "commit" else f"{a} is {than} than {b}."
        head += f"Q: Is {a} larger than {b}?\nThought: {thought}\nAnswer: {said.lower()}\n\n"
    out = []
    for i in range(QUESTIONS):
        small, large = sorted((10 + rng.choice(90, 2, replace=False)).tolist())
        a, b = (large, small) if i % 2 else (small, large)
        out.append(f"{head}Q: Is {a} larger than {b}?")
    return out


def studied(model: str, arm: str, label: str, seed: int) -> dict[str, Any]:
    """One study: rollouts, a probe at the first token, continuations of what was kept."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, out = Path(folder) / "prompts.jsonl", Path(folder) / "run"
        texts = asked(arm, seed)  # without a chat template, after which so small a model follows no example
        rows = [{"id": f"q{i}", "prompt_ids": raw_ids(model, text), "prompt": text} for i, text in enumerate(texts)]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        given = ("--model", model, "--prompts", prompts, "--label", json.dumps([label]), "--k", ROLLOUTS, "--seed", seed)
        run = call_verb("early-decision", "run", *given, *SAMPLING, "--out", out)
        probe = call_verb("early-decision", "probe", out, "--at", "h0")
        forks = ("--shares", f"0,{KEPT}", "--m", PREFIXES, "--n", CONTINUED)
        found = call_verb("early-decision", "continue", out, *forks)["continuation"]
        return {"traces": run["traces"], "probe": probe["probes"][0], "continued": found}


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """The instructed commitment, prompted reasoning, and coins; thinking that is ended early."""
    checks = Checks((first,), KNOWN)
    arms = {"commit": ("commit", YES), "reason": ("reason", YES), "coins": ("reason", COIN)}
    plan = {name: {"model": model, "arm": arm, "label": label, "seed": first} for name, (arm, label) in arms.items()}
    done = cells.map(studied, plan)
    wanted: dict[str, dict[str, tuple[str, float | None]]] = {
        "commit": {"p": ("<=", 0.05), "flips": ("<=", 0.12), "auroc": (">=", 0.85)},
        "coins": {"p": (">", 0.05), "probe p": (">", 0.05)},
    }
    for name, found in done.items():
        limits = wanted.get(name, {})
        labelled, n = found["traces"].get("labelled", 0), sum(found["traces"].values())
        checks.share(f"{name}: traces with an outcome", labelled, n)
        (pool,) = (one for one in found["probe"]["pools"] if one["pool"] == "all")
        checks.share(f"{name}: yes", pool["positive"], pool["n"])
        rarer = min(pool["positive"], pool["n"] - pool["positive"])
        checks.value(f"{name}: rarer outcomes, of the 20 that a probe takes", rarer, pool["n"])
        if pool["auroc"] is not None:
            ends = pool["interval"]
            checks.value(f"{name}: AUROC at the first token", pool["auroc"], pool["n"], *limits.get("auroc", REPORTED), ends)
            checks.value(f"{name}: AUROC of shuffled labels, 95th percentile", pool["null"], pool["n"])
            checks.value(f"{name}: probe, p corrected", pool["p_corrected"], pool["n"], *limits.get("probe p", REPORTED))
            for control, value in found["probe"]["controls"].items():
                if value is not None:
                    checks.value(f"{name}: AUROC of {control.replace('_', ' ')}", value, pool["n"])
        for way in ("closed", "open"):
            for point in found["continued"]["curves"]["all"][way]:
                where, n = f"{way}, {point['share']:.0%} kept", point["prefixes"]
                checks.value(f"{name}: variance, {where}", point["unbiased"], n, interval=point["unbiased_interval"])
                flips = limits.get("flips", REPORTED) if way == "open" and point["share"] == KEPT else REPORTED
                checks.value(f"{name}: flips, {where}", point["flip_rate"], n, *flips, point["flip_interval"])
        fall = found["continued"]["open_fall"]
        checks.value(f"{name}: open variance falls by", fall["value"], QUESTIONS, interval=fall["interval"])
        checks.value(f"{name}: p of that fall", fall["p"], QUESTIONS, *limits.get("p", REPORTED))
    real_stopping(model, cells, checks, first)
    return checks
