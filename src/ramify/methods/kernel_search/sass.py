"""NVIDIA kernels without a GPU (tier G0): what their machine code and resource usage tell.

A Triton kernel is compiled ahead of time for a chip that need not be here; a ``.sass`` file (nvdisasm, cuobjdump -sass), a ``.ptx`` file or
a ``.cubin`` is read as it is. Stall reasons and hit rates need counters and are listed as not measurable.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.files import read_small
from ramify.methods.kernel_search.algorithm import DEVICES, occupancy
from ramify.methods.kernel_search.tools import KernelMetrics, Prescription, examine
from ramify.methods.kernel_search.wall import INSIDE, packages
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.M)
_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:(\d+)")


def counts(sass: str) -> dict[str, int]:
    """Instructions by what they do. Of accesses to global memory also by width: LDG32 (32 bits and less), LDG64, LDG128, and so STG."""
    found: Counter[str] = Counter()
    for one in _SASS.finditer(sass):
        name, _, form = one[1].partition(".")
        found["instructions"] += 1
        found[name] += 1
        if name in ("LDG", "STG"):
            width = (
                "128" if "128" in form else "64" if re.search(r"\b64\b", form.replace(".", " ").replace("E 64", "64")) else "32"
            )
            found[name + width] += 1
    for name in ("BAR", "BSSY", "BSYNC", "LDL", "STL", "HMMA", "HGMMA", "FFMA"):
        found.setdefault(name, 0)
    return dict(found)


def ptx_counts(ptx: str) -> dict[str, int]:
    """The same of PTX, where registers are not yet given out: accesses, matrix instructions, barriers."""
    patterns = {
        "LDG128": r"\bld\.global\S*\.v4\.\w*32|\bld\.global\S*\.v2\.\w*64", "LDG32": r"\bld\.global(?!\S*\.v)\S*\.\w?(?:8|16|32)\b", "STG128": r"\bst\.global\S*\.v4\.\w*32|\bst\.global\S*\.v2\.\w*64",
        "STG32": r"\bst\.global(?!\S*\.v)\S*\.\w?(?:8|16|32)\b", "LDL": r"\bld\.local", "STL": r"\bst\.local", "HMMA": r"\bmma\.sync", "HGMMA": r"\bwgmma\.mma_async", "BAR": r"\bbar(?:rier)?\.",
        "FFMA": r"\bfma\.rn\.f32", "instructions": r";\s*$", "BSSY": r"(?!)",
    }  # fmt: skip
    return {name: len(re.findall(pattern, ptx, re.M)) for name, pattern in patterns.items()}


def sass_metrics(sass: str, usage: str, arch: str, warps: int, shared: int | None = None, dot: bool = False) -> dict[str, Any]:
    """What the GPU's tools read: counts, registers, stack, shared memory, occupancy and its limiter."""
    found: dict[str, Any] = dict(counts(sass))
    told = _USAGE.search(usage)
    registers = int(told[1]) if told else _highest(sass) + 1
    found |= {
        "registers": registers,
        "stack": int(told[2]) if told else 0,
        "shared": max(int(told[3]) if told else 0, shared or 0),
        "warps": warps,
        "arch": arch,
        "dot": dot,
    }
    blocks, share, limiter = occupancy(warps, registers, found["shared"], DEVICES.get(arch))
    return found | {"blocks": blocks, "occupancy": share, "limiter": limiter}


def _highest(sass: str) -> int:
    return max((int(one) for one in re.findall(r"\bR(\d+)\b", sass)), default=0)


def read_gpu(
    spec: str,
    arch: str = "sm_90",
    signature: str = "",
    warps: int = 4,
    stages: int | None = None,
    allow_unsandboxed: bool = False,
) -> dict[str, Any]:
    """Everything that tier G0 says of ``FILE.py:KERNEL`` (Triton), or of a file with SASS, PTX or a cubin.

    Raises UserError on a file that is none of them or does not compile, NeedsError where Triton or nvdisasm is missing.
    """
    if arch not in DEVICES:
        from ramify.base.errors import nearest

        raise UserError(f"--arch {arch} is no known chip ({nearest(arch, DEVICES)})")
    name, _, function = spec.partition(".py:")
    path = Path(f"{name}.py" if function else spec)
    if not path.is_file():
        raise UserError(f"there is no kernel {path}: name FILE.py:KERNEL, or a .sass, .ptx or .cubin file")
    usage, shared, dot = "", None, False
    if path.suffix == ".py":
        text = _text(path)
        found = _compiled(path, text, function, arch, signature, warps, stages, allow_unsandboxed)
        sass, usage, shared, warps = found["sass"], found["usage"], int(found["shared"]), int(found["warps"])
        dot = bool(re.search(r"\btl\.dot\s*\(|\bdot\s*\(", text))
    elif path.suffix == ".ptx":
        text = _text(path)
        metrics: dict[str, Any] = {
            **ptx_counts(text),
            "registers": 0,
            "stack": 0,
            "shared": 0,
            "warps": warps,
            "arch": arch,
            "dot": "mma" in text,
        }
        return _told(
            path,
            metrics | {"occupancy": None, "limiter": "not known before registers are given out", "blocks": None},
            partial=True,
        )
    elif path.suffix == ".cubin":
        sass, usage = (_disassembled(path, *command) for command in (("nvdisasm", "-c"), ("cuobjdump", "--dump-resource-usage")))
    else:
        sass = _text(path)
        usage = sass
    if not _SASS.search(sass):
        raise UserError(f"{path} holds no SASS: write it with nvdisasm -c or cuobjdump -sass")
    return _told(path, sass_metrics(sass, usage, arch, warps, shared, dot or bool(re.search(r"\b(?:HMMA|HGMMA)\b", sass))))


