"""Tools: pure functions that read metrics and say what is slow and what to do.
All that fit run, in the order of registration; none samples.

A tool never raises for a metric that is missing: it is then listed as not measurable here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.kernel_search.algorithm import Class
from ramify.methods.kernel_search.asm import Loop
from ramify.trace.node import Finding

Severity = Literal["info", "warn", "critical"]
WEIGHT = {"info": 0.1, "warn": 1.0, "critical": 3.0}
TIERS = {
    "C0": "disassembly and the compiler's remarks",
    "C1": "timing",
    "C2": "simulation (cachegrind, llvm-mca)",
    "C3": "events of the operating system",
    "C4": "hardware counters",
    "T0": "the operators of a torch kernel",
    "G0": "SASS and resource usage, without a GPU",
    "G1": "a GPU without counters",
    "G2": "counters of a GPU (ncu, nsys)",
}
ALWAYS = ("occupancy", "latency", "launch")
"""Categories whose tools run whatever the class."""
LIBM = re.compile(
    r"^(?:__)?(?:exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|sincos|tanh|sinh|cosh|erf|erfc|cbrt|asin|acos|atan|atan2|fmod|hypot)f?(?:_finite|@plt)?$"
)


@dataclass(frozen=True)
class KernelMetrics:
    """What was measured of one build. None: not measured."""

    WORDS: ClassVar[Mapping[str, str]] = {
        "loops": "a disassembly",
        "cache": "cachegrind",
        "mca": "llvm-mca",
        "seconds": "timing",
        "overhead": "timing",
        "bandwidth": "measured roofs",
        "remarks": "the compiler's remarks",
        "peak": "measured roofs",
        "faults": "page faults of timed calls",
        "flops": "declared flops",
        "operators": "a call whose operators torch counts",
        "simulated_bytes": "a simulated call",
    }
    """Field -> what it takes to know it, as a reader is told."""
    loops: tuple[Loop, ...] | None = None
    remarks: Mapping[int, tuple[str, ...]] | None = None
    """Source line -> what the compiler says of its loop."""
    cache: Mapping[int, Mapping[str, int]] | None = None
    """Source line -> events of cachegrind (Ir, Dr, D1mr, DLmr, Dw, D1mw, DLmw) on a cache of 32 KiB and one of 1 MiB."""
    wide: frozenset[int] = frozenset()
    """Lines of the loops that are vectorized in the build that was simulated: their accesses are of 32 bytes."""
    mca: Mapping[int, tuple[float, float]] | None = None
    """Source line -> (cycles an iteration, reciprocal throughput of the block)."""
    seconds: float | None = None
    """Of a call."""
    overhead: float | None = None
    """Of an empty call."""
    flops: float | None = None
    bytes: float | None = None
    """Compulsory traffic of a call."""
    simulated_bytes: float | None = None
    """The same of the call that was simulated, which may be smaller."""
    peak: float | None = None
    bandwidth: float | None = None
    """Measured roofs, flops and bytes a second; the bandwidth at this working set."""
    faults: float | None = None
    """Page faults a call, once warm."""
    klass: Class = "unknown"
    floats: bool = True
    """Floating-point arguments are all float, none double."""
    simd: int = 256
    """Bits of the widest vector of the target."""
    operators: Mapping[str, Sequence[int]] | None = None
    """Operator of a torch kernel -> (calls, bytes that they read and write)."""
    torch: bool = False
    """It is a torch kernel, so tools of tier T0 fit."""
    file: str = ""

    def share(self, line: int) -> float | None:
        """Share of the simulated instructions that the loop at ``line`` takes; None where nothing was simulated."""
        if not self.cache or not self.loops:
            return None
        loop = next((each for each in self.loops if each.line == line), None)
        whole = sum(row.get("Ir", 0) for row in self.cache.values())
        lines = set(loop.lines) | {line} if loop else {line}
        return sum(self.cache[n].get("Ir", 0) for n in lines if n in self.cache) / whole if whole else None

    def of_loop(self, loop: Loop, event: str) -> int:
        """An event summed over a loop's lines."""
        return sum(row.get(event, 0) for line, row in (self.cache or {}).items() if line in loop.lines or line == loop.line)

    def missed(self, loop: Loop) -> str:
        """What the compiler says of why the loop, or one around it, is not vectorized."""
        lines = {*loop.lines, loop.line, loop.line - 1}
        texts = [text for line in sorted(lines) for text in (self.remarks or {}).get(line, ())]
        return "; ".join(dict.fromkeys(texts))[:300]


