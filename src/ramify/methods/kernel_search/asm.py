"""Reading machine code: a function's innermost loops out of `objdump -d -l`, and what is counted in each.

Prologues, epilogues and remainder loops of vectorized code are scalar by design, so loops are judged one by one and never the
whole symbol; of the loops that one source loop became the widest is taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_HEAD = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_LINE = re.compile(r"^(?:\S*/)?([^/\s:]+\.\w+):(\d+)")
_CODE = re.compile(r"^\s+([0-9a-f]+):\s+(.*)$")
_ARITHMETIC = re.compile(r"^v?(?:add|sub|mul|div|sqrt|min|max|fn?m(?:add|sub)(?:132|213|231)?|rcp\w*|rsqrt\w*)(ps|pd|ss|sd)$")
_CONVERT = re.compile(r"^v?cvt(?:ss2sd|sd2ss|ps2pd|pd2ps)")
_SHUFFLE = re.compile(
    r"^v?(?:shuf|perm|unpck|insert|extract|blendv?|broadcast.*x|palignr|valign|pack|punpck|pshuf|movsh|movhl|movlh)"
)
_INTEGER = re.compile(r"^v?p(?:add|sub|mul|madd|cmp|min|max|and|or|xor|s[lr][la])")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: address, mnemonic, operands as objdump writes them, source line (0: not known)."""

    address: int
    name: str
    operands: str
    line: int = 0

    @property
    def target(self) -> int | None:
        """Where a jump goes, if it says so."""
        match = re.match(r"^([0-9a-f]+)\b", self.operands)
        return int(match[1], 16) if match and (self.name.startswith("j") or self.name == "call") else None


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop, and what is counted in it."""

    line: int
    """Source line of most of its work; 0 where the code has no lines."""
    lines: tuple[int, ...] = field(metadata={"json": False})
    depth: int
    """Loops around it, itself included."""
    instructions: int
    packed: int
    scalar: int
    """Floating-point arithmetic on whole vectors, and on single numbers."""
    width: int
    """Bits of the widest register of its arithmetic."""
    integer: int
    """Packed integer arithmetic."""
    converts: int
    calls: tuple[str, ...]
    jumps: int
    """Conditional jumps that are not the loop's own."""
    selects: int
    """Conditional moves: what the compiler makes of an `if` that it did not vectorize."""
    loads: int
    stores: int
    stack: int
    """Vector or scalar moves to and from the stack."""
    gathers: int
    shuffles: int
    divisions: int
    """Divisions and square roots."""
    chain: bool
    """Scalar additions, each to the sum of the one before, whose last the next iteration needs."""
    strided: bool
    """A pointer that loads go through advances by a register or by a line or more."""
    text: str = field(metadata={"json": False})
    """Its instructions, for llvm-mca."""

    @property
    def share(self) -> float:
        """Packed share of its floating-point arithmetic; 1 where it has none."""
        return self.packed / (self.packed + self.scalar) if self.packed + self.scalar else 1.0


def functions(assembly: str) -> dict[str, list[Instruction]]:
    """Instructions of every function in the output of ``objdump -d -l``."""
    by_name: dict[str, list[Instruction]] = {}
    now: list[Instruction] | None = None
    line = 0
    for text in assembly.splitlines():
        if head := _HEAD.match(text):
            now = by_name.setdefault(head[1], [])
            line = 0
        elif now is None or not text.strip():
            continue
        elif code := _CODE.match(text):
            words = code[2].split("#")[0].split()
            while words and words[0] in ("rep", "repz", "repnz", "lock", "bnd", "notrack", "data16", "cs"):
                words = words[1:]
            if words:
                now.append(Instruction(int(code[1], 16), words[0], " ".join(words[1:]), line))
        elif place := _LINE.match(text):
            line = int(place[2]) if place[1].endswith((".c", ".py")) else line
    return by_name


def reached(code: dict[str, list[Instruction]], symbol: str) -> list[list[Instruction]]:
    """The function ``symbol`` and those of the same file that it calls; empty where it is stripped."""
    todo, seen = [symbol], dict[str, list[Instruction]]()
    while todo:
        name = todo.pop()
        if name in seen or name not in code:
            continue
        seen[name] = code[name]
        for instruction in code[name]:
            called = re.search(r"<([^>+@]+)>", instruction.operands) if instruction.name in ("call", "jmp") else None
            if called and (called[1] in code) and not called[1].startswith("_"):
                todo.append(called[1])
    return list(seen.values())


