"""Transforms: typed edits of a kernel, each either correct by construction or caught by the wall. They compose. Here those for C.

A transform maps code to the codes that it can make of it, none where it does not apply. It edits loops of the form
``for (int i = A; i < B; i++)`` inside the kernel's own function, and leaves what it does not understand alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ramify.methods.kernel_search import torch_edits  # noqa: F401 - it registers its own
from ramify.methods.kernel_search.edits import TORCH_TRANSFORMS, TRANSFORMS, Edit, transform
from ramify.methods.kernel_search.task import MATH, KernelTask
from ramify.methods.kernel_search.wall import Code

_FOR = re.compile(
    r"\bfor\s*\(\s*(?P<type>int|long|size_t|int64_t|int32_t)?\s*(?P<var>\w+)\s*=\s*(?P<first>[^;]+?)\s*;\s*(?P=var)\s*<\s*(?P<last>[^;]+?)\s*;\s*(?:(?P=var)\s*\+\+|\+\+\s*(?P=var)|(?P=var)\s*\+=\s*1)\s*\)"
)


def transforms_for(kind: str) -> dict[str, Edit]:
    """The transforms of a task's kind; none where only a model writes candidates."""
    return {"c": TRANSFORMS, "torch": TORCH_TRANSFORMS, "kernelbench": TORCH_TRANSFORMS}.get(kind, {})


def variants(name: str, code: Code, task: KernelTask) -> list[Code]:
    """What a transform makes of the code: other codes only."""
    edit = transforms_for(task.kind)[name]
    return [variant for variant in edit(code, task) if variant.key != code.key]


@dataclass(frozen=True, slots=True)
class For:
    """A loop in source text: where its header begins, where its body begins and ends (braces included), what it counts."""

    start: int
    body: int
    end: int
    var: str
    first: str
    last: str
    header: str

    def inside(self, text: str) -> str:
        """Its body without the outer braces."""
        body = text[self.body : self.end].strip()
        return body[1:-1] if body.startswith("{") else body


def body_of(source: str, symbol: str) -> tuple[int, int]:
    """Where the body of the function begins (after its brace) and ends. (0, 0) where it is not found."""
    head = re.search(rf"\b{re.escape(symbol)}\s*\([^()]*\)\s*\{{", source)
    if head is None:
        return 0, 0
    return head.end(), _closing(source, head.end() - 1)