@dataclass(frozen=True, slots=True)
class Symptom:
    """What a tool saw."""

    cause: str
    evidence: Mapping[str, tuple[float, str, str]] = field(default_factory=dict)
    """name -> (value, unit, source)."""
    line: int = 0
    severity: Severity = "warn"


@dataclass(frozen=True, slots=True)
class NumberSeen:
    """A number that a finding rests on."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Prescription:
    """A finding of a tool: where, why, what to do, and which number must then move."""

    tool: str
    category: str
    severity: Severity
    where: str
    cause: str
    prescription: str
    check: str
    tier: str
    evidence: Mapping[str, NumberSeen] = field(default_factory=dict)
    transforms: tuple[str, ...] = ()
    expected_gain: tuple[float, float] | None = None
    share: float | None = None

    def finding(self, maker: str, node: str | None) -> Finding:
        """As the run keeps it."""
        return Finding(
            self.tool,
            maker,
            f"{self.where}: {self.cause}",
            node,
            0,
            self.prescription,
            WEIGHT[self.severity],
            "weight",
            codec.to_json(self),
        )


Read = Callable[[Any], Symptom | None]
"""Takes the metrics that its tool is registered for."""


@dataclass(frozen=True, slots=True)
class ProfileTool:
    """A registered tool."""

    name: str
    read: Read
    tier: str
    category: str
    affinity: frozenset[str]
    needs: tuple[str, ...]
    prescription: str
    transforms: tuple[str, ...]
    gain: tuple[float, float] | None
    check: str
    metrics: type[KernelMetrics] = KernelMetrics
    """What it reads."""


TOOLS: dict[str, ProfileTool] = {}


def tool(
    *,
    tier: str,
    category: str,
    prescription: str,
    check: str,
    affinity: Iterable[str] = ("compute", "memory", "mixed", "latency"),
    needs: Sequence[str] = ("loops",),
    transforms: Sequence[str] = (),
    gain: tuple[float, float] | None = None,
    metrics: type[KernelMetrics] = KernelMetrics,
) -> Callable[[Read], Read]:
    """Register a function ``KernelMetrics -> Symptom | None`` as a tool, under its name in capitals.

    ``needs`` are the fields of ``metrics`` that it reads. Raises UserError on a tool without a prescription or without a check,
    of an unknown tier, or that needs a metric that there is none: a diagnosis without an instruction is noise.
    """

    def register(function: Read) -> Read:
        name = "".join(word.capitalize() for word in function.__name__.split("_"))
        if not prescription.strip() or not check.strip():
            raise UserError(
                f"the tool {name} has no prescription or no check: it must say what to do, and which number then moves"
            )
        if tier not in TIERS:
            raise UserError(f"the tool {name} is of tier '{tier}', which is none: {', '.join(TIERS)}")
        known = [each.name for each in fields(metrics)]
        unknown = [need for need in needs if need not in known]
        if unknown:
            raise UserError(f"the tool {name} needs '{unknown[0]}', which is not a metric: {', '.join(known)}")
        TOOLS[name] = ProfileTool(
            *(name, function, tier, category, frozenset(affinity), tuple(needs), prescription, tuple(transforms), gain, check),
            metrics,
        )
        return function

    return register


def examine(metrics: KernelMetrics, tools: Iterable[ProfileTool] | None = None) -> tuple[list[Prescription], list[str]]:
    """What every tool that fits the class says, worst first, and what is not measurable here."""
    prescriptions, missing = [], []
    for candidate in TOOLS.values() if tools is None else tools:
        if candidate.metrics is not type(metrics) or (candidate.tier == "T0" and not metrics.torch):
            continue
        if (
            metrics.klass not in ("unknown", "launch")
            and candidate.category not in ALWAYS
            and metrics.klass not in candidate.affinity
        ):
            continue
        absent = [need for need in candidate.needs if getattr(metrics, need) is None]
        if absent:
            missing.append(
                f"{candidate.name}: not measurable here, it needs "
                f"{' and '.join(dict.fromkeys(metrics.WORDS.get(need, need) for need in absent))} ({TIERS[candidate.tier]})"
            )
            continue
        seen = candidate.read(metrics)
        if seen is not None:
            where = f"{metrics.file}:{seen.line}" if seen.line else metrics.file
            evidence = {name: NumberSeen(*number) for name, number in seen.evidence.items()}
            share = metrics.share(seen.line) if seen.line else None
            severity: Severity = "warn" if seen.severity == "critical" and share is not None and share < 0.2 else seen.severity
            prescriptions.append(
                Prescription(
                    candidate.name,
                    candidate.category,
                    severity,
                    where,
                    seen.cause,
                    candidate.prescription,
                    candidate.check,
                    candidate.tier,
                    evidence,
                    candidate.transforms,
                    candidate.gain,
                    share,
                )
            )
    return sorted(prescriptions, key=lambda candidate: (-WEIGHT[candidate.severity], -(candidate.share or 0))), missing


def _loop(metrics: KernelMetrics, test: Callable[[Loop], bool]) -> Loop | None:
    """The loop that ``test`` holds of with the greatest share, or the first."""
    fitting = [loop for loop in metrics.loops or () if test(loop)]
    return (
        max(fitting, key=lambda loop: metrics.share(loop.line) or 0.0)
        if fitting and metrics.cache
        else fitting[0]
        if fitting
        else None
    )


def _unvectorized(loop: Loop) -> bool:
    return loop.scalar + loop.packed > 0 and loop.share < 0.5


def _misses(metrics: KernelMetrics, loop: Loop) -> float | None:
    """Missed share of a loop's data reads and writes in the first-level cache."""
    if metrics.cache is None:
        return None
    touched = metrics.of_loop(loop, "Dr") + metrics.of_loop(loop, "Dw")
    return (metrics.of_loop(loop, "D1mr") + metrics.of_loop(loop, "D1mw")) / touched if touched else None