def _told(path: Path, metrics: dict[str, Any], partial: bool = False) -> dict[str, Any]:
    found, missing = examine(KernelMetrics(sass=metrics, file=path.name))
    if partial:
        found = [one for one in found if one.tool not in ("OccupancyLimiter", "HighRegisterUsage")]
        missing = [*missing, "OccupancyLimiter: not measurable here, PTX has no registers yet (compile it to a cubin)"]
    return {"metrics": metrics, "findings": [one.to_json() for one in found], "not_measurable": missing, "prescriptions": found}


def _text(path: Path) -> str:
    return read_small(path, "the kernel", 64 << 20).decode("utf-8", "replace")


def _disassembled(path: Path, program: str, *words: str) -> str:
    found = shutil.which(program) or next(
        (str(one) for folder in sys.path for one in [Path(folder) / "triton/backends/nvidia/bin" / program] if one.is_file()),
        None,
    )
    if found is None:
        raise NeedsError(f"a cubin is read by {program}, which is not here: it comes with CUDA and with Triton")
    try:
        done = subprocess.run([found, *words, str(path)], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError("tool", f"{program} failed: {error}") from None
    if done.returncode:
        raise UserError(f"{program} cannot read {path}: {done.stderr.decode('utf-8', 'replace').strip()[:200]}")
    return done.stdout.decode("utf-8", "replace")


def _compiled(
    path: Path, text: str, function: str, arch: str, signature: str, warps: int, stages: int | None, allow: bool
) -> dict[str, Any]:
    noted = re.search(r"^\s*#\s*ramify:\s*signature\s+([^;\n]+)(?:;\s*warps\s+(\d+))?", text, re.M)
    signature = signature or (noted[1].strip() if noted else "")
    warps = int(noted[2]) if noted and noted[2] else warps
    kernels = _jitted(path, text)
    if not function and len(kernels) == 1:
        function = kernels[0]
    if function not in kernels:
        from ramify.base.errors import nearest

        raise UserError(f"{path} has no Triton kernel '{function}' ({nearest(function, kernels)})")
    if not signature:
        raise UserError(
            f"which types {function} takes is not said: --signature '*fp32:16, *fp32:16, i32, 1024', or a line '# ramify: signature ...' in {path}"
        )
    if not any((Path(folder) / "triton").is_dir() for folder in sys.path):
        raise NeedsError(
            "Triton compiles its kernels, and it is not installed in this environment; a .sass, .ptx or .cubin file can be read without it"
        )
    request = {
        "function": function,
        "arch": arch.removeprefix("sm_"),
        "signature": signature,
        "num_warps": warps,
        "num_stages": stages,
    }
    files = {
        "kernel_file.py": text,
        "request.json": json.dumps(request),
        "compile.py": (INSIDE / "compile_triton.py").read_text(encoding="utf-8"),
    }
    box = find_sandbox(allow_unsandboxed=allow, readable=packages())
    limits = Limits(
        seconds=180, memory_bytes=6144 * MIB, processes=64, disk_bytes=256 * MIB, output_bytes=7 * MIB, returned_bytes=MIB
    )
    env = {"HOME": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton", "PYTHONPATH": ":".join(packages()), "PYTHONWARNINGS": "ignore"}
    outcome = asyncio.run(box.run(["python", "compile.py"], files=files, limits=limits, env=env))
    if not outcome.ok:
        said = outcome.error_text.strip().splitlines()[-1:] or [outcome.reason]
        kind, _, why = said[0].partition(": ")
        if kind == "user":
            raise UserError(f"{path}: {why}")
        if kind == "needs":
            raise NeedsError(why)
        raise UserError(f"{path} does not compile: {outcome.reason}, {said[0][:300]}")
    data: dict[str, Any] = json.loads(outcome.text.splitlines()[-1])
    return data


def _jitted(path: Path, text: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no Python: {error}") from None
    return [
        one.name
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and any("jit" in ast.dump(mark) for mark in one.decorator_list)
    ]


def table_rows(metrics: Mapping[str, Any]) -> list[list[Any]]:
    """What a reader is shown first."""
    names = [
        "registers",
        "stack",
        "shared",
        "warps",
        "occupancy",
        "limiter",
        "blocks",
        "instructions",
        "LDG32",
        "LDG128",
        "STG32",
        "STG128",
        "HMMA",
        "HGMMA",
        "FFMA",
        "LDL",
        "STL",
        "BAR",
    ]
    return [[name, metrics.get(name, 0)] for name in names]


__all__ = ["Prescription", "counts", "ptx_counts", "read_gpu", "sass_metrics", "table_rows"]
