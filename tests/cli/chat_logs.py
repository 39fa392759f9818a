"""Small chat logs for the tests of imports, and what became of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ramify.trace.db import Run


def write(name: str, *records: Any) -> str:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return name


def chat(question: Any, answer: Any = "a", **fields: Any) -> dict[str, Any]:
    user = question if isinstance(question, dict) else {"content": question}
    assistant = answer if isinstance(answer, dict) else {"content": answer}
    return {"task": "t", "messages": [{"role": "user", **user}, {"role": "assistant", **assistant}], **fields}


def texts(run: str) -> list[list[str]]:
    with Run.open(run) as opened:
        leaves = [(info.name, leaf.id) for info in opened.trees() for leaf in opened.tree(info.name).leaves()]
        return sorted([message.text for message in opened.tree(name).path(leaf).messages()] for name, leaf in leaves)


def rate(verb: Any, run: str) -> tuple[int, int] | None:
    """Successes and attempts, as `ramify show` counts them."""
    found = verb("show", run, "--json").json["attempts"]
    return None if found is None else (found["successes"], found["n"])