def _strided(metrics: KernelMetrics, loop: Loop) -> bool:
    """Strided by its code, unless its working set stays in the cache; or because half its scalar accesses miss."""
    missed = _misses(metrics, loop)
    if missed is not None:
        streams = 0.7 if loop.line in metrics.wide or set(loop.lines) & metrics.wide else 0.3
        return missed > streams or (loop.strided and missed > 0.15)
    return loop.strided


# -- processors
# ---------------------------------------------------------------------------------------------------------------------


@tool(
    tier="C0", category="vectorization", check="packed share of the loop's arithmetic", gain=(1.5, 8.0),
    transforms=("simd", "restrict", "fast-math", "no-trap"),
    prescription="Remove what the compiler names (a dependence, an unknown trip count, a call), or write `#pragma omp simd` "
                 "where you know that iterations are independent.",
)  # fmt: skip
def scalar_fallback(m: KernelMetrics) -> Symptom | None:
    """Arithmetic on single numbers that no other tool explains."""
    loop = _loop(
        m,
        lambda each: (
            _unvectorized(each)
            and not each.chain
            and not each.jumps
            and not any(LIBM.match(c) for c in each.calls)
            and not _strided(m, each)
            and each.scalar >= 2
        ),
    )
    if loop is None:
        return None
    return Symptom(
        f"the loop computes one number at a time: {m.missed(loop) or 'the compiler gives no reason'}",
        {"packed share": (loop.share, "", "objdump")},
        loop.line,
        "warn",
    )


