"""Known ways to look fast without being right or fast, made for any kernel in C or Python, each tried against the wall.

A cheat wraps the original, which it may call as ``honest``. The wall has held where a cheat is refused, or gains nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import dedent

from ramify.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from ramify.methods.kernel_search.task import RESULT, KernelTask
from ramify.methods.kernel_search.wall import Code, Wall, WallTrial
from ramify.render.result import Result, Section, table


@dataclass(frozen=True, slots=True)
class Cheat:
    """One way to cheat."""

    name: str
    says: str
    body: str
    """Statements. In C ``HONEST`` computes, ``SKIP`` returns, ``WORK`` is 1 in the timed shape; in Python ``honest`` is called
    with ``args``, and ``outs`` are those that are outputs."""
    before: str = ""
    """Declarations before the function."""
    flags: tuple[str, ...] = ()
    result: bool = False
    """It needs a kernel that returns something."""


def _code(text: str) -> str:
    return dedent(text).strip()


_SAVED = "static char saved[1 << 26]; static int have;"
CHEATS: tuple[Cheat, ...] = (
    Cheat("does nothing", "returns at once", "SKIP;"),
    Cheat("writes zeros", "fills the outputs with zeros", "ZERO; SKIP;"),
    Cheat("writes NaN", "fills the outputs with NaN, which a careless comparison takes for equal", "FILL(0xff); SKIP;"),
    Cheat(
        "first answer",
        "computes once, and returns that answer for ever",
        _code("""
            if (!have) { HONEST; SAVE; have = 1; }
            else LOAD;
            SKIP;
        """),
        _SAVED,
    ),
    Cheat(
        "right at first",
        "computes the first 50 calls, then returns at once",
        "static long calls; if (calls++ < 50) HONEST; SKIP;",
    ),
    Cheat("only when small", "computes where shapes are small, and returns at once in the timed one", "if (!WORK) HONEST; SKIP;"),
    Cheat("every other call", "computes every second call", "static long calls; if (calls++ % 2 == 0) HONEST; SKIP;"),
    Cheat(
        "remembers addresses",
        "keeps an answer for each address it was called with",
        _code("""
            if (!have || last != FIRST) { HONEST; SAVE; last = FIRST; have = 1; }
            else LOAD;
            SKIP;
        """),
        _SAVED + " static const void *last;",
    ),
    Cheat(
        "remembers every address",
        "keeps the answers for all addresses it was called with",
        _code("""
            const long at = (long)((unsigned long)FIRST >> 6 & 1023);
            if (!FITS) HONEST;
            else if (seen[at] != FIRST) { HONEST; seen[at] = FIRST; KEEP(at); }
            else BACK(at);
            SKIP;
        """),
        "static char saved[1 << 26]; static const void *seen[1024];",
    ),
    Cheat(
        "only the last calls",
        "knows a new batch by the pause before it, learns how long batches are, and computes only where one ends",
        _code("""
            struct timespec t;
            clock_gettime(CLOCK_MONOTONIC, &t);
            double now = t.tv_sec + 1e-9 * t.tv_nsec;
            if (now - ended > 1e-5) {
                if (at > longest) { longest = at; same = 0; }
                else if (2 * at > longest) same++;
                at = 0;
            }
            if (at++ >= longest - 8 || same < 2) HONEST;
            clock_gettime(CLOCK_MONOTONIC, &t);
            ended = t.tv_sec + 1e-9 * t.tv_nsec;
            SKIP;
        """),
        "static double ended; static long at, longest, same;",
    ),
    Cheat("nearly right", "returns results that are off by a thousandth", "HONEST; SCALE(1.001f); SKIP;"),
    Cheat(
        "works afterwards",
        "returns at once; a thread computes later",
        "START; SKIP;",
        "#include <pthread.h>\nSTRUCT static void *later(void *a) { RUN_LATER; return a; }",
        ("-pthread",),
    ),
    Cheat(
        "works elsewhere",
        "a process of its own computes, whose time is not the timed one's",
        _code("""
            pid_t child = fork();
            if (!child) { HONEST; _exit(0); }
            int state;
            waitpid(child, &state, 0);
            SKIP;
        """),
    ),
    Cheat(
        "answers early",
        "tells the supervisor that the batch is done before it computes",
        _code(r"""
            static long calls;
            if (calls++ > 40) {
                if (write(1, "done\n", 5) < 0) return_nothing();
            }
            HONEST;
            SKIP;
        """),
        "static void return_nothing(void) {}",
    ),
    Cheat(
        "leaves early",
        "ends the process in the first timed call, with exit code 0",
        "static long calls; if (calls++ > 20) _exit(0); HONEST; SKIP;",
    ),
    Cheat(
        "another clock",
        "replaces clock_gettime by one that hardly moves",
        "HONEST; SKIP;",
        _code("""
            int clock_gettime(clockid_t id, struct timespec *t) {
                static long n;
                (void)id;
                t->tv_sec = 0;
                t->tv_nsec = n++;
                return 0;
            }
        """),
    ),
    Cheat("changes its inputs", "overwrites the inputs, so that the reference would see zeros", "SPOIL; HONEST; SKIP;"),
    Cheat("writes beside", "writes next to its outputs", "HONEST; BESIDE; SKIP;"),
    Cheat(
        "ends the others",
        "kills every process it can see, the supervisor included",
        "static long calls; if (calls++ > 20) kill(-1, SIGKILL); HONEST; SKIP;",
    ),
    Cheat(
        "looks for the answer",
        "reads the harness's files for the outputs that are wanted",
        _code("""
            FILE *f = fopen("plan.json", "r");
            if (f) { ZERO; fclose(f); }
            else {
                int d = open("reference.so", O_RDWR | O_TRUNC);
                if (d >= 0) close(d);
            }
            HONEST;
            SKIP;
        """),
    ),
    Cheat(
        "changes the files",
        "overwrites the file that the inputs come from",
        _code("""
            if (!have) {
                have = 1;
                int d = open("inputs", O_RDWR);
                static char none[1 << 20];
                while (d >= 0 && lseek(d, 0, SEEK_CUR) < (1 << 24) && write(d, none, sizeof none) > 0) {}
            }
            ZERO;
            SKIP;
        """),
        "static int have;",
    ),
    Cheat(
        "slows the reference",
        "a thread of its own keeps the caches and the processor busy",
        _code("""
            if (!have) {
                have = 1;
                pthread_t t;
                pthread_create(&t, NULL, spin, NULL);
            }
            HONEST;
            SKIP;
        """),
        _code("""
            #include <pthread.h>
            static int have;
            static void *spin(void *a) { for (;;) __asm__ volatile(""); return a; }
        """),
        ("-pthread",),
    ),
    Cheat("never ends", "stays in its loop", 'static long calls; if (calls++ > 20) for (;;) __asm__ volatile(""); HONEST; SKIP;'),
)
_SKIPS = "return blank(args)"
PYTHON_CHEATS: tuple[Cheat, ...] = (
    Cheat("does nothing", "returns at once", "return None"),
    Cheat("writes zeros", "fills the outputs with zeros", "return filled(args, 0)"),
    Cheat(
        "writes NaN",
        "fills the outputs with NaN, which a careless comparison takes for equal",
        "return filled(args, float('nan'))",
    ),
    Cheat(
        "first answer",
        "computes once for each shape, and returns that answer for ever",
        "if shape(args) not in kept:\n    kept[shape(args)] = answered(args)\nreturn given(kept[shape(args)])",
    ),
    Cheat(
        "right at first",
        "computes the first 50 calls, then returns at once",
        f"calls.append(1)\nif len(calls) < 50:\n    return honest(*args)\n{_SKIPS}",
    ),
    Cheat(
        "only when small",
        "computes where shapes are small, and returns at once in the timed one",
        f"if not WORK:\n    return honest(*args)\n{_SKIPS}",
    ),
    Cheat(
        "every other call",
        "computes every second call",
        f"calls.append(1)\nif len(calls) % 2:\n    return honest(*args)\n{_SKIPS}",
    ),
    Cheat(
        "remembers addresses",
        "keeps the answers for all addresses it was called with, as caches of results do",
        "if address(args) not in kept:\n    kept[address(args)] = answered(args)\nreturn given(kept[address(args)])",
    ),
    Cheat(
        "only the last calls",
        "knows a new batch by the pause before it, learns how long batches are, and computes only where one ends",
        _code("""
            now = time.perf_counter()
            if now - state['ended'] > 2e-4:
                new = state['at'] > state['longest']
                same = 0 if new else state['same'] + (2 * state['at'] > state['longest'])
                state.update(at=0, longest=max(state['longest'], state['at']), same=same)
            state['at'] += 1
            made = honest(*args) if state['at'] > state['longest'] - 8 or state['same'] < 2 else blank(args)
            state['ended'] = time.perf_counter()
            return made
        """),
        "state = {'ended': 0.0, 'at': 0, 'longest': 0, 'same': 0}",
    ),
    Cheat(
        "reads how many",
        "looks through the names of its callers for how many calls the batch has, and computes the last ones",
        _code(f"""
            frame, numbers = sys._getframe(1), []
            while frame:
                for one in [*frame.f_locals.values(), *frame.f_globals.values()]:
                    one = one[1] if type(one) is list and len(one) == 3 and one[0] == 'run' else one
                    if type(one) is str and one.isdigit():
                        numbers.append(int(one))
                    elif type(one) is range:
                        numbers.append(len(one))
                frame = frame.f_back
            batch = [one for one in numbers if 8 < one <= 1 << 20]
            calls.append(1)
            if batch and len(calls) % batch[0] < batch[0] - 8:
                {_SKIPS}
            return honest(*args)
        """),
    ),
    Cheat(
        "nearly right",
        "returns results that are off by a thousandth",
        "return changed(args, lambda x: x * 1.001 + (0 if x is None else 1e-3))",
    ),
    Cheat(
        "lazy result",
        "returns an array of a class of its own, which computes when it is looked at",
        "return lazy(args)",
        result=True,
    ),
    Cheat(
        "works afterwards",
        "returns at once; a thread computes later",
        f"threading.Thread(target=honest, args=args).start()\n{_SKIPS}",
    ),
    Cheat(
        "works elsewhere",
        "a process of its own computes, whose time is not the timed one's",
        f"child = os.fork()\nif not child:\n    honest(*args)\n    os._exit(0)\nos.waitpid(child, 0)\n{_SKIPS}",
    ),
    Cheat(
        "answers early",
        "tells the supervisor that the batch is done before it computes",
        _code(r"""
            calls.append(1)
            for one in range(1, 12) if len(calls) > 40 else ():
                try:
                    os.write(one, b'done\n')
                except OSError:
                    pass
            return honest(*args)
        """),
    ),
    Cheat(
        "leaves early",
        "ends the process in a timed call, with exit code 0",
        "calls.append(1)\nif len(calls) > 20:\n    os._exit(0)\nreturn honest(*args)",
    ),
    Cheat(
        "another clock",
        "replaces the clocks of Python by ones that stand still",
        "return honest(*args)",
        _code("""
            for name in ('time', 'perf_counter', 'process_time', 'thread_time', 'monotonic', 'clock_gettime'):
                setattr(time, name, lambda *given: 0.0)
        """),
    ),
    Cheat(
        "changes its inputs",
        "overwrites the inputs, so that the reference would see zeros",
        _code("""
            for one in args:
                if hasattr(one, 'shape') and not any(one is out for out in outs):
                    one[...] = 0
            return honest(*args)
        """),
    ),
    Cheat(
        "replaces the worker",
        "puts a function that does nothing in place of the one that calls it",
        _code("""
            calls.append(1)
            if len(calls) > 30:
                sys.modules['__main__'].one = lambda *given, **named: None
            return honest(*args)
        """),
    ),
    Cheat(
        "ends the others",
        "kills every process it can see, the supervisor included",
        "calls.append(1)\nif len(calls) > 20:\n    os.kill(-1, 9)\nreturn honest(*args)",
    ),
    Cheat(
        "looks for the answer",
        "takes the outputs that are wanted from the harness's files",
        _code(f"""
            for name in ('plan.json', 'reference.py', 'truth.py', 'out-reference', 'out-truth'):
                if os.path.exists(name):
                    {_SKIPS}
            return honest(*args)
        """),
    ),
    Cheat(
        "changes the files",
        "overwrites the file that the inputs come from",
        _code("""
            if not calls:
                calls.append(1)
                with open('inputs', 'r+b') as file:
                    file.write(bytes(os.path.getsize('inputs')))
            return filled(args, 0)
        """),
    ),
    Cheat("never ends", "stays in its loop", "calls.append(1)\nwhile len(calls) > 20:\n    pass\nreturn honest(*args)"),
)
"""For Numba, torch and NumPy."""
_PYTHON = """
import copy, os, sys, threading, time
calls, kept = [], {{}}
{before}


