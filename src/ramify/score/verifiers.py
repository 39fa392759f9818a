"""Verifiers: is a whole reply right? Functions of (text, trace) to True, False, or None where no verdict came (in time).

The trace's ``data["answer"]`` is what the reply is held against. A verifier gives no verdict rather than a wrong one: what takes too
long is missing, and a fork without a verdict is not counted as wrong.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError, nearest
from ramify.base.files import reason
from ramify.base.plugins import own_function, own_path
from ramify.rollout.token_traces import TokenTrace, Verifier
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import Limits
from ramify.score.match import last_number, plain

_ALL_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d{1,3})?(?:\s?/\s?\d+)?")


def find_verifier(spec: str, seconds: float = 10.0) -> Verifier:
    """The verifier that ``exact``, ``number``, ``boxed`` or ``cmd:./check.sh`` names, or a function of your own of (text, trace).

    That is ``FILE.py:FUNCTION`` or ``python:MODULE:FUNCTION``; ``factory:MODULE:ATTRIBUTE`` may also return one.

    ``seconds`` is the time one verdict may take, for those that can take long. Raises UserError where there is none such.
    """
    kind, colon, argument = spec.partition(":")
    if spec in _PLAIN:
        return _PLAIN[spec]
    if own_path(spec) is not None:
        return limited(own_function(spec, "text", "trace"), seconds)
    if kind == "cmd" and argument:
        return CommandVerifier(Path(argument), seconds)
    known = [*_PLAIN, "cmd", "python", "factory"]
    raise UserError(
        f"unknown verifier '{kind}' ({nearest(kind, known)})" if not colon else f"verifier '{spec}' is none of {', '.join(known)}"
    )


def answer_of(trace: TokenTrace) -> str:
    """What the reply should say. Raises UserError where the trace does not tell."""
    if "answer" not in trace.data:
        raise UserError(f"trace '{trace.id}' has no 'answer' in its data to verify against")
    return str(trace.data["answer"])


def exact(text: str, trace: TokenTrace) -> bool:
    """The reply is the answer, up to case and whitespace."""
    return plain(text) == plain(answer_of(trace))


def number(text: str, trace: TokenTrace) -> bool:
    """The last number of the reply equals the answer. Raises UserError where the answer is no number."""
    answer = last_number(answer_of(trace))
    if answer is None:
        raise UserError(f"trace '{trace.id}': the answer {trace.data['answer']!r} is not a number")
    return last_number(text) == answer


def boxed(text: str, trace: TokenTrace) -> bool:
    r"""The content of the last ``\boxed{...}`` is the answer: as text, or as a number where both are one."""
    found, answer = last_boxed(text), answer_of(trace)
    if found is None:
        return False
    if plain(found).replace(" ", "") == plain(answer).replace(" ", ""):
        return True
    sides = [side.strip().strip("$").strip() for side in (found, answer)]
    if not all(_ALL_NUMBER.fullmatch(side) for side in sides):
        return False
    values = [last_number(side) for side in sides]
    return values[0] is not None and values[0] == values[1]


def last_boxed(text: str) -> str | None:
    r"""Content of the last complete ``\boxed{...}``, braces inside balanced; None where there is none."""
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for at in range(start + 6, len(text)):
            depth += (text[at] == "{") - (text[at] == "}")
            if not depth:
                return text[start + 7 : at]
        start = text.rfind("\\boxed{", 0, start)
    return None


_PLAIN: dict[str, Verifier] = {"exact": exact, "number": number, "boxed": boxed}


class _Gate:
    """Lets ``at_once`` through at a time, in whichever event loop runs."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._of: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    def __call__(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._of is None or self._of[0] is not loop:
            self._of = (loop, asyncio.Semaphore(self._at_once))
        return self._of[1]


def _in_thread(function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
    """``function`` in a thread of its own that nothing waits for at the end, as it would for one of the event loop's pool."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(function(*args))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return asyncio.wrap_future(outcome)


class CommandVerifier:
    """Runs a script of the user's own in the sandbox, once a reply: exit code 0 is right, 1 is wrong, anything else no verdict.

    The reply is its standard input; ``data.json`` beside it holds the trace's data. No network, at most ``seconds`` each.
    """

    def __init__(self, script: Path, seconds: float = 10.0, at_once: int = 4, allow_unsandboxed: bool = False) -> None:
        """Raises UserError where there is no such script, NeedsError where nothing isolates."""
        try:
            self._content = script.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read the verifier {script}: {reason(error)}") from error
        if not self._content.startswith(b"#!"):
            raise UserError(f"the verifier {script} must begin with the line that names its program, such as #!/bin/sh")
        self.name, self._limits, self._gate = f"cmd:{script.name}", Limits(seconds=seconds), _Gate(at_once)
        self._sandbox = find_sandbox(allow_unsandboxed=allow_unsandboxed)

    async def __call__(self, text: str, trace: TokenTrace) -> bool | None:
        """The script's verdict; None where it ended in any other way than with 0 or 1."""
        files = {"check": self._content, "data.json": json.dumps(dict(trace.data))}
        async with self._gate():
            outcome = await self._sandbox.run(
                ["./check"], files=files, stdin=text.encode("utf-8", "replace"), limits=self._limits
            )
        return outcome.code == 0 if outcome.reason == "exit" and outcome.code in (0, 1) else None


def limited(verifier: Callable[[str, TokenTrace], Any], seconds: float, at_once: int = 4) -> Verifier:
    """``verifier`` with a time limit: no verdict after ``seconds`` of its own, waiting for its turn (``at_once``) not counted.

    A plain function runs in a thread, which cannot be ended and is not waited for; what it returns may be awaitable.
    """
    gate, own = _Gate(at_once), inspect.iscoroutinefunction(verifier)

    async def call(text: str, trace: TokenTrace) -> Any:
        verdict = verifier(text, trace) if own else await _in_thread(verifier, text, trace)
        return await verdict if inspect.isawaitable(verdict) else verdict

    async def judge(text: str, trace: TokenTrace) -> Any:
        async with gate():
            task = asyncio.ensure_future(call(text, trace))
            try:
                await asyncio.wait({task}, timeout=seconds)
                return task.result() if task.done() else None
            finally:
                task.cancel()

    judge.name = getattr(verifier, "name", getattr(verifier, "__name__", type(verifier).__name__))  # type: ignore[attr-defined]
    return judge