def loops(assembly: str, symbol: str) -> list[Loop]:
    """The innermost loops of a function that compute or move data, one for each source loop, the one with most work first."""
    every: list[Loop] = []
    for code in reached(functions(assembly), symbol):
        every += _innermost(code)
    groups: list[list[Loop]] = []
    for loop in sorted(every, key=lambda each: (-each.width * bool(each.packed + each.integer), each.line)):
        same = lambda other: loop.line in other.lines or other.line in loop.lines  # noqa: E731, B023 - used in this round only
        home = next((group for group in groups if loop.line and any(map(same, group))), None)
        if home is None:
            groups.append([loop])
        else:
            home.append(loop)
    best = [
        max(group, key=lambda each: (each.packed + each.integer > 0, each.width, each.depth, each.packed + each.scalar))
        for group in groups
    ]
    return sorted(best, key=lambda each: (-each.depth, -(each.packed + each.scalar + 3 * len(each.calls)), each.line))


def _innermost(code: Sequence[Instruction]) -> list[Loop]:
    backward: dict[int, int] = {}
    addresses = {instruction.address for instruction in code}
    for instruction in code:
        target = instruction.target if instruction.name.startswith("j") else None
        if target is not None and target in addresses and target <= instruction.address:
            backward[target] = max(backward.get(target, 0), instruction.address)
    spans = sorted(backward.items())
    inner = [(a, b) for a, b in spans if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)]
    inner_loops = []
    for a, b in inner:
        body = [instruction for instruction in code if a <= instruction.address <= b]
        depth = sum(c <= a and b <= d for c, d in spans)
        loop = _counted(body, depth)
        if loop.packed + loop.scalar + loop.integer + loop.loads + loop.stores + len(loop.calls):
            inner_loops.append(loop)
    return inner_loops


def _counted(body: Sequence[Instruction], depth: int) -> Loop:
    counts: Counter[str] = Counter()
    width, calls, lines = 0, list[str](), Counter[int]()
    last = body[-1].address
    for instruction in body:
        name, operands = instruction.name, instruction.operands
        memory = "(" in operands
        if match := _ARITHMETIC.match(name):
            kind = "packed" if match[1] in ("ps", "pd") else "scalar"
            counts[kind] += 1
            if kind == "packed":
                width = max(width, _width(operands))
        elif _INTEGER.match(name) and re.search(r"%[xyz]mm", operands):
            counts["integer"] += 1
            width = max(width, _width(operands))
        counts["converts"] += bool(_CONVERT.match(name))
        counts["shuffles"] += bool(_SHUFFLE.match(name))
        counts["gathers"] += "gather" in name
        counts["divisions"] += bool(re.match(r"^v?(?:div|sqrt)[ps][sd]$", name))
        if name == "call":
            called = re.search(r"<([^>@+]+)", operands)
            calls.append(called[1] if called else operands)
        counts["selects"] += name.startswith("cmov")
        if name.startswith("j") and name != "jmp" and instruction.address != last:
            counts["jumps"] += 1
        if memory and not name.startswith(("lea", "nop", "j", "call", "prefetch")):
            stores = operands.rstrip().endswith(")")
            counts["stores" if stores else "loads"] += 1
            if re.search(r"\(%r[sb]p", operands) and re.match(r"^v?mov(?:aps|ups|ss|sd|apd|upd|dqa|dqu)", name):
                counts["stack"] += 1
        if instruction.line and (memory or _ARITHMETIC.match(name) or name == "call"):
            lines[instruction.line] += 1
    if not lines:
        lines.update(instruction.line for instruction in body if instruction.line)
    line = lines.most_common(1)[0][0] if lines else 0
    text = "\n".join(
        f"{instruction.name} {re.sub(r' *<[^>]*>', '', instruction.operands)}"
        for instruction in body
        if not instruction.name.startswith(("j", "call", "nop", "ret"))
    )
    return Loop(
        line,
        tuple(sorted({instruction.line for instruction in body if instruction.line})),
        depth,
        len(body),
        counts["packed"],
        counts["scalar"],
        width,
        counts["integer"],
        counts["converts"],
        tuple(calls),
        counts["jumps"],
        counts["selects"],
        counts["loads"],
        counts["stores"],
        counts["stack"],
        counts["gathers"],
        counts["shuffles"],
        counts["divisions"],
        _chain(body),
        _strided(body),
        text,
    )