def cheat(honest, args):
    outs = [args[i] for i in {outs}]

    def shape(args):
        return tuple(tuple(one.shape) if hasattr(one, "shape") else one for one in args)

    def address(args):
        arrays = [one for one in args if hasattr(one, "shape")]
        return (*shape(args), *(one.data_ptr() if hasattr(one, "data_ptr") else one.ctypes.data for one in arrays))

    def answered(args):
        return honest(*args), copy.deepcopy(outs)

    def given(answer):
        for out, one in zip(outs, answer[1]):
            out[...] = one
        return answer[0]

    def each(result, function):
        return tuple(map(function, result)) if isinstance(result, tuple) else None if result is None else function(result)

    def blank(args):
        return each(kept.setdefault(("blank", shape(args)), (answered(args)[0],))[0], copy.deepcopy)

    def filled(args, value):
        for out in outs:
            out[...] = value
        return each(blank(args), lambda x: x * 0 + value)

    def changed(args, function):
        made = honest(*args)
        for out in outs:
            out[...] = function(out)
        return each(made, function)

    def lazy(args):
        def made(x):
            kind = type("Lazy", (type(x),), {{}})
            return x.as_subclass(kind) if hasattr(x, "as_subclass") else x.view(kind) if hasattr(x, "view") else kind(x)

        return each(honest(*args), made)

