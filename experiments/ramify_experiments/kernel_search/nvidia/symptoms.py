"""Tools of the tiers G0 and G2: what machine code, PTX and resource usage of a kernel tell, and what only counters would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from ramify.methods.kernel_search.tools import KernelMetrics, Symptom, tool
from ramify_experiments.kernel_search.nvidia.chips import DEVICES, occupancy
from ramify_experiments.kernel_search.nvidia.ptx import DATA, Access


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """What machine code and resource usage of a GPU kernel tell."""

    arch: str = ""
    warps: int = 4
    registers: int = 0
    """A thread."""
    shared: int = 0
    """Bytes a block."""
    stack: int = 0
    """Bytes a thread."""
    spilled: int = 0
    """Bytes, as ptxas tells them."""
    blocks: int | None = None
    """That fit a multiprocessor; None before registers are given out."""
    occupancy: float | None = None
    limiter: str = ""
    dot: bool = False
    """It computes a matrix product."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Instruction -> how many; ``instructions`` is all of them."""

    def count(self, *names: str) -> int:
        """How many instructions of these kinds there are."""
        return sum(self.counts.get(name, 0) for name in names)


@dataclass(frozen=True)
class GpuKernelMetrics(KernelMetrics):
    """What was read of one compiled kernel of a GPU. None: not known."""

    WORDS: ClassVar[Mapping[str, str]] = {**KernelMetrics.WORDS, "accesses": "PTX", "counters": "hardware counters"}
    sass: GpuMetrics = field(default_factory=GpuMetrics)
    accesses: Sequence[Access] | None = None
    """What a warp touches at each load and store, read from PTX."""
    counters: Mapping[str, float] | None = None
    """Hardware counters, where someone has them: never needed."""


gpu_tool = partial(tool, metrics=GpuKernelMetrics, needs=())


@gpu_tool(tier="G0", category="latency", check="LDL and STL", gain=(1.1, 2.0),
    transforms=("fewer-warps-tile", "stages"),
      prescription="Use a smaller tile or more warps, so that accumulators fit the registers.")  # fmt: skip
def gpu_register_spill(m: GpuKernelMetrics) -> Symptom | None:
    """Local memory holds what registers do not (the stack of the resource listing, not LOCAL)."""
    s = m.sass
    moves = s.count("LDL", "STL") or s.spilled // 4  # ptxas tells bytes where there is no disassembly
    if not moves:
        return None
    return Symptom(
        f"{moves} moves to and from local memory, {s.stack} bytes of stack a thread",
        {"LDL+STL": (moves, "", "SASS")},
        0,
        "critical" if moves >= 16 else "warn",
    )


@gpu_tool(
    tier="G0",
    category="occupancy",
    check="analytic occupancy",
    gain=(1.1, 2.0),
    transforms=("warps", "tile-size", "stages"),
    prescription="Use less of what limits: fewer registers a thread, less shared memory a block, or another number of warps.",
)
def occupancy_limiter(m: GpuKernelMetrics) -> Symptom | None:
    """Few blocks fit a multiprocessor; names what limits."""
    s = m.sass
    blocks, share, limiter = occupancy(s.warps, s.registers, s.shared, DEVICES.get(s.arch))
    if share >= 0.5:
        return None
    return Symptom(
        f"occupancy {share:.1%}: {blocks} blocks fit a multiprocessor, limited by {limiter}",
        {"occupancy": (share, "", "computed")},
        0,
        "warn",
    )


@gpu_tool(tier="G0", category="compute", check="HMMA, HGMMA or QGMMA", gain=(2.0, 8.0),
    transforms=("dot-precision", "tile-size"), affinity=("compute", "mixed"),
      prescription="Use tensor cores: operands of 16 bits or TF32, tiles of at least 16 (Hopper's warp-group form: 64 x 8 x 16 "
                   "and 4 warps).")  # fmt: skip
