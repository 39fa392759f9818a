"""Disassembly, remarks, simulation and tools, on kernels that gcc compiles for AVX2 here."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from ramify.base.errors import UserError
from ramify.methods.kernel_search import tools
from ramify.methods.kernel_search.asm import Instruction, _chain, loops
from ramify.methods.kernel_search.diagnosis import Roofs, class_of, floor_of, gather, remarks
from ramify.methods.kernel_search.edits import TRANSFORMS
from ramify.methods.kernel_search.task import from_c, from_python
from ramify.methods.kernel_search.tools import KernelMetrics, Symptom, examine, tool
from ramify.methods.kernel_search.transforms import for_loops, variants
from ramify.methods.kernel_search.wall import Built, Code, Wall
from ramify_experiments.kernel_search.nvidia.symptoms import GpuKernelMetrics, GpuMetrics
from tests.methods.kernel_search.kernels import ARGMAX, COLUMNS, CREEP, EXP, SUM

AVX2 = ("-O3", "-march=x86-64-v3")
needs_gcc = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("objdump")), reason="gcc and objdump are needed")


def built(source: str, *flags: str) -> tuple[Wall, Built]:
    wall = Wall(from_c(source))
    made = asyncio.run(wall.build(Code(source, (*AVX2, *flags))))
    assert not isinstance(made, str), made
    return wall, made


@needs_gcc
def test_loops_are_judged_and_not_symbols() -> None:
    wall, plain = built(SUM)
    (loop,) = loops(plain.assembly, "sum")
    assert (loop.packed, loop.chain, loop.stores) == (0, True, 0)
    assert loop.scalar >= 1
    simd = SUM.replace("  for", "#pragma omp simd reduction(+:s)\n  for")
    _, vector = built(simd, "-fopenmp-simd")
    loop = loops(vector.assembly, "sum")[0]
    assert loop.packed >= 1
    assert (loop.scalar, loop.width) == (0, 256)
    _, creep = built(CREEP)
    assert loops(creep.assembly, "axpy")[0].converts > 0
    _, exp = built(EXP)
    assert loops(exp.assembly, "each")[0].calls == ("expf",)
    _, columns = built(COLUMNS)
    assert loops(columns.assembly, "columns")[0].strided
    assert loops(plain.assembly, "stripped") == []
    assert wall.task.symbol == "sum"


@needs_gcc
@pytest.mark.parametrize(
    ("source", "wanted"),
    [(SUM, "ReductionOrder"), (EXP, "MathCall"), (CREEP, "PrecisionCreep"), (COLUMNS, "StridedAccess"), (ARGMAX, "BranchInLoop")],
)
def test_a_pathology_fires_its_tool(source: str, wanted: str) -> None:
    wall, _ = built(source)
    metrics = asyncio.run(gather(wall, Code(source, AVX2), simulate=False))
    found, missing = examine(metrics)
    assert [one.tool for one in found if one.severity == "critical"] == [wanted]
    assert found[0].where.startswith("kernel.c:")
    assert found[0].prescription
    assert any("CacheBlocking: not measurable here, it needs cachegrind" in one for one in missing)
    assert examine(metrics)[0] == found  # tools are pure


@pytest.mark.slow
@needs_gcc
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is needed")
def test_misses_are_simulated() -> None:
    wall = Wall(from_c(COLUMNS))
    metrics = asyncio.run(gather(wall, wall.original))
    assert metrics.cache is not None
    assert metrics.loops is not None
    loop = metrics.loops[0]
    reads, misses = metrics.of_loop(loop, "Dr"), metrics.of_loop(loop, "D1mr")
    assert 512 * 512 <= reads <= 512 * 512 + 3 * 512
    assert misses >= 0.99 * 512 * 512
    code = variants("interchange", wall.original, wall.task)[0]
    rows = asyncio.run(gather(wall, code))
    assert rows.loops is not None
    assert not any(one.tool == "StridedAccess" for one in examine(rows)[0])
    assert max(rows.of_loop(one, "D1mr") for one in rows.loops) < 0.2 * misses


def test_missing_metrics_are_said_and_never_raise() -> None:
    found, missing = examine(KernelMetrics())
    assert found == []
    assert len(missing) == len([one for one in tools.TOOLS.values() if one.tier.startswith("C")])
    found, missing = examine(GpuKernelMetrics(sass=GpuMetrics(warps=4, registers=32)))
    assert found == []
    assert any("WarpStall: not measurable here, it needs hardware counters" in one for one in missing)


def test_a_tool_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TOOLS", dict(tools.TOOLS))

    @tool(tier="C1", category="latency", needs=("seconds",), prescription="Wait less.", check="seconds")
    def takes_long(m: KernelMetrics) -> Symptom | None:
        return Symptom("it takes long") if m.seconds and m.seconds > 1 else None

    assert takes_long(KernelMetrics(seconds=2)) is not None
    (found,) = examine(KernelMetrics(seconds=2.0, file="k.c"))[0]
    assert (found.tool, found.where, found.prescription) == ("TakesLong", "k.c", "Wait less.")
    assert found.finding("m", None).action == "Wait less."
    for more, said in (
        ({"prescription": " "}, "no prescription"),
        ({"tier": "Z9"}, "which is none"),
        ({"needs": ("mood",)}, "not a metric"),
    ):
        with pytest.raises(UserError, match=said):
            tool(**{"tier": "C1", "category": "latency", "prescription": "x", "check": "y", **more})(takes_long)  # type: ignore[arg-type]


def test_the_class_is_of_the_operation() -> None:
    roofs = Roofs(100e9, {1 << 14: 200e9, 1 << 22: 10e9}, 0.01)
    assert (roofs.at(1), roofs.at(1 << 20), roofs.at(1 << 30)) == (200e9, 10e9, 10e9)
    assert class_of(2e6, 12e6, roofs) == "memory"
    assert class_of(2e12, 12e6, roofs) == "compute"
    task = from_c(SUM)
    assert floor_of(task, roofs) == pytest.approx(80_004 / 200e9)


def test_remarks_are_read_by_line() -> None:
    text = "kernel.c:4:3: missed: couldn't vectorize loop\nkernel.c:4:3: missed: not vectorized: control flow in loop.\n"
    assert remarks(text) == {4: ("control flow in loop",)}


def test_transforms_edit_loops_and_leave_the_rest() -> None:
    task = from_c(COLUMNS)
    code = Code(COLUMNS, AVX2)
    assert [one.var for one in for_loops(COLUMNS, "columns")] == ["j", "i"]
    swapped = variants("interchange", code, task)[0].source
    assert "y[j] += x[i * m + j]" in swapped
    assert swapped.index("int i = 0") < swapped.rindex("int j = 0")
    assert "*restrict x" in variants("restrict", code, task)[0].source
    creep = Code(CREEP, AVX2)
    assert "(float)a * x[i]" in variants("float-literals", creep, from_c(CREEP))[0].source
    total = Code(SUM, AVX2)
    assert "reduction(+:s)" in variants("simd-reduction", total, from_c(SUM))[0].source
    assert len(variants("accumulators", total, from_c(SUM))) == 2
    branch = (
        "// ramify: n = 9\nvoid f(int n, const float *x, float *y) {\n for (int i = 0; i < n; i++) {\n  if (x[i] > 1.0f) y[i] = "
        "1.0f; else if (x[i] < 0) y[i] = 0; else y[i] = x[i];\n }\n}\n"
    )
    made = variants("select", Code(branch, AVX2), from_c(branch))[0].source
    assert "y[i] = (x[i] > 1.0f) ? (1.0f) : ((x[i] < 0) ? (0) : (x[i]));" in made
    assert len(TRANSFORMS) >= 14
    assert replace(code, source=code.source + "  \n// said\n").key == code.key  # after formatting
    knobbed = from_c(SUM.replace("flops n", "flops n; knob T = 1, 2, 4"))
    assert [one.macros["T"] for one in variants("knob", Code(SUM, AVX2, {"T": "1"}), knobbed)] == ["2", "4"]
    for name in TRANSFORMS:  # none raises on what it does not understand
        for odd in ("void columns(int n) { while (n) n--; }", "void columns(", COLUMNS.replace("}", "", 1)):
            variants(name, Code(odd, AVX2), task)


def test_operators_of_torch_are_read_and_a_lean_kernel_has_no_finding() -> None:
    rows = {"clone": (3, 6000), "_to_copy": (2, 4000), "mul": (2, 7000), "add": (2, 6000)}
    found, missing = examine(KernelMetrics(torch=True, operators=rows, bytes=6000.0))
    assert [(one.tool, one.severity) for one in found] == [("UnfusedOperators", "critical"), ("CopiedTensors", "critical")]
    assert "5 operators that only copy or change the type move 43% of all bytes" in found[1].cause
    assert "drop-copies" in found[1].transforms
    assert not any("CopiedTensors" in one for one in missing)
    assert examine(KernelMetrics(torch=True, operators={"mm": (1, 6000)}, bytes=6000.0))[0] == []
    found, missing = examine(KernelMetrics(torch=True))  # compiled by torch, or it does not run alone
    assert found == []
    assert any(one.startswith("CopiedTensors: not measurable here, it needs a call whose operators") for one in missing)
    assert not any("CopiedTensors" in one for one in examine(KernelMetrics())[1])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_torch_kernel_is_called_once_with_its_operators_counted() -> None:
    pytest.importorskip("torch")
    head = "import torch\n# ramify: n = 64, 7; s = 2.0; x[n, 3]; out y[n, 3]; result[n]\n"
    body = "def f(n, s, x, y):\n    y.copy_(x.clone() * s)\n    return y.sum(1)\n"
    wall = Wall(from_python(head + body, path="f.py"))
    metrics = asyncio.run(gather(wall, wall.original, simulate=False))
    assert metrics.operators is not None
    assert {name: tuple(row) for name, row in metrics.operators.items()} == {
        "clone": (1, 2 * 768), "mul": (1, 2 * 768), "copy": (1, 3 * 768), "sum": (1, 768 + 256),
    }  # fmt: skip
    lazy = Code(wall.original.source.replace("def f", "@torch.compile\ndef f"))
    assert asyncio.run(gather(wall, lazy, simulate=False)).operators is None


IN_ORDER = """vmovups (%rax),%ymm7
vmulps %ymm7,%ymm7,%ymm3
vaddss %xmm3,%xmm6,%xmm0
vshufps $0x55,%xmm3,%xmm3,%xmm6
vaddss %xmm6,%xmm0,%xmm0
vextractf128 $0x1,%ymm3,%xmm3
vaddss %xmm3,%xmm0,%xmm6"""
"""What gcc makes of a sum of squares in order for an AVX2 processor: the sum passes through two registers."""


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (IN_ORDER, True),
        (IN_ORDER.rpartition("\n")[0], False),  # the sum is not what the next iteration starts from
        ("vaddsd (%rdi,%rax,8),%xmm0,%xmm0", True),
        ("addsd %xmm1,%xmm0", True),
        ("vfmadd231ss (%rax,%rcx,4),%xmm2,%xmm1", True),
        ("vfmadd213ss %xmm3,%xmm2,%xmm1", False),  # Horner: the number is multiplied, another is added
        ("vmovss (%rax),%xmm0\nvaddss %xmm1,%xmm0,%xmm0", False),
        ("vaddss %xmm1,%xmm0,%xmm0\nvxorps %xmm0,%xmm0,%xmm0", False),
        ("vaddss %xmm1,%xmm0,%xmm0\nvucomiss %xmm2,%xmm0", True),
    ],
)
def test_a_sum_in_order_is_told_by_what_the_next_iteration_starts_from(text: str, chain: bool) -> None:
    body = [Instruction(0, *line.split(" ", 1)) for line in text.splitlines()]
    assert _chain(body) is chain