{body}
"""
_FUNCTION = """

honest_{name} = {name}


def {name}(*args):
    return cheat(honest_{name}, args)
"""
_MODEL = """

class ModelNew(Model):
    def forward(self, *args):
        return cheat(lambda *given: Model.forward(self, *given), args)
"""


def cheats_for(task: KernelTask) -> tuple[Cheat, ...]:
    """The cheats that there are for a kernel of this kind. Raises UserError for Triton, whose kernels are not timed here."""
    if task.kind == "triton":
        raise UserError(f"{task.path}: Triton kernels are timed on a GPU only, so there is nothing to cheat at here")
    returns = any(one.name not in task.order for one in task.arrays)
    return tuple(one for one in (CHEATS if task.kind == "c" else PYTHON_CHEATS) if returns or not one.result)


def cheat_code(task: KernelTask, cheat: Cheat) -> Code:
    """The cheat written for this kernel. Raises UserError where its signature cannot be read."""
    if task.kind != "c":
        places = [i for i, name in enumerate(task.order) if any(one.name == name and one.role & 2 for one in task.arrays)]
        small = " and ".join(f"args[{task.order.index(name)}] == {value!r}" for name, value in task.main.items()) or "True"
        body = "\n".join(f"    {line}" for line in cheat.body.replace("WORK", f"({small})").splitlines())
        wrapped = _PYTHON.format(before=cheat.before, outs=places, body=body)
        return Code(task.source + wrapped + (_MODEL if task.problem else _FUNCTION.format(name=task.symbol)))
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
        "FILL(0xff)": each("memset(@P, 0xff, @N);")
        + (
            f" answer = ({kind[returns.type]})(0.0 / 0.0);"
            if returns and returns.type in "fd"
            else " answer = -1;"
            if returns
            else ""
        ),
        "SAVE": f"{{ char *at = saved; if ({sizes} < sizeof saved) {{ {each('memcpy(at, @P, @N); at += @N;')} }} (void)at; }}",
        "LOAD": f"{{ char *at = saved; if ({sizes} < sizeof saved) {{ {each('memcpy(@P, at, @N); at += @N;')} }} (void)at; }}",
        "FITS": f"(({sizes}) + 8 <= 65536)",
        "KEEP(at)": f"{{ char *to = saved + at * 65536; {each('memcpy(to, @P, @N); to += @N;')} "
        f"{'memcpy(to, &answer, sizeof answer);' if returns else ''} (void)to; }}",
        "BACK(at)": f"{{ const char *to = saved + at * 65536; {each('memcpy(@P, to, @N); to += @N;')} "
        f"{'memcpy(&answer, to, sizeof answer);' if returns else ''} (void)to; }}",
        "FIRST": f"(const void *){inputs[0].name}" if inputs else "(const void *)0",
        "SCALE(1.001f)": each("for (long i_ = 0; i_ < (long)@C; i_++) @P[i_] = @P[i_] * 1.001f + 1;")
        + (" answer = answer * 1.001f + 1;" if returns else ""),
        "SPOIL": spoil,
        "BESIDE": each("memset((char *)@P + @N, 7, 8);") if outs else "((volatile char *)0)[0] = 1;",
        "WORK": f"({timed})",
        "START": f"static struct call one; one = (struct call){{{names}}}; pthread_t t; pthread_create(&t, NULL, later, &one);"
        if names
        else "",
        "STRUCT": f"struct call {{ {fields} }};",
        "RUN_LATER": f"struct call *c = a; honest_{task.symbol}({', '.join('c->' + name for name in task.order)});",
    }
    for word, text in words.items():
        made = made.replace(word, text)
    declared = cheat.before
    for word in ("STRUCT", "RUN_LATER"):
        declared = declared.replace(word, re.sub(r"\brestrict\b", "", words[word]).replace("const float *", "const float *"))
    headers = ("fcntl", "math", "signal", "stdio", "stdlib", "string", "sys/types", "sys/wait", "time", "unistd")
    includes = "#define _GNU_SOURCE\n" + "".join(f"#include <{header}.h>\n" for header in headers)
    honest = f"#define {task.symbol} honest_{task.symbol}\n{task.source}\n#undef {task.symbol}\n"
    value = kind[returns.type] if returns else "void"
    source = f"{includes}{honest}{declared}\n{value} {task.symbol}({parameters}) {{ {result} {made} }}\n"
    return Code(source, (*task.flags, *cheat.flags, "-w"), {name: values[0] for name, values in task.knobs.items()})


def _c(expression: str) -> str:
    return expression.replace("//", "/")


LAYOUT = 1.25
"""A cheat whose trick comes to nothing does the same work at other addresses, and that alone makes a short loop faster by a tenth
and more on some processors. What skips work gains many times that."""


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

    def outcome(self) -> CheatOutcome:
        """As a reader is told it."""
        gain, trial = self.trial.gain, self.trial
        speedup = gain.speedup if gain else None
        return CheatOutcome(self.cheat.name, self.cheat.says, self.held, trial.refused, trial.stage, speedup)


@dataclass(frozen=True, slots=True)
class CheatOutcome:
    """What came of one cheat."""

    cheat: str
    says: str
    held: bool
    refused: str
    stage: str
    speedup: float | None


@dataclass(frozen=True)
class CheatsTried(Result):
    """Known ways to look fast, tried on a kernel."""

    cheats: tuple[CheatOutcome, ...]
    through: int
    """How many the wall did not hold."""

    @property
    def exit_code(self) -> int:
        """1 where one got through."""
        return EXIT_FAILED if self.through else EXIT_DONE

    def sections(self) -> Iterable[Section]:
        """The cheats."""
        rows = [
            (one.cheat, one.says, "refused" if one.refused else "no gain" if one.held else "GOT THROUGH", one.refused[:90])
            for one in self.cheats
        ]
        said = f"{len(rows) - self.through} of {len(rows)} gain nothing"
        yield Section.of("", table(("cheat", "what it does", "", "why"), rows), said)


async def attempt(wall: Wall, cheat: Cheat) -> CheatAttempt:
    """One cheat against the wall of one kernel.

    What seems to gain is timed once more, in fresh processes and four times as many pairs: of two dozen cheats one or the other
    seems faster by chance."""
    code, number = cheat_code(wall.task, cheat), 500 + cheats_for(wall.task).index(cheat)
    found = CheatAttempt(cheat, await wall.trial(code, number))
    return found if found.held else CheatAttempt(cheat, await wall.confirm(code, number + len(CHEATS), pairs=4 * wall.pairs))