def _closing(text: str, at: int) -> int:
    """Position of the bracket that closes the one at ``at``; the end of the text where none does."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == text[at]) - (text[i] == pairs[text[at]])
        if depth == 0:
            return i
    return len(text)


def _statement(text: str, at: int) -> int:
    """End of the statement that begins at ``at`` (spaces and pragmas before it are skipped)."""
    while match := re.match(r"\s+|#[^\n]*\n|//[^\n]*\n|/\*.*?\*/", text[at:], re.S):
        at += match.end()
    if at >= len(text):
        return at
    if text[at] == "{":
        return _closing(text, at) + 1
    if match := re.match(r"(?:for|while|if)\s*\(", text[at:]):
        end = _statement(text, _closing(text, at + match.end() - 1) + 1)
        if match[0].startswith("if") and (other := re.match(r"\s*else\b", text[end:])):
            end = _statement(text, end + other.end())
        return end
    end = text.find(";", at)
    return len(text) if end < 0 else end + 1


def for_loops(source: str, symbol: str) -> list[For]:
    """The countable loops of a function, outermost first, in order."""
    begin, end = body_of(source, symbol)
    loops = []
    for head in _FOR.finditer(source, begin, end):
        body = head.end()
        while space := re.match(r"\s+", source[body:]):
            body += space.end()
        loops.append(For(head.start(), body, _statement(source, head.end()), head["var"], head["first"], head["last"], head[0]))
    return loops


def innermost(loops: Sequence[For]) -> list[For]:
    """Loops that hold no other."""
    return [loop for loop in loops if not any(loop.start < other.start < loop.end for other in loops)]


def _edited(code: Code, source: str, *flags: str) -> Code:
    return replace(code, source=source, flags=_with(code.flags, *flags))


def _with(flags: Sequence[str], *more: str) -> tuple[str, ...]:
    return (*flags, *(flag for flag in more if flag not in flags))


# -- flags
# ---------------------------------------------------------------------------------------------------------------------------


def _flagging(name: str, *flags: str) -> None:
    @transform(name)
    def edit(code: Code, task: KernelTask) -> Iterator[Code]:
        yield replace(code, flags=_with(code.flags, *flags))


_flagging("fast-math", "-ffast-math")
_flagging("no-trap", "-fno-trapping-math", "-fno-math-errno")
_flagging("wide-vectors", "-mprefer-vector-width=512")
_flagging("unroll", "-funroll-loops")
_flagging("no-unroll", "-fno-unroll-loops")
_flagging("prefetch", "-fprefetch-loop-arrays")


@transform("knob")
def _knob(code: Code, task: KernelTask) -> Iterator[Code]:
    """Another value of a declared macro, one at a time."""
    for name, values in task.knobs.items():
        for value in values:
            if code.macros.get(name) != value:
                yield replace(code, macros={**code.macros, name: value})


# -- the signature, literals, statements
# -----------------------------------------------------------------------------------------------


@transform("restrict")
def _restrict(code: Code, task: KernelTask) -> Iterator[Code]:
    """Pointers that never overlap."""
    head = re.search(rf"\b{re.escape(task.symbol)}\s*\(([^()]*)\)", code.source)
    if head and "*" in head[1]:
        parameters = re.sub(r"\*\s*(?!restrict\b|__restrict)(\w+)", r"*restrict \1", head[1])
        yield _edited(code, code.source[: head.start(1)] + parameters + code.source[head.end(1) :])


@transform("float-literals")
def _float_literals(code: Code, task: KernelTask) -> Iterator[Code]:
    """Float literals, functions and locals where arguments are float; a double scalar is narrowed where it is used."""
    if any(array.type == "d" for array in task.arrays):
        return
    begin, end = body_of(code.source, task.symbol)
    body = code.source[begin:end]
    body = re.sub(r"(?<![\w.])(\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?![\w.])", r"\1f", body)
    body = re.sub(rf"\b({'|'.join(MATH)})\s*\(", r"\1f(", body)
    body = re.sub(r"\bdouble\b", "float", body)
    head = re.search(rf"\b{re.escape(task.symbol)}\s*\(([^()]*)\)", code.source)
    for name in re.findall(r"\bdouble\s+(\w+)", head[1]) if head else ():
        body = re.sub(rf"(?<!\(float\))\b{name}\b", f"(float){name}", body)
    yield _edited(code, code.source[:begin] + body + code.source[end:])


@transform("reciprocal")
def _reciprocal(code: Code, task: KernelTask) -> Iterator[Code]:
    """Multiply by the reciprocal of what does not change in the loop."""
    loops = for_loops(code.source, task.symbol)
    for loop in reversed(innermost(loops)):
        text = code.source[loop.body : loop.end]
        for name in dict.fromkeys(re.findall(r"/\s*\(?\s*([A-Za-z_]\w*)\s*\)?(?!\s*[\[(.\w])", text)):
            if name == loop.var or re.search(rf"\b{name}\s*(?:[-+*/]?=)(?!=)", text) or name in ("int", "float"):
                continue
            changed = re.sub(rf"/\s*\(?\s*{name}\s*\)?(?!\s*[\[(.\w])", f"* inverse_{name}", text)
            source = (
                code.source[: loop.start]
                + f"{{ const float inverse_{name} = 1.0f / {name};\n"
                + code.source[loop.start : loop.body]
                + changed
                + " }\n"
                + code.source[loop.end :]
            )
            yield _edited(code, source)


@transform("select")
def _select(code: Code, task: KernelTask) -> Iterator[Code]:
    """Both sides of a choice are computed, and one is selected."""
    begin, end = body_of(code.source, task.symbol)
    body, at, changed = code.source[begin:end], 0, False
    while match := re.search(r"\bif\s*\(", body[at:]):
        start = at + match.start()
        selection = _selected(body, start)
        if selection is None:
            at = start + 2
            continue
        text, stop = selection
        body, at, changed = body[:start] + text + body[stop:], start + len(text), True
    if changed:
        yield _edited(code, code.source[:begin] + body + code.source[end:], "-fno-trapping-math", "-fno-math-errno")


def _selected(text: str, start: int) -> tuple[str, int] | None:
    """An if-statement whose sides assign to the same variables, as selections; and where it ends."""
    opened = text.index("(", start)
    closed = _closing(text, opened)
    condition, then_end = text[opened + 1 : closed], _statement(text, closed + 1)
    then = _assigned(text[closed + 1 : then_end])
    other = re.match(r"\s*else\b", text[then_end:])
    if then is None:
        return None
    if other is None:
        lines = [f"{target} = ({condition}) ? ({value}) : {target};" for target, value in then.items()]
        if len(lines) > 1 and any(re.search(rf"\b{re.escape(target)}\b", condition) for target in then):
            lines = [
                f"const int chosen_{start} = ({condition});",
                *(f"{target} = chosen_{start} ? ({value}) : {target};" for target, value in then.items()),
            ]
        return "{ " + " ".join(lines) + " }", then_end
    after = then_end + other.end()
    rest = text[after:]
    space = len(rest) - len(rest.lstrip())
    if rest.lstrip().startswith("if"):
        nested = _selected(text, after + space)
        if nested is None:
            return None
        inner, end = _assigned(nested[0]), nested[1]
    else:
        end = _statement(text, after)
        inner = _assigned(text[after:end])
    if inner is None or set(inner) != set(then) or len(then) != 1:
        return None
    target, value = next(iter(then.items()))
    return f"{target} = ({condition}) ? ({value}) : ({inner[target]});", end


@transform("select-late")
def _select_late(code: Code, task: KernelTask) -> Iterator[Code]:
    """A chain of choices as a row of selections, the last one first: every value is computed, none is jumped over."""
    for selecting in _select(code, task):
        source, changed = selecting.source, False
        for match in reversed(
            list(re.finditer(r"(?P<target>[A-Za-z_]\w*(?:\[[^\]]*\])?) = (?P<rest>\((?:[^;{}]*)\) \? [^;{}]*);", source))
        ):
            arms, rest = [], match["rest"]
            while (parts := _ternary(rest)) is not None:
                arms.append(parts[:2])
                rest = parts[2][1:-1] if parts[2].startswith("(") and _closing(parts[2], 0) == len(parts[2]) - 1 else parts[2]
            if len(arms) < 2:
                continue
            lines = [
                f"__typeof__({match['target']}) pick = {rest};",
                *(f"pick = {condition} ? {value} : pick;" for condition, value in reversed(arms)),
                f"{match['target']} = pick;",
            ]
            source, changed = source[: match.start()] + "{ " + " ".join(lines) + " }" + source[match.end() :], True
        if changed:
            yield replace(selecting, source=source)


def _ternary(text: str) -> tuple[str, str, str] | None:
    """``(c) ? (a) : (b)`` in its three parts; None of anything else."""
    text = text.strip()
    if not text.startswith("("):
        return None
    first = _closing(text, 0)
    middle = re.match(r"\s*\?\s*\(", text[first + 1 :])
    if middle is None:
        return None
    begin = first + middle.end()
    second = _closing(text, begin)
    last = re.match(r"\s*:\s*", text[second + 1 :])
    return None if last is None else (text[: first + 1], text[begin : second + 1], text[second + 1 + last.end() :].strip())


def _assigned(text: str) -> dict[str, str] | None:
    """target -> value of a block of plain assignments; None of anything else."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    targets: dict[str, str] = {}
    for assignment in filter(None, (part.strip() for part in text.split(";"))):
        match = re.fullmatch(r"([A-Za-z_]\w*(?:\s*\[[^\]]*\])?)\s*([-+*/]?)=(?!=)\s*(.+)", assignment, re.S)
        if match is None or match[1] in targets:
            return None
        targets[match[1]] = match[3] if not match[2] else f"{match[1]} {match[2]} ({match[3]})"
    return targets or None