def tensor_core(m: GpuKernelMetrics) -> Symptom | None:
    """Matrix work without matrix instructions, or with the old ones."""
    s = m.sass
    if not s.dot:
        return None
    if not s.count("HMMA", "HGMMA"):
        return Symptom("a matrix product, and no tensor-core instruction", {"FFMA": (s.count("FFMA"), "", "SASS")}, 0, "critical")
    if s.arch == "sm_90" and not s.count("HGMMA"):
        return Symptom(
            "the matrix product uses HMMA; this chip has the faster HGMMA", {"HMMA": (s.count("HMMA"), "", "SASS")}, 0, "warn"
        )
    return None


@gpu_tool(tier="G0", category="memory", check="128-bit loads", gain=(1.05, 1.5),
    transforms=("divisibility", "block-size"), affinity=("memory", "mixed", "latency", "unknown"),
      prescription="Let addresses be multiples of 16 bytes and say so (Triton: arguments divisible by 16); give each thread 4 "
                   "neighbouring floats.")  # fmt: skip
def vectorization(m: GpuKernelMetrics) -> Symptom | None:
    """Global memory is read in words instead of 128 bits."""
    s = m.sass
    narrow, wide = s.count("LDG32", "STG32"), s.count("LDG128", "STG128")
    if narrow < 4 or narrow <= 4 * wide:
        return None
    return Symptom(
        f"{narrow} accesses of 32 bits or less and {wide} of 128 bits",
        {"narrow": (narrow, "", "SASS"), "wide": (wide, "", "SASS")},
        0,
        "critical" if not wide else "warn",
    )


@gpu_tool(tier="G0", category="occupancy", check="registers a thread", transforms=("tile-size", "warps"),
      prescription="Split the work of a thread, or allow fewer registers (maxnreg).")  # fmt: skip
def high_register_usage(m: GpuKernelMetrics) -> Symptom | None:
    """A thread takes most of what it may."""
    registers = m.sass.registers
    return (
        Symptom(f"{registers} of 255 registers a thread", {"registers": (registers, "", "SASS")}, 0, "info")
        if registers > 0.75 * 255
        else None
    )


@gpu_tool(tier="G0", category="latency", check="barriers an instruction", transforms=("stages", "warps"),
      prescription="Synchronize less often: larger tiles a stage, warp-level primitives, asynchronous copies.")  # fmt: skip
def barrier_density(m: GpuKernelMetrics) -> Symptom | None:
    """Many barriers for the work between them."""
    s = m.sass
    share = s.count("BAR") / max(1, s.count("instructions"))
    return (
        Symptom(f"one instruction in {1 / share:.0f} is a barrier", {"share": (share, "", "SASS")}, 0, "warn")
        if share > 0.02 and s.count("BAR") > 4
        else None
    )


@gpu_tool(tier="G0", category="latency", check="BSSY and BSYNC", transforms=("block-size",),
      prescription="Replace branches on data by predicates or selects.")  # fmt: skip
def divergence(m: GpuKernelMetrics) -> Symptom | None:
    """Many places where the threads of a warp part."""
    s = m.sass
    share = s.count("BSSY") / max(1, s.count("instructions"))
    return (
        Symptom(f"threads of a warp part and meet again at {s.count('BSSY')} places", {"share": (share, "", "SASS")}, 0, "warn")
        if share > 0.03
        else None
    )


def _worst(m: GpuKernelMetrics, rate: Callable[[Access], float]) -> Access | None:
    """The access of the highest rate."""
    return max(m.accesses or (), key=rate, default=None)


def _wasted(one: Access) -> float:
    return (one.sectors or 0) / one.ideal if one.ideal else 0.0


@gpu_tool(tier="G0", category="memory", needs=("accesses",), check="sectors a warp touches", gain=(1.5, 8.0),
    affinity=("memory", "mixed", "latency", "compute"),
      prescription="Let neighbouring threads read neighbouring words: give the fastest index to threadIdx.x, or read a tile "
                   "into shared memory by rows.")  # fmt: skip
