"""Reflection without a model: the order of calls of a task becomes a plan, repeated calls and visible errors become pitfalls.

It knows no language: what it writes is the calls that were made.
A model writes better text; this is what the verbs do where none is named.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ramify.base import codec
from ramify.methods.earned_code_memory.algorithm import content_words
from ramify.methods.earned_code_memory.roles import RoleReply, payload_of

_CALLED = re.compile(r"^\d+\. assistant: (.*)$")
_NAME = re.compile(r"(?:^|\s)([A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)*)\(")
_FAILED = re.compile(r"\b(?:error|failed|denied|invalid|not found|unauthorized|exception)\b", re.IGNORECASE)


@dataclass(frozen=True)
class ReflectedTask:
    """What a reflector's prompt says of a task."""

    query: str
    outcome: bool | None
    steps: list[str]


def procedure(calls: Sequence[str]) -> list[str]:
    """Calls in order, those that repeat one another once: ``list list show show delete`` is ``list show delete``."""
    return [name for i, name in enumerate(calls) if i == 0 or name != calls[i - 1]]


def reflect(prompt: str) -> RoleReply:
    """A reflector of rules (see :mod:`ramify.methods.earned_code_memory.roles`):
    a plan of a success, a pitfall of a call that failed and was made otherwise."""
    given = codec.from_json(ReflectedTask, payload_of(prompt), "the prompt of a reflector")
    calls: list[tuple[str, str]] = []
    for line in given.steps:
        if found := _CALLED.match(line):
            calls += [(name, found[1]) for name in _NAME.findall(found[1])]
    steps, made = procedure([name for name, _ in calls]), list[dict[str, object]]()
    answers = {"general": True, "new": True, "explained": True, "scoped": True}
    if given.outcome is not False and len(steps) >= 2:
        times = Counter(name for name, _ in calls)
        chain = ", then ".join(
            f"`{name}`" + (" until nothing is left" if times[name] > 1 and steps.count(name) == 1 else "") for name in steps
        )
        topic = " ".join(sorted(content_words(given.query))[:12])
        made.append(
            {
                "kind": "plan",
                "title": f"how to {topic}",
                "body": f"Call {chain}.",
                "scope": topic,
                "quote": calls[0][1],
                **answers,
            }
        )
    for before, after in zip(given.steps, given.steps[1:], strict=False):
        found, name = _CALLED.match(before), _NAME.search(before)
        if found and name and ". tool:" in after[:12] and _FAILED.search(after[:80]):
            advice = f"`{name[1]}` was refused; read what it needs before it is called again."
            made.append(
                {
                    "kind": "pitfall",
                    "title": f"{name[1]} is refused",
                    "body": advice,
                    "scope": name[1],
                    "quote": found[1],
                    **answers,
                }
            )
            break
    return RoleReply(json.dumps({"candidates": made}))
