"""What is known of made traces, and what the audit and the builder make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.score.steps import write_rows
from ramify.trace.db import Run
from ramify_experiments.cases import KnownCase, Repetition

STEPS = ("The total is {n}.", "So we get {n}.", "Next, add {n} to both sides.", "That leaves {n}.")
"""Sentences that take nothing back, whatever the number."""
BACK = ("Wait, it is {n}.", "Hmm, actually it is {n}.", "No, it is {n}.", "That's wrong: it is {n}.")


def _rooms(rep: Repetition) -> bool:
    """Eight tasks, six attempts each through twelve rooms that are never entered twice; the key tells five looks apart."""
    rng = generator(rep.seed, "rooms")
    turns = rng.integers(0, [5, 2], (48, 12, 2)).tolist()  # look of the room, way taken in it
    rows = [_walk(n % 8, [(f"look {look}", f"door {door}") for look, door in walk], n % 2 == 0) for n, walk in enumerate(turns)]
    return bool(rep.verb("maze-recovery", "audit", _write(rep.folder / "rooms.jsonl", rows))["found"])


def _attempts(rep: Repetition) -> bool:
    """Ten tasks, eight attempts each; each task's chance of success is sampled, one half on average."""
    rng = generator(rep.seed, "attempts")
    won = rng.random((10, 8)) < rng.beta(0.5, 0.5, (10, 1))
    rows = [_walk(task, [("start", "go")], bool(win)) for task in range(10) for win in won[task]]
    low, high = rep.verb("maze-recovery", "audit", _write(rep.folder / "walks.jsonl", rows))["success_share"]["interval"]
    return not low <= 0.5 <= high


def _steps(rep: Repetition) -> bool:
    """Ten tasks, four attempts of twelve steps each; each task's chance that a step changes nothing is sampled, one quarter on
    average."""
    rng = generator(rep.seed, "steps")
    moves = rng.random((10, 4, 11)) >= rng.beta(1.5, 4.5, (10, 1, 1))
    rows = [
        _walk(task, [(f"room {at}", "go") for at in np.cumsum([0, *moves[task, n]]).tolist()], True)
        for task in range(10)
        for n in range(4)
    ]
    low, high = rep.verb("maze-recovery", "audit", _write(rep.folder / "walks.jsonl", rows))["stalled_steps"]["interval"]
    return not low <= 11 / 12 / 4 <= high  # the last step of an attempt ends it, which is a change


def _phrases(rep: Repetition) -> bool:
    """Texts and labelled traces of one kind, in which one phrase in ten sounds like a retraction and is none."""
    rng = generator(rep.seed, "phrases")
    texts = [_text(rng, rng.random(5) < 0.1) for _ in range(80)]
    return _stands_out(rep, texts[:40], [[(s, "advance", None) for s in text] for text in texts[40:]])


def _retractions(rep: Repetition) -> bool:
    """As :func:`_phrases`, but every third text takes one step back."""
    rng = generator(rep.seed, "retractions")
    texts = [_text(rng, np.arange(5) == (rng.integers(1, 5) if n % 3 == 0 else 9)) for n in range(60)]
    plain = [_text(rng, rng.random(5) < 0.01) for _ in range(60)]
    return _stands_out(rep, texts, [[(s, "advance", None) for s in text] for text in plain])


def _false_masks(rep: Repetition) -> bool:
    """Labels by which the phrases are right about what they would hide as often as is just not enough."""
    return _masked(rep, 0.8) is not None


def _masks(rep: Repetition) -> bool:
    """Labels by which they are right in 24 of 25 cases."""
    return _masked(rep, 0.96) is True


