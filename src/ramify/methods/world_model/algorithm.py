"""The paper's formulas (arXiv 2606.24597): turn classes and their masks, rewards, advantages, how a reply is read. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ramify.base.seeds import generator

SHORT = 200
"""Characters up to which an observation is short (the paper gives no number)."""
_WORD = re.compile(r"\w+")

# -- turn-level information masking (section 3.2 of the paper)

TurnClass = Literal["echo", "boilerplate", "transform", "expansion", "retrieval", "action", "other"]
KEEP: dict[TurnClass, float] = {
    "echo": 0.05,
    "boilerplate": 0.10,
    "transform": 0.50,
    "expansion": 1.0,
    "retrieval": 1.0,
    "action": 1.0,
    "other": 1.0,
}
"""The share of turns of each class that is trained on; the others stay in the context."""
INFORMATIVE: tuple[TurnClass, ...] = ("expansion", "retrieval", "action", "other")


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """What an observation repeats of the action it answers,
    over sets of lower-cased words (``\\w+``), all in [0, 1] but ``ratio``."""

    overlap: float
    """Share of the action's words that the observation holds; 0 without words."""
    novelty: float
    """Share of the observation's words that the action does not hold; 0 without words."""
    jaccard: float
    """Words of both among words of either."""
    ratio: float
    """Characters of the observation for each of the action; infinite for an empty action."""
    characters: int
    """Characters of the observation."""


def turn_statistics(action: str, observation: str) -> TurnStatistics:
    """The statistics of one turn. Punctuation is not a word, so braces and quotes of JSON do not count; its keys do."""
    a, o = set(_WORD.findall(action.lower())), set(_WORD.findall(observation.lower()))
    both, either = len(a & o), len(a | o)
    return TurnStatistics(
        both / len(a) if a else 0.0,
        len(o - a) / len(o) if o else 0.0,
        both / either if either else 0.0,
        len(observation) / len(action) if action else math.inf,
        len(observation),
    )


def turn_class(found: TurnStatistics) -> TurnClass:
    """The class of a turn: the first rule that holds, in the order of the paper's table (which gives no order)."""
    if found.overlap >= 0.70 and found.novelty < 0.30:
        return "echo"
    if found.overlap >= 0.50 and found.novelty < 0.50:
        return "boilerplate"
    if found.novelty < 0.50 and found.ratio < 1:
        return "transform"
    if found.overlap >= 0.50 and found.novelty >= 0.50 and found.ratio > 1.5:
        return "expansion"
    if found.novelty >= 0.60 and found.ratio > 1:
        return "retrieval"
    if found.novelty >= 0.50 and (found.ratio <= 1 or found.characters <= SHORT):
        return "action"
    return "other"


def keeps(kind: TurnClass, seed: int, *position: str | int, keep: Mapping[TurnClass, float] = KEEP) -> bool:
    """Whether a turn is trained on: one Bernoulli sample keyed by ``seed`` and ``position`` (its trajectory and number)."""
    share = keep.get(kind, 1.0)
    return share >= 1 or bool(generator(seed, "world-model mask", *position).random() < share)


# -- rewards and the policy gradient (section 3.4 of the paper)

RUBRIC = ("format", "factuality", "consistency", "realism", "quality")
"""The five scores of a prediction, each from 1 to 5."""
ANCHOR = 0.1
"""Weight of the rule verifier in the reward."""


def reward(scores: Sequence[float], verified: bool | None = None) -> float:
    """``0.9 * 5 * mean(scores) + 0.1 * 25 * verified``; the rubric alone, 5 to 25, where nothing can be verified."""
    rubric = 5.0 * float(np.mean(scores))
    return rubric if verified is None else (1 - ANCHOR) * rubric + ANCHOR * 25.0 * verified


def normalised(mean: float) -> float:
    """A mean of rubric scores, 1 to 5, as 0 to 100: ``(mean - 1) / 4 * 100``."""
    return (mean - 1.0) / 4.0 * 100.0


def group_advantages(rewards: Sequence[float]) -> np.ndarray:
    """``(R - mean) / std`` over the samples of one prompt, (G,); zeros where all are equal: nothing can be learnt from them."""
    values = np.asarray(rewards, float)
    deviation = values.std()
    return np.zeros(len(values)) if deviation <= 1e-9 else (values - values.mean()) / deviation


# -- how a reply is read

