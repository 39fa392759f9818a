"""Long conversations about nothing that matters: turns of a seeded museum catalogue, in English, Spanish and Chinese.

Each turn is a request, a call of ``open_note``, the note and a line about it. It holds no word of the rules that studies of
compaction state (tests hold both to that), so that a rule that is found in a context came from the rule.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.seeds import generator

LANGUAGES = ("en", "zh", "es")
OPEN_NOTE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "open_note",
        "description": "Open one note of the catalogue.",
        "parameters": {"type": "object", "properties": {"place": {"type": "integer"}}, "required": ["place"]},
    },
}


@lru_cache(maxsize=1)
def _texts() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(files("ramify.env").joinpath("filler.json").read_text(encoding="utf-8"))
    return found


def opening(language: str) -> list[dict[str, Any]]:
    """The system's message and the goal: how such a conversation begins. Raises UserError on a language there is none in."""
    texts = _of(language)
    return [{"role": "system", "content": texts["system"]}, {"role": "user", "content": texts["goal"]}]


def filler(language: str, turns: int, *position: str | int, seed: int = 0, sentences: int = 5) -> list[dict[str, Any]]:
    """``turns`` turns of four messages each; ``position`` keeps the samples of one conversation apart from another's.

    Raises UserError on a language there is none in.
    """
    _of(language)
    return [dict(message) for turn in range(turns) for message in _turn(language, sentences, seed, turn, *position)]


@lru_cache(maxsize=4096)
def _turn(language: str, sentences: int, seed: int, turn: int, *position: str | int) -> tuple[dict[str, Any], ...]:
    texts = _of(language)
    rng = generator(seed, "filler", language, *position, turn)

    def one(name: str) -> str:
        return str(texts[name][int(rng.integers(len(texts[name])))])

    slots = {name: one(name) for name in ("item", "item2", "place", "person", "state")} | {"n": str(2 + int(rng.integers(95)))}
    number = slots["n"]
    body = [texts["body"][i].format(**slots) for i in rng.permutation(len(texts["body"]))[:sentences]]
    name = f"call_{turn}_{number}"
    call = {"id": name, "type": "function", "function": {"name": "open_note", "arguments": json.dumps({"place": int(number)})}}
    return (
        {"role": "user", "content": one("ask").format(n=number)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": " ".join(sentence[:1].upper() + sentence[1:] for sentence in body)},
        {"role": "assistant", "content": one("line").format(**slots)},
    )


def _of(language: str) -> dict[str, Any]:
    if language not in _texts():
        raise UserError(f"there is no filler in '{language}' ({nearest(language, LANGUAGES)})")
    return _texts()[language]
