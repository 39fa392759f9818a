"""GPU kernels without a GPU: machine code as text, and Triton's own compiler where it is installed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.kernel_search.compiled import CompileTarget, is_compiled
from ramify.methods.kernel_search.named import read_task
from ramify.methods.kernel_search.task import from_python
from ramify.methods.kernel_search.tools import examine
from ramify.methods.kernel_search.wall import Wall
from ramify_experiments.kernel_search.nvidia import sass, tuning
from ramify_experiments.kernel_search.nvidia.chips import occupancy
from ramify_experiments.kernel_search.nvidia.ptx import DATA, OPEN, Access, accesses, block_of, entries
from ramify_experiments.kernel_search.nvidia.reading import GpuReading
from ramify_experiments.kernel_search.nvidia.sass import counts, functions_of, nvidia_tool, ptx_counts, sass_metrics, usage_of
from ramify_experiments.kernel_search.nvidia.symptoms import GpuKernelMetrics, GpuMetrics

GPU = Path(__file__).parent / "gpu"
"""Texts of the real tools, made from the .cu files beside them: nvcc 13.0 -lineinfo -arch=sm_90 -ptx (.ptx), ptxas -v (.usage),
nvdisasm -c (.sass) and cuobjdump --dump-resource-usage (.listing) of Triton 3.9;
columns_triton.ptx is what that Triton writes for a sum over rows of a matrix."""

SASS = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0180*/              @!P0 LDG.E.128 R16, desc[UR4][R20.64] ;
        /*0190*/              @P1  LDG.E R12, desc[UR4][R22.64] ;
        /*01a0*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*01b0*/                   LDL R5, [R1+0x4] ;
        /*01c0*/                   STL [R1+0x4], R5 ;
        /*01d0*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*01e0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
"""
USAGE = "Function add:\n  REG:254 STACK:344 SHARED:0 LOCAL:0 CONSTANT[0]:576\n"
TRITON = """import triton
import triton.language as tl
# ramify: signature {types}; warps 4
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)
"""


def test_machine_code_is_counted() -> None:
    found = counts(SASS)
    ones = ("LDG128", "LDG32", "STG64", "LDL", "STL", "HMMA", "BAR")
    assert {name: found[name] for name in ones} == dict.fromkeys(ones, 1)
    assert found["instructions"] == 8
    metrics = sass_metrics(SASS, usage_of(USAGE, "", "sm_90"), "sm_90", 4)
    assert (metrics.registers, metrics.stack, metrics.occupancy, metrics.limiter) == (254, 344, 0.125, "registers")
    ptx = "ld.global.v4.f32 {%f1};\nld.global.f32 %f2;\nwgmma.mma_async.sync;\nbar.sync 0;\n"
    ones = ("LDG128", "LDG32", "HGMMA", "BAR")
    assert {name: ptx_counts(ptx)[name] for name in ones} == dict.fromkeys(ones, 1)


