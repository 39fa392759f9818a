"""Which memory the 32 threads of a warp touch, read from PTX alone (tier G0):
its address arithmetic is followed for one warp, lane by lane.

Followed in the order of the text, so of a loop its first pass: block 0, threads 0 to 31, arrays at addresses of their own, whole
numbers among the arguments taken as 1024. An address that comes out of memory is said to;
what is not understood is left open, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LANES, SECTOR, SIZE = 32, 32, 1024
DATA, OPEN = "from memory", "not followed"
Value = np.ndarray | str
"""What a register holds in the lanes, shape (32,) of int64; or why that is not known."""
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{;]*)\{", re.S)
_ACCESS = re.compile(r"^(ld|st)((?:\.\w+)*)$")
_BITS = re.compile(r"^[busf](8|16|32|64)$")


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction that loads or stores, for a whole warp."""

    op: str
    """ld.global, st.global, ld.shared or st.shared."""
    line: int
    """Source line where the PTX has lines, else the line of the PTX itself."""
    bytes: int
    """Of one thread."""
    sectors: int | None = None
    """Of 32 bytes of global memory that the warp touches; None where the address is not known."""
    ideal: int | None = None
    """As many as its distinct bytes fill."""
    stride: int | None = None
    """Bytes between neighbouring threads where they are equally far apart."""
    conflicts: int | None = None
    """Of shared memory: how many times the busiest bank is used for one request; 1 is free of conflicts."""
    why: str = ""
    """Why the address is not known."""


def entries(ptx: str) -> dict[str, tuple[str, str]]:
    """Name of each kernel -> (its header, its body)."""
    found = {}
    for one in _ENTRY.finditer(ptx):
        depth, end = 1, one.end()
        while depth and end < len(ptx):
            depth += {"{": 1, "}": -1}.get(ptx[end], 0)
            end += 1
        found[one[1]] = (ptx[one.start() : one.end()], ptx[one.end() : end])
    return found


def block_of(header: str) -> tuple[int, int, int] | None:
    """Threads of a block in x, y and z where the kernel says (``.reqntid`` or ``.maxntid``)."""
    found = re.search(r"\.(?:req|max)ntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", header)
    x, y, z = (min(max(1, int(one or 1)), SIZE) for one in found.groups()) if found else (0, 0, 0)
    return (x, y, z) if found else None


def accesses(ptx: str, kernel: str) -> list[Access]:
    """Every load and store of global and shared memory of one kernel, in the order of the text."""
    header, body = entries(ptx)[kernel]
    shape = block_of(header) or (SIZE, 1, 1)
    lane = np.arange(LANES, dtype=np.int64)
    known: dict[str, Value] = {
        "%tid.x": lane % shape[0],
        "%tid.y": lane // shape[0] % shape[1],
        "%tid.z": lane // (shape[0] * shape[1]),
        "%laneid": lane,
        **{f"%ntid.{axis}": np.full(LANES, size) for axis, size in zip("xyz", shape, strict=True)},
        **{f"%ctaid.{axis}": np.zeros(LANES, np.int64) for axis in "xyz"},
        **{f"%nctaid.{axis}": np.full(LANES, SIZE) for axis in "xyz"},
        "%warpid": np.zeros(LANES, np.int64),
        "WARP_SZ": np.full(LANES, LANES),
    }
    for number, (kind, _, name) in enumerate(
        re.findall(
            r"\.param\s+(?:\.align\s+\d+\s+)?\.([busf]\d+)\s+([^,)]*?)([A-Za-z_$][\w$]*)\s*(?:\[\d*\]\s*)?(?=[,)])", header
        )
    ):
        pointer = kind.endswith("64") and kind[0] in "bu"
        known[name] = np.full(LANES, (number + 1) << 33 if pointer else SIZE) if kind[0] in "bus" else OPEN
    for number, name in enumerate(re.findall(r"\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)", ptx)):
        known[name] = np.full(LANES, number << 20)
    return list(_followed(body, ptx[: ptx.index(header)].count("\n") + header.count("\n") + 1, known))