# -- loops
# ----------------------------------------------------------------------------------------------------------------------------

_SUM = re.compile(r"^\s*\{?\s*(?P<acc>[A-Za-z_]\w*)\s*\+=\s*(?P<value>[^;]+);\s*\}?\s*$", re.S)


def _sums(loop: For, source: str) -> re.Match[str] | None:
    return _SUM.match(source[loop.body : loop.end])


def _pragma(source: str, loops: Sequence[For], text: Callable[[For], str]) -> str:
    for loop in reversed(loops):
        line = text(loop)
        if line:
            source = source[: loop.start] + f"\n#pragma {line}\n" + source[loop.start :]
    return source


@transform("simd-reduction")
def _simd_reduction(code: Code, task: KernelTask) -> Iterator[Code]:
    """Additions into one number in any order."""

    def line(loop: For) -> str:
        text = code.source[loop.body : loop.end]
        added = dict.fromkeys(re.findall(r"(?<![\w\]])([A-Za-z_]\w*)\s*\+=", text))
        local = set(re.findall(r"\b(?:float|double|int|long)\s+(\w+)\s*=", text))
        most = list(dict.fromkeys(re.findall(r"\b(\w+)\s*=\s*fmaxf?\(\s*\1\b", text)))
        clauses = [f"reduction(+:{','.join(n for n in added if n not in local)})"] if set(added) - local else []
        clauses += [f"reduction(max:{','.join(most)})"] if most else []
        return (
            "omp simd " + " ".join(clauses)
            if clauses and "#pragma" not in code.source[max(0, loop.start - 60) : loop.start]
            else ""
        )

    yield _edited(code, _pragma(code.source, innermost(for_loops(code.source, task.symbol)), line), "-fopenmp-simd")