def _masked(rep: Repetition, precision: float) -> bool | None:
    """Whether a set masks the planted slips of ten texts and nothing else; None where the builder refuses to mask."""
    rng = generator(rep.seed, "masks")
    slips = [int(at) for at in rng.integers(0, 3, 10)]
    texts = [_text(rng, np.arange(5) == slip + 1) for slip in slips]
    labels: list[list[tuple[str, str, int | None]]] = []
    for right in (rng.random(80) < precision).tolist():
        step, phrase = _text(rng, np.array([False, True]))
        labels.append([(step, "advance", None), (phrase, "retract", 0) if right else (phrase, "advance", None)])
    out = rep.folder / "set.jsonl"
    source = ("maze-recovery", "build", _texts(rep.folder, texts), "--out", out, "--mode", "success_raw")
    try:
        rep.verb(*source, "--mask-mistakes", "--detector", "lexicon", "--labels", _labels(rep.folder, labels))
    except UserError as error:
        if "mask_mistakes needs" not in str(error):
            raise
        return None
    rows = sorted(map(json.loads, out.read_text(encoding="utf-8").splitlines()), key=lambda row: int(row["task"]))
    replies = [(row["messages"][-1]["content"], row["loss"][-1]) for row in rows]
    kept = ["".join(text[a:b] for a, b in loss).split() for text, loss in replies]
    return kept == [" ".join(s for at, s in enumerate(t) if at != slip).split() for t, slip in zip(texts, slips, strict=True)]


def _way_back(rep: Repetition) -> bool:
    """Six tasks, four attempts each straight to the goal, but for one that walks into a dead end and comes back."""
    rng = generator(rep.seed, "way back")
    length, depth, task = (int(rng.integers(low, high)) for low, high in ((3, 9), (1, 7), (0, 6)))
    turn = int(rng.integers(0, length))
    way = [f"room {at}" for at in range(length + 1)]
    side = [f"cellar {at}" for at in range(depth)]
    detour = [*way[: turn + 1], *side, *side[-2::-1], *way[turn:]]
    walks = [(n, way) for n in range(6) for _ in range(4)]
    walks[4 * task] = (task, detour)
    rows = [_walk(n, [(a, f"go to {b}") for a, b in pairwise(states)], True) for n, states in walks]
    found = rep.verb("maze-recovery", "audit", _write(rep.folder / "walks.jsonl", rows))
    ends = [(d["task"], d["state"]) for d in found["dead_end_list"]]
    return found["found"] and (found["recoveries"], found["mean_depth"], ends) == (1, depth, [(str(task), side[-1])])


def _coins(rep: Repetition) -> bool:
    """Three tasks, 32 attempts each, by one of four rooms on each of two floors; success is a coin, whatever the rooms."""
    return _dead_ends(rep, np.zeros(4, bool)) != set()


def _trap(rep: Repetition) -> bool:
    """As :func:`_coins`, but whoever enters one room of the upper floor fails, and elsewhere nine in ten succeed."""
    return bool(_dead_ends(rep, np.arange(4) == 0) & {"floor 1, room 0"})


def _dead_ends(rep: Repetition, trap: np.ndarray) -> set[str]:
    """States that the run names as dead ends; ``trap`` says of the rooms of the upper floor which nobody gets out of."""
    rng = generator(rep.seed, "dead ends")
    rooms = rng.integers(0, 4, (96, 2))
    won = (rng.random(96) < (0.9 if trap.any() else 0.5)) & ~trap[rooms[:, 1]]
    rows = [
        {
            "task_id": n % 3,
            "attempt_id": n,
            "step": at,
            "anchor": f"floor {at}, room {room}",
            "action": "on",
            "reward": at * int(won[n]),
        }
        for n, own in enumerate(rooms.tolist())
        for at, room in enumerate(own)
    ]
    run = rep.folder / "run"
    rep.verb("import", _write(rep.folder / "walks.jsonl", rows), "--run", run)
    rep.verb("maze-recovery", "audit", run)
    with Run.open(run) as opened:
        return {
            str(found.evidence["state"]) for found in opened.findings(maker="maze-recovery audit") if found.name == "dead end"
        }