def _followed(body: str, first: int, known: dict[str, Value]) -> Iterator[Access]:
    source = 0
    for number, text in _statements(body, first):
        if loc := re.match(r"\.loc\s+\d+\s+\d+", text):
            index, line = map(int, loc[0].split()[1:])
            source = line if index == 1 and line else source  # 1 is the file itself; others were included
            continue
        found = re.match(r"^(?:@!?%?\w+\s+)?([a-z][\w.]*)\s+(.*)$", text, re.S)
        if found is None:
            continue
        op, words = found[1], _operands(found[2])
        access = _ACCESS.match(op.replace("::", "."))
        if access is None:
            if words and words[0].startswith("%"):
                for name in words[0].split("|"):
                    known[name] = _computed(op, words[1:], known)
            continue
        kinds = access[2].split(".")[1:]
        place = next((one for one in words if one.startswith("[")), "")
        for name in re.findall(r"%\w+", words[0]) if access[1] == "ld" else ():
            known[name] = _parameter(place, kinds, known)
        space = next((one for one in ("global", "shared") if one in kinds), "")
        if space:
            bits = next((int(one[1]) for one in map(_BITS.match, kinds) if one), 32)
            wide = next((int(one[1:]) for one in kinds if one in ("v2", "v4", "v8")), 1)
            yield _access(f"{access[1]}.{space}", source or number, bits // 8 * wide, _address(place, known))


def _statements(body: str, first: int) -> Iterator[tuple[int, str]]:
    number, inline = first, False
    for line in body.splitlines():
        code, _, remark = line.partition("//")
        code = code.strip()
        inline = remark.strip() == "begin inline asm" or (inline and remark.strip() != "end inline asm")
        if code.startswith(".loc"):
            if not inline:  # lines of inline assembly are counted on from the source line, which is none of the source
                yield number, code
        else:
            for part in code.split(";"):
                text = re.sub(r"^(?:\$?\w+:\s*)+", "", part.strip().lstrip("{").strip())
                if text:
                    yield number, text
        number += 1


def _operands(text: str) -> list[str]:
    return [one.strip() for one in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,]+", text) if one.strip()]


def _value(word: str, known: Mapping[str, Value]) -> Value:
    word = word.strip()
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", word):
        return np.full(LANES, int(word.rstrip("U"), 0), np.int64) if abs(int(word.rstrip("U"), 0)) < 1 << 63 else OPEN
    return known.get(word, OPEN)


def _address(place: str, known: Mapping[str, Value]) -> Value:
    base, plus, offset = place.strip("[] ").partition("+")
    value = _value(base, known)
    more = _value(offset, known) if plus else np.zeros(LANES, np.int64)
    return (
        value + more
        if isinstance(value, np.ndarray) and isinstance(more, np.ndarray)
        else value
        if isinstance(value, str)
        else OPEN
    )


def _parameter(place: str, kinds: Sequence[str], known: Mapping[str, Value]) -> Value:
    """What a load brings: an argument of the kernel is known, all other memory is data."""
    return known.get(place.strip("[] ").split("+")[0].strip(), OPEN) if "param" in kinds and "+" not in place else DATA


def _wrapped(value: np.ndarray, kind: str) -> np.ndarray:
    if kind.endswith("32"):
        low = value & 0xFFFFFFFF
        return low if kind[0] == "u" else (low ^ 0x80000000) - 0x80000000
    return value


_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "shl": lambda a, b: a << np.clip(b, 0, 62),
    "shr": lambda a, b: a >> np.clip(b, 0, 62),
    "div": lambda a, b: np.where(b == 0, 0, a // np.where(b == 0, 1, b)),
    "rem": lambda a, b: np.where(b == 0, 0, a % np.where(b == 0, 1, b)),
}
_COMPARED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def _computed(op: str, words: Sequence[str], known: Mapping[str, Value]) -> Value:
    name, *kinds = op.split(".")
    kind = next((one for one in reversed(kinds) if re.fullmatch(r"[busf]\d+|pred", one)), "")
    given = [_value(word, known) for word in words]
    numbers = [one for one in given if isinstance(one, np.ndarray)]
    if len(numbers) < len(given) or not given:
        return DATA if DATA in [one for one in given if isinstance(one, str)] else OPEN
    if kind.startswith("f"):
        return OPEN
    if kind == "u32" and name not in ("mov", "add", "sub"):
        numbers = [one & 0xFFFFFFFF for one in numbers]
    a = numbers[0]
    with np.errstate(over="ignore"):
        match name, len(numbers):
            case ("mov" | "cvta", 1):
                made = a
            case ("cvt", 1):
                made = a & 0xFFFFFFFF if kinds[-1] == "u32" else a
                kind = kinds[-2] if len(kinds) > 1 else kind
            case ("not", 1):
                made = ~a
            case ("neg", 1):
                made = -a
            case ("mul", 2):
                made = a * numbers[1]
            case ("mad", 3):
                made = a * numbers[1] + numbers[2]
            case ("selp", 3):
                made = np.where(numbers[2] != 0, a, numbers[1])
            case ("setp", 2) if kinds and kinds[0] in _COMPARED:
                made = _COMPARED[kinds[0]](a, numbers[1]).astype(np.int64)
            case (_, 2) if name in _BINARY:
                made = _BINARY[name](a, numbers[1])
            case _:
                return OPEN
    return made if "wide" in kinds or "hi" in kinds else _wrapped(made, kind)


def _access(op: str, line: int, size: int, address: Value) -> Access:
    if isinstance(address, str):
        return Access(op, line, size, why=address)
    steps = np.diff(address)
    stride = int(steps[0]) if (steps == steps[0]).all() else None
    if op.endswith("global"):
        touched = np.unique(address[:, None] + np.arange(size))
        sectors, ideal = len(np.unique(touched // SECTOR)), -(-len(touched) // SECTOR)
        return Access(op, line, size, sectors, ideal, stride)
    lanes = max(1, min(LANES, LANES * 4 // size))  # 64 bits are served to half a warp at a time, 128 to a quarter
    worst = 1
    for begin in range(0, LANES, lanes):
        words = np.unique((address[begin : begin + lanes, None] + np.arange(0, max(4, size), 4)) // 4)
        worst = max(worst, int(np.bincount(words % 32).max()))
    return Access(op, line, size, stride=stride, conflicts=worst)
