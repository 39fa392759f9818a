"""KernelDiagnosis: the tiers that this machine has, its measured roofs,
and of one build every metric that can be had without hardware counters."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.files import cache_folder, write_whole
from ramify.base.ids import stable_hash
from ramify.base.processor import processor
from ramify.base.waiting import wait_for
from ramify.methods.kernel_search.algorithm import NOISE, Class, attainable, classify
from ramify.methods.kernel_search.asm import Loop, cache_lines, functions, loops, mca_cycles, reached
from ramify.methods.kernel_search.compiled import disassembler
from ramify.methods.kernel_search.report import DiagnosedKernel, DiagnosedLoop, Roofline
from ramify.methods.kernel_search.task import KernelTask, evaluate, scalar_values
from ramify.methods.kernel_search.tools import TIERS, KernelMetrics, Prescription, examine
from ramify.methods.kernel_search.wall import COMPILING, INSIDE, Built, Code, Wall, WallTrial
from ramify.render.numbers import percent
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits, Sandbox

SIZES = (16 << 10, 256 << 10, 4 << 20, 64 << 20)
"""Bytes of the working sets on which bandwidth is measured."""
SIMULATED_SECONDS = 0.05
"""A call that takes longer is simulated on smaller shapes."""
CACHES = ("--D1=32768,8,64", "--LL=1048576,16,64")
"""The caches that are simulated are the same on every machine."""
_REMARK = re.compile(r"^kernel\.c:(\d+):\d+: (missed|optimized): (.*)$")


@dataclass(frozen=True)
class Roofs:
    """Measured roofs of one core."""

    peak: float
    """Flops a second, float32."""
    bandwidth: Mapping[int, float]
    """Bytes of the working set -> bytes a second (triad)."""
    noise: float
    """Relative spread of equal batches while they were measured."""

    @property
    def noisy(self) -> bool:
        """Whether this machine was too busy to rank kernels."""
        return self.noise > NOISE

    def at(self, size: float) -> float:
        """The bandwidth at the smallest measured working set that holds ``size`` bytes."""
        known = sorted(self.bandwidth)
        return self.bandwidth[next((known_size for known_size in known if known_size >= size), known[-1])]

    def __str__(self) -> str:
        speeds = ", ".join(f"{size >> 10} KiB {speed / 1e9:.1f}" for size, speed in sorted(self.bandwidth.items()))
        peak = f"peak {self.peak / 1e9:.1f} Gflop/s in float32"
        return f"{peak}; GB/s by working set: {speeds}; spread of equal batches {percent(self.noise)}"

    def fastest(self, size: float) -> float:
        """The highest bandwidth at that size or below it is possible to see: what nothing can exceed."""
        smaller = [known_size for known_size in self.bandwidth if known_size <= max(size, min(self.bandwidth))]
        return max(self.bandwidth[known_size] for known_size in smaller)


@dataclass(frozen=True, slots=True)
class Tier:
    """Whether something can be measured here."""

    measures: str
    here: bool
    how: str
    """Or why not."""


@dataclass(frozen=True, slots=True)
class RulerTimes:
    """What the rulers print: flops a second of each batch, and bytes a second of each batch by working set."""

    peak: tuple[float, ...]
    triad: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class CountedOperators:
    """What operators.py prints of a torch kernel."""

    operators: Mapping[str, tuple[int, int]]
    """Operator -> (calls, bytes)."""
    flops: float


def vector_bits() -> int:
    """Width of the widest vectors of this processor."""
    flags = processor()
    return 512 if "avx512f" in flags else 256 if "avx2" in flags else 128


def cache_file() -> Path:
    """Where measured roofs are kept."""
    return cache_folder() / "kernel-search" / f"roofs-{stable_hash(processor())[:12]}.json"


def known_roofs() -> Roofs | None:
    """Those that were measured before; None where there are none, or they are damaged."""
    file = cache_file()
    try:
        return codec.from_json(Roofs, json.loads(file.read_text(encoding="utf-8")), str(file))
    except (OSError, ValueError, UserError):
        return None


async def measured_roofs(sandbox: Sandbox, fresh: bool = False) -> Roofs:
    """The roofs of this machine, from the cache unless ``fresh``. Raises InfrastructureError where the ruler does not run."""
    file = cache_file()
    if not fresh and (known := known_roofs()) is not None:
        return known
    source = (INSIDE / "rulers.c").read_text(encoding="utf-8")
    script = "set -e\ngcc -O3 -march=native -w rulers.c -o rulers\n./rulers " + " ".join(map(str, SIZES)) + "\n"
    limits = Limits(seconds=60, memory_bytes=2048 * MIB, processes=64, disk_bytes=64 * MIB)
    outcome = await sandbox.run(["sh", "go"], files={"rulers.c": source, "go": script}, limits=limits)
    try:
        told = codec.from_json(RulerTimes, json.loads(outcome.text), "the rulers")
        roofs = Roofs(
            max(told.peak),
            {size: max(row) for size, row in zip(SIZES, told.triad, strict=True)},
            float(np.std(told.peak) / np.mean(told.peak)),
        )
    except (ValueError, UserError) as error:
        raise InfrastructureError("tool", f"the rulers did not run: {outcome.error_text.strip()[-200:] or error}") from None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(codec.to_json(roofs)))
    except OSError:
        pass  # measured again next time
    return roofs


def roofs_again(allow_unsandboxed: bool = False) -> Roofs:
    """The roofs of this machine, measured now. Raises InfrastructureError where the ruler does not run."""
    return wait_for(measured_roofs(find_sandbox(allow_unsandboxed=allow_unsandboxed), fresh=True))


def tiers() -> dict[str, Tier]:
    """What this machine can measure."""

    def has(program: str) -> bool:
        return shutil.which(program) is not None

    x86 = platform.machine() in ("x86_64", "AMD64")
    here = {
        "C0": (
            has("gcc") and has("objdump") and x86,
            "gcc and objdump"
            if has("gcc") and has("objdump") and x86
            else f"off: {'gcc' if not has('gcc') else 'objdump' if not has('objdump') else 'x86-64'} is missing",
        ),
        "C1": (
            has("gcc"),
            "processor time read from outside the timed process"
            if has("gcc")
            else "off: gcc is missing, so kernels in C do not run; Python kernels do",
        ),
        "C2": (
            has("valgrind") or has("llvm-mca"),
            ", ".join(f"{name}{'' if has(name) else ' is missing'}" for name in ("valgrind", "llvm-mca")),
        ),
        "C3": (True, "page faults and threads from /proc"),
        "C4": (False, "hardware counters: not used, and never needed"),
        "T0": (
            torch := find_spec("torch") is not None,
            "operators counted as torch calls them" if torch else "off: torch is not installed",
        ),
        "G0": _disassembled(),
        "G1": (has("nvidia-smi"), "a GPU" if has("nvidia-smi") else "off: no GPU here"),
        "G2": (has("ncu"), "ncu" if has("ncu") else "off: no ncu here, so stall reasons are not known"),
    }
    return {name: Tier(TIERS[name], *tier) for name, tier in here.items()}


def _disassembled() -> tuple[bool, str]:
    """Whether compiled kernels of a GPU can be read here, and by what."""
    try:
        return disassembler().tools()
    except NeedsError as error:
        return False, f"off: {error}"


async def gather(
    wall: Wall,
    code: Code,
    built: Built | str | None = None,
    *,
    simulate: bool = True,
    roofs: Roofs | None = None,
    trial: WallTrial | None = None,
) -> KernelMetrics:
    """Every metric of one build. What cannot be measured stays None."""
    task = wall.task
    flops, moved = task.work()
    seconds = trial.gain.candidate if trial and trial.gain else None
    metrics = KernelMetrics(
        flops=flops,
        bytes=moved,
        seconds=seconds,
        file=Path(task.path).name,
        floats=not any(array.type == "d" for array in task.arrays),
        simd=vector_bits(),
        faults=trial.faults if trial else None,
        torch=task.kind in COMPILING,
    )
    if metrics.torch:
        operators, counted = await _operators(wall, code)
        flops = flops or counted
        metrics = replace(metrics, operators=operators, flops=flops)
    if roofs is not None and moved:
        bandwidth = roofs.at(moved)
        metrics = replace(metrics, peak=roofs.peak, bandwidth=bandwidth, klass=class_of(flops, moved, roofs))
    if trial and trial.overhead is not None:
        metrics = replace(metrics, overhead=trial.overhead)
        if seconds and trial.overhead / seconds >= 0.2:
            metrics = replace(metrics, klass="launch")
    if task.kind != "c":
        return metrics
    build = built if built is not None else await wall.build(code)
    if isinstance(build, str) or not build.assembly:
        return metrics
    inner_loops = tuple(loops(build.assembly, task.symbol))
    metrics = replace(metrics, loops=inner_loops, remarks=remarks(build.remarks))
    if simulate:
        cache, simulated, wide = await _cache(wall, code, seconds)
        metrics = replace(metrics, cache=cache, simulated_bytes=simulated, wide=wide, mca=await _mca(wall.sandbox, inner_loops))
    return metrics


async def _operators(wall: Wall, code: Code) -> tuple[Mapping[str, Sequence[int]] | None, float | None]:
    """Of a torch kernel operator -> (calls, bytes), and its flops;
    None where it does not run alone, or torch compiles it into other operators."""
    task = wall.task
    if re.search(r"\btorch\.compile\b", code.source):
        return None, None
    draw, arrays = task.input_sets(0)[0], {array.name: array for array in task.arrays}
    counts, pool, arguments = task.counts(draw.scalars), bytearray(), list[dict[str, Any]]()
    for name in () if task.problem else task.order:
        if (array := arrays.get(name)) is None:
            value = draw.scalars[name]
            arguments.append({"value": value if task.scalar_types[name] in "fd" else int(value)})
            continue
        shape = [int(evaluate(part, draw.scalars)) for part in array.count.split(",") if part.strip()]
        arguments.append({"dtype": array.dtype.str, "shape": shape, "given": bool(array.role & 1)})
        if array.role & 1:
            pool += draw.inputs[name][: counts[name]].tobytes()
    request = {"symbol": task.symbol, "arguments": arguments, "problem": task.problem}
    files: dict[str, bytes | str] = {name: (INSIDE / name).read_text(encoding="utf-8") for name in ("problem.py", "operators.py")}
    files |= {
        "candidate.py": code.source,
        "reference.py": task.source,
        "request.json": json.dumps(request),
        "inputs": bytes(pool),
    }
    limits = Limits(seconds=60, memory_bytes=6144 * MIB, processes=64, disk_bytes=64 * MIB + len(pool))
    env = {"OMP_NUM_THREADS": "1", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    outcome = await wall.sandbox.run(["python", "operators.py"], files=files, limits=limits, env=env)
    try:
        reading = codec.from_json(CountedOperators, json.loads(outcome.text.splitlines()[-1]), "the operators")
        return reading.operators, reading.flops or None
    except (ValueError, IndexError, UserError):
        return None, None


def class_of(flops: float | None, moved: float | None, roofs: Roofs) -> Class:
    """Method A of section 3.3: from the operation alone, never from the candidate."""
    if not moved:
        return "unknown"
    return classify(None if not flops else flops / moved, roofs.peak, roofs.at(moved))


def floor_of(task: KernelTask, roofs: Roofs) -> float:
    """Least seconds a call can physically take: by the peak over all threads, and by the fastest memory its bytes could be in."""
    flops, moved = task.work()
    both = [(flops or 0.0) / roofs.peak, (moved or 0.0) / roofs.fastest(moved or 0.0)]
    return max(both) / max(1, task.threads)


def remarks(text: str) -> dict[int, tuple[str, ...]]:
    """Source line -> the compiler's reasons, shortest form."""
    by_line: dict[int, list[str]] = {}
    for line in text.splitlines():
        remark = _REMARK.match(line)
        if remark is None:
            continue
        said = re.sub(r"^not vectorized: ", "", remark[3].strip().rstrip("."))
        useless = (
            said.startswith(("couldn't vectorize loop", "***", "  "))
            or "basic block" in said
            or said in by_line.get(int(remark[1]), [])
        )
        if not useless and len(by_line.setdefault(int(remark[1]), [])) < 8:
            by_line[int(remark[1])].append(said)
    return {line: tuple(texts) for line, texts in by_line.items() if texts}


