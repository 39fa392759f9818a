"""Loops of a file that was compiled elsewhere, or of a source that is compiled for the purpose."""

from __future__ import annotations

from pathlib import Path

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import read_small
from ramify.methods.kernel_search.asm import Loop, functions, loops
from ramify.methods.kernel_search.wall import BUILD
from ramify.sandbox.find import find_sandbox
from ramify.sandbox.protocol import MIB, Limits


def is_elf(path: Path) -> bool:
    """Whether it is a shared object, an object file or a program."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


async def loops_of(path: Path, symbol: str, flags: tuple[str, ...], allow_unsandboxed: bool = False) -> list[Loop]:
    """The loops of a function of ``path``. Raises UserError where the file has none such, NeedsError without objdump."""
    box = find_sandbox(allow_unsandboxed=allow_unsandboxed)
    limits = Limits(
        seconds=60, memory_bytes=2048 * MIB, processes=64, file_bytes=256 * MIB, disk_bytes=512 * MIB, returned_bytes=12 * MIB
    )
    data = read_small(path, "the code", 200 << 20)
    if path.suffix == ".c":
        argv, files = ["sh", "build", *flags], {"kernel.c": data, "build": BUILD.encode()}
    else:
        argv, files = ["sh", "-c", "objdump -d -l --no-show-raw-insn code > assembly"], {"code": data}
    outcome = await box.run(argv, files=files, returns=["assembly"], limits=limits)
    text = outcome.files.get("assembly", b"").decode("utf-8", "replace")
    if not text:
        said = outcome.error_text.strip().splitlines()[-1:] or [outcome.refused.get("assembly", outcome.reason)]
        if "not found" in said[0]:
            raise NeedsError(f"machine code is read by gcc and objdump: {said[0]}")
        raise UserError(f"{path} cannot be disassembled: {said[0][:200]}")
    known = functions(text)
    if symbol not in known:
        named = [name for name in known if not name.startswith(("_", ".")) and "@" not in name]
        raise UserError(f"{path} has no function '{symbol}', or its symbols are stripped ({nearest(symbol, named)})")
    return loops(text, symbol)
