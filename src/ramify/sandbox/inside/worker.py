"""Inside a sandbox: run the code and calls the host sends, in one namespace that lasts. Never imported by the host.

Request: ``{"id", "execute": code}`` or ``{"id", "call": name, "args", "kwargs"}``. Answer:
``{"done": id, "value", "text", "stdout", "stderr", "error"}``; ``value`` is None where it is not JSON.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import os
import traceback
from typing import Any

import ramify_host  # type: ignore[import-not-found]

_TEXT, _PART = 10_000, 1 << 19


class _Kept(io.StringIO):
    """Text written, up to a cap; the rest is dropped."""

    def write(self, text: str) -> int:
        room = _PART - self.tell()
        super().write(text[: max(0, room)])
        return len(text)


def main() -> None:
    """Answer requests until the host closes the channel."""
    if "," in os.environ["RAMIFY_HOST_FD"]:  # standard input and output are the channel: keep them, and from the code
        os.environ["RAMIFY_HOST_FD"] = f"{os.dup(0)},{os.dup(1)}"
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
    scope: dict[str, Any] = {"__name__": "__main__"}
    while (request := ramify_host.receive()) is not None:
        out, err = _Kept(), _Kept()
        value, error = None, ""
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                value = _execute(request["execute"], request["id"], scope) if "execute" in request else _call(request, scope)
            except BaseException as problem:
                error = _explained(problem)
        result = {"stdout": _fitting(out.getvalue()), "stderr": _fitting(err.getvalue()), "error": error, "text": _text(value)}
        ramify_host.send({"done": request["id"], "value": value if _plain(value) else None, **result})


def _execute(code: str, number: int, scope: dict[str, Any]) -> Any:
    """Run statements; the value of the last one, if it is an expression."""
    name = f"<call {number}>"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # tracebacks show the lines
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), scope)
        return None
    exec(compile(ast.Module(tree.body[:-1], tree.type_ignores), name, "exec"), scope)
    return eval(compile(ast.Expression(last.value), name, "eval"), scope)


def _call(request: dict[str, Any], scope: dict[str, Any]) -> Any:
    name = request["call"]
    if not callable(scope.get(name)):
        raise NameError(f"no function '{name}' was defined")
    return scope[name](*request["args"], **request["kwargs"])


def _explained(problem: BaseException) -> str:
    frames = traceback.TracebackException.from_exception(problem, limit=-20)
    frames.stack[:] = [frame for frame in frames.stack if frame.filename != __file__]
    return "".join(frames.format())[-_TEXT:] or type(problem).__name__


def _plain(value: Any) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= _PART
    except (TypeError, ValueError, RecursionError):
        return False


def _fitting(text: str) -> str:
    """As much of ``text`` as a frame has room for."""
    return text if len(json.dumps(text)) <= _PART else text[: _PART // 12]  # a character beyond the first plane takes 12 bytes


def _text(value: Any) -> str:
    try:
        return "" if value is None else repr(value)[:_TEXT]
    except Exception as problem:
        return f"<{type(value).__name__}, whose repr raised {type(problem).__name__}>"


if __name__ == "__main__":
    main()