@transform("simd")
def _simd(code: Code, task: KernelTask) -> Iterator[Code]:
    """Iterations of innermost loops that add into no number are independent."""

    def line(loop: For) -> str:
        return "" if _sums(loop, code.source) or "#pragma" in code.source[max(0, loop.start - 60) : loop.start] else "omp simd"

    yield _edited(code, _pragma(code.source, innermost(for_loops(code.source, task.symbol)), line), "-fopenmp-simd")


@transform("vector-math")
def _vector_math(code: Code, task: KernelTask) -> Iterator[Code]:
    """libmvec's functions of whole vectors, which fast mathematics declares."""
    yield _edited(code, code.source, "-ffast-math", "-fopenmp-simd")


@transform("accumulators")
def _accumulators(code: Code, task: KernelTask) -> Iterator[Code]:
    """A sum by 8 or 32 independent accumulators."""
    loops = innermost(for_loops(code.source, task.symbol))
    for width in (8, 32):
        source = code.source
        for loop in reversed(loops):
            summed = _sums(loop, source)
            kind = re.search(rf"\b(float|double)\s+(?:\w+\s*=[^;,]*,\s*)*{summed['acc']}\b", source) if summed else None
            if summed is None or kind is None:
                continue
            var, value = loop.var, summed["value"]
            step = re.sub(rf"\b{var}\b", f"({var} + lane)", value)
            unrolled = (
                f"{{ {kind[1]} lanes[{width}] = {{0}}; long {var} = {loop.first};\n"
                f"for (; {var} + {width - 1} < {loop.last}; {var} += {width})\n for (int lane = 0; lane < {width}; lane++) "
                f"lanes[lane] += {step};\n"
                f"for (; {var} < {loop.last}; {var}++) {summed['acc']} += {value};\n"
                f"for (int lane = 0; lane < {width}; lane++) {summed['acc']} += lanes[lane]; }}\n"
            )
            source = source[: loop.start] + unrolled + source[loop.end :]
        yield _edited(code, source)


