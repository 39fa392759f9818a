"""What an agent's trace was spent on: each action is classed by rules,
and the prefix before the first edit is the localization (section 3.6).

An edit ends it, a reproduction script included. Tool output is counted once, as input of the call after it.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramify.trace.message import Message
from ramify.trace.view import View

CLASSES = ("localize", "repair", "make_test", "run_test", "prepare_env", "think", "finish", "other")
_TEST = re.compile(
    r"(^|[/\s'\"])(test_[^/\s]*|tests?/[^\s]*|testing/[^\s]*|conftest\.py|[^/\s]*_test\.\w+|repro[^/\s]*|[^/\s]*reproduce[^/\s]*)"
)
_EDIT = re.compile(r"(^|_)(edit|write|replace|create|insert|patch|apply)(_|$)|str_replace|editor")
_RUN = (
    "pytest",
    "tox",
    "nox",
    "unittest",
    "nosetests",
    "npm test",
    "go test",
    "cargo test",
    "mvn test",
    "gradle test",
    "make test",
    "ctest",
)
_PREPARE = re.compile(
    r"^(sudo\s+)?(pip3?|uv|conda|mamba|poetry|apt(-get)?|npm|yarn|pnpm|cargo|brew)\s+(install|add|sync|ci|update|fetch)"
    r"|^python3? -m (pip|venv)|^(virtualenv|source|export|git (clone|checkout|stash))\b"
)
_LOOK = frozenset("cat less head tail grep rg ag find ls tree nl wc file stat sed awk git cd pwd ack bat fd which".split())
_CD = re.compile(r"^\s*cd\s+\S+\s*(?:&&|;)\s*")
_WRITES = re.compile(r"(?<![0-9&])>{1,2}\s*([^\s&|;>]+)|\btee\s+(?:-a\s+)?([^\s|;]+)")


def classify(message: Message) -> str:
    """The class of one reply of an agent: that of its first call that does something, else finish or think."""
    made = [_call(one.name, one.arguments) for one in message.calls if not one.error]
    strong = [one for one in made if one not in ("think", "other")]
    if made:
        return (strong or made)[0]
    text = message.text.strip()
    command = re.search(r"```(?:bash|sh|shell)?\n(.*?)```", text, re.DOTALL)
    if command is not None:
        return shell(command[1])
    return "finish" if re.search(r"\b(submit|finish(ed)?|complete_task|COMPLETE_TASK)\b", text) else "think"


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    lower = name.lower()
    command = arguments.get("command") or arguments.get("cmd") or arguments.get("code") or ""
    path = str(arguments.get("path") or arguments.get("file") or arguments.get("file_path") or arguments.get("filename") or "")
    if lower in ("think", "thought"):
        return "think"
    if lower in ("finish", "submit", "done", "complete", "attempt_completion"):
        return "finish"
    if "editor" in lower or lower == "str_replace_based_edit_tool":
        looks = str(command) in ("view", "find", "search")
        return "localize" if looks else _written(path)
    if isinstance(command, str) and command and re.search(r"bash|shell|terminal|execute|run|command|exec|cmd", lower):
        return shell(command)
    if re.search(r"view|read|open|search|grep|find|list|tree|ls|goto|scroll|glob|symbol|definition|references", lower):
        return "localize"
    if _EDIT.search(lower):
        return _written(path)
    if re.search(r"test", lower):
        return "run_test"
    return shell(command) if isinstance(command, str) and command else "other"


def _written(path: str) -> str:
    return "make_test" if _TEST.search(path) else "repair"


def shell(command: str) -> str:
    """The class of a shell command; ``cd X &&`` before it does not count, and of several the first that does something does."""
    command = command.strip()
    while found := _CD.match(command):
        command = command[found.end() :].strip()
    if not command:
        return "other"
    if written := [
        one or two
        for one, two in _WRITES.findall(re.sub(r"<<-?\s*['\"]?(\w+)['\"]?\n.*?\n\1\b", "", command, flags=re.DOTALL))
        if (one or two) != "/dev/null"
    ]:
        return _written(written[0])
    parts = [part.strip() for part in re.split(r"&&|\|\||;|\n", command) if part.strip()]
    found_classes = [_simple(part) for part in parts]
    return next(
        (one for one in found_classes if one not in ("other", "localize")), found_classes[0] if found_classes else "other"
    )


def _simple(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words = words[1:]
    if not words:
        return "other"
    plain = " ".join(words)
    if _PREPARE.match(plain):
        return "prepare_env"
    if any(re.search(rf"(^|[\s/]){re.escape(one)}(\s|$)", plain) for one in _RUN):
        return "run_test"
    name = words[0].rpartition("/")[2]
    if name in ("sed", "perl") and any(re.match(r"-\w*i", word) for word in words[1:]):
        return _written(words[-1])
    if name in ("patch", "git") and (name == "patch" or words[1:2] == ["apply"]):
        return "repair"
    if name in ("rm", "mv", "cp", "mkdir", "touch"):
        return _written(words[-1]) if name in ("cp", "mv", "touch") else "other"
    if re.fullmatch(r"python[\d.]*|node|ruby|go|bash|sh", name):
        return "run_test" if any(_TEST.search(word) for word in words[1:]) else "localize" if "-c" in words else "other"
    return "localize" if name in _LOOK else "finish" if name in ("exit", "submit") else "other"


@dataclass(frozen=True)
class AttemptCost:
    """Of one attempt its actions by class, and what was spent before the first edit: replies and tokens.

    Tokens are those that the log tells (``usage``, or token ids), else characters / 4, which ``estimated`` says. Input of a call
    is everything shown before it; it is counted for each call, as it is paid for. Shares of nothing are None.
    """

    task: str
    leaf: str
    replies: int
    before_edit: int
    edited: bool
    share_of_replies: float | None
    tokens: int
    tokens_before_edit: int
    share_of_tokens: float | None
    estimated: bool
    classes: Mapping[str, int]


def cost(view: View) -> AttemptCost:
    """What an attempt was spent on."""
    classes: list[str] = []
    tokens: list[int] = []
    shown, estimated = 0, False
    for message in view.messages:
        if message.role != "assistant":
            shown += _size(message)
            continue
        usage = message.data.get("usage") or {}
        stated = isinstance(usage, Mapping) and "prompt_tokens" in usage
        out = int(usage.get("completion_tokens", 0)) if stated else _size(message)
        tokens.append(int(usage["prompt_tokens"]) + out if stated else shown + out)
        estimated |= not stated and message.tokens is None
        shown += out
        classes.append(classify(message.message))
    first = next((at for at, one in enumerate(classes) if one in ("repair", "make_test")), len(classes))
    total = sum(tokens)
    return AttemptCost(
        task=view.task,
        leaf=view.leaf,
        replies=len(classes),
        before_edit=first,
        edited=first < len(classes),
        share_of_replies=first / len(classes) if classes else None,
        tokens=total,
        tokens_before_edit=sum(tokens[:first]),
        share_of_tokens=sum(tokens[:first]) / total if total else None,
        estimated=estimated,
        classes=dict(Counter(classes)),
    )


def _size(message: Any) -> int:
    return len(message.tokens) if message.tokens is not None else max(1, len(message.message.spoken()) // 4)