def _stands_out(rep: Repetition, texts: Sequence[Sequence[str]], labels: Sequence[Sequence[tuple[str, str, int | None]]]) -> bool:
    source, known = _texts(rep.folder, texts), _labels(rep.folder, labels)
    return bool(rep.verb("maze-recovery", "audit", source, "--detector", "lexicon", "--labels", known)["found"])


def _text(rng: np.random.Generator, back: np.ndarray) -> list[str]:
    """One sentence for each entry of ``back``, those with a phrase that takes something back where it is true."""
    numbers = rng.integers(2, 1000, len(back)).tolist()
    return [str(rng.choice(BACK if b else STEPS)).format(n=n) for b, n in zip(back.tolist(), numbers, strict=True)]


def _texts(folder: Path, texts: Iterable[Sequence[str]]) -> Path:
    return _write(folder / "texts.jsonl", [_walk(n, [("Which number?", " ".join(text))], True) for n, text in enumerate(texts)])


def _labels(folder: Path, traces: Iterable[Sequence[tuple[str, str, int | None]]]) -> Path:
    rows = [
        {"text": text, "kind": kind, "trace": n} | ({} if target is None else {"target": target})
        for n, trace in enumerate(traces)
        for text, kind, target in trace
    ]
    return _write(folder / "labels.jsonl", rows)


def _walk(task: int, moves: Iterable[tuple[str, str]], success: bool) -> dict[str, Any]:
    return {"task_id": str(task), "steps": [{"state": s, "action": a} for s, a in moves], "success": success}


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    write_rows(file, list(rows))
    return file


CASES = (
    KnownCase(
        "rooms that look alike",
        "nothing",
        "No attempt ever enters a room twice, but the state key shows one of five looks; a finding is an audit that says that "
        "attempts get "
        "out of wrong turns.",
        _rooms,
        wanted=0.05,
    ),
    KnownCase(
        "one way back",
        "planted",
        "One of 24 attempts walks into a dead end and comes back; it counts as found with its depth and the dead end's name, "
        "and nothing else.",
        _way_back,
        wanted=0.95,
    ),
    KnownCase(
        "rooms do not matter",
        "nothing",
        "Success is a coin, whatever rooms an attempt goes through; a finding is any dead end that the run names.",
        _coins,
        wanted=0.05,
    ),
    KnownCase(
        "a room that nobody gets out of",
        "planted",
        "Whoever enters one of the eight rooms fails, and of the others nine in ten succeed; found where the run names it in "
        "any task.",
        _trap,
        wanted=0.8,
    ),
    KnownCase(
        "attempts at a task are alike",
        "nothing",
        "The true share of successes is one half, and tasks differ; a finding is an interval of success_share that excludes it.",
        _attempts,
        wanted=0.05,
    ),
    KnownCase(
        "steps of a task are alike",
        "nothing",
        "The true share of steps that change nothing is known, and tasks differ; a finding is an interval of stalled_steps that "
        "excludes it.",
        _steps,
        wanted=0.05,
    ),
    KnownCase(
        "phrases that take nothing back",
        "nothing",
        "A tenth of the sentences, labelled and not, sound like a retraction and are none; a finding is an audit that says more "
        "is taken "
        "back than false marks explain.",
        _phrases,
        wanted=0.025,
    ),
    KnownCase(
        "steps taken back",
        "planted",
        "Every third of 60 texts takes a step back, and false marks are rare in the labels; found where the audit says so.",
        _retractions,
        wanted=0.8,
    ),
    KnownCase(
        "masks that are not precise enough",
        "nothing",
        "What the detector would hide is a mistake in 0.8 of cases, the least that must be exceeded; a finding is a set that is "
        "built with "
        "those masks.",
        _false_masks,
        wanted=0.025,
    ),
    KnownCase(
        "slips with their correction",
        "planted",
        "What the detector would hide is a mistake in 0.96 of cases; found where the set is built, and masks the ten planted "
        "slips and nothing else.",
        _masks,
        wanted=0.8,
    ),
)
"""What is true of made traces, and how often the verbs may, or must, say so."""
