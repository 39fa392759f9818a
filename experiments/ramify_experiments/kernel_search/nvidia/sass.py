"""NVIDIA kernels without a GPU (tier G0): what their PTX, machine code and resource usage tell.

A Triton or CUDA kernel is compiled ahead of time for a chip that need not be here; a ``.ptx`` file goes through ptxas where that
is here; a ``.sass`` file (nvdisasm, cuobjdump -sass) and a ``.cubin`` are read as they are. Stall reasons and hit rates need
counters and are listed as not measurable.
"""

from __future__ import annotations

import ast
import json
import math
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.base import codec
from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import read_small
from ramify.base.waiting import wait_for
from ramify.methods.kernel_search.compiled import SIGNATURE, CompileTarget, text_of
from ramify.methods.kernel_search.tools import examine
from ramify.methods.kernel_search.wall import packages
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits
from ramify_experiments.kernel_search.nvidia.chips import DEVICES, occupancy
from ramify_experiments.kernel_search.nvidia.ptx import accesses, block_of, entries
from ramify_experiments.kernel_search.nvidia.reading import GpuReading
from ramify_experiments.kernel_search.nvidia.symptoms import GpuKernelMetrics, GpuMetrics

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.M)
INSIDE = Path(__file__).parent / "inside"
_USAGE = re.compile(r"REG:(\d+)\s+STACK:(\d+)\s+SHARED:(\d+)")


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a compiler and its disassembler printed; empty where the tool is not here."""

    sass: str = ""
    ptx: str = ""
    usage: str = ""
    shared: int = 0
    warps: int = 4


def counts(sass: str) -> dict[str, int]:
    """Instructions by what they do. Of accesses to global memory also by width:
    LDG32 (32 bits and less), LDG64, LDG128, and so STG."""
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
        "LDG128": r"\bld\.global\S*\.v4\.\w*32|\bld\.global\S*\.v2\.\w*64",
        "LDG32": r"\bld\.global(?!\S*\.v)\S*\.\w?(?:8|16|32)\b",
        "STG128": r"\bst\.global\S*\.v4\.\w*32|\bst\.global\S*\.v2\.\w*64",
        "STG32": r"\bst\.global(?!\S*\.v)\S*\.\w?(?:8|16|32)\b",
        "LDL": r"\bld\.local",
        "STL": r"\bst\.local",
        "HMMA": r"\bmma\.sync",
        "HGMMA": r"\bwgmma\.mma_async",
        "BAR": r"\bbar(?:rier)?\.",
        "FFMA": r"\bfma\.rn\.f32",
        "instructions": r";\s*$",
        "BSSY": r"(?!)",
    }
    return {name: len(re.findall(pattern, ptx, re.M)) for name, pattern in patterns.items()}


def sass_metrics(sass: str, told: Mapping[str, int], arch: str, warps: int, shared: int = 0) -> GpuMetrics:
    """What the GPU's tools read: counts, registers, stack, shared memory,
    occupancy and its limiter. ``told`` is what :func:`usage_of` found."""
    registers, taken = told.get("registers", _highest(sass) + 1), max(told.get("shared", 0), shared)
    stack, spilled = told.get("stack", 0), told.get("spilled", 0)
    blocks, share, limiter = occupancy(warps, registers, taken, DEVICES.get(arch))
    return GpuMetrics(arch, warps, registers, taken, stack, spilled, blocks, share, limiter, counts=counts(sass))


def _highest(sass: str) -> int:
    return max((int(one) for one in re.findall(r"\bR(\d+)\b", sass)), default=0)


def read_gpu(spec: str, target: CompileTarget) -> GpuReading:
    """Everything that tier G0 says of ``FILE.py:KERNEL`` (Triton), ``FILE.cu:KERNEL`` (CUDA), or of a .ptx, .sass or .cubin file.

    Raises UserError on a file that is none of them or does not compile, NeedsError where Triton, nvcc or nvdisasm is missing.
    """
    arch, warps = target.arch, target.warps
    if arch not in DEVICES:
        raise UserError(f"--arch {arch} is not a known chip ({nearest(arch, DEVICES)})")
    name, colon, kernel = spec.rpartition(":")
    path, kernel = (Path(name), kernel) if colon else (Path(spec), "")
    if not path.is_file():
        raise UserError(f"there is no kernel {path}: name FILE.py:KERNEL, FILE.cu:KERNEL, or a .ptx, .sass or .cubin file")
    dot = False
    if path.suffix == ".py":
        made = _compiled(spec, target)
        text = text_of(path)
        warps, dot = made.warps, bool(re.search(r"\btl\.dot\s*\(|\bdot\s*\(", text))
        kernel = ""  # the file that Triton writes holds one
    elif path.suffix in (".cu", ".ptx", ".cubin"):
        made = _assembled(path, arch, target.allow_unsandboxed)
    else:
        made = Compilation(sass=text_of(path), usage=text_of(path))
        if not _SASS.search(made.sass):
            raise UserError(f"{path} holds no SASS: write it with nvdisasm -c or cuobjdump -sass")
    return _read(path, kernel, made, arch, warps or 4, dot)


def _read(path: Path, kernel: str, made: Compilation, arch: str, warps: int, dot: bool) -> GpuReading:
    """Metrics and findings of one kernel out of what the tools printed of its file."""
    sass, ptx, usage = made.sass, made.ptx, made.usage
    texts, headers = functions_of(sass), entries(ptx)
    names = list(headers or texts)
    if not names:
        raise UserError(f"{path} holds no kernel" + (": write PTX with nvcc -ptx -lineinfo" if path.suffix == ".ptx" else ""))
    name = _named(path, kernel, names)
    if name in headers and (block := block_of(headers[name][0])):
        warps = max(1, -(-math.prod(block) // 32))
    told = usage_of(usage, name, arch) if usage else {}
    if name in texts:
        found = sass_metrics(texts[name], told, arch, warps, made.shared)
    else:
        limiter, counted = "not known before registers are given out", ptx_counts(headers[name][1])
        registers, shared, stack, spilled = (told.get(one, 0) for one in ("registers", "shared", "stack", "spilled"))
        found = GpuMetrics(arch, warps, registers, shared, stack, spilled, limiter=limiter, counts=counted)
        if found.registers:
            blocks, share, limiter = occupancy(warps, found.registers, found.shared, DEVICES[arch])
            found = replace(found, blocks=blocks, occupancy=share, limiter=limiter)
    found = replace(found, dot=dot or bool(found.count("HMMA", "HGMMA")))
    rows = accesses(ptx, name) if name in headers else None
    source = (
        re.search(r'\.file\s+1\s+"([^"]+)"', ptx)
        if path.suffix == ".ptx" and name in headers and ".loc" in headers[name][1]
        else None
    )
    metrics = GpuKernelMetrics(
        sass=found, accesses=None if rows is None else tuple(rows), file=Path(source[1] if source else path).name
    )
    prescriptions, missing = examine(metrics)
    if found.occupancy is None:
        prescriptions = [one for one in prescriptions if one.tool not in ("OccupancyLimiter", "HighRegisterUsage")]
        missing = [
            *missing,
            "OccupancyLimiter: not measurable here, PTX has no registers yet: ptxas gives them out, and it is not here",
        ]
    return GpuReading(name, found, tuple(rows or ()), tuple(prescriptions), tuple(missing))


def _named(path: Path, kernel: str, names: Sequence[str]) -> str:
    """The kernel that is meant, by its name or, in C++, by that inside its mangled one."""
    if not kernel and len(names) == 1:
        return names[0]
    if not kernel:
        raise UserError(f"{path} holds {', '.join(names)}: name one, as {path}:{names[0]}")
    fitting = [one for one in names if one == kernel] or [one for one in names if f"{len(kernel)}{kernel}" in one]
    if not fitting:
        raise UserError(f"{path} has no kernel '{kernel}' ({nearest(kernel, names)})")
    return fitting[0]


def functions_of(sass: str) -> dict[str, str]:
    """Machine code by kernel, out of what nvdisasm or cuobjdump printed; all of it under an empty name where none is named."""
    heads = list(re.finditer(r"^\s*(?:\.text\.([\w$]+):|Function : ([\w$]+))\s*$", sass, re.M))
    ends = [one.start() for one in heads[1:]] + [len(sass)]
    found = {str(one[1] or one[2]): sass[one.end() : end] for one, end in zip(heads, ends, strict=False)}
    return {name: text for name, text in found.items() if _SASS.search(text)} or ({"": sass} if _SASS.search(sass) else {})


def usage_of(text: str, kernel: str, arch: str) -> dict[str, int]:
    """Registers, bytes of stack and of shared memory, and spilled bytes, as ptxas -v or cuobjdump --dump-resource-usage say them.

    From sm_90 on cuobjdump counts what each block has reserved into its shared memory; it is taken off.
    """
    mine = re.split(r"Function[: ]+'?|entry function '", text)
    part = next(
        (one for one in mine[1:] if re.match(rf"{re.escape(kernel)}\b", one) and re.search(r"REG:|Used \d+ reg", one)), None
    )
    if part is None:
        part = next((one for one in mine if _USAGE.search(one)), "") if not kernel or len(mine) <= 2 else ""
    if listed := _USAGE.search(part):
        shared = int(listed[3])
        reserved = DEVICES[arch].reserved if int(arch[3:]) >= 90 and shared else 0
        return {"registers": int(listed[1]), "stack": int(listed[2]), "shared": max(0, shared - reserved)}
    found = {
        name: int(one[1])
        for name, pattern in (
            ("registers", r"Used (\d+) registers"),
            ("shared", r"(\d+) bytes smem"),
            ("stack", r"(\d+) bytes stack frame"),
        )
        if (one := re.search(pattern, text.partition(f"entry function '{kernel}'")[2].split("Compiling entry")[0]))
    }
    spilled = re.findall(r"(\d+) bytes spill", text.partition(f"entry function '{kernel}'")[2].split("Compiling entry")[0])
    return found | ({"spilled": sum(map(int, spilled[:2]))} if spilled else {})


def nvidia_tool(program: str) -> str | None:
    """Where a tool of NVIDIA's is: on PATH, in one of its wheels, or in Triton's; None where it is in none."""
    places = [f"nvidia/*/bin/{program}", f"triton/backends/nvidia/bin/{program}"]
    installed = (str(one) for folder in packages() for place in places for one in sorted(Path(folder).glob(place)))
    return shutil.which(program) or next(installed, None)


def gpu_tools() -> tuple[bool, str]:
    """Whether kernels of a GPU can be read without one, and by what; what is missing, and what it would add."""
    adds = {
        "nvcc": "CUDA is not compiled",
        "ptxas": "PTX alone has no registers",
        "nvdisasm": "there is no machine code",
        "cuobjdump": "a cubin is not read",
    }
    here = [name for name in adds if nvidia_tool(name)] + ["Triton"] * any((Path(one) / "triton").is_dir() for one in sys.path)
    lacks = "; ".join(f"{name} is missing, so {what}" for name, what in adds.items() if name not in here)
    return bool(here), ", ".join(here or ["PTX and SASS are read as text"]) + (f"; {lacks}" if lacks else "")


def _assembled(path: Path, arch: str, allow: bool) -> Compilation:
    """What nvcc, ptxas and nvdisasm make of a .cu, .ptx or .cubin file in the sandbox:
    ``ptx``, ``usage`` and ``sass`` where the tool is here."""
    here = {name: nvidia_tool(name) for name in ("nvcc", "ptxas", "nvdisasm", "cuobjdump")}
    data = read_small(path, "the kernel", 64 << 20)
    lines = ["set -e"]
    if path.suffix == ".cu":
        if here["nvcc"] is None:
            raise NeedsError(
                "CUDA is compiled by nvcc, which is not here: it comes with CUDA; a .ptx file can be read without it"
            )
        lines.append(f"{shlex.quote(here['nvcc'])} -w -lineinfo -arch={arch} -ptx kernel.cu -o kernel.ptx")
    if path.suffix != ".cubin" and here["ptxas"]:
        lines.append(
            f"{shlex.quote(here['ptxas'])} -v -arch={arch} kernel.ptx -o kernel.cubin 2> usage || {{ cat usage >&2; exit 1; }}"
        )
    if path.suffix == ".cubin" and (lacks := [name for name in ("nvdisasm", "cuobjdump") if here[name] is None]):
        raise NeedsError(f"a cubin is read by {lacks[0]}, which is not here: it comes with CUDA and with Triton")
    if here["nvdisasm"] and (path.suffix == ".cubin" or here["ptxas"]):
        lines.append(f"{shlex.quote(here['nvdisasm'])} -c kernel.cubin > sass")
    if path.suffix == ".cubin":
        lines.append(f"{shlex.quote(str(here['cuobjdump']))} --dump-resource-usage kernel.cubin > usage")
    if len(lines) == 1:
        return Compilation(ptx=data.decode("utf-8", "replace"))
    folders = sorted({str(Path(one).parent) for one in here.values() if one and not one.startswith("/usr/")})
    box = find_sandbox(allow_unsandboxed=allow, readable=[*packages(), *folders])
    limits = Limits(
        seconds=120, memory_bytes=4096 * MIB, processes=64, disk_bytes=512 * MIB, file_bytes=128 * MIB, returned_bytes=14 * MIB
    )
    files = {f"kernel{path.suffix}": data, "go": "\n".join(lines) + "\n"}
    outcome = wait_for(
        box.run(["sh", "go"], files=files, returns=["kernel.ptx", "usage", "sass"], limits=limits, env={"HOME": "/tmp"})
    )
    if not outcome.ok:
        said = [line for line in outcome.error_text.splitlines() if line.strip()][-1:] or [outcome.reason]
        raise UserError(f"{path} cannot be compiled or read for {arch}: {said[0].strip()[:300]}")
    texts = {name.removeprefix("kernel."): text.decode("utf-8", "replace") for name, text in outcome.files.items()}
    ptx = data.decode("utf-8", "replace") if path.suffix == ".ptx" else texts.get("ptx", "")
    return Compilation(texts.get("sass", ""), ptx, texts.get("usage", ""))


def triton_kernel(spec: str, signature: str = "") -> tuple[Path, ast.FunctionDef, str, str, int]:
    """(file, kernel, text, types, warps) of ``FILE.py:KERNEL``; ``signature`` replaces the file's.
    Raises UserError where one is missing."""
    name, colon, function = spec.rpartition(":")
    path, function = (Path(name), function) if colon else (Path(spec), "")
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"there is no Triton kernel {path}: name FILE.py:KERNEL")
    text = text_of(path)
    noted = SIGNATURE.search(text)
    signature = signature or (noted[1].strip() if noted else "")
    kernels = _jitted(path, text)
    if not function and len(kernels) == 1:
        function = next(iter(kernels))
    if function not in kernels:
        raise UserError(f"{path} has no Triton kernel '{function}' ({nearest(function, kernels)})")
    if not signature:
        raise UserError(
            f"which types {function} takes is not said: --signature '*fp32:16, *fp32:16, i32, 1024', or a line '# ramify: "
            f"signature ...' in {path}"
        )
    return path, kernels[function], text, signature, int(noted[2]) if noted and noted[2] else 4


def _compiled(spec: str, target: CompileTarget) -> Compilation:
    path, kernel, text, signature, noted = triton_kernel(spec, target.signature)
    if not any((Path(folder) / "triton").is_dir() for folder in sys.path):
        raise NeedsError(
            "Triton compiles its kernels, and it is not installed in this environment; a .sass, .ptx or .cubin file can be read "
            "without it"
        )
    request = {
        "function": kernel.name,
        "arch": target.arch.removeprefix("sm_"),
        "signature": signature,
        "num_warps": target.warps or noted,
        "num_stages": target.stages,
    }
    files = {
        "kernel_file.py": text,
        "request.json": json.dumps(request),
        "compile.py": (INSIDE / "compile_triton.py").read_text(encoding="utf-8"),
    }
    box = find_sandbox(allow_unsandboxed=target.allow_unsandboxed, readable=packages())
    limits = Limits(
        seconds=180, memory_bytes=6144 * MIB, processes=64, disk_bytes=256 * MIB, output_bytes=7 * MIB, returned_bytes=MIB
    )
    env = {"HOME": "/tmp", "TRITON_CACHE_DIR": "/tmp/triton", "PYTHONPATH": ":".join(packages()), "PYTHONWARNINGS": "ignore"}
    outcome = wait_for(box.run(["python", "compile.py"], files=files, limits=limits, env=env))
    if not outcome.ok:
        said = outcome.error_text.strip().splitlines()[-1:] or [outcome.reason]
        kind, _, why = said[0].partition(": ")
        if kind == "user":
            raise UserError(f"{path}: {why}")
        if kind == "needs":
            raise NeedsError(why)
        raise UserError(f"{path} does not compile: {outcome.reason}, {said[0][:300]}")
    return codec.from_json(Compilation, json.loads(outcome.text.splitlines()[-1]), f"{path}, compiled")


def _jitted(path: Path, text: str) -> dict[str, ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    return {
        one.name: one
        for one in tree.body
        if isinstance(one, ast.FunctionDef) and any("jit" in ast.dump(mark) for mark in one.decorator_list)
    }