@transform("interchange")
def _interchange(code: Code, task: KernelTask) -> Iterator[Code]:
    """Swap two nested loops; a sum in the inner one is then kept in memory."""
    loops = for_loops(code.source, task.symbol)
    for outer in reversed(loops):
        inside = [loop for loop in loops if outer.start < loop.start < outer.end]
        if not inside:
            continue
        inner = inside[0]
        if re.search(rf"\b{outer.var}\b", inner.first + inner.last) or any(loop.start >= inner.end for loop in inside):
            continue
        before = code.source[outer.body : inner.start].strip()
        after = code.source[inner.end : outer.end].strip()
        body = code.source[inner.body : inner.end]
        if before in ("", "{") and after in ("", "}"):
            exchanged = f"{inner.header}\n{outer.header}\n{body}"
        else:
            first = re.fullmatch(r"\{\s*(?:float|double|int|long)\s+(\w+)\s*=\s*([^;]+);", before)
            last = re.fullmatch(r"([^;=]+?)\s*=\s*(\w+)\s*;\s*\}", after)
            added = _SUM.match(body)
            if not (first and last and added and first[1] == last[2] == added["acc"]):
                continue
            exchanged = (
                f"{{ {outer.header}\n{last[1]} = {first[2]};\n{inner.header}\n{outer.header}\n{last[1]} += {added['value']}; }}\n"
            )
        yield _edited(code, code.source[: outer.start] + exchanged + code.source[outer.end :])


@transform("tile")
def _tile(code: Code, task: KernelTask) -> Iterator[Code]:
    """Two perfectly nested loops in tiles of 16, 32 or 64."""
    loops = for_loops(code.source, task.symbol)
    for outer in reversed(loops):
        inner = next(
            (
                loop
                for loop in loops
                if loop.start == outer.body
                or (code.source[outer.body] == "{" and code.source[outer.body + 1 : loop.start].strip() == "")
            ),
            None,
        )
        if inner is None or re.search(rf"\b{outer.var}\b", inner.first + inner.last) or f"{outer.var}_tile" in code.source:
            continue
        if code.source[outer.body] == "{" and code.source[inner.end : outer.end].strip() != "}":
            continue
        body = code.source[inner.body : inner.end]
        for size in (32, 64, 16):
            ends = {
                loop.var: f"({loop.last} < {loop.var}_tile + {size} ? {loop.last} : {loop.var}_tile + {size})"
                for loop in (outer, inner)
            }
            tiled = (
                f"for (int {outer.var}_tile = {outer.first}; {outer.var}_tile < {outer.last}; {outer.var}_tile += {size})\n"
                f"for (int {inner.var}_tile = {inner.first}; {inner.var}_tile < {inner.last}; {inner.var}_tile += {size})\n"
                f"for (int {outer.var} = {outer.var}_tile; {outer.var} < {ends[outer.var]}; {outer.var}++)\n"
                f"for (int {inner.var} = {inner.var}_tile; {inner.var} < {ends[inner.var]}; {inner.var}++)\n{body}\n"
            )
            yield _edited(code, code.source[: outer.start] + tiled + code.source[outer.end :])
        return


@transform("hoist-loads")
def _aligned(code: Code, task: KernelTask) -> Iterator[Code]:
    """Tell the compiler that memory does not alias between iterations of innermost loops."""
    yield _edited(
        code,
        _pragma(
            code.source,
            innermost(for_loops(code.source, task.symbol)),
            lambda loop: "" if "#pragma" in code.source[max(0, loop.start - 60) : loop.start] else "GCC ivdep",
        ),
    )
