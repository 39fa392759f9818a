"""GPU kernels without a GPU: machine code as text, and Triton's own compiler where it is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.cli.main import main
from ramify.methods.kernel_search.sass import counts, ptx_counts, sass_metrics

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
    assert (found["LDG128"], found["LDG32"], found["STG64"], found["LDL"], found["STL"], found["HMMA"], found["BAR"]) == (
        1,
        1,
        1,
        1,
        1,
        1,
        1,
    )
    assert found["instructions"] == 8
    metrics = sass_metrics(SASS, USAGE, "sm_90", 4, dot=True)
    assert (metrics["registers"], metrics["stack"], metrics["occupancy"], metrics["limiter"]) == (254, 344, 0.125, "registers")
    ptx = "ld.global.v4.f32 {%f1};\nld.global.f32 %f2;\nwgmma.mma_async.sync;\nbar.sync 0;\n"
    assert {name: ptx_counts(ptx)[name] for name in ("LDG128", "LDG32", "HGMMA", "BAR")} == {
        "LDG128": 1,
        "LDG32": 1,
        "HGMMA": 1,
        "BAR": 1,
    }


def test_the_verb_reads_text_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "add.sass"
    path.write_text(SASS + USAGE, encoding="utf-8")
    assert main(["kernel-search", "sass", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tools = {one["tool"]: one for one in found["findings"]}
    assert tools["GpuRegisterSpill"]["evidence"]["LDL+STL"]["value"] == 2
    assert "limited by registers" in tools["OccupancyLimiter"]["cause"]
    assert "HMMA" in tools["TensorCore"]["cause"]
    assert any(one.startswith("WarpStall: not measurable here") for one in found["not_measurable"])
    ptx = tmp_path / "add.ptx"
    ptx.write_text("ld.global.f32 %f2;\n" * 8, encoding="utf-8")
    assert main(["kernel-search", "sass", str(ptx), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["tool"] for one in found["findings"]] == ["Vectorization"]
    assert "PTX has no registers yet" in found["not_measurable"][-1]


def test_a_triton_kernel_needs_types_and_triton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "add.py"
    path.write_text(TRITON.replace("# ramify: signature {types}; warps 4\n", ""), encoding="utf-8")
    assert main(["kernel-search", "sass", f"{path}:add"]) == 2
    assert "--signature" in capsys.readouterr().err
    assert main(["kernel-search", "sass", f"{path}:sub"]) == 2
    assert "no Triton kernel 'sub' (known: add)" in capsys.readouterr().err


def test_divisible_pointers_are_read_in_128_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "add.py"
    for types, narrow in (("*fp32, *fp32, *fp32, i32, 1024", True), ("*fp32:16, *fp32:16, *fp32:16, i32:16, 1024", False)):
        path.write_text(TRITON.replace("{types}", types), encoding="utf-8")
        assert main(["kernel-search", "sass", f"{path}:add", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["metrics"].get("LDG128", 0) == 0) == narrow
        assert any(one["tool"] == "Vectorization" for one in found["findings"]) == narrow
