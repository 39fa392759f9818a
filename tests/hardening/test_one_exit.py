"""One way to the terminal: only ``render/terminal.py`` writes to it, after the one sanitizer. Read from the syntax trees.

The help text is the one exception: the command-line library lays it out and prints it. What a command of ours adds to it goes
into the library's formatter; no text of a trace is part of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ramify"
EXIT = "render/terminal.py"
#: (file, use) that is no way to the terminal, each with the reason.
ALLOWED = {
    ("cli/main.py", "sys.stdout"),  # the front page, a constant; flushed, and pointed at nothing when its reader has left
    ("render/text.py", "sys.stdout"),  # asked whether it is a terminal, and its width
    ("render/text.py", "Console"),  # lays a table out into a string
    ("base/plugins.py", "sys.stderr"),  # what a stranger's module prints while it loads goes there, not into --json
}
#: Programs that run in another process, whose output is caught and cut by its parent.
ELSEWHERE = ("sandbox/child/", "methods/kernel_search/inside/", "model/grammar_child.py")
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}
CALLS = {
    *(
        "print",
        "builtins.print",
        "pprint.pprint",
        "pprint",
        "rich.print",
        "Console",
        "rich.console.Console",
        "breakpoint",
        "input",
    ),
    *("click.echo", "click.secho", "echo", "secho"),
    *(
        "logging.basicConfig",
        "logging.StreamHandler",
        "traceback.print_exc",
        "traceback.print_exception",
        "traceback.print_stack",
    ),
}


def dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "?", *reversed(parts)])


def exits(tree: ast.AST) -> Iterator[str]:
    """What in ``tree`` could write to the terminal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in CALLS:
                yield name
            first = node.args[0] if node.args else None
            if (
                name in ("os.write", "open", "os.fdopen")
                and isinstance(first, ast.Constant)
                and first.value in (1, 2, "/dev/tty", "/dev/stdout")
            ):
                yield name
        elif isinstance(node, ast.Attribute) and node.attr.strip("_") in ("stdout", "stderr") and dotted(node) in STREAMS:
            yield dotted(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "sys":
            yield from (f"sys.{alias.name}" for alias in node.names if f"sys.{alias.name}" in STREAMS)


@cache
def package() -> dict[str, tuple[set[str], list[str]]]:
    """Path inside the package -> the ways it writes to the terminal, and its functions named like a sanitizer."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        sanitizers = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and "sanitiz" in node.name]
        found[path.relative_to(SOURCE).as_posix()] = (set(exits(tree)), sanitizers)
    return found


@pytest.mark.slow
def test_only_the_terminal_module_writes_to_the_terminal() -> None:
    found = {}
    for name, (ways, _) in package().items():
        if name != EXIT and not name.startswith(ELSEWHERE):
            refused = {way for way in ways if (name, way) not in ALLOWED}
            found |= {name: refused} if refused else {}
    assert found == {}


@pytest.mark.slow
def test_there_is_one_sanitizer() -> None:
    """No other module has a function named like one."""
    assert [(name, one) for name, (_, found) in package().items() for one in found] == [("render/text.py", "sanitize")]


def test_the_exit_itself_sanitises_everything() -> None:
    """Every write in the terminal module is of sanitised text: ``print`` of what ``_printable(sanitize(...))`` or JSON made."""
    tree = ast.parse((SOURCE / EXIT).read_text(encoding="utf-8"))
    prints = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func) == "print"]
    assert len(prints) == 4
    for call in prints:
        (text,) = call.args
        assert isinstance(text, ast.Call)
        if dotted(text.func) == "_printable":
            assert isinstance(text.args[0], ast.Call)
            assert dotted(text.args[0].func) == "sanitize"
        else:
            assert ast.unparse(text).startswith("json.dumps(codec.to_json(result), ensure_ascii=True")


@pytest.mark.parametrize(
    "line",
    ["print('x')", "import sys\nsys.stdout.write('x')", "from sys import stderr", "click.echo(text)", "rich.print(x)",
     "os.write(1, b'x')",
     "def show():\n    click.echo(run)", "logging.basicConfig()", "traceback.print_exc()", "w = sys.__stderr__",
     "Console().print(x)"],
)  # fmt: skip
def test_the_check_itself_sees_each_way(line: str) -> None:
    assert list(exits(ast.parse(line)))