def _width(operands: str) -> int:
    return 512 if "%zmm" in operands else 256 if "%ymm" in operands else 128


_ADDS = re.compile(r"v?(?:add|min|max)s[sd]$")
_FUSED = re.compile(r"vfn?m(?:add|sub)(132|213|231)s[sd]$")
_ADDEND = {"132": -2, "213": -3, "231": -1}
"""Where the number that is added stands among the operands of a fused multiplication and addition."""


def _chain(body: Sequence[Instruction]) -> bool:
    """Some number goes from one iteration to the next through scalar additions alone,
    whatever registers they write on the way."""
    steps: list[tuple[str, list[str], int]] = []
    for instruction in body:
        words = re.findall(r"[^,\s(]*\([^)]*\)|[^,\s]+", instruction.operands)
        if not words or not words[-1].startswith(("%xmm", "%ymm", "%zmm")) or re.match(r"v?u?comis|v?ptest", instruction.name):
            continue
        names = [word[2:] if word.startswith(("%x", "%y", "%z")) else "" for word in words]
        through, adds = list[str](), 0
        if _ADDS.match(instruction.name):
            through, adds = names if not instruction.name.startswith("v") else names[:-1], 1
        elif fused := _FUSED.match(instruction.name):
            through, adds = [names[_ADDEND[fused[1]]]], 1
        elif re.match(r"v?mova?p[sd]$", instruction.name):
            through = names[:-1]
        steps.append((names[-1], through, adds))
    return any(_carried(steps, start) for start in {written for written, _, _ in steps})


def _carried(steps: Sequence[tuple[str, Sequence[str], int]], start: str) -> bool:
    """Whether register ``start`` ends an iteration as what it held at its begin with something added to it."""
    held = {start: 0}
    for written, through, adds in steps:
        counts = [held[name] for name in through if name in held]
        if counts:
            held[written] = max(counts) + adds
        else:
            held.pop(written, None)
    return held.get(start, 0) > 0


def _strided(body: Sequence[Instruction]) -> bool:
    steps: dict[str, str] = {}
    for instruction in body:
        words = [word.strip() for word in instruction.operands.split(",")]
        if instruction.name in ("add", "sub") and len(words) == 2 and words[1].startswith("%r"):
            steps[words[1]] = words[0]
    for instruction in body:
        if (
            "(" not in instruction.operands
            or instruction.name.startswith(("lea", "nop"))
            or not re.match(r"^v?(?:mov|add|mul|fm|fn|cvt|sub|min|max|ucom|com)", instruction.name)
        ):
            continue
        match = re.search(r"\((%r\w+)(?:,(%r\w+),(\d))?\)", instruction.operands)
        for base in match.groups()[:2] if match else ():
            step = steps.get(base or "")
            if step is None or not re.search(r"%xmm|%e|%r", instruction.operands):
                continue
            scalar = bool(re.search(r"s[sd]$|^mov[lqzb]?", instruction.name))
            if step.startswith("%r") and scalar:
                return True
            if (
                step.startswith("$0x")
                and scalar
                and abs(int(step[3:], 16)) >= 64
                and int(step[3:], 16) < 1 << 31
                and sum(base in other.operands for other in body) <= 3
            ):
                return True
    return False


def mca_cycles(text: str) -> tuple[float, float] | None:
    """(cycles an iteration, reciprocal throughput of the block) of the report of llvm-mca; None where it says neither."""
    cycles, iterations = re.search(r"Total Cycles:\s+(\d+)", text), re.search(r"Iterations:\s+(\d+)", text)
    block = re.search(r"Block RThroughput:\s+([\d.]+)", text)
    if not (cycles and iterations and block):
        return None
    return int(cycles[1]) / int(iterations[1]), float(block[1])


def cache_lines(text: str, symbols: Sequence[str]) -> dict[int, dict[str, int]]:
    """Source line -> event -> count of the functions ``symbols`` in a file of cachegrind's."""
    events: list[str] = []
    by_line: dict[int, dict[str, int]] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("events:"):
            events = line.split()[1:]
        elif line.startswith("fn="):
            name = line[3:].strip()
            inside = name in symbols or name.split(".")[0] in symbols
        elif inside and line[:1].isdigit():
            number, *values = line.split()
            row = by_line.setdefault(int(number), dict.fromkeys(events, 0))
            for event, value in zip(events, values, strict=False):
                row[event] += int(value)
    return by_line
