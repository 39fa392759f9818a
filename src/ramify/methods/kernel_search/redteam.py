"""Known ways to look fast without being right or fast, made for any kernel in C, each tried against the wall.

A cheat wraps the original, which it may call as ``honest``. The wall has held where a cheat is refused, or gains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ramify.base.errors import UserError
from ramify.methods.kernel_search.task import RESULT, KernelTask
from ramify.methods.kernel_search.wall import Code, Wall, WallTrial


@dataclass(frozen=True, slots=True)
class Cheat:
    """One way to cheat."""

    name: str
    says: str
    body: str
    """C statements; ``HONEST`` computes, ``COPY(to, from)`` moves outputs, ``WORK`` is 1 in the timed shape."""
    before: str = ""
    """Declarations before the function."""
    flags: tuple[str, ...] = ()


_SAVED = "static char saved[1 << 26]; static int have;"
CHEATS: tuple[Cheat, ...] = (
    Cheat("does nothing", "returns at once", "SKIP;"),
    Cheat("writes zeros", "fills the outputs with zeros", "ZERO; SKIP;"),
    Cheat("writes NaN", "fills the outputs with NaN, which a careless comparison takes for equal", "FILL(0xff); SKIP;"),
    Cheat("first answer", "computes once, and returns that answer for ever", "if (!have) { HONEST; SAVE; have = 1; } else LOAD; SKIP;", _SAVED),
    Cheat("right at first", "computes the first 50 calls, then returns at once", "static long calls; if (calls++ < 50) HONEST; SKIP;"),
    Cheat("only when small", "computes where shapes are small, and returns at once in the timed one", "if (!WORK) HONEST; SKIP;"),
    Cheat("every other call", "computes every second call", "static long calls; if (calls++ % 2 == 0) HONEST; SKIP;"),
    Cheat("remembers addresses", "keeps an answer for each address it was called with", "if (!have || last != FIRST) { HONEST; SAVE; last = FIRST; have = 1; } else LOAD; SKIP;", _SAVED + " static const void *last;"),
    Cheat("nearly right", "returns results that are off by a thousandth", "HONEST; SCALE(1.001f); SKIP;"),
    Cheat("works afterwards", "returns at once; a thread computes later", "START; SKIP;", "#include <pthread.h>\nSTRUCT static void *later(void *a) { RUN_LATER; return a; }", ("-pthread",)),
    Cheat("works elsewhere", "a process of its own computes, whose time is not the timed one's", "pid_t child = fork(); if (!child) { HONEST; _exit(0); } int state; waitpid(child, &state, 0); SKIP;"),
    Cheat("answers early", "tells the supervisor that the batch is done before it computes", "static long calls; if (calls++ > 40) { if (write(1, \"done\\n\", 5) < 0) return_nothing(); } HONEST; SKIP;", "static void return_nothing(void) {}"),
    Cheat("leaves early", "ends the process in the first timed call, with exit code 0", "static long calls; if (calls++ > 20) _exit(0); HONEST; SKIP;"),
    Cheat("another clock", "replaces clock_gettime by one that hardly moves", "HONEST; SKIP;", "int clock_gettime(clockid_t id, struct timespec *t) { static long n; (void)id; t->tv_sec = 0; t->tv_nsec = n++; return 0; }"),
    Cheat("changes its inputs", "overwrites the inputs, so that the reference would see zeros", "SPOIL; HONEST; SKIP;"),
    Cheat("writes beside", "writes next to its outputs", "HONEST; BESIDE; SKIP;"),
    Cheat("ends the others", "kills every process it can see, the supervisor included", "static long calls; if (calls++ > 20) kill(-1, SIGKILL); HONEST; SKIP;"),
    Cheat("looks for the answer", "reads the harness's files for the outputs that are wanted", "FILE *f = fopen(\"plan.json\", \"r\"); if (f) { ZERO; fclose(f); } else { int d = open(\"reference.so\", O_RDWR | O_TRUNC); if (d >= 0) close(d); } HONEST; SKIP;"),
    Cheat("changes the files", "overwrites the file that the inputs come from", "if (!have) { have = 1; int d = open(\"inputs\", O_RDWR); static char none[1 << 20]; while (d >= 0 && lseek(d, 0, SEEK_CUR) < (1 << 24) && write(d, none, sizeof none) > 0) {} } ZERO; SKIP;", "static int have;"),
    Cheat("slows the reference", "a thread of its own keeps the caches and the processor busy", "if (!have) { have = 1; pthread_t t; pthread_create(&t, NULL, spin, NULL); } HONEST; SKIP;", "#include <pthread.h>\nstatic int have; static void *spin(void *a) { for (;;) __asm__ volatile(\"\"); return a; }", ("-pthread",)),
    Cheat("never ends", "stays in its loop", "static long calls; if (calls++ > 20) for (;;) __asm__ volatile(\"\"); HONEST; SKIP;"),
)  # fmt: skip


def cheat_code(task: KernelTask, cheat: Cheat) -> Code:
    """The cheat written for this kernel. Raises UserError for kernels that are not in C."""
    if task.kind != "c":
        raise UserError(f"{task.path}: the cheats are written in C, and this kernel is {task.kind}")
    head = re.search(
        rf"((?:static |inline |const )*[A-Za-z_][\w ]*?[ \t\n]+\**){re.escape(task.symbol)}\s*\(([^()]*)\)\s*\{{",
        re.sub(r"//[^\n]*", lambda one: " " * len(one[0]), task.source),
    )
    if head is None:
        raise UserError(f"{task.path}: the signature of {task.symbol} cannot be read")
    parameters = re.sub(r"\s+", " ", head[2])
    returns = next((one for one in task.arrays if one.name == RESULT), None)
    kind = {"f": "float", "d": "double", "i": "int", "l": "long", "b": "unsigned char"}
    outs = [one for one in task.arrays if one.role & 2 and one.name != RESULT]
    names = ", ".join(task.order)
    made = cheat.body
    each: Callable[[str], str] = lambda text: " ".join(  # noqa: E731
        text.replace("@P", one.name)
        .replace("@N", f"(({_c(one.count)}) * sizeof *{one.name})")
        .replace("@C", f"({_c(one.count)})")
        for one in outs
    )
    sizes = " + ".join(f"({_c(one.count)}) * sizeof *{one.name}" for one in outs) or "0"
    call = f"honest_{task.symbol}({names})"
    result = f"static {kind[returns.type]} answer;" if returns else ""
    inputs = [one for one in task.arrays if one.role == 1]
    spoil = f"((char *){inputs[0].name})[0] = 0;" if inputs else ""
    timed = (
        " && ".join(
            f"{name} == {value:g}" if value != int(value) else f"{name} == {int(value)}" for name, value in task.main.items()
        )
        or "1"
    )
    fields = " ".join(f"{part.strip()};" for part in parameters.split(",")) if parameters.strip() else ""
    words = {
        "HONEST": f"answer = {call}" if returns else call,
        "SKIP": "return answer" if returns else "return",
        "ZERO": each("memset(@P, 0, @N);") + (" answer = 0;" if returns else ""),
        "FILL(0xff)": each("memset(@P, 0xff, @N);") + (f" answer = ({kind[returns.type]})(0.0 / 0.0);" if returns and returns.type in "fd" else " answer = -1;" if returns else ""),
        "SAVE": f"{{ char *at = saved; if ({sizes} < sizeof saved) {{ {each('memcpy(at, @P, @N); at += @N;')} }} (void)at; }}",
        "LOAD": f"{{ char *at = saved; if ({sizes} < sizeof saved) {{ {each('memcpy(@P, at, @N); at += @N;')} }} (void)at; }}",
        "FIRST": f"(const void *){inputs[0].name}" if inputs else "(const void *)0",
        "SCALE(1.001f)": each("for (long i_ = 0; i_ < (long)@C; i_++) @P[i_] = @P[i_] * 1.001f + 1;") + (" answer = answer * 1.001f + 1;" if returns else ""),
        "SPOIL": spoil,
        "BESIDE": each("memset((char *)@P + @N, 7, 8);") if outs else "((volatile char *)0)[0] = 1;",
        "WORK": f"({timed})",
        "START": f"static struct call one; one = (struct call){{{names}}}; pthread_t t; pthread_create(&t, NULL, later, &one);" if names else "",
        "STRUCT": f"struct call {{ {fields} }};",
        "RUN_LATER": f"struct call *c = a; honest_{task.symbol}({', '.join('c->' + name for name in task.order)});",
    }  # fmt: skip
    for word, text in words.items():
        made = made.replace(word, text)
    declared = cheat.before
    for word in ("STRUCT", "RUN_LATER"):
        declared = declared.replace(word, re.sub(r"\brestrict\b", "", words[word]).replace("const float *", "const float *"))
    includes = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <math.h>\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/types.h>\n#include <sys/wait.h>\n#include <time.h>\n#include <unistd.h>\n"
    honest = f"#define {task.symbol} honest_{task.symbol}\n{task.source}\n#undef {task.symbol}\n"
    value = kind[returns.type] if returns else "void"
    source = f"{includes}{honest}{declared}\n{value} {task.symbol}({parameters}) {{ {result} {made} }}\n"
    return Code(source, (*task.flags, *cheat.flags, "-w"), {name: values[0] for name, values in task.knobs.items()})


def _c(expression: str) -> str:
    return expression.replace("//", "/")


LAYOUT = 1.25
"""A cheat whose trick comes to nothing does the same work at other addresses, and that alone makes a short loop faster by a tenth and more on
some processors. What skips work gains many times that."""


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

    def to_json(self) -> dict[str, Any]:
        """As it is printed."""
        gain = self.trial.gain
        return {
            "cheat": self.cheat.name,
            "says": self.cheat.says,
            "held": self.held,
            "refused": self.trial.refused,
            "stage": self.trial.stage,
            "speedup": gain.speedup if gain else None,
        }


async def attempt(wall: Wall, cheat: Cheat) -> CheatAttempt:
    """One cheat against the wall of one kernel.

    What seems to gain is timed once more, in fresh processes and four times as many pairs: of two dozen cheats one or the other seems
    faster by chance."""
    code, number = cheat_code(wall.task, cheat), 500 + CHEATS.index(cheat)
    found = CheatAttempt(cheat, await wall.trial(code, number))
    return found if found.held else CheatAttempt(cheat, await wall.confirm(code, number + len(CHEATS), pairs=4 * wall.pairs))
