"""Which lines of the files under a folder each test runs, for ``pytest --ramify-diagnose``.

From Python 3.12 on by ``sys.monitoring``, beside coverage and debuggers; before, by the trace function, which only one program
can have: where another one has it, nothing is recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ENOUGH = 50_000
"""Events of one call without a new line, from which on its lines are not followed (before Python 3.12)."""
_TOOL = 4


class LineRecorder:
    """Records the lines that run between :meth:`start` and :meth:`stop` in files that ``wanted`` names.

    ``wanted``: path of a code object -> the name to record it under, or "" for a file that does not matter.
    """

    def __init__(self, wanted: Callable[[str], str]) -> None:
        self._wanted, self._names = wanted, dict[str, str]()
        self._hit: dict[str, set[int]] = {}
        self._on = False

    def start(self) -> bool:
        """Begin with nothing recorded; False where another program has the trace function."""
        self._hit, self._on = {}, False
        if sys.version_info >= (3, 12):
            self._on = self._monitor()
        elif sys.gettrace() is None:
            threading.settrace(self._call)
            sys.settrace(self._call)
            self._on = True
        return self._on

    def stop(self) -> dict[str, list[int]]:
        """The lines by file, sorted."""
        if self._on and sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)
        elif self._on:
            sys.settrace(None)
            threading.settrace(None)
        self._on = False
        return {name: sorted(lines) for name, lines in sorted(self._hit.items())}

    def _name(self, code: CodeType) -> str:
        path = code.co_filename
        if path not in self._names:
            self._names[path] = self._wanted(path)
        return self._names[path]

    if sys.version_info >= (3, 12):

        def _monitor(self) -> bool:
            monitoring = sys.monitoring
            if monitoring.get_tool(_TOOL) is not None:
                return False
            monitoring.use_tool_id(_TOOL, "ramify")
            monitoring.register_callback(_TOOL, monitoring.events.LINE, self._line)
            monitoring.restart_events()
            monitoring.set_events(_TOOL, monitoring.events.LINE)
            return True

        def _line(self, code: CodeType, line: int) -> Any:
            if name := self._name(code):
                self._hit.setdefault(name, set()).add(line)
            return sys.monitoring.DISABLE

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = self._name(frame.f_code)
        if not name:
            return None
        hit, left = self._hit.setdefault(name, set()), ENOUGH

        def follow(inner: FrameType, event: str, arg: Any) -> Any:
            nonlocal left
            line = inner.f_lineno
            if event == "line" and line not in hit:
                hit.add(line)
                left = ENOUGH
            else:
                left -= 1
                if not left:
                    inner.f_trace_lines = False
            return follow

        return follow


def below(root: Path) -> Callable[[str], str]:
    """Files of source below ``root``, named by their paths from there; not those of installed packages, or hidden ones."""
    from ramify.methods.diagnose.snapshot import wanted

    def name(path: str) -> str:
        try:
            inside = Path(path).relative_to(root).as_posix()
        except ValueError:
            return ""
        return inside if wanted(inside) else ""

    return name
