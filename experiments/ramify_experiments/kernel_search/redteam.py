"""Known ways to look fast without being right or fast, each tried against the wall that decides of a kernel's candidates.

What they are stands in ``inside/cheats``: a file of C each, which ``cheat.h`` says how to read, and functions in ``in_python.py``
for Numba, torch and NumPy. A cheat wraps the kernel, whatever that is. The wall has held where it is refused, or gains nothing.

``python -m ramify_experiments.kernel_search.redteam FILE:FUNCTION`` tries them all on a kernel of yours.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.files import read_small
from ramify.methods.kernel_search.named import read_task
from ramify.methods.kernel_search.task import RESULT, KernelTask
from ramify.methods.kernel_search.wall import Code, Wall, WallTrial
from ramify.render.terminal import say

INSIDE = Path(__file__).parent / "inside" / "cheats"
HEADERS = ("fcntl", "math", "pthread", "signal", "stdio", "stdlib", "string", "sys/types", "sys/wait", "time", "unistd")
C_TYPES = {"f": "float", "d": "double", "i": "int", "l": "long", "b": "unsigned char"}
OF_RESULTS = "lazy result"
"""The cheat that needs a kernel which returns something."""
LAYOUT = 1.25
"""A cheat whose trick comes to nothing does the same work at other addresses, and that alone makes a short loop faster by a tenth
and more on some processors. What skips work gains many times that."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One way to cheat."""

    name: str
    says: str
    source: str
    """Of a cheat in C its file; of one in Python the name of its function."""


@dataclass(frozen=True, slots=True)
class CheatAttempt:
    """What came of one cheat."""

    cheat: Cheat
    trial: WallTrial

    @property
    def held(self) -> bool:
        """The wall held: refused, or no gain beyond :data:`LAYOUT`."""
        gain = self.trial.gain
        return not self.trial.ok or gain is None or not gain.gains or gain.low <= LAYOUT


def _text(name: str) -> str:
    return read_small(INSIDE / name, "the cheat", 1 << 20).decode()


def _cheat(said: str, source: str) -> Cheat:
    name, _, says = " ".join(said.split()).rstrip(".").partition(": ")
    return Cheat(name, says, source)


def cheats_in_c() -> tuple[Cheat, ...]:
    """All of them, by name of the file."""
    texts = [_text(path.name) for path in sorted(INSIDE.glob("*.c"))]
    return tuple(_cheat(text[: text.index("*/")].removeprefix("/*"), text) for text in texts)


def cheats_in_python() -> tuple[Cheat, ...]:
    """All of them, as they stand in their file."""
    functions = [one for one in ast.parse(_text("in_python.py")).body if isinstance(one, ast.FunctionDef)]
    return tuple(_cheat(said, one.name) for one in functions if (said := ast.get_docstring(one)))


def cheats_for(task: KernelTask) -> tuple[Cheat, ...]:
    """The cheats that there are for a kernel of this kind. Raises UserError for Triton, whose kernels are not timed here."""
    if task.kind == "triton":
        raise UserError(f"{task.path}: Triton kernels are timed on a GPU only, so there is nothing to cheat at here")
    if task.kind == "c":
        return cheats_in_c()
    returns = any(one.name not in task.order for one in task.arrays)
    return tuple(one for one in cheats_in_python() if returns or one.name != OF_RESULTS)


def cheat_code(task: KernelTask, cheat: Cheat) -> Code:
    """The cheat around this kernel. Raises UserError where the kernel's signature cannot be read."""
    return _in_c(task, cheat) if task.kind == "c" else _in_python(task, cheat)


