"""Messages of a path with the tokens they have: what an agent was shown and said, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.trace.path import Path, text_between

_KEPT = ("name", "tool_calls", "tool_call_id")


@dataclass(frozen=True, eq=False)
class Turn:
    """One message. ``tokens`` int32 (T,), template included, with ``sampled`` bool (T,) and ``ends`` int32 (T,), or all None."""

    role: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    tokens: np.ndarray | None = None
    sampled: np.ndarray | None = None
    ends: np.ndarray | None = None
    count: int | None = None
    """Tokens of the text, where the trace says so without naming them."""
    viewed: bool = False
    """Drawn from an explicit context: the turns before it are not what the model saw."""

    def message(self) -> dict[str, Any]:
        """In the form of OpenAI's, tool calls kept."""
        return {"role": self.role, "content": self.text} | {k: self.data[k] for k in _KEPT if k in self.data}


def turns_of(path: Path) -> list[Turn]:
    """The messages along a path, tokens kept as they are; an empty root is none."""
    made: list[Turn] = []
    for node, kept in path.segments:
        if (node.role == "root" and not node.text) or (kept == 0 and node.opens and len(node) > 0):
            continue
        tokens, drawn, ends = (None if a is None else a[:kept] for a in (node.tokens, node.sampled, node.ends))
        if tokens is not None and drawn is None:
            drawn = np.zeros(kept, np.bool_)
        turn = Turn(node.role, text_between(node, 0, kept), dict(node.data), tokens, drawn, ends, viewed=node.context is not None)
        if node.opens or not made:
            made.append(turn)
        else:
            made[-1] = _joined(made[-1], turn)
    return made


def _joined(first: Turn, rest: Turn) -> Turn:
    def both(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
        return None if a is None or b is None else np.concatenate([a, b])

    ends = None if rest.ends is None else rest.ends + len(first.text)
    return replace(
        first,
        text=first.text + rest.text,
        tokens=both(first.tokens, rest.tokens),
        sampled=both(first.sampled, rest.sampled),
        ends=both(first.ends, ends),
        viewed=first.viewed or rest.viewed,
    )