def strided_global(m: GpuKernelMetrics) -> Symptom | None:
    """Threads of a warp touch more sectors of 32 bytes than their data fill."""
    one = _worst(m, _wasted)
    if one is None or _wasted(one) < 2:
        return None
    apart = f": neighbouring threads are {abs(one.stride)} bytes apart" if one.stride is not None else ""
    return Symptom(
        f"{one.op} touches {one.sectors} sectors of 32 bytes for data that fill {one.ideal}{apart}",
        {"sectors": (one.sectors or 0, "a warp", "PTX"), "ideal": (one.ideal or 0, "a warp", "PTX")},
        one.line,
        "critical" if _wasted(one) >= 4 else "warn",
    )


@gpu_tool(tier="G0", category="memory", needs=("accesses",), check="uses of the busiest bank", gain=(1.1, 3.0),
    affinity=("memory", "mixed", "latency", "compute"),
      prescription="Pad the rows of the shared tile by one word (32 columns: 33), or swizzle its columns.")  # fmt: skip
def bank_conflict(m: GpuKernelMetrics) -> Symptom | None:
    """Threads of a warp use one bank of shared memory at once."""
    one = _worst(m, lambda access: access.conflicts or 0)
    if one is None or (one.conflicts or 0) < 2:
        return None
    return Symptom(
        f"{one.op} uses one bank {one.conflicts} times for one request",
        {"conflicts": (one.conflicts or 0, "a request", "PTX")},
        one.line,
        "critical" if (one.conflicts or 0) >= 8 else "warn",
    )


@gpu_tool(tier="G0", category="memory", needs=("accesses",), check="loads whose address is data",
    affinity=("memory", "mixed", "latency"),
      prescription="Sort or bin the indices so that neighbouring threads read neighbouring words, or stage the table in shared "
                   "memory.")  # fmt: skip
def gathered_global(m: GpuKernelMetrics) -> Symptom | None:
    """Global addresses come out of memory, so how many sectors they touch depends on the data."""
    found = [one for one in m.accesses or () if one.why == DATA and one.op.endswith("global")]
    if not found:
        return None
    return Symptom(
        f"{found[0].op} takes its address from memory: its sectors depend on the data",
        {"loads": (len(found), "", "PTX")},
        found[0].line,
        "info",
    )


def _counters(name: str, category: str, key: str, least: float, what: str, do: str) -> None:
    """A published tool that reads hardware counters: without them it says that it is not measurable."""

    def read(m: GpuKernelMetrics) -> Symptom | None:
        value = (m.counters or {}).get(key)
        return None if value is None or value <= least else Symptom(f"{what} {value:.0%}", {key: (value, "share", "ncu")})

    read.__name__ = name
    gpu_tool(tier="G2", category=category, needs=("counters",), check=key, prescription=do)(read)


_counters(
    "warp_stall",
    "latency",
    "stall",
    0.4,
    "the dominant stall takes",
    "Break the chain that the stall names: more independent work a thread, or asynchronous copies.",
)
_counters(
    "memory_coalescing", "memory", "l1_miss", 0.7, "first-level misses are", "Let neighbouring threads read neighbouring words."
)
_counters(
    "shared_mem_tiling", "memory", "reread", 0.5, "words read again from global memory are", "Keep a tile in shared memory."
)
_counters("high_dram_throughput", "memory", "dram", 0.8, "DRAM is busy for", "Move fewer bytes: fuse, or use a smaller type.")
_counters(
    "uncoalesced",
    "memory",
    "sectors",
    1.2,
    "sectors a request against the ideal are",
    "Let a warp's addresses fill whole sectors.",
)
_counters("launch_overhead", "launch", "launch", 0.2, "launches take", "Fuse kernels, or use a graph.")
_counters(
    "tail_wave",
    "launch",
    "tail",
    0.2,
    "multiprocessors that idle in the last wave are",
    "Choose a grid that fills the multiprocessors.",
)