def _in_python(task: KernelTask, cheat: Cheat) -> Code:
    written = [i for i, name in enumerate(task.order) if any(one.name == name and one.role & 2 for one in task.arrays)]
    timed = " and ".join(f"args[{task.order.index(name)}] == {value!r}" for name, value in task.main.items()) or "True"
    made = f"return {cheat.source}(KernelCall({{}}, args, {written}, {timed}))\n"
    if task.problem:
        inherited = "lambda *given: Model.forward(self, *given)"
        wrapped = f"class ModelNew(Model):\n    def forward(self, *args):\n        {made.format(inherited)}"
    else:
        honest = f"honest_{task.symbol}"
        wrapped = f"{honest} = {task.symbol}\n\n\ndef {task.symbol}(*args):\n    {made.format(honest)}"
    return Code("\n\n".join((task.source, _text("in_python.py"), wrapped)))


def _in_c(task: KernelTask, cheat: Cheat) -> Code:
    head = re.search(
        rf"((?:static |inline |const )*[A-Za-z_][\w ]*?[ \t\n]+\**){re.escape(task.symbol)}\s*\(([^()]*)\)\s*\{{",
        re.sub(r"//[^\n]*", lambda one: " " * len(one[0]), task.source),
    )
    if head is None:
        raise UserError(f"{task.path}: the signature of {task.symbol} cannot be read")
    parameters, honest = " ".join(head[2].split()), f"honest_{task.symbol}"
    returned = next((one for one in task.arrays if one.name == RESULT), None)
    outs = [one for one in task.arrays if one.role & 2 and one.name != RESULT]
    fields = [re.sub(r"\brestrict\b", "", one).strip() for one in parameters.split(",") if one.strip() not in ("", "void")]
    words = {
        "CHEAT": f"{C_TYPES[returned.type] if returned else 'void'} {task.symbol}({parameters})",
        "CALL": f"{honest}({', '.join(task.order)})",
        "CALL_OF(c)": f"{honest}({', '.join(f'c->{name}' for name in task.order)})",
        "NAMES": ", ".join(task.order),
        "FIELDS": " ".join(f"{one};" for one in fields),
        "VALUE": C_TYPES[returned.type] if returned else "char",
        "RETURNS": str(int(returned is not None)),
        "INPUT": next((one.name for one in task.arrays if one.role == 1), "0"),
        "OUTPUTS(EACH)": " ".join(f"EACH({one.name}, ({one.count.replace('//', '/')}))" for one in outs),
        "HAS_OUTPUTS": str(int(bool(outs))),
        "TIMED": " && ".join(["1", *(f"{name} == {value:.17g}" for name, value in task.main.items())]),
    }
    lines = [
        "#define _GNU_SOURCE",
        *(f"#include <{header}.h>" for header in HEADERS),
        f"#define {task.symbol} {honest}\n{task.source}\n#undef {task.symbol}",
        *(f"#define {name} {text}" for name, text in words.items()),
    ]
    source = "\n".join((*lines, _text("cheat.h"), cheat.source))
    return Code(source, (*task.flags, "-pthread", "-w"), {name: values[0] for name, values in task.knobs.items()})


async def attempt(wall: Wall, cheat: Cheat) -> CheatAttempt:
    """One cheat against the wall of one kernel.

    What seems to gain is timed once more, in fresh processes and four times as many pairs: of two dozen cheats one or the other
    seems faster by chance."""
    known = cheats_for(wall.task)
    code, number = cheat_code(wall.task, cheat), 500 + known.index(cheat)
    first = CheatAttempt(cheat, await wall.trial(code, number))
    return first if first.held else CheatAttempt(cheat, await wall.confirm(code, number + len(known), pairs=4 * wall.pairs))


def main(words: list[str]) -> int:
    """Try all cheats on the kernel that is named; 1 where one got through."""
    wall = Wall(read_task(words[0]), pairs=4, batch_seconds=0.01, call_seconds=5.0)
    through = 0
    for cheat in cheats_for(wall.task):
        made = asyncio.run(attempt(wall, cheat))
        through += not made.held
        came = made.trial.refused or ("no gain" if made.held else "GOT THROUGH")
        say(f"{cheat.name} ({cheat.says}): {came}")
    return min(through, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