@tool(
    tier="C0", category="vectorization", check="packed additions in the loop", gain=(3.0, 10.0),
    transforms=("simd-reduction", "accumulators", "fast-math"),
    prescription="Allow another order of additions: `#pragma omp simd reduction(+:s)` with -fopenmp-simd, or 8 accumulators.",
)  # fmt: skip
def reduction_order(m: KernelMetrics) -> Symptom | None:
    """A chain of scalar additions into one number that nothing stores on the way."""
    loop = _loop(
        m,
        lambda each: (
            _unvectorized(each) and each.chain and not (each.stores or each.calls or each.selects) and not _strided(m, each)
        ),
    )
    if loop is None:
        return None
    return Symptom(
        "every addition waits for the one before it, and floating-point order forbids the compiler to change that",
        {"scalar operations": (loop.scalar, "an iteration", "objdump")},
        loop.line,
        "critical",
    )


@tool(
    tier="C0", category="latency", check="calls in the loop", gain=(2.0, 6.0), transforms=("vector-math", "fast-math"),
    prescription="Use a vector version of the function: -ffast-math with `#pragma omp simd` takes libmvec's, or write a "
                 "polynomial.",
)  # fmt: skip
def math_call(m: KernelMetrics) -> Symptom | None:
    """A function of the mathematics library, called once a number."""
    loop = _loop(m, lambda each: any(LIBM.match(name) for name in each.calls))
    if loop is None:
        return None
    name = next(name for name in loop.calls if LIBM.match(name))
    return Symptom(
        f"the loop calls {name} for one number at a time, which also keeps it from being vectorized",
        {"calls": (len(loop.calls), "an iteration", "objdump")},
        loop.line,
        "critical",
    )


@tool(
    tier="C0", category="latency", check="conditional jumps in the loop", gain=(2.0, 20.0),
    transforms=("select-late", "select", "no-trap", "fast-math"),
    prescription="Compute both sides and select (`c ? a : b`), or hoist the condition; -fno-trapping-math lets the compiler do "
                 "so.",
)  # fmt: skip
def branch_in_loop(m: KernelMetrics) -> Symptom | None:
    """Jumps, or conditional moves, inside a loop that is not vectorized."""
    loop = _loop(
        m,
        lambda each: (
            each.jumps + each.selects > 0
            and each.packed == 0
            and each.integer == 0
            and not any(LIBM.match(c) for c in each.calls)
            and each.scalar + each.loads > 0
        ),
    )
    if loop is None:
        return None
    told = "control flow" in m.missed(loop)
    return Symptom(
        f"the loop decides by a {'jump' if loop.jumps else 'conditional move'} for every number, and is not vectorized for it",
        {"jumps": (loop.jumps + loop.selects, "an iteration", "objdump"), "remark": (float(told), "", "gcc")},
        loop.line,
        "critical",
    )


@tool(
    tier="C2", category="memory", check="first-level misses an access", gain=(2.0, 40.0), transforms=("interchange", "tile"),
    prescription="Walk memory in the order in which it lies: interchange the loops, tile them, or pack what is read by columns.",
    affinity=("memory", "compute", "mixed", "latency"),
)  # fmt: skip
def strided_access(m: KernelMetrics) -> Symptom | None:
    """Neighbouring iterations touch different cache lines."""
    loop = _loop(m, lambda each: _strided(m, each) and each.depth > 1)
    if loop is None:
        return None
    missed = _misses(m, loop)
    evidence = {} if missed is None else {"missed share": (missed, "an access", "cachegrind")}
    said = (
        "every step goes to another cache line" if missed is None else f"{missed:.0%} of its accesses miss the first-level cache"
    )
    return Symptom(f"{said}: memory is walked across the order in which it lies", evidence, loop.line, "critical")


