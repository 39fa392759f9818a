"""Whether llguidance can follow a grammar, tested in a process that can be killed: whether expressions that a schema joins have
any text in common may take for ever to find out, and a thread cannot be stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

SECONDS = 5.0
"""Longest look at one grammar."""


def refusal(whole: str, parts: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """What is wrong with a grammar, and where: the first of its ``parts`` (path,
    grammar) that is refused by itself. None: nothing."""
    from llguidance import LLMatcher

    grammars = [("", whole), *parts]
    failed, messages = LLMatcher.validate_grammar_with_warnings(whole)
    if not failed:
        return None
    for path, part in grammars[1:]:
        wrong, warnings = LLMatcher.validate_grammar_with_warnings(part)
        if wrong:
            return path or "its root", warnings[0]
    return "", messages[0]


def refusal_in_time(whole: str, parts: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """As :func:`refusal`, in a process of its own, which is ended after ``SECONDS``."""
    command = [sys.executable, "-m", "ramify.model.grammar_child"]
    try:
        done = subprocess.run(
            command, input=json.dumps([whole, list(parts)]).encode(), capture_output=True, timeout=SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        return "", f"it takes more than {SECONDS:g} s to find out whether any text fits its expressions"
    except (OSError, subprocess.CalledProcessError) as error:
        return "", f"reading it failed ({type(error).__name__})"
    answer = json.loads(done.stdout)
    return None if answer is None else (str(answer[0]), str(answer[1]))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(refusal(*json.loads(sys.stdin.buffer.read()))))
