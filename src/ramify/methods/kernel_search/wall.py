"""The correctness wall and the clock: a candidate is built and run in the sandbox, next to the original,
and judged from outside it.

What is trusted: this process and the supervisor in the box (``inside/supervisor.py``). What is not: every worker that holds a
candidate. A worker cannot reach the clock (its processor time is read by the supervisor), nor the outputs that were copied from
it, nor know which of its timed calls is looked at; inputs of every call differ.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ramify.base import codec
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.ids import stable_hash
from ramify.base.seeds import generator
from ramify.methods.kernel_search.algorithm import Gain, gain_of_rounds, paired_gain
from ramify.methods.kernel_search.task import (
    DTYPES,
    InputSet,
    KernelTask,
    evaluate,
    scalar_values,
    turned,
    wide_source,
    window_of,
)
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits, Outcome, Sandbox

ROUNDS = 5
"""Times that both processes are started afresh where a gain is to be believed."""
INSIDE = Path(__file__).parent / "inside"
DRIVER_FLAGS = ("-O2",)
STRICT = ("-O2", "-march=native", "-ffp-contract=off")
_OUT_CAP, _WHOLE = 24 * MIB, 1 << 15
CLOCKS = frozenset(
    ("clock", "clock_getres", "clock_gettime", "difftime", "ftime", "getrusage", "gettimeofday", "time", "times", "timespec_get")
)
"""Functions of the C library by which time is read: code that defines one of its own means to be asked for the time."""
COLLAPSE = 10.0
"""A batch so many times as fast as the candidate's own median was not computed where it was timed."""
IDLE = 4.0
"""An empty call that takes a candidate so many times what it takes the original is made slow, to have it subtracted."""
COMPILING = ("torch", "kernelbench")
"""Kinds whose first call may be one of torch.compile."""


@dataclass(frozen=True)
class Code:
    """A candidate: source, compiler flags, macros."""

    source: str
    flags: tuple[str, ...] = ()
    macros: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Hash of the code after formatting: comments and spaces do not count."""
        return stable_hash(
            "kernel code", _formatted(self.source), *self.flags, *(f"{k}={v}" for k, v in sorted(self.macros.items()))
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The compiler's words."""
        return (*self.flags, *(f"-D{name}={value}" for name, value in sorted(self.macros.items())))


def _formatted(source: str) -> str:
    return " ".join(re.sub(r"//(?!\s*ramify:)[^\n]*|/\*.*?\*/", " ", source, flags=re.S).split())


@dataclass(frozen=True)
class Built:
    """A compiled candidate."""

    data: bytes
    remarks: str = ""
    """What the compiler said about vectorization."""
    assembly: str = ""
    """Its disassembly with source lines; empty where there is no objdump."""
    warnings: str = ""
    machine: str = ""
    """Hash of the machine code and its constants; empty where nothing is compiled or there is no strip. Equal ones are one
    program."""
    clocks: frozenset[str] = frozenset()
    """Functions of its own that have the names of :data:`CLOCKS`."""


@dataclass(frozen=True)
class WallTrial:
    """What came of one candidate. A refused one has no speed-up, whatever its time."""

    refused: str = ""
    """Why; empty where it passed."""
    stage: str = ""
    """Of a refusal: build, run, wrong, clock, physics."""
    gain: Gain | None = None
    times: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds a call, one number a batch, of reference and candidate."""
    checked: int = 0
    """Outputs compared, those of timed calls included."""
    skipped: tuple[str, ...] = ()
    """Input sets on which the original itself is off, so no candidate is judged by them."""
    notes: tuple[str, ...] = ()
    overhead: float | None = None
    """Seconds of an empty call."""
    faults: float | None = None
    """Page faults a timed call."""

    @property
    def ok(self) -> bool:
        """It passed the wall."""
        return not self.refused


class KeptOutput(NamedTuple):
    """One output that the supervisor kept, or a piece of it."""

    worker: str
    draw: int
    argument: int
    start: int
    size: int
    """Bytes."""
    seed: int
    call: int
    timed: bool
    turn: int


@dataclass(frozen=True, slots=True)
class BoxReport:
    """What the supervisor says of one box; by worker where a mapping."""

    kept: tuple[KeptOutput, ...]
    failed: Mapping[str, str]
    varies: Mapping[str, int]
    """Input set on which two runs differ."""
    times: Mapping[str, tuple[float, ...]]
    overhead: Mapping[str, float]
    faults: Mapping[str, float]
    threads: Mapping[str, int]
    used: Mapping[str, float]
    """Processor seconds, as ``own`` of the supervisor and ``prepared`` before the first call."""
    own: float
    prepared: float
    truths: int = 0
    """Outputs for which the reference's answer follows."""


