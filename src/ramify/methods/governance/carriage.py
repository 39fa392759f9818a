"""Whether the context still holds a rule: after rounds of a compactor, with the rule removed, with the rule reinserted (arXiv
2606.22528, 3.7)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.methods.governance.filler import filler, opening
from ramify.rollout.compact import Chat, compact_chat, readable, readable_text
from ramify.rollout.pins import PinKeeper
from ramify.rollout.rules import keywords, survival, values


@dataclass(frozen=True, slots=True)
class Lost:
    """A rule that was not in the context any more."""

    rule: str
    round: int
    kind: str
    """One of ``ramify.rollout.rules.CLASSES``; or ``failed``, where the compactor did."""


def survives(
    compactor: Any,
    rules: str | Iterable[str],
    rounds: int = 4,
    *,
    budget: int | None = None,
    history: Chat | None = None,
    turns: int = 12,
    language: str = "en",
    seed: int = 0,
    **options: Any,
) -> list[Lost]:
    """The rules that ``rounds`` compactions lose, and in which round: empty where the compactor keeps them all.

    ``compactor`` is a harness's function over messages in OpenAI's form, one of ramify's compactors (which needs a ``budget``; by
    default a third of the history), or either of them wrapped by pins. The rules are stated by the user after the opening of
    ``history`` (by default a made-up one of ``turns`` turns), and as many turns follow each round. ``options`` go to
    ``compact_chat``. Raises UserError where nothing was ever compacted: then nothing was shown.
    """
    stated = [rules] if isinstance(rules, str) else list(rules)
    if not stated or rounds < 1:
        raise UserError("there must be a rule to keep, and at least 1 round")
    start = list(history) if history is not None else [*opening(language), *filler(language, turns, "survives", seed=seed)]
    head = 1 + next((at for at, value in enumerate(start) if value.get("role") == "assistant"), len(start) - 1)
    shown: list[dict[str, Any]] = [dict(v) for v in start[:head]]
    shown += [{"role": "user", "content": rule} for rule in stated] + [dict(v) for v in start[head:]]
    if start[head:] and start[head].get("role") == "tool":  # a call and its result are not parted
        shown = [dict(v) for v in start[: head - 1]] + shown[head : head + len(stated)] + [dict(v) for v in start[head - 1 :]]
    lost: dict[str, Lost] = {}
    fired, failure = False, ""
    for number in range(1, rounds + 1):
        size = sum(map(len, map(str, shown))) // 4
        limit = budget if budget is not None else size // 3
        if isinstance(compactor, PinKeeper):
            shown = compactor.compact(shown, limit, **options)
            record = compactor.last
        else:
            shown, record = wait_for(compact_chat(compactor, shown, limit, round=number, **options))
        fired, failure = fired or record.fired, failure or record.failure
        opaque = not all(map(readable, shown))
        for rule in stated:
            found = survival(rule, readable_text(shown), opaque)
            if not found.survived:
                lost.setdefault(rule, Lost(rule, number, "failed" if record.failure else found.kind))
        shown = [*shown, *filler(language, turns, "survives", number, seed=seed)]
    if not fired:
        why = f"the compactor failed ({failure})" if failure else "give a smaller budget or a longer history"
        raise UserError(f"nothing was compacted in {rounds} rounds, so nothing is shown: {why}")
    return list(lost.values())


def without_rule(messages: Chat, rule: str) -> list[dict[str, Any]]:
    """``messages`` without the sentences that speak of ``rule``: that hold a bound value of it, or a third of its words."""
    left = []
    for message in messages:
        text = str(message.get("content") or "")
        kept = [s for s in re.split(r"(?<=[.!?。])\s*|\n", text) if s and not _speaks(rule, s)]
        left.append({**message, "content": " ".join(kept)} if _speaks(rule, text) else dict(message))
    return left


def with_rule(messages: Chat, rule: str) -> list[dict[str, Any]]:
    """``messages`` with ``rule`` as the user's, directly after the system's first messages."""
    at = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return [*map(dict, messages[:at]), {"role": "user", "content": rule}, *map(dict, messages[at:])]


def _speaks(rule: str, text: str) -> bool:
    here = keywords(text) & keywords(rule)
    return bool(values(rule).keys() & values(text).keys()) or 3 * len(here) >= max(1, len(keywords(rule)))
