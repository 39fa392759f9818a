"""judge-evolution on a pretrained model: it judges its improved copy's replies to sums, in words and by its log-odds.

Beside it a judge that always says no, judges that err as planned, and judges that toss coins.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.engine.named import find_model
from ramify.model.rendered import laid_out
from ramify.score.anchor import Anchor, read_anchor
from ramify.score.judge import IS_RIGHT
from ramify.stats.ranking import auroc, auroc_interval
from ramify_experiments.cases import call_verb
from ramify_experiments.lab import Checks, ResultCache
from ramify_experiments.real import copy_of_attempts, is_right

TASKS, ATTEMPTS, SCORED, COINS = 60, 3, 72, 8
ALWAYS_NO = "regex:(?!)"
ANSWER_FIRST = "{prompt}\nIs {text} the right answer? Say the right answer first, then yes or no."
"""A prompt that was tried beside the verb's own question. A third, with four examples, was tried on 40 replies by hand: the model
replied to half of them with numbers and to none with yes."""


def _errs(text: str, data: Mapping[str, Any], name: str, right: float) -> bool:
    tossed = generator(0, "judge-evolution real", name, text, str(data["prompt"])).random()
    return is_right(text, data) if tossed < right else not is_right(text, data)


def seventy(text: str, data: Mapping[str, Any]) -> bool:
    """A judge that is right on seven items of ten."""
    return _errs(text, data, "seventy", 0.7)


def other_seventy(text: str, data: Mapping[str, Any]) -> bool:
    """Another one."""
    return _errs(text, data, "other seventy", 0.7)


def ninety(text: str, data: Mapping[str, Any]) -> bool:
    """A judge that is right on nine items of ten."""
    return _errs(text, data, "ninety", 0.9)


class Coin:
    """A judge that knows nothing."""

    def __init__(self, number: int) -> None:
        self.name, self.number = f"coin {number}", number

    def __call__(self, text: str, data: Mapping[str, Any]) -> bool:
        """Heads or tails, the same for equal texts of a task."""
        return bool(generator(0, "judge-evolution real", self.name, text, str(data["prompt"])).random() < 0.5)


coins = [Coin(number) for number in range(COINS)]
coin_0, coin_1, coin_2, coin_3, coin_4, coin_5, coin_6, coin_7 = coins


def log_odds(model: str, anchor: Anchor) -> list[float]:
    """How much likelier the model's answer to the verb's question begins with Yes than with No, of each item, in nats.

    Where No is none of the 200 likeliest tokens the least likely of those stands for it.
    """
    judge, template = find_model(model)
    assert template is not None
    yes, no = (template.tokenizer.encode(word)[0] for word in ("Yes", "No"))
    rows = [
        np.array([*laid_out(template, [("user", IS_RIGHT.messages([one.item])[0].text)]), yes], np.int32) for one in anchor.items
    ]
    found = []
    for scores in wait_for(judge.logprobs(rows, 200)):
        assert scores.top_tokens is not None
        assert scores.top_logprobs is not None
        there = scores.top_logprobs[-1][scores.top_tokens[-1] == no]
        found.append(float(scores.logprobs[-1] - (there[0] if len(there) else scores.top_logprobs[-1].min())))
    return found


def judged(model: str, tasks: int, seed: int) -> dict[str, Any]:
    """What the verbs say of every judge on attempts of the improved ``model``."""
    here = f"python:{__name__}"
    with tempfile.TemporaryDirectory() as folder:
        run = copy_of_attempts(model, tasks, ATTEMPTS, Path(folder), seed)

        def check(against: str, *judges: str) -> dict[str, Any]:
            asked = [word for judge in judges for word in ("--judge", judge)]
            return call_verb("judge-evolution", "check", run, "--against", against, *asked)

        prompt = Path(folder) / "answer-first.txt"
        prompt.write_text(ANSWER_FIRST, encoding="utf-8")
        call_verb("judge-evolution", "rescore", run, "asked", "--judge", f"judge:{model}")
        found: dict[str, Any] = {
            "model": check(ALWAYS_NO, "stored:asked", f"judge:{model}#{prompt}"),
            "coins": check("stored:asked", *(f"{here}:coin_{number}" for number in range(COINS))),
            "equals": check(f"{here}:seventy", f"{here}:other_seventy"),
            "better": check(f"{here}:seventy", f"{here}:ninety"),
        }
        call_verb("judge-evolution", "rescore", run, "reviewer", "--judge", f"{here}:seventy")
        promoted = ("--anchor", run, "--against", f"{here}:seventy")
        for name, judge in {"refused": f"{here}:coin_0", "promoted": f"{here}:ninety"}.items():
            found[name] = call_verb("judge-evolution", "promote", run, "reviewer", *promoted, "--judge", judge)
        anchor = read_anchor(run)
        found["log-odds"] = log_odds(model, Anchor(anchor.items[:SCORED]))
        found["labels"] = anchor.labels.tolist()
        found["tasks"] = [str(one.item.data["prompt"]) for one in anchor.items]
    return found


def real(model: str, cells: ResultCache, first: int = 0) -> Checks:
    """Whether the model can be told from chance as a judge, and whether judges that are no better are kept out."""
    checks = Checks([first])
    found = cells.get("judged", judged, model=model, tasks=TASKS, seed=first)
    labels, odds = np.array(found["labels"]), found["log-odds"]
    checks.share("sums: replies right", int(labels.sum()), len(labels))
    for name, one in zip(("own question", "answer first"), found["model"]["challengers"], strict=True):
        checks.share(f"{name}: without an answer", one["missing"], one["items"])
        for what, of in (("sensitivity", "right replies accepted"), ("specificity", "wrong replies refused")):
            share = one[what]
            if share is not None:
                checks.value(f"{name}: {of}", share["value"], share["n"], interval=tuple(share["interval"]))
        if one["balanced"] is not None:
            checks.value(f"{name}: balanced accuracy", one["balanced"], one["items"] - one["missing"])
    checks.value("prompts of the model that may take over from a judge that always says no", int(found["model"]["promote"]), 2)
    there, tasks = labels[: len(odds)], found["tasks"][: len(odds)]
    interval = auroc_interval(odds, there, tasks)
    checks.value("log-odds of yes: AUROC", auroc(odds, there) or 0.5, len(odds), interval=interval)
    checks.value("null: coins that may take over from the model", int(found["coins"]["promote"]), COINS, "<=", 0)
    checks.value("null: an equal judge may take over", int(found["equals"]["promote"]), len(labels), "<=", 0)
    better = "planted: a judge that is right on nine of ten may take over from seven of ten"
    checks.value(better, int(found["better"]["promote"]), len(labels), ">=", 1)
    checks.value("null: a coin takes the slot of a run", int(found["refused"]["promoted"]), len(labels), "<=", 0)
    checks.value("planted: scores erased where it does", found["promoted"]["stake"]["erased"], len(labels), ">=", len(labels))
    return checks