@tool(
    tier="C0", category="precision", check="conversions in the loop", gain=(1.5, 3.0), transforms=("float-literals",),
    prescription="Write float literals (0.5f), float functions (sqrtf) and float variables; the doubles halve the width of "
                 "every vector.",
)  # fmt: skip
def precision_creep(m: KernelMetrics) -> Symptom | None:
    """Conversions between float and double in a kernel of floats."""
    loop = _loop(m, lambda each: each.converts > 0) if m.floats else None
    if loop is None:
        return None
    return Symptom(
        "floats are widened to double and back inside the loop",
        {"conversions": (loop.converts, "an iteration", "objdump")},
        loop.line,
        "critical",
    )


@tool(
    tier="C0", category="vectorization", check="loop versions for aliasing", gain=(1.0, 1.2), transforms=("restrict",),
    needs=("loops", "remarks"),
    prescription="Declare pointers that never overlap `restrict`.",
)  # fmt: skip
def alias_guard(m: KernelMetrics) -> Symptom | None:
    """The compiler guards against overlapping pointers, or gives up for them."""
    for loop in m.loops or ():
        text = " ".join((m.remarks or {}).get(loop.line, ())) + m.missed(loop)
        if _unvectorized(loop) and re.search(r"alias|no grouped|will not create alias", text):
            return Symptom("the loop is not vectorized because pointers may overlap", {}, loop.line, "warn")
        if "versioned" in text and "alias" in text:
            return Symptom(
                "the loop exists twice, and a test at run time chooses, because pointers may overlap", {}, loop.line, "info"
            )
    return None


@tool(
    tier="C0", category="layout", check="shuffles a load", gain=(1.2, 3.0), transforms=("wide-vectors", "unroll"),
    affinity=("memory", "mixed", "compute"),
    prescription="Store fields in arrays of their own (structure of arrays); a vector then holds one field of many records.",
)  # fmt: skip
def layout_aos(m: KernelMetrics) -> Symptom | None:
    """Vectors are assembled by shuffles or gathers."""
    loop = _loop(
        m,
        lambda each: (
            each.packed > 0
            and each.share >= 0.5
            and each.loads > 0
            and not each.converts
            and not each.strided
            and not each.calls
            and (each.shuffles + each.gathers) / each.loads > 0.5
            and each.shuffles + each.gathers >= 3
        ),
    )
    if loop is None:
        return None
    rate = (loop.shuffles + loop.gathers) / loop.loads
    return Symptom(
        "fields of one record lie next to each other, so every vector is assembled from pieces",
        {"shuffles and gathers": (rate, "a load", "objdump")},
        loop.line,
        "critical",
    )


@tool(
    tier="C2", category="memory", check="second-level misses against compulsory traffic", gain=(1.3, 4.0),
    transforms=("tile", "knob"), needs=("loops", "cache", "flops", "simulated_bytes"),
    prescription="Work on tiles that stay in the cache, with the partial results in registers.",
    affinity=("compute", "mixed", "memory"),
)  # fmt: skip
def cache_blocking(m: KernelMetrics) -> Symptom | None:
    """Data that is used more than once comes more than once."""
    loop = _loop(m, lambda each: not _strided(m, each) and each.depth > 1)
    if loop is None or not m.flops or not m.simulated_bytes or not m.bytes or m.flops / m.bytes < 2:
        return None
    lines = m.of_loop(loop, "DLmr") + m.of_loop(loop, "DLmw")
    ratio = lines * 64 / m.simulated_bytes
    if ratio <= 2:
        return None
    return Symptom(
        f"memory moves {ratio:.1f} times the data that the operation needs, although it is reused",
        {"traffic / compulsory": (ratio, "", "cachegrind")},
        loop.line,
        "critical",
    )