TAG, EVALUATION = "predicted_observation", "final_evaluation"
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def without_thinking(reply: str) -> str:
    """``reply`` without its thoughts: closed ones, and what stands before a closing mark whose opening is in the prompt."""
    text = _THOUGHT.sub("", reply)
    return text.rpartition("</think>")[2]


def extract(reply: str, tag: str = TAG, strict: bool = True) -> str | None:
    """What stands in the last ``<tag>`` outside of thoughts,
    in the innermost of those that are opened twice; None where there is none.

    Nothing outside the tag ever reaches a judge. ``strict=False`` takes the whole text where the tag is missing, as the paper's
    released parser does: then whatever a model adds around its prediction is judged, too.
    """
    text = without_thinking(reply)
    found: list[str] = re.findall(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", text, re.DOTALL)
    if found:
        return found[-1].strip("\n")
    return None if strict else text.strip()


def read_scores(reply: str) -> dict[str, float] | None:
    """The five scores of a judge's reply, each held to 1 to 5; None where it gives no such object.

    Read from the last ``<final_evaluation>`` (else the whole text, thoughts left out):
    the last JSON object with all five under ``scores``.
    """
    text = without_thinking(reply)
    text = (re.findall(rf"<{EVALUATION}>(.*?)(?:</{EVALUATION}>|\Z)", text, re.DOTALL) or [text])[-1]
    decoder = json.JSONDecoder()
    for at in reversed([found.start() for found in re.finditer(r"\{", text)]):
        try:
            record, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        scores = _five(record)
        if scores is not None:
            return scores
    return None


def _five(record: Any) -> dict[str, float] | None:
    given = record.get("scores", record) if isinstance(record, dict) else None
    if not isinstance(given, dict):
        return None
    named = {str(name).lower(): value for name, value in given.items()}
    found: dict[str, float] = {}
    for name in RUBRIC:
        value = named.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        found[name] = min(5.0, max(1.0, float(value)))
    return found


def rule_scores(prediction: str | None, truth: str, said: str = "") -> dict[str, float]:
    """The five scores by rules instead of a judge, from a prediction, the true observation and ``said`` (the history as text).

    Format: as many lines, and JSON where the truth is. Factuality: words of the truth that occur (F1 of word counts).
    Consistency: of the prediction's words, those that the truth, or the history, holds. Realism: length near the truth's.
    Quality: both. A prediction that failed (None) has 1 in all.
    """
    if prediction is None:
        return dict.fromkeys(RUBRIC, 1.0)
    p, t, known = _counts(prediction), _counts(truth), _counts(said)
    shared = sum(min(count, t.get(word, 0)) for word, count in p.items())
    total = sum(p.values()) + sum(t.values())
    factual = 2 * shared / total if total else 1.0
    held = sum(word in t or word in known for word in p) / len(p) if p else float(not t)
    lines = abs(prediction.count("\n") - truth.count("\n"))
    formed = 1.0 / (1 + lines) * (_is_json(prediction) == _is_json(truth))
    length = min(len(prediction), len(truth)) / max(len(prediction), len(truth), 1) if truth or prediction else 1.0
    shares = (formed, factual, held, length, (factual + length) / 2)
    return {name: 1.0 + 4.0 * share for name, share in zip(RUBRIC, shares, strict=True)}


def _counts(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        found[word] = found.get(word, 0) + 1
    return found


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


# -- what a text holds that nothing before it did


def same(prediction: str | None, truth: str) -> bool:
    """Exact match: equal but for space at the ends of lines and of the text."""
    return prediction is not None and _trimmed(prediction) == _trimmed(truth)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def invented(observation: str, known: str) -> list[str]:
    """Fields of an observation whose value nothing known holds:
    of JSON the paths of such leaves, else words with a digit or a capital.

    ``known``: state, schema, history and action as one text.
    Invented is not wrong: an environment may answer with what nobody knew.
    """
    words = set(_WORD.findall(known.lower()))
    try:
        record = json.loads(observation)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict | list):
        return [path for path, value in _leaves(record) if not set(_WORD.findall(str(value).lower())) <= words]
    return list(dict.fromkeys(w for w in _WORD.findall(observation) if w.lower() not in words and not w.islower()))


def _leaves(record: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(record, dict):
        return [leaf for name, value in record.items() for leaf in _leaves(value, f"{path}.{name}" if path else str(name))]
    if isinstance(record, list):
        return [leaf for i, value in enumerate(record) for leaf in _leaves(value, f"{path}[{i}]")]
    return [] if record is None or isinstance(record, bool) else [(path, record)]