async def _mca(sandbox: Sandbox, inner_loops: tuple[Loop, ...]) -> dict[int, tuple[float, float]] | None:
    if shutil.which("llvm-mca") is None:
        return None
    measured: dict[int, tuple[float, float]] = {}
    for loop in inner_loops[:4]:
        if not loop.text or loop.calls:
            continue
        for cpu in ("native", "skylake-avx512"):
            outcome = await sandbox.run(
                ["llvm-mca", f"-mcpu={cpu}", "-iterations=100", "loop.s"],
                files={"loop.s": loop.text + "\n"},
                limits=Limits(seconds=20, memory_bytes=1024 * MIB),
            )
            if cycles := mca_cycles(outcome.text):
                measured[loop.line] = cycles
                break
    return measured


async def _cache(
    wall: Wall, code: Code, seconds: float | None
) -> tuple[dict[int, dict[str, int]] | None, float | None, frozenset[int]]:
    """Cachegrind's events by line for one call, and the compulsory bytes of that call; None where it does not run."""
    if shutil.which("valgrind") is None:
        return None, None, frozenset()
    task = wall.task
    await wall.prepare()
    built = await wall.build(replace(code, flags=(*code.flags, "-march=x86-64-v3", "-mprefer-vector-width=256")))
    if isinstance(built, str) or wall.worker is None:
        return None, None, frozenset()
    scalars = task.main
    integers = [name for name, kind in task.scalar_types.items() if kind in "il"]
    took = seconds if seconds is not None else 0.0
    dims = max(1, len([name for name in integers if scalars[name] >= 64]))
    while took > SIMULATED_SECONDS and any(scalars[name] > 128 for name in integers):
        scalars = {
            name: float(max(64, int(value * 0.7))) if name in integers and value > 128 else value
            for name, value in scalars.items()
        }
        took *= 0.7**dims
    draw = next(inputs for inputs in replace(task, scalars={name: (value,) for name, value in scalars.items()}).input_sets(0))
    pool, words, out = bytearray(), ["layout", "1", "1"], 64
    counts = task.counts(scalars)
    for array in task.arrays:
        begin, at = -1, -1
        if array.role & 1:
            begin = len(pool)
            pool += draw.inputs[array.name].tobytes() + b"\0" * 64
            pool += b"\0" * (-len(pool) % 64)
        if array.role & 2:
            at, out = out, out + (counts[array.name] * array.dtype.itemsize + 127) // 64 * 64 + 64
        words += [str(begin), str(at), str(counts[array.name]), "0", "0"]
    words += scalar_values(task, scalars)
    script = (
        f"chmod +x worker\ntruncate -s {out} out\nexec valgrind --tool=cachegrind --cache-sim=yes {' '.join(CACHES)} "
        f"--cachegrind-out-file=events ./worker ./kernel.so inputs out {len(pool)} {out} < said\n"
    )
    said = f"{' '.join(words)}\nrun 1 1\n"
    disk = 64 * MIB + len(pool) + 2 * out
    outcome = await wall.sandbox.run(
        ["sh", "go"],
        files={"go": script, "worker": wall.worker, "kernel.so": built.data, "inputs": bytes(pool), "said": said},
        returns=["events"],
        limits=Limits(seconds=60, memory_bytes=2048 * MIB + disk, disk_bytes=disk, file_bytes=disk, processes=16),
    )
    if "events" not in outcome.files:
        return None, None, frozenset()
    names = [name for name, body in functions(built.assembly).items() if body in reached(functions(built.assembly), task.symbol)]
    cache = cache_lines(outcome.files["events"].decode(errors="replace"), names or [task.symbol])
    wide = frozenset(each.line for each in loops(built.assembly, task.symbol) if each.packed + each.integer and not each.strided)
    return (cache or None), task.work(scalars)[1], wide