def test_the_verb_reads_text_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "add.sass"
    path.write_text(SASS + USAGE, encoding="utf-8")
    assert main(["kernel-search", "diagnose", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tools = {one["tool"]: one for one in found["findings"]}
    assert tools["GpuRegisterSpill"]["evidence"]["LDL+STL"]["value"] == 2
    assert "limited by registers" in tools["OccupancyLimiter"]["cause"]
    assert "HMMA" in tools["TensorCore"]["cause"]
    assert any(one.startswith("WarpStall: not measurable here") for one in found["not_measurable"])


def test_occupancy_and_what_limits_it() -> None:
    assert occupancy(4, 254, 0) == (2, 0.125, "registers")
    assert occupancy(4, 32, 0)[:2] == (16, 1.0)
    assert occupancy(4, 32, 64 * 1024) == (3, 0.1875, "shared memory")


def test_without_the_experiments_one_sentence_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "ramify", "kernel-search"]
    env = {**os.environ, "RAMIFY_PLUGINS": ""}
    for words in (["diagnose", f"{GPU / 'strided.ptx'}:columns"], ["tune", "add.py:add", "BLOCK = 64"]):
        done = subprocess.run([*command, *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 4
        assert "ramify-experiments, which is not installed" in " ".join(done.stderr.split())


def touched(name: str, kernel: str) -> list[Access]:
    return accesses((GPU / name).read_text(encoding="utf-8"), kernel)


def test_what_a_warp_touches_is_followed_in_ptx() -> None:
    *loads, store = touched("strided.ptx", "columns")  # each thread sums a row of 1024 floats
    assert {(one.op, one.line, one.bytes, one.stride, one.sectors, one.ideal) for one in loads} == {
        ("ld.global", 7, 4, 4096, 32, 4)
    }
    assert (store.op, store.line, store.stride, store.sectors, store.ideal) == ("st.global", 9, 4, 4, 4)
    read, write, across, out = touched("strided.ptx", "transpose")  # a tile of 32 x 32 without padding
    assert (read.sectors, read.ideal, out.sectors, out.ideal) == (4, 4, 4, 4)
    assert (write.op, write.conflicts, across.op, across.stride, across.conflicts) == ("st.shared", 1, "ld.shared", 128, 32)
    index, data, _ = touched("strided.ptx", "gather")
    assert (index.why, data.why, data.sectors) == ("", DATA, None)
    loads = [one for one in touched("columns_triton.ptx", "cols") if one.op == "ld.global"]
    assert {(one.line, one.stride, one.sectors) for one in loads} == {(14, 4096, 32)}


def followed(*lines: str) -> list[Access]:
    head = ".visible .entry f(\n\t.param .u64 f_0,\n\t.param .u32 f_1\n)\n.reqntid 16, 16, 1\n{\n"
    text = head + "".join(f"\t{line};\n" for line in ("ld.param.u64 %rd1, [f_0]", "mov.u32 %r1, %tid.x", *lines)) + "}\n"
    assert block_of(entries(text)["f"][0]) == (16, 16, 1)
    return accesses(text, "f")


@pytest.mark.parametrize(
    ("size", "step", "conflicts"),
    [("f32", 4, 1), ("f32", 8, 2), ("f32", 132, 1), ("f32", 0, 1), ("v2.f32", 8, 1), ("v4.f32", 16, 1), ("v4.f32", 64, 4)],
)
def test_uses_of_a_bank_are_counted(size: str, step: int, conflicts: int) -> None:
    (one,) = followed("mov.u32 %r2, %laneid", f"mul.lo.s32 %r3, %r2, {step}", f"ld.shared.{size} {{%f1}}, [%r3+16]")
    assert one.conflicts == conflicts


PTX = (GPU / "strided.ptx").read_text(encoding="utf-8")


@pytest.mark.slow
@given(st.data())
def test_damaged_ptx_is_followed_as_far_as_it_goes(data: st.DataObject) -> None:
    at, size = data.draw(st.integers(0, len(PTX))), data.draw(st.integers(0, 60))
    text = PTX[:at] + data.draw(st.text("0123456789abx%.,;[]{}()_ \n@-", max_size=12)) + PTX[at + size :]
    for name in entries(text):
        assert all(one.bytes >= 0 for one in accesses(text, name))
    assert usage_of(text, "columns", "sm_90") is not None
    assert functions_of(text) is not None
    assert counts(text) is not None
    assert ptx_counts(text) is not None


def test_addresses_are_followed_or_left_open() -> None:
    rows, wide, same, mask, opened = followed(
        "mul.wide.u32 %rd2, %r1, 4",
        "add.s64 %rd3, %rd1, %rd2",
        "ld.global.nc.f32 %f1, [%rd3]",  # 16 threads in x, two rows of y at the same place
        "shl.b32 %r4, %r1, 4",
        "cvt.u64.u32 %rd4, %r4",
        "add.s64 %rd5, %rd4, %rd1",
        "@%p1 st.global.v4.b32 [ %rd5 + 0 ], { %r5, %r6, %r7, %r8 }",
        "ld.global.f32 %f2, [%rd1]",
        "and.b32 %r9, %r1, 3",
        "mad.wide.s32 %rd6, %r9, 32, %rd1",
        "ld.global.f32 %f3, [%rd6]",
        "prmt.b32 %r10, %r1, 0, 0x1234",
        "cvt.u64.u32 %rd7, %r10",
        "add.s64 %rd8, %rd7, %rd1",
        "ld.global.f32 %f4, [%rd8]",
    )
    assert (rows.sectors, rows.ideal, rows.stride) == (2, 2, None)
    assert (wide.op, wide.bytes, wide.sectors, wide.ideal) == ("st.global", 16, 8, 8)
    assert (same.sectors, same.ideal, same.stride) == (1, 1, 0)
    assert (mask.sectors, mask.ideal) == (4, 1)
    assert (opened.sectors, opened.why) == (None, OPEN)


def test_usage_is_read_as_ptxas_and_cuobjdump_say_it() -> None:
    said = usage_of((GPU / "spilled.usage").read_text(), "spilled", "sm_90")
    assert said == {"registers": 32, "shared": 24576, "stack": 80, "spilled": 196 + 228}
    listed = usage_of((GPU / "spilled.listing").read_text(), "spilled", "sm_90")  # 25600 with what a block has reserved
    assert listed == {"registers": 32, "shared": 24576, "stack": 80}
    code = functions_of((GPU / "spilled.sass").read_text())
    assert list(code) == ["spilled"]
    found = sass_metrics(code["spilled"], listed, "sm_90", 8)
    assert (found.count("LDL"), found.count("STL"), found.occupancy, found.blocks) == (53, 45, 1.0, 8)


def test_ptx_alone_is_diagnosed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "nvidia_tool", lambda program: None)
    assert main(["kernel-search", "diagnose", f"{GPU / 'strided.ptx'}:columns", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (one,) = [one for one in found["findings"] if one["tool"] == "StridedGlobal"]
    assert (one["where"], one["severity"]) == ("strided.cu:7", "critical")
    assert "32 sectors of 32 bytes for data that fill 4: neighbouring threads are 4096 bytes apart" in one["cause"]
    assert "PTX has no registers yet" in found["not_measurable"][-1]
    assert main(["kernel-search", "diagnose", f"{GPU / 'strided.ptx'}:transpose"]) == 0
    text = capsys.readouterr().out
    assert "ld.shared uses one bank 32 times" in text
    assert "WarpStall, MemoryCoalescing" in text
    for spec, part in (
        ("strided.ptx", "name one, as"),
        ("strided.ptx:column", "did you mean 'columns'"),
        ("strided.cu:columns", "compiled by nvcc, which is not here"),
    ):
        assert main(["kernel-search", "diagnose", str(GPU / spec)]) in (2, 4)
        assert part in capsys.readouterr().err


def test_spills_of_a_disassembly_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spilled.sass"
    path.write_text((GPU / "spilled.sass").read_text() + (GPU / "spilled.listing").read_text(), encoding="utf-8")
    assert is_compiled(str(path))
    assert main(["kernel-search", "diagnose", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tools = {one["tool"]: one for one in found["findings"]}
    assert tools["GpuRegisterSpill"]["evidence"]["LDL+STL"]["value"] == 98
    assert found["metrics"]["registers"] == 32
    assert any("StridedGlobal: not measurable here, it needs PTX" in one for one in found["not_measurable"])


@pytest.mark.slow
def test_cuda_is_compiled_in_the_sandbox(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not (nvidia_tool("nvcc") and nvidia_tool("ptxas")):
        pytest.skip("nvcc and ptxas are needed")
    assert main(["kernel-search", "diagnose", str(GPU / "spilled.cu"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["registers"] <= 32
    assert found["metrics"]["warps"] == 8
    assert "GpuRegisterSpill" in {one["tool"] for one in found["findings"]}
    broken = tmp_path / "broken.cu"
    broken.write_text("__global__ void f(float *x) { x[0] = y; }\n", encoding="utf-8")
    assert main(["kernel-search", "diagnose", str(broken)]) == 2
    assert "cannot be compiled or read for sm_90" in capsys.readouterr().err


def test_a_triton_kernel_needs_types_and_triton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "add.py"
    path.write_text(TRITON.replace("# ramify: signature {types}; warps 4\n", ""), encoding="utf-8")
    assert main(["kernel-search", "diagnose", f"{path}:add", "--arch", "sm_90"]) == 2
    assert "--signature" in capsys.readouterr().err
    assert main(["kernel-search", "diagnose", f"{path}:sub", "--signature", "*fp32, i32, 1024"]) == 2
    assert "no Triton kernel 'sub' (known: add)" in capsys.readouterr().err


def test_divisible_pointers_are_read_in_128_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "add.py"
    for types, narrow in (("*fp32, *fp32, *fp32, i32, 1024", True), ("*fp32:16, *fp32:16, *fp32:16, i32:16, 1024", False)):
        path.write_text(TRITON.replace("{types}", types), encoding="utf-8")
        assert main(["kernel-search", "diagnose", f"{path}:add", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["metrics"]["counts"].get("LDG128", 0) == 0) == narrow
        assert any(one["tool"] == "Vectorization" for one in found["findings"]) == narrow


INTERPRETED = """import torch
import triton
import triton.language as tl
# ramify: n = 1000, 37; x[n]; y[n]; result[n]
@triton.jit
def kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)
def add(n, x, y):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(n, 256),)](x, y, out, n, 256)
    return out
"""


def test_triton_runs_in_its_interpreter_and_is_not_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = tmp_path / "add.py"
    kernel.write_text(INTERPRETED, encoding="utf-8")
    wall = Wall(read_task(f"{kernel}:add"))
    assert {one["env"]["TRITON_INTERPRET"] for one in wall._workers()} == {"1"}
    assert not any(
        "TRITON_INTERPRET" in one["env"]
        for one in Wall(from_python(INTERPRETED.replace("triton", "numba"), "add"))._workers()
        if "env" in one
    )
    assert main(["kernel-search", "search", f"{kernel}:add", "--out", str(tmp_path / "run")]) == 2
    assert "timed on a GPU only" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_triton_kernel_is_compared_and_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    kernel, wrong = tmp_path / "add.py", tmp_path / "wrong.py"
    kernel.write_text(INTERPRETED, encoding="utf-8")
    wrong.write_text(INTERPRETED.replace("y + at, mask=mask)", "y + at, mask=mask) * 2"), encoding="utf-8")
    assert main(["kernel-search", "bench", f"{kernel}:add", str(kernel)]) == 0
    assert "outputs; nothing was timed" in capsys.readouterr().out
    assert main(["kernel-search", "bench", f"{kernel}:add", str(wrong)]) == 1
    assert "refused (wrong)" in capsys.readouterr().out


def test_configurations_worth_timing_are_written_for_autotune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, out, read = tmp_path / "add.py", tmp_path / "configs.py", []
    kernel.write_text(TRITON.format(types="*fp32:16, *fp32:16, *fp32:16, i32, 1024"), encoding="utf-8")

    def compiled(spec: str, target: CompileTarget) -> GpuReading:
        block, warps = int(target.signature.rsplit(", ", 1)[1]), target.warps or 0
        read.append((block, warps, target.stages))
        if block == 7:
            raise UserError("add.py: it does not compile: arange's range must be a power of 2")
        counts = {"LDL": 40 if block == 4096 else 0, "STL": 0, "instructions": 9}
        metrics = GpuMetrics(
            target.arch, warps, 32, blocks=0 if warps == 16 else 4, occupancy=warps / 8, limiter="shared memory", counts=counts
        )
        found = tuple(examine(GpuKernelMetrics(sass=metrics))[0]) if block == 4096 else ()
        return GpuReading("add", metrics, (), found, ())

    monkeypatch.setattr(tuning, "read_gpu", compiled)
    words = ["kernel-search", "tune", f"{kernel}:add", "--stages", "3"]
    assert main([*words, "BLOCK = 7, 1024, 4096; warps = 2, 4", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["configurations"]
    assert sorted(read) == [(block, warps, 3) for block in (7, 1024, 4096) for warps in (2, 4)]
    assert [(one["constants"]["BLOCK"], one["warps"]) for one in found if not one["why"]] == [("1024", 4), ("1024", 2)]
    assert {one["why"] for one in found if one["why"]} == {
        "does not compile: arange's range must be a power of 2",
        "spills registers 40 times",
    }
    written = ast.parse(out.read_text(encoding="utf-8"))
    (configs,) = [
        ast.unparse(one)
        for one in ast.walk(written)
        if isinstance(one, ast.List) and one.elts and isinstance(one.elts[0], ast.Call)
    ]
    assert (
        configs == "[triton.Config({'BLOCK': 1024}, num_warps=4, num_stages=3), triton.Config({'BLOCK': 1024}, num_warps=2, "
        "num_stages=3)]"
    )
    assert main([*words, "BLOCK = 4096; warps = 4", "--json"]) == 0  # where all spill, none is left out for it
    assert [one["why"] for one in json.loads(capsys.readouterr().out.splitlines()[-1])["configurations"]] == [""]
    for choices, part in (
        ("BLOCKS = 64", "did you mean 'BLOCK'"),
        ("n = 64", "'n' is not a constant of add"),
        ("BLOCK = x", "'BLOCK = x' is not a choice"),
        ("warps = 64", "warps are from 1 to 32"),
        (";", "CHOICES names no choice"),
        ("BLOCK = 7", "no configuration of add can run: BLOCK=7"),
        ("BLOCK = 1024; warps = 16", "does not fit a multiprocessor: shared memory"),
        ("BLOCK = " + ", ".join(map(str, range(1, 202))), "more than 200"),
    ):
        assert main([*words, choices]) == 2
        assert part in " ".join(capsys.readouterr().err.split())
    assert main([*words, "warps = 4", "--signature", "i32"]) == 2
    assert "1 types" in " ".join(capsys.readouterr().err.split())
    assert main(["kernel-search", "tune", f"{GPU / 'strided.ptx'}:columns", "warps = 4"]) == 2
    assert "there is no Triton kernel" in capsys.readouterr().err
