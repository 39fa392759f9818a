"""Workers that are plain functions: specialists for sums and for reversed words, one that is neither, one that fails; a judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.seeds import generator
from ramify.model.http import ProviderError
from ramify.model.protocol import Completion, Identity, Prefix, Sampling, TokenScores
from ramify.model.streaming import Piece, Pieces, gathered

HERE = Path(__file__)


def _lucky(key: int, p: float) -> bool:
    return bool(generator(key % 2**31, "luck").random() < p)


def _answer(messages: list[dict[str, Any]], key: int, skills: dict[str, float]) -> str:
    text = next(m["content"] for m in messages if m["role"] == "user")
    kind, *words = text.split("\n")[0].split()
    if kind not in skills:
        return "ok"
    right = str(int(words[0]) + int(words[1])) if kind == "add" else words[0][::-1]
    return right if _lucky(key, skills[kind]) else "no idea"


def adder(messages: list[dict[str, Any]], key: int) -> str:
    return _answer(messages, key, {"add": 0.95, "turn": 0.2})


def turner(messages: list[dict[str, Any]], key: int) -> str:
    return _answer(messages, key, {"add": 0.2, "turn": 0.95})


def middling(messages: list[dict[str, Any]], key: int) -> str:
    return _answer(messages, key, {"add": 0.5, "turn": 0.5})


def broken(messages: list[dict[str, Any]]) -> str:
    raise InfrastructureError("provider", "it is down")


def refusing(messages: list[dict[str, Any]]) -> str:
    raise ProviderError("filtered", "it withheld a reply (content_filter)", final=True)


async def slow(messages: list[dict[str, Any]]) -> str:
    await asyncio.sleep(60)
    return "late"


class Endless:
    """Says one word over and over until nobody listens."""

    capabilities: frozenset[str] = frozenset()
    identity = Identity("endless", "endless")

    async def stream(self, prefix: Prefix, settings: Sampling, key: int) -> Pieces:
        while "colour" not in prefix.messages[-1].text:  # a new endpoint is asked for a colour
            yield Piece("on ")
            await asyncio.sleep(0.01)
        yield Piece("red", completion=Completion("red", "eos"))

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        return [await gathered(self.stream(prefix, settings, key)) for key in keys]

    async def logprobs(self, tokens: Sequence[Any], top_k: int = 0) -> list[TokenScores]:
        raise NeedsError("it scores nothing")


endless = Endless()


def planner(messages: list[dict[str, Any]]) -> str:
    """A composer: both specialists in isolation, then the first of them looks at all."""
    return "I plan.\n" + json.dumps(
        {"subtasks": ["Solve it.", "Solve it.", "Judge."], "workers": [0, 1, 0], "access": [[], [], "all"]}
    )


def rambler(messages: list[dict[str, Any]]) -> str:
    """A composer whose plans cannot be read."""
    return "I would ask model zero."


def pool_file(folder: Path, *names: str, more: str = "") -> Path:
    lines = [more]
    for name in names:
        lines.append(f'[[workers]]\nname = "{name}"\nmodel = "{HERE}:{name}"\nprice = [1.0, 2.0]\ntags = ["{name[:3]}"]')
    path = folder / "pool.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def endpoints_file(folder: Path, more: str = "", **urls: str) -> Path:
    """A pool file of models that are served, each at its URL under its own name."""
    lines = [more]
    for name, url in urls.items():
        lines.append(f'[[workers]]\nname = "{name}"\nmodel = "chat:{name}@{url}?retries=0"\nprice = [1, 2]')
    path = folder / "pool.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def serve_words(folder: Path, pool: Path) -> tuple[object, ...]:
    """The command that serves ``pool`` by the router in ``folder`` and by :func:`planner`, and keeps what was answered there."""
    ways = ("--router", folder / "router", "--composer", f"{HERE}:planner")
    return ("orchestrator", "serve", pool, *ways, "--out", folder / "kept")


def task_file(folder: Path, n: int = 12) -> Path:
    rows = []
    for at in range(n):
        if at % 2:
            rows.append({"id": f"t{at:03}", "prompt": f"add {at} {at + 3}", "answer": str(2 * at + 3), "group": "sums"})
        else:
            word = "".join("abcdefgh"[(at * 7 + i) % 8] for i in range(4))
            rows.append({"id": f"t{at:03}", "prompt": f"turn {word}", "answer": word[::-1], "group": "words"})
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