@tool(
    tier="C0", category="latency", check="moves to and from the stack in the loop", gain=(1.1, 2.0),
    transforms=("knob", "no-unroll"),
    prescription="Use fewer accumulators or a smaller unroll, so that they fit the registers.",
)  # fmt: skip
def register_spill(m: KernelMetrics) -> Symptom | None:
    """Registers do not suffice for an inner loop."""
    loop = _loop(m, lambda each: each.stack >= 4 and not each.calls and each.packed + each.scalar > 0)
    if loop is None:
        return None
    return Symptom(
        "the loop keeps moving registers to the stack and back",
        {"stack moves": (loop.stack, "an iteration", "objdump")},
        loop.line,
        "critical",
    )


@tool(
    tier="C2", category="latency", check="cycles an iteration against the block's throughput", gain=(1.5, 6.0),
    transforms=("accumulators", "unroll", "fast-math"), needs=("loops", "mca"),
    prescription="Break the chain: several independent accumulators, or work on blocks whose results are combined afterwards.",
)  # fmt: skip
def dependency_chain(m: KernelMetrics) -> Symptom | None:
    """An iteration waits for the one before it although the units are free."""

    def waits(each: Loop) -> bool:
        cycles, block = (m.mca or {}).get(each.line, (0.0, 1.0))
        return (
            cycles > 2 * max(block, 0.25)
            and not each.calls
            and not each.divisions
            and not (each.chain and not each.stores and _unvectorized(each))
            and not each.jumps
        )

    loop = _loop(m, waits)
    if loop is None or m.mca is None:
        return None
    cycles, block = m.mca[loop.line]
    return Symptom(
        f"an iteration takes {cycles:.1f} cycles where its instructions need {block:.1f}: each waits for the result before it",
        {"cycles": (cycles, "an iteration", "llvm-mca"), "throughput": (block, "cycles", "llvm-mca")},
        loop.line,
        "critical",
    )


@tool(
    tier="C2", category="latency", check="divisions and square roots in the loop", gain=(1.2, 3.0),
    transforms=("reciprocal", "fast-math"),
    prescription="Divide once outside the loop and multiply by the reciprocal; allow approximate square roots where the result "
                 "permits.",
)  # fmt: skip
def div_sqrt(m: KernelMetrics) -> Symptom | None:
    """Divisions dominate the loop's units."""

    def divides(each: Loop) -> bool:
        rest = each.packed + each.scalar - each.divisions + 0.5 * (each.loads + each.stores) + 2 * (each.shuffles + each.gathers)
        return each.divisions > 0 and not each.calls and 8 * each.divisions > 0.5 * (8 * each.divisions + rest)

    loop = _loop(m, divides)
    if loop is None:
        return None
    return Symptom(
        "divisions or square roots take most of the loop's time, and are not pipelined as multiplications are",
        {"divisions": (loop.divisions, "an iteration", "objdump")},
        loop.line,
        "warn",
    )


@tool(
    tier="C1", category="roof", check="bytes a second against the roof", needs=("seconds", "bytes", "bandwidth"), transforms=(),
    affinity=("memory", "mixed"),
    prescription="Stop here, or move fewer bytes: fuse it with its neighbours, or use a smaller type.",
)  # fmt: skip
def bandwidth_roof(m: KernelMetrics) -> Symptom | None:
    """The kernel is as fast as memory allows."""
    if not m.seconds or not m.bytes or not m.bandwidth:
        return None
    share = m.bytes / m.seconds / m.bandwidth
    return (
        Symptom(
            f"it moves its compulsory bytes at {share:.0%} of the measured bandwidth",
            {"share of the roof": (share, "", "timing")},
            0,
            "info",
        )
        if share >= 0.7
        else None
    )


@tool(
    tier="C1", category="launch", check="share of a call that is calling", needs=("seconds", "overhead"), gain=(1.2, 5.0),
    prescription="Do more in one call: batch, fuse, or move the loop around it inside.",
)  # fmt: skip
def call_overhead(m: KernelMetrics) -> Symptom | None:
    """Calls cost as much as what they do."""
    if not m.seconds or m.overhead is None or m.overhead / m.seconds < 0.2:
        return None
    return Symptom(
        f"{m.overhead / m.seconds:.0%} of a call is the call itself", {"share": (m.overhead / m.seconds, "", "timing")}, 0, "warn"
    )