@dataclass(frozen=True)
class KernelDiagnosis:
    """What is slow about a kernel, and what that was read from."""

    task: KernelTask
    klass: Class
    metrics: KernelMetrics
    findings: tuple[Prescription, ...]
    missing: tuple[str, ...]
    """What is not measurable here."""
    roofs: Roofs | None = None
    trial: WallTrial | None = None

    def roofline(self) -> Roofline | None:
        """Against the measured roofs; None where they, the traffic or the time are not known."""
        m = self.metrics
        if self.roofs is None or not m.bytes or not m.seconds:
            return None
        intensity, bandwidth = m.flops / m.bytes if m.flops else None, self.roofs.at(m.bytes)
        roof = attainable(intensity, self.roofs.peak, bandwidth) if intensity else None
        reached = m.flops / m.seconds if m.flops else None
        share = reached / roof if reached and roof else m.bytes / m.seconds / bandwidth
        return Roofline(intensity, self.roofs.peak / bandwidth, roof, reached, share)

    def result(self) -> DiagnosedKernel:
        """As the verb returns it."""
        m, gain = self.metrics, self.trial.gain if self.trial else None
        counted = [{part.name: getattr(loop, part.name) for part in fields(loop)} for loop in m.loops or ()]
        loops = tuple(
            DiagnosedLoop(**numbers, took=m.share(loop.line), missed=m.missed(loop))
            for numbers, loop in zip(counted, m.loops or (), strict=True)
        )
        return DiagnosedKernel(
            kernel=self.task.name,
            kind=self.task.kind,
            bound=self.klass,
            seconds=m.seconds,
            noise=gain.noise if gain else None,
            roofline=self.roofline(),
            findings=self.findings,
            not_measurable=self.missing,
            loops=loops,
            skipped=self.trial.skipped if self.trial else (),
            caveats=self.trial.notes if self.trial else (),
        )


async def diagnose(
    task: KernelTask, wall: Wall | None = None, code: Code | None = None, *, roofs: bool = True, simulate: bool = True
) -> KernelDiagnosis:
    """Why a kernel (or one build of it) is slow: class, roofs, findings worst first, and what is not measurable here."""
    wall = wall or Wall(task, pairs=5)
    known = await measured_roofs(wall.sandbox) if roofs and shutil.which("gcc") else None
    trial = await wall.trial(code or wall.original)
    metrics = await gather(wall, code or wall.original, simulate=simulate, roofs=known, trial=trial)
    prescriptions, missing = examine(metrics)
    if metrics.klass == "mixed" and known is not None and trial.gain and metrics.flops and metrics.bytes:
        best = max(
            metrics.flops / trial.gain.candidate / known.peak, metrics.bytes / trial.gain.candidate / known.at(metrics.bytes)
        )
        klass: Class = "latency" if best < 0.05 else "mixed"
    else:
        klass = metrics.klass
    return KernelDiagnosis(task, klass, metrics, tuple(prescriptions), tuple(missing), known, trial)
