"""Kernels of a GPU, read as compiled and without one: which files are such, and who reads them.

The reader is a component of the kind ``disassembler``; that of NVIDIA's code comes with the distribution ramify-experiments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ramify.base import registry
from ramify.base.errors import NeedsError
from ramify.base.files import read_small
from ramify.render.result import Result

NVIDIA, CHIP = "nvidia", "sm_90"
SIGNATURE = re.compile(r"^\s*#\s*ramify:\s*signature\s+([^;\n]+)(?:;\s*warps\s+(\d+))?", re.M)
"""In the file of a Triton kernel: its types, and the warps of a block."""


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """What a kernel is compiled for, and how; the chip need not be here."""

    arch: str = CHIP
    signature: str = ""
    """Of a Triton kernel: its types as Triton writes them; empty: what the file says."""
    warps: int | None = None
    """A block; None: what the file says, or 4."""
    stages: int | None = None
    """Of the software pipeline of a Triton kernel; None: Triton's."""
    allow_unsandboxed: bool = False


class Disassembler(Protocol):
    """Reads kernels of one maker's chips as compiled, without such a chip."""

    def tools(self) -> tuple[bool, str]:
        """Whether compiled kernels can be read here, and by which programs; what is missing, and what it would add."""
        ...

    def read(self, spec: str, target: CompileTarget) -> Result:
        """What the code of ``FILE:KERNEL`` says of why it is slow.

        Raises UserError on a file that is not a kernel or does not compile, NeedsError where a program is missing.
        """
        ...

    def tune(self, spec: str, choices: str, target: CompileTarget, out: Path | None = None) -> Result:
        """Which configurations of ``FILE.py:KERNEL`` are worth timing; they are written into ``out``.

        Raises as :meth:`read`, and UserError on ``choices`` that the kernel does not have.
        """
        ...


def is_compiled(spec: str) -> bool:
    """Whether ``FILE:KERNEL`` is read as compiled: CUDA, PTX, SASS, a cubin, or Triton whose file says its types."""
    name, colon, _ = spec.rpartition(":")
    path = Path(name if colon else spec)
    if path.suffix != ".py":
        return path.suffix in (".cu", ".ptx", ".sass", ".cubin")
    return path.is_file() and bool(SIGNATURE.search(text_of(path)))


def text_of(path: Path) -> str:
    """The text of a kernel's file, at most 64 MiB of it."""
    return read_small(path, "the kernel", 64 << 20).decode("utf-8", "replace")


def disassembler() -> Disassembler:
    """The one of NVIDIA's code. Raises NeedsError where its distribution is not installed."""
    if NVIDIA not in registry.names("disassembler"):
        raise NeedsError(
            "what reads CUDA, Triton, PTX and SASS is in the distribution ramify-experiments, which is not installed: "
            "pip install ./experiments in a checkout of ramify"
        )
    reader: Disassembler = registry.named("disassembler", NVIDIA)
    return reader