@tool(
    tier="C3", category="latency", check="page faults a call", needs=("faults",), gain=(1.1, 3.0),
    prescription="Allocate once, outside; touch memory before it is needed.",
)  # fmt: skip
def page_faults(m: KernelMetrics) -> Symptom | None:
    """Memory is handed out anew in every call."""
    if not m.faults or m.faults < 1:
        return None
    return Symptom(
        f"{m.faults:.1f} page faults in a warm call: it allocates memory every time",
        {"faults": (m.faults, "a call", "/proc")},
        0,
        "warn",
    )


@tool(
    tier="C0", category="vectorization", check="width of the loop's vectors", gain=(1.0, 1.6), transforms=("wide-vectors",),
    prescription="Ask for wider vectors: -mprefer-vector-width=512.", affinity=("compute", "mixed"),
)  # fmt: skip
def vector_width(m: KernelMetrics) -> Symptom | None:
    """Vectors narrower than the target's."""
    loop = _loop(m, lambda each: each.packed > 0 and 0 < each.width < m.simd)
    return (
        None
        if loop is None
        else Symptom(
            f"vectors of {loop.width} bits where the processor has {m.simd}",
            {"width": (loop.width, "bits", "objdump")},
            loop.line,
            "info",
        )
    )


# -- torch
# ---------------------------------------------------------------------------------------------------------------------------


@tool(
    tier="T0", category="fusion", check="bytes that the operators move", gain=(1.2, 4.0), needs=("operators", "bytes"),
    transforms=("matmul", "in-place", "out", "compile"),
    prescription="Fuse neighbouring operators into one pass over memory: a kernel of your own, or torch.compile.",
)  # fmt: skip
def unfused_operators(m: KernelMetrics) -> Symptom | None:
    """Each operator writes its result to memory, and the next reads it again."""
    rows = m.operators or {}
    count, moved = sum(row[0] for row in rows.values()), sum(row[1] for row in rows.values())
    if not m.bytes or count < 2 or moved < 1.5 * m.bytes:
        return None
    most = sorted(rows, key=lambda name: -rows[name][1])[:3]
    named = ", ".join(f"{name} {rows[name][1] / moved:.0%}" for name in most)
    return Symptom(
        f"{count} operators move {moved / m.bytes:.1f} times the bytes that the kernel needs ({named})",
        {"moved / compulsory": (moved / m.bytes, "", "torch"), "operators": (count, "a call", "torch")},
        0,
        "critical" if moved > 3 * m.bytes else "warn",
    )


@tool(
    tier="T0", category="precision", check="bytes that copies move", gain=(1.1, 2.0), needs=("operators",),
    transforms=("lean", "drop-copies", "no-doubles", "out"),
    prescription="Drop clone() and contiguous() where nothing writes to the copy, compute in the type of the arguments, and "
                 "write results where they belong.",
)  # fmt: skip
def copied_tensors(m: KernelMetrics) -> Symptom | None:
    """Tensors are copied, or turned into another type, rather than computed with."""
    rows = m.operators or {}
    moved = sum(row[1] for row in rows.values())
    copies = [rows[name] for name in ("clone", "copy", "_to_copy", "contiguous") if name in rows]
    share = sum(row[1] for row in copies) / moved if moved else 0.0
    if share < 0.2:
        return None
    return Symptom(
        f"{sum(row[0] for row in copies)} operators that only copy or change the type move {share:.0%} of all bytes",
        {"copied / moved": (share, "", "torch"), "copies": (sum(row[0] for row in copies), "a call", "torch")},
        0,
        "critical" if share >= 0.4 else "warn",
    )
