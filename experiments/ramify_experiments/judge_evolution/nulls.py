"""Anchors whose truth is known: judges that are equally good, one that is better,
one that likes length, one that favours machines.

A judge here is a pattern, and an item's text holds the marks of the judges that say yes to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify_experiments.cases import KnownCase, Repetition

METHOD = "judge-evolution"
ITEMS, RIGHT = 200, 0.7
MANY = 8


def _anchor(
    rep: Repetition, answers: Mapping[str, np.ndarray], label: np.ndarray, lengths: np.ndarray, machine: np.ndarray
) -> str:
    path = rep.folder / "anchor.jsonl"
    rows = []
    for i, truth in enumerate(label.tolist()):
        marks = " ".join(f"<{name}>" for name, yes in answers.items() if yes[i])
        group = "machine" if machine[i] else "human"
        rows.append({"id": i, "artefact": f"{marks:<{10 * len(answers)}}{'x' * int(lengths[i])}", "label": truth, "group": group})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _made(
    rep: Repetition, judges: Mapping[str, float], positives: float = 0.5
) -> tuple[dict[str, np.ndarray], np.ndarray, np.random.Generator]:
    """Answers of independent judges, each right on its share of items of either label; the better label is the longer text."""
    rng = generator(rep.seed, "anchor")
    label = rng.random(ITEMS) < positives
    return {name: np.where(rng.random(ITEMS) < right, label, ~label) for name, right in judges.items()}, label, rng


def _lengths(label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(rng.integers(20, 100, len(label)) + 60 * label)


def _compared(rep: Repetition, judges: Mapping[str, float], *words: str) -> dict[str, object]:
    answers, label, rng = _made(rep, judges)
    anchor = _anchor(rep, answers, label, _lengths(label, rng), rng.random(ITEMS) < 0.5)
    challengers = [word for name in list(judges)[1:] for word in ("--judge", f"regex:<{name}>")]
    return rep.verb(METHOD, "check", anchor, "--against", f"regex:<{next(iter(judges))}>", *challengers, *words)


def _promotes_the_majority(rep: Repetition) -> bool:
    """Four items in five are labelled yes; the challenger says yes to all, which is right more often than the incumbent."""
    answers, label, rng = _made(rep, {"old": 0.65}, positives=0.8)
    anchor = _anchor(rep, answers | {"yes": np.ones(ITEMS, bool)}, label, _lengths(label, rng), rng.random(ITEMS) < 0.5)
    return bool(rep.verb(METHOD, "check", anchor, "--against", "regex:<old>", "--judge", "regex:<yes>")["promote"])


def _checked(
    rep: Repetition, answers: np.ndarray, label: np.ndarray, lengths: np.ndarray, machine: np.ndarray
) -> dict[str, object]:
    found = rep.verb(METHOD, "check", _anchor(rep, {"new": answers}, label, lengths, machine), "--judge", "regex:<new>")
    one: dict[str, object] = found["challengers"][0]
    return one


def _leans(rep: Repetition, length: float, machine: float) -> dict[str, object]:
    """A judge whose errors follow length and maker with these weights (0: neither)."""
    answers, label, rng = _made(rep, {"new": RIGHT})
    lengths, made = _lengths(label, rng), rng.random(ITEMS) < 0.5
    longer = (lengths - 60 * label - 60) / 25
    moved = rng.random(ITEMS) < np.clip(np.abs(length * longer) + machine * made, 0, 1)
    swayed = np.where(moved, np.where(made & (machine > 0), True, longer > 0), answers["new"])
    return _checked(rep, swayed, label, lengths, made)


def _lean(rep: Repetition, what: str, length: float = 0.0, machine: float = 0.0) -> dict[str, Any]:
    """What is found significant of such a judge; nothing where it is not."""
    found = _leans(rep, length, machine)[what]
    return found if isinstance(found, dict) and found["p"] <= 0.05 else {}


CASES = (
    KnownCase(
        "a judge that is equally good",
        "nothing",
        f"Two independent judges, each right on {RIGHT:.0%} of {ITEMS} items: that the challenger may take over is a false "
        "finding.",
        lambda rep: bool(_compared(rep, {"old": RIGHT, "new": RIGHT})["promote"]),
        wanted=0.05,
    ),
    KnownCase(
        f"{MANY} judges that are equally good",
        "nothing",
        f"{MANY} challengers, all as good as the incumbent: that one of them may take over is a false finding.",
        lambda rep: bool(_compared(rep, {"old": RIGHT, **{f"n{i}": RIGHT for i in range(MANY)}})["promote"]),
        wanted=0.05,
    ),
    KnownCase(
        "a judge that says yes to everything",
        "nothing",
        "Four items in five are labelled yes, and the challenger says yes to all of them: more often right, and no judge. That "
        "it may take over is false.",
        _promotes_the_majority,
        wanted=0.05,
    ),
    KnownCase(
        "good texts are longer",
        "nothing",
        "The judge's errors have nothing to do with length, though good texts are longer: a bias to length (p at most .05) is a "
        "false finding.",
        lambda rep: bool(_lean(rep, "length")),
        wanted=0.05,
    ),
    KnownCase(
        "machines write as well as people",
        "nothing",
        "The judge does not see who wrote a text: a difference between makers (p at most .05) is a false finding.",
        lambda rep: bool(_lean(rep, "parity")),
        wanted=0.05,
    ),
    KnownCase(
        "a better judge",
        "planted",
        f"The challenger is right on 85 % of {ITEMS} items and the incumbent on 70 %: it may take over.",
        lambda rep: bool(_compared(rep, {"old": RIGHT, "new": 0.85})["promote"]),
        wanted=0.8,
    ),
    KnownCase(
        "a judge that likes length",
        "planted",
        "About a quarter of the answers follow the text's length: check finds that longer ones are accepted.",
        lambda rep: _lean(rep, "length", length=0.3).get("value", 0.0) > 0.5,
        wanted=0.8,
    ),
    KnownCase(
        "a judge that favours machines",
        "planted",
        "Half of what machines wrote is accepted unseen: check finds that machines are accepted more often.",
        lambda rep: _lean(rep, "parity", machine=0.5).get("ratio", 0.0) > 1,
        wanted=0.8,
    ),
)