class Wall:
    """Builds, runs, compares and times candidates of one task."""

    def __init__(
        self,
        task: KernelTask,
        sandbox: Sandbox | None = None,
        *,
        pairs: int = 10,
        batch_seconds: float = 0.02,
        keep: int = 4,
        seed: int = 0,
        floor: float = 0.0,
        call_seconds: float = 20.0,
        allow_unsandboxed: bool = False,
    ) -> None:
        """``floor`` is the least time of a call that is physically possible here, in seconds; 0: not known."""
        if not task.arrays:
            raise UserError(f"{task.path}: what {task.symbol} takes and returns is not said: # ramify: n = 1000; x[n]; out y[n]")
        if task.kind == "triton" and re.search(r"\bb(?:float)?16\b", task.source):
            raise UserError(f"{task.path}: Triton's interpreter computes bfloat16 wrongly: run it in float32 here")
        self.task, self.pairs, self.batch_seconds, self.keep, self.seed = task, pairs, batch_seconds, keep, seed
        self.floor, self.call_seconds = floor, call_seconds * (6 if task.kind in COMPILING else 1)
        shown = {} if task.kind == "c" else {"readable": packages()}
        self.sandbox = sandbox or find_sandbox(None, allow_unsandboxed, **shown)
        self.original = Code(task.source, task.flags, {name: values[0] for name, values in task.knobs.items()})
        self.machine = ""
        """Of the original, once prepared: see :class:`Built`."""
        self._original: Built | None = None
        self._fixed: dict[str, bytes] | None = None
        self._truth = task.reference is None
        self.notes: list[str] = []
        if task.problem and all(array.fixed for array in task.arrays if array.role & 1):
            self.notes.append(
                "its inputs have a structure that a shift would break, so the timed calls share them: a remembered answer "
                "cannot be told"
            )
        if task.problem and not task.problem["doubles"]:
            self.notes.append("the model does not run in double precision, so its own results in float are the reference")

    # -- building

    async def build(self, code: Code, symbol: str | None = None) -> Built | str:
        """The candidate compiled, or why it does not compile. Nothing of it has run."""
        if self.task.kind != "c":
            return Built(code.source.encode())
        files = {"kernel.c": code.source, "build": BUILD}
        outcome = await self._ran(
            ["sh", "build", *code.words],
            files,
            ["kernel.so", "bare", "remarks", "assembly", "symbols"],
            Limits(seconds=60, memory_bytes=2048 * MIB, returned_bytes=8 * MIB, processes=64),
        )
        if outcome.reason != "exit" or "kernel.so" not in outcome.files:
            return f"it does not compile: {_first_error(outcome)}"
        read = {name: outcome.files.get(name, b"").decode(errors="replace") for name in ("remarks", "assembly")}
        machine = stable_hash("machine code", bare.hex()) if (bare := outcome.files.get("bare")) else ""
        clocks = CLOCKS.intersection(outcome.files.get("symbols", b"").decode(errors="replace").split())
        return Built(outcome.files["kernel.so"], read["remarks"], read["assembly"], outcome.error_text[-2000:], machine, clocks)

    async def _ran(
        self, argv: Sequence[str], files: Mapping[str, bytes | str], returns: Sequence[str], limits: Limits
    ) -> Outcome:
        return await self.sandbox.run(argv, files=files, returns=returns, limits=limits)

    async def prepare(self) -> None:
        """Build what all trials share: workers, the original, the reference.
        Raises UserError where the original does not compile."""
        if self._fixed is not None:
            return
        if self.task.kind != "c":
            self._fixed = {"reference": self.original.source.encode(), "truth": self.original.source.encode()}
            return
        fixed: dict[str, bytes] = {}
        original = await self.build(self.original)
        if isinstance(original, str):
            raise UserError(f"{self.task.path}: {original}")
        self._original, fixed["reference"], self.machine = original, original.data, original.machine
        for name, wide in (("worker", False), ("worker-wide", True)):
            fixed[name] = await self._worker(wide)
        if self._truth:
            wide_code = Code(wide_source(self.task.source), STRICT, self.original.macros)
            truth = await self.build(wide_code)
            if isinstance(truth, str):
                self.notes.append(
                    "the kernel does not compile in double precision, so it is its own reference: name yours with --ref"
                )
                fixed["worker-wide"] = fixed["worker"]
                self._truth = False
                truth = original
                self._narrow = True
            fixed["truth"] = truth.data
        self._fixed = fixed

    _narrow = False

    @property
    def worker(self) -> bytes | None:
        """The compiled worker, once prepared; None of Python kernels."""
        return (self._fixed or {}).get("worker")

    async def _worker(self, wide: bool) -> bytes:
        source = (INSIDE / "worker.c").read_text(encoding="utf-8").replace("/*GENERATED*/", generated(self.task, wide))
        script = f"gcc {' '.join(DRIVER_FLAGS)} -w worker.c -o worker -ldl -lm\n"
        outcome = await self._ran(
            ["sh", "build"],
            {"worker.c": source, "build": script},
            ["worker"],
            Limits(seconds=60, memory_bytes=2048 * MIB, processes=64),
        )
        if "worker" not in outcome.files:
            if "gcc" in outcome.error_text and "not found" in outcome.error_text:
                raise NeedsError("kernels in C are compiled by gcc, and it is not installed")
            raise InfrastructureError("tool", f"the worker of {self.task.symbol} does not compile: {_first_error(outcome)}")
        return outcome.files["worker"]

    # -- running

    async def trial(
        self, code: Code, number: int = 0, *, time: bool = True, built: Built | str | None = None, pairs: int | None = None
    ) -> WallTrial:
        """Everything that decides on a candidate: build, outputs on fresh inputs, time in pairs.
        ``number`` gives each trial its own inputs."""
        return await self._boxed(code, number, time, built, pairs)

    async def _boxed(self, code: Code, number: int, time: bool, built: Built | str | None, pairs: int | None) -> WallTrial:
        """One box, in which the reference and the candidate run in processes of their own."""
        await self.prepare()
        build = built if built is not None else await self.build(code)
        if isinstance(build, str):
            return WallTrial(build, "build")
        if taken := sorted(build.clocks - (self._original.clocks if self._original else set())):
            return WallTrial(f"it defines {', '.join(taken)}, by which time is read", "clock")
        draws = self.task.input_sets(derived(self.seed, number))
        time = time and self.task.kind != "triton"  # its interpreter says nothing about time
        files, region = self._plan(draws, number, time, pairs or self.pairs)
        assert self._fixed is not None
        if self.task.kind == "c":
            extra = {"reference.so": self._fixed["reference"], "candidate.so": build.data, "worker": self._fixed["worker"]}
            if not self.task.reference:
                extra |= {"truth.so": self._fixed["truth"], "worker-wide": self._fixed["worker-wide"]}
        else:
            extra = {
                "reference.py": self._fixed["reference"],
                "candidate.py": build.data,
                "truth.py": self._fixed["truth"],
                "worker.py": (INSIDE / "worker.py").read_bytes(),
                "about.json": json.dumps(about(self.task, draws)).encode(),
            }
            if self.task.problem:
                extra["problem.py"] = (INSIDE / "problem.py").read_bytes()
        trial = WallTrial()
        for _ in range(
            2
        ):  # once more: on a busy machine the box's own start now and then takes too long; who works elsewhere always does
            outcome = await self._ran(["sh", "start"], {**files, **extra, "start": _START}, [], self._limits(files, region))
            trial = self._judged(outcome, draws)
            if trial.stage != "clock" or not trial.checked:
                break
        return trial

    async def confirm(
        self, code: Code, number: int = 0, *, built: Built | str | None = None, pairs: int | None = None
    ) -> WallTrial:
        """:meth:`trial` in :data:`ROUNDS` fresh boxes that share the ``pairs``,
        in turn with as many of the original in the candidate's place.

        The interval is over the boxes (:func:`gain_of_rounds`), each with inputs of its own. What one box refuses is refused."""
        await self.prepare()
        built = built if built is not None else await self.build(code)
        each = max(2, -(-(pairs or self.pairs) // ROUNDS))
        tried: list[WallTrial] = []
        control: list[Gain] = []
        for i in range(ROUNDS):
            boxed = await self._boxed(code, ROUNDS * number + i, True, built, each)
            tried.append(boxed)
            if boxed.refused or boxed.gain is None:
                return replace(boxed, checked=sum(other.checked for other in tried))
            same = await self._boxed(self.original, ROUNDS * number + i, True, self._original, each)
            if same.gain is None:
                return WallTrial(f"the original in the candidate's place is refused: {same.refused}", same.stage or "clock")
            control.append(same.gain)
        last = tried[-1]
        times = {name: tuple(t for boxed in tried for t in boxed.times[name]) for name in last.times}
        gain = gain_of_rounds([boxed.gain for boxed in tried if boxed.gain is not None], control)
        return replace(last, gain=gain, times=times, checked=sum(boxed.checked for boxed in tried))

    def _limits(self, files: Mapping[str, bytes | str], region: int) -> Limits:
        """``region``: bytes of the outputs of the largest input set."""
        given = len(files["inputs"])
        disk = 64 * MIB + given * 2 + 4 * region + sum(map(len, files.values()))
        python = self.task.kind != "c"
        compiles = 1024 * MIB if self.task.kind in COMPILING else 0  # torch.compile leaves precompiled headers
        disk += compiles
        return Limits(
            seconds=120.0 + 2 * self.call_seconds,
            memory_bytes=(4096 if python else 1024) * MIB + 2 * disk,
            disk_bytes=disk,
            file_bytes=max(64 * MIB, compiles, region + MIB, given + MIB),
            processes=64 if python else 8,
            output_bytes=7 * MIB,
            returned_bytes=MIB,
        )

    def _plan(self, draws: Sequence[InputSet], number: int, time: bool, pairs: int) -> tuple[dict[str, bytes | str], int]:
        """The files of a box, and the bytes of the outputs of the largest input set."""
        pool = bytearray(64)
        laid, region = [], 0
        for at, draw in enumerate(draws):
            counts = self.task.counts(draw.scalars)
            sizes = {array.name: counts[array.name] * array.dtype.itemsize for array in self.task.arrays}
            outs = [array for array in self.task.arrays if array.role & 2]
            whole = sum(_up(sizes[array.name]) + 128 for array in outs)
            slots = max(1, min(4, _OUT_CAP // max(1, whole)))
            arrays, out, wide = [], 64, 0
            for array in self.task.arrays:
                begin = -1
                if array.role & 1:
                    pool += b"\xad\xde\xc0\x7f" * 16 + b"\0" * (-len(pool) % 64)
                    begin = len(pool)
                    values = draw.inputs.get(array.name)
                    pool += (
                        bytes((counts[array.name] + array.beyond(draw.windows)) * array.dtype.itemsize)
                        if values is None
                        else values.tobytes()
                    )
                    pool += b"\0" * (-len(pool) % 64)
                stride = _up(sizes[array.name]) + 128
                arrays.append(
                    {
                        "in": begin,
                        "out": out if array.role & 2 else -1,
                        "wide": wide if array.role & 2 else -1,
                        "count": counts[array.name],
                        "stride": stride,
                        "bytes": sizes[array.name],
                        "item": array.dtype.itemsize,
                        "windowed": not array.fixed,
                        "pool": (counts[array.name] + array.beyond(draw.windows)) * array.dtype.itemsize,
                    }
                )
                if array.role & 2:
                    out += stride * slots + 64
                    wide += 8 * counts[array.name] + 64
            region = max(region, _up(out + 64), wide + 64)
            seed = derived(self.seed, number, at) >> 34
            laid.append(
                {
                    "scalars": scalar_values(self.task, draw.scalars),
                    "arrays": arrays,
                    "slots": slots,
                    "windows": draw.windows,
                    "out_bytes": _up(out + 64),
                    "wide_bytes": wide + 64,
                    "seed": seed,
                    "make": draw.name if self.task.problem else "",
                }
            )
        outputs = sum(bool(array.role & 2) for array in self.task.arrays)
        plan = {
            "whole": _WHOLE // outputs // 8 * 8,
            "blocks": max(1, 12 // outputs),
            "draws": laid,
            "in_bytes": len(pool),
            "call_seconds": self.call_seconds,
            "start_seconds": 60.0,
            "wall": self.task.threads > 1,
            "workers": self._workers(),
            "timing": {"draw": 0, "pairs": pairs, "batch_seconds": self.batch_seconds, "keep": self.keep} if time else None,
        }
        supervisor = (INSIDE / "supervisor.py").read_text(encoding="utf-8")
        return {"plan.json": json.dumps(plan), "inputs": bytes(pool), "supervisor.py": supervisor}, region

    def _workers(self) -> list[dict[str, Any]]:
        if self.task.kind == "c":
            workers = [{"name": name, "argv": ["./worker"], "build": f"./{name}.so"} for name in ("reference", "candidate")]
            return (
                workers
                if self.task.reference
                else [{"name": "truth", "argv": ["./worker-wide"], "build": "./truth.so"}, *workers]
            )
        names = ("reference", "candidate") if self.task.reference else ("truth", "reference", "candidate")
        threads = str(self.task.threads)
        env = {
            "OMP_NUM_THREADS": threads,
            "NUMBA_NUM_THREADS": threads,
            "NUMBA_CACHE_DIR": "/tmp",
            "HOME": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": ":".join(packages()),
        }
        if self.task.kind == "triton":
            env["TRITON_INTERPRET"] = "1"
        keep = ["problem.py"] if self.task.problem else []
        return [
            {"name": name, "argv": ["python", "worker.py"], "build": f"{name}.py", "env": env, "keep": keep} for name in names
        ]

    # -- judging

    def _judged(self, outcome: Outcome, draws: Sequence[InputSet]) -> WallTrial:
        report, bodies = _unpacked(outcome, [array.dtype.itemsize for array in self.task.arrays])
        if report is None:
            why = outcome.error_text.strip()[-300:] or outcome.detail or f"the box ended by {outcome.reason}"
            stage = "clock" if outcome.reason in ("timeout", "cpu", "processes") else "run"
            return WallTrial(f"the box ended before its report ({outcome.reason}): {why}", stage)
        if bad := report.failed.get("truth") or report.failed.get("reference"):
            raise UserError(f"{self.task.path}: the original kernel itself fails: {bad}")
        compared = self._compared(report, bodies, draws)
        skipped = tuple(sorted({draws[n].name for n, why in compared["reference"].items() if why}))
        if compared["reference"].get(0):
            raise UserError(f"{self.task.path}: the kernel disagrees with its reference: {compared['reference'][0]}")
        checked = sum(record.worker == "candidate" for record in report.kept)
        more: dict[str, Any] = {"checked": checked, "skipped": skipped, "notes": tuple(self.notes)}
        if bad := report.failed.get("candidate"):
            return WallTrial(bad, "run", **more)
        for number, why in sorted(compared["candidate"].items()):
            if why and draws[number].name not in skipped:
                return WallTrial(f"{why} (inputs: {draws[number].name})", "wrong", **more)
        if "candidate" in report.varies and not self.task.varies and "reference" not in report.varies:
            return WallTrial(
                f"two runs on the same inputs differ (inputs: {draws[report.varies['candidate']].name})", "wrong", **more
            )
        if clock := self._clock(report, outcome):
            return WallTrial(clock, "clock", **more)
        times = report.times
        if not times:
            return WallTrial(**more)
        subtracts = any(array.role == 3 for array in self.task.arrays)
        empty = report.overhead.get("candidate")
        more |= {"overhead": None if subtracts else empty, "faults": report.faults.get("candidate")}
        if subtracts and (idle := forged_idle(empty, report.overhead.get("reference"))):
            return WallTrial(idle, "clock", **more)
        copying = min(report.overhead.values(), default=0.0) if subtracts else 0.0  # of both: their workers are one program
        net = {name: [max(t - 0.98 * copying, t * 0.02) for t in values] for name, values in times.items()}
        if forged := forged_times(net["candidate"], self.task.threads):
            return WallTrial(forged, "clock", **more)
        gain = paired_gain(net["reference"], net["candidate"], generator(self.seed, "bootstrap"))
        if self.floor and float(np.median(net["candidate"])) < 0.9 * self.floor:
            return WallTrial(
                f"{float(np.median(net['candidate'])):.3g} s a call is less than this machine can take ({self.floor:.3g} s): "
                "the work was not done, or flops and bytes are wrong",
                "physics",
                **more,
            )
        return WallTrial("", "", gain, {name: tuple(values) for name, values in net.items()}, **more)

    def _clock(self, report: BoxReport, outcome: Outcome) -> str:
        """Processor time that is not where it should be, as measured outside the box."""
        inside = report.own + sum(report.used.values()) + report.prepared
        beyond = outcome.cpu_seconds - inside
        if beyond > (0.03 if self.task.kind == "c" else 0.15) + 0.03 * inside:
            return f"{beyond:.2f} s of processor time were used outside the timed process, measured outside the box"
        threads = report.threads.get("candidate", 1)
        if self.task.kind == "c" and threads > max(1, self.task.threads):
            return f"it keeps {threads} threads where {self.task.threads} are declared"
        return ""

    def _compared(self, report: BoxReport, bodies: list[bytes], draws: Sequence[InputSet]) -> dict[str, dict[int, str]]:
        """worker -> draw -> the first thing that is wrong ("" of what is right)."""
        kept = report.kept
        truths = bodies[len(kept) :]
        wrong: dict[str, dict[int, str]] = {"reference": {}, "candidate": {}}
        reference: tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]] | None = None
        for i, (name, number, argument, start, size, seed, call, timed, turn) in enumerate(kept):
            array = self.task.arrays[argument]
            got = np.frombuffer(bodies[i], array.dtype)
            if self.task.reference is not None:
                if reference is None or reference[0] != (number, seed, call, turn):
                    reference = ((number, seed, call, turn), *self._reference_outputs(draws[number], seed, call, turn))
                first, last = start // array.dtype.itemsize, (start + size) // array.dtype.itemsize
                want, scale = reference[1][array.name][first:last], reference[2][array.name][first:last]
            elif 2 * i + 1 < len(truths):
                want, scale = (np.frombuffer(truths[2 * i + j], np.float64) for j in (0, 1))
                if self._narrow:
                    want = scale = np.frombuffer(truths[2 * i], array.dtype).astype(np.float64)
            else:
                raise InfrastructureError("scorer", "the reference gave no answer")
            why = disagreement(got, want, scale, self.task.tolerance, array.name)
            if why and not wrong[name].get(number):
                wrong[name][number] = why + (" in a timed call" if timed else "")
            wrong[name].setdefault(number, "")
        return wrong

    def _reference_outputs(
        self, draw: InputSet, seed: int, call: int, turn: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What the user's reference gives for a call, and on absolute values."""
        shift, counts, both = window_of(seed, call, draw.windows), self.task.counts(draw.scalars), []
        outs = [array for array in self.task.arrays if array.role & 2]
        for absolute in (False, True):
            given: dict[str, Any] = {}
            for array in self.task.arrays:
                if array.role & 1:
                    first = 0 if array.fixed else shift // array.dtype.itemsize
                    pool = draw.inputs[array.name]
                    if not array.fixed:
                        pool = np.frombuffer(turned(pool.tobytes(), array.dtype.itemsize, turn), array.dtype)
                    values = pool[first : first + counts[array.name]]
                    if array.type in "fd":
                        values = np.abs(values).astype(np.float64) if absolute else values.astype(np.float64)
                    given[array.name] = values.copy()
            for name, value in draw.scalars.items():
                kind = self.task.scalar_types[name]
                given[name] = (abs(value) if absolute else value) if kind in "fd" else int(value)
            try:
                with np.errstate(all="ignore"):
                    answer = self.task.reference(**given)  # type: ignore[misc]
            except Exception as error:
                raise UserError(f"the reference of {self.task.symbol} raised {type(error).__name__}: {error}") from error
            named = answer if isinstance(answer, Mapping) else {outs[0].name: answer}
            for array in outs:
                if array.name not in named or np.size(named[array.name]) != counts[array.name]:
                    raise UserError(
                        f"the reference of {self.task.symbol} gives no '{array.name}' of {counts[array.name]} elements"
                    )
            both.append({array.name: np.asarray(named[array.name], np.float64).reshape(-1) for array in outs})
        return both[0], both[1]


def forged_idle(candidate: float | None, original: float | None) -> str:
    """Why the time of a candidate's empty call (seconds), which is subtracted, cannot be what copying its arguments takes, beside
    that of the original; "" where it can."""
    if candidate is None or original is None or candidate <= IDLE * original + 1e-6:
        return ""
    return f"an empty call takes it {candidate:.3g} s and the original {original:.3g} s: it spends time where nothing is asked"


def forged_times(batches: Sequence[float], threads: int = 1) -> str:
    """Why times of a candidate's batches (seconds a call) cannot all be those of the same work, or "".

    One that underflows makes a geometric mean as small as one likes. Wall times of several threads are as long as the machine is
    busy, so of these only times that are not above 0 are refused."""
    middle, least = float(np.median(batches)), min(batches)
    if least <= 0:
        return "a batch took no time at all: what it does is not done in the timed process"
    if threads == 1 and least < middle / COLLAPSE:
        return f"a batch took {least:.3g} s a call where its others take {middle:.3g} s: its work is not done where it is timed"
    return ""


def disagreement(got: np.ndarray, want: np.ndarray, scale: np.ndarray, tolerance: float, name: str = "") -> str:
    """What is wrong with ``got``, shape (n,), or an empty text.
    ``want`` and ``scale`` are doubles: the reference, and it on absolute inputs.

    ``|error| <= tolerance * (|want| + |scale| + 0.1 * max|scale|)``; NaN only where the reference is NaN, infinities alike;
    integers exactly. Of double outputs the tolerance is a millionth of that for floats.
    """
    if got.shape != want.shape:
        return f"{name} has {got.size} elements, not {want.size}"
    if got.dtype.kind in "iu":
        off = np.nonzero(got.astype(np.float64) != want)[0]
        return (
            "" if not len(off) else f"{name}[{off[0]}] is {got[off[0]]}, not {want[off[0]]:g}; {len(off)} of {len(got)} are wrong"
        )
    tolerance = tolerance * (1e-6 if got.dtype == np.float64 else 1.0)
    with np.errstate(all="ignore"):
        wide = got.astype(np.float64)
        finite = np.abs(scale[np.isfinite(scale)])
        bound = tolerance * (np.abs(want) + np.abs(scale) + 0.1 * (float(finite.max()) if finite.size else 0.0)) + 1e-37
        right = (np.abs(wide - want) <= bound) | (np.isnan(wide) & np.isnan(want)) | (wide == want)
        right &= np.isnan(wide) == np.isnan(want)
        right &= ~(np.isinf(wide) & np.isfinite(want))
    off = np.nonzero(~right)[0]
    if not len(off):
        return ""
    return f"{name}[{off[0]}] is {wide[off[0]]:.7g}, not {want[off[0]]:.7g}; {len(off)} of {len(got)} are wrong"


def _up(size: int) -> int:
    return (size + 63) // 64 * 64


def derived(seed: int, *position: int) -> int:
    """A seed of its own for a trial."""
    from ramify.base.seeds import derive_key

    return derive_key(seed, "kernel", *position)


def _unpacked(outcome: Outcome, items: Sequence[int]) -> tuple[BoxReport | None, list[bytes]]:
    """The supervisor's report, and what it kept: first every output,
    then for each the reference and the scale. ``items``: bytes of an element."""
    data = outcome.stdout
    try:
        (size,) = struct.unpack_from("<Q", data, 0)
        report = codec.from_json(BoxReport, json.loads(data[8 : 8 + size]), "the box's report")
        lengths = [record.size for record in report.kept]
        lengths += [record.size // items[record.argument] * 8 for record in report.kept[: report.truths] for _ in range(2)]
    except (struct.error, ValueError, IndexError, UserError):
        return None, []
    at, bodies = 8 + size, []
    for length in lengths:
        bodies.append(data[at : at + length])
        at += length
    return (report, bodies) if at == len(data) else (None, [])


def generated(task: KernelTask, wide: bool) -> str:
    """The lines of worker.c for one signature."""
    names = {"f": "float", "d": "double", "i": "int32_t", "l": "int64_t", "b": "uint8_t"}

    def c_type(kind: str) -> str:
        return "double" if wide and kind == "f" else names[kind]

    arrays = {array.name: (i, array) for i, array in enumerate(task.arrays)}
    scalars = {name: i for i, name in enumerate(task.scalars)}
    parameters, words = [], []
    for name in task.order:
        if name in arrays:
            i, array = arrays[name]
            parameters.append(f"{c_type(array.type)} *")
            words.append(f"p[{i}]")
        else:
            kind = _scalar_c(task, name, wide)
            parameters.append(kind)
            words.append(f"({kind})s[{scalars[name]}]")
    result = arrays.get("result") if "result" not in task.order else None
    returns = c_type(result[1].type) if result else "void"
    call = f"f({', '.join(words)})"
    body = f"*({returns} *)p[{result[0]}] = {call};" if result else f"{call};"
    lists = {
        "char type": [repr(array.type) for array in task.arrays],
        "int role": [str(array.role) for array in task.arrays],
        "int item": [str(array.dtype.itemsize) for array in task.arrays],
        "char scalar_type": [repr(task.scalar_types[name]) for name in task.scalars],
    }
    tables = "".join(f"static const {name}[] = {{{', '.join([*values, '0'])}}};\n" for name, values in lists.items())
    return (
        f'#define SYMBOL "{task.symbol}"\n#define WIDE {int(wide)}\n#define ARRAYS {len(task.arrays)}\n#define SCALARS '
        f"{len(task.scalars)}\n{tables}"
        f"typedef {returns} (*kernel)({', '.join(parameters) or 'void'});\n"
        f"static inline void call(kernel f, const double *s, void **p) {{ {body} }}\n"
    )


def _scalar_c(task: KernelTask, name: str, wide: bool) -> str:
    kind = task.scalar_types[name]
    if kind != "f":
        return {"i": "int32_t", "l": "int64_t", "b": "uint8_t"}[kind]
    head = re.search(rf"\b{task.symbol}\s*\(([^()]*)\)", re.sub(r"//[^\n]*", "", task.source))
    written = re.search(rf"\b(float|double)\s+{name}\b", head[1]) if head else None
    return "double" if wide or (written and written[1] == "double") else "float"


def about(task: KernelTask, draws: Sequence[InputSet]) -> dict[str, Any]:
    """What worker.py must know."""
    names = {array.name for array in task.arrays}

    def shapes(count: str) -> dict[str, list[int]]:
        parts = [part for part in count.split(",") if part.strip()]
        return {
            " ".join(scalar_values(task, draw.scalars)): [int(evaluate(part, draw.scalars)) for part in parts] for draw in draws
        }

    return {
        "symbol": task.symbol,
        "kind": task.kind,
        "threads": task.threads,
        "order": ["array" if name in names else "scalar" for name in task.order],
        "scalars": list(task.scalars),
        "scalar_types": ["f" if task.scalar_types[name] in "fd" else "i" for name in task.scalars],
        "arrays": [
            {
                "name": array.name,
                "dtype": DTYPES[array.type].str,
                "role": array.role,
                "returned": array.name not in task.order,
                "shapes": shapes(array.count) if "," in array.count else {},
            }
            for array in task.arrays
        ],
        "problem": task.problem,
    }


def _first_error(outcome: Outcome) -> str:
    lines = [line for line in outcome.error_text.splitlines() if "error" in line] or outcome.error_text.splitlines()[-3:]
    return " | ".join(line.strip() for line in lines[:3])[:400] or f"the compiler ended by {outcome.reason}"


BUILD = """set -e
gcc -g1 -fPIC -fopt-info-vec-all=remarks "$@" -c kernel.c -o kernel.o
gcc -shared -Wl,--build-id=none kernel.o -o kernel.so -lm
if command -v strip > /dev/null; then strip -o bare kernel.so; fi
if command -v nm > /dev/null; then nm -D -P --defined-only kernel.so | cut -d " " -f 1 > symbols; fi
if command -v objdump > /dev/null; then objdump -d -l --no-show-raw-insn kernel.so > assembly; fi
"""
"""Linked without the flags: gcc links a constructor that flushes denormals for a whole process where it links with
-ffast-math."""
_START = """chmod +x worker worker-wide 2> /dev/null
exec python -I -S supervisor.py
"""


def packages() -> list[str]:
    """Folders of installed packages: a box is shown them read-only where they lie elsewhere than this Python."""
    return [folder for folder in sys.path if folder.endswith(("site-packages", "dist-packages")) and Path(folder).is_dir()]
