"""On a real model: what a light training changed, found as features of a dictionary over the states that decide each token of the
tuned model's replies.

A copy that was taught to talk like a pirate to everything, and nothing else, must be found; the base against itself must not be.
The improved model is reported. The strongest simple rival needs no dictionary: the first principal component of the difference of
both models' states. Thresholds were fixed before any figure of this size was seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.jobs.keep_texts import TEXTS
from ramify.methods.crosscoder.dictionary import Dictionary, encode_rows
from ramify.methods.crosscoder.run import States
from ramify.score.steps import write_rows
from ramify.stats.checks import Check
from ramify.stats.ranking import auroc
from ramify_experiments.lab import Checks, ResultCache, call_verb
from ramify_experiments.real import asked_sum, improved, pretrained_name, styled, two_digits
from ramify_experiments.real_texts import QUESTIONS

METHOD = "crosscoder"
CAPTURE = ("--reply", 16, "--longest", 64)
TRAIN = ("--features", 256, "--k", 16, "--exclusive", 0.1, "--steps", 1500, "--batch", 256, "--lr", 0.001)
WEIGHT = ("--difference", 10)
"""Of the models' difference in the dictionary's loss: see ``FitConfig.difference``."""
ASKED = 64
"""Prompts of each corpus of prompts."""


def compared(model: str, tuned: str, control: bool, seed: int) -> dict[str, Any]:
    """What the verbs find of ``model`` and one copy of it: ``styled`` (its replies against texts) or ``improved`` (its replies to
    sums against those to other questions)."""
    style = tuned == "styled"
    questions: list[dict[str, Any]] = [{"id": str(i), "prompt": text} for i, text in enumerate(QUESTIONS[:ASKED])]
    texts = [{"id": f"text-{i}", "prompt": text} for i, text in enumerate(TEXTS)]
    asked = [{"id": f"{a} + {b}", "prompt": asked_sum(a, b)} for a, b in two_digits(ASKED)]
    corpora = (questions, texts) if style else (asked, questions)
    name = styled(model) if style else improved(model)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for file, rows in zip(("tool.jsonl", "plain.jsonl"), corpora, strict=True):
            write_rows(at / file, rows)
        pair = ("--tuned", name, "--base", model, "--layer", _middle(model), "--tool", at / "tool.jsonl")
        plain = ("--plain", at / "plain.jsonl", *(("--plain-text",) if style else ()))
        kept = call_verb(METHOD, "capture", *pair, *plain, *CAPTURE, "--out", at / "states")
        arms = {"weighted": WEIGHT, **({"plain": ()} if control else {})}
        trained = {
            arm: call_verb(
                METHOD, "train", at / "states", *TRAIN, *weight, "--seed", seed, "--out", at / arm,
                *(() if control and arm == "weighted" else ("--no-control",)),
            )
            for arm, weight in arms.items()
        }  # fmt: skip
        states = States.load(at / "states")
        ranks = _marks(Dictionary.load(at / "weighted")[0], states, trained["weighted"]["mostly"])
    return {"captured": kept, "trained": trained, "marks": ranks}


def _middle(model: str) -> int:
    """The block in the middle of a checkpoint."""
    from ramify.engine.checkpoints import model_folder
    from ramify.engine.tiny import read_config

    return int(read_config(model_folder(model))["num_hidden_layers"]) // 2


def _marks(made: Dictionary, states: States, found: Sequence[int]) -> dict[str, Any]:
    """How well the found feature that is best at it tells the corpora apart, as an AUROC, and how well the first principal
    component of the models' difference does; with it how much of that is in the base, measured as of a feature."""
    values = np.asarray(states.values, np.float64)
    codes = encode_rows(made, np.asarray(states.values))
    areas = [auroc(codes[:, i], states.tool) or 0.5 for i in found]
    apart = values[:, 0] - values[:, 1]
    apart -= apart.mean(axis=0)
    first = np.linalg.svd(apart, full_matrices=False)[2][0]
    on = [(part - part.mean(axis=0)) @ first for part in (values[:, 0], values[:, 1], values[:, 0] - values[:, 1])]
    area = auroc(on[2], states.tool) or 0.5
    coefficients = [float(side @ on[2] / (on[2] @ on[2])) for side in on[:2]]
    return {
        "feature": max(areas, default=None),
        "component": max(area, 1 - area),
        "component in the base": coefficients[1] / coefficients[0],
        "of the difference": float((on[2] @ on[2]) / np.square(apart).sum()),
    }


def real(model: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
    """Find what a style and what `improve` changed, and nothing where nothing was changed."""
    pretrained_name(model)
    calls = {
        "style": {"model": model, "tuned": "styled", "control": True, "seed": first},
        "improved": {"model": model, "tuned": "improved", "control": False, "seed": first},
    }
    found = {name: cells.get(name, compared, **call) for name, call in calls.items()}
    checks = Checks([first], _KNOWN)
    weighted = found["style"]["trained"]["weighted"]
    _counts(checks, "style", weighted, (">=", 1))
    same = weighted["base_against_base"]
    checks.value("base against itself: features mostly the tuned model's", len(same["mostly"]), same["tested"], "==", 0)
    plain = found["style"]["trained"]["plain"]
    _counts(checks, "style, no weight on the difference", plain, ())
    checks.value("style: variance of the difference", plain["difference"], found["style"]["captured"]["rows"])
    checks.value("style, no weight on the difference: variance left unexplained", 1 - min(plain["fve"]), plain["tested"])
    _counts(checks, "improved", found["improved"]["trained"]["weighted"], ())
    for name, copy in found.items():
        marks, rows = copy["marks"], copy["captured"]["rows"]
        if marks["feature"] is not None:
            checks.value(f"{name}: AUROC of the corpora, best feature found", marks["feature"], rows)
        checks.value(f"{name}: AUROC of the corpora, first component of the difference", marks["component"], rows)
        checks.value(f"{name}: first component of the difference, share in the base", marks["component in the base"], rows)
    return checks


def _counts(checks: Checks, name: str, trained: Mapping[str, Any], wanted: tuple[Any, ...]) -> None:
    """How many features are mostly the tuned model's, and how many wholly, of those that fire."""
    checks.value(f"{name}: features mostly the tuned model's", len(trained["mostly"]), trained["tested"], *wanted)
    checks.value(f"{name}: features wholly the tuned model's", len(trained["own"]), trained["tested"])


_KNOWN: dict[str, str] = {}
