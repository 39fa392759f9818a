"""What this machine's processor is called, and how much memory this process holds."""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from pathlib import Path


def processor() -> str:
    """Model and instruction sets of this processor: what measured speeds, native code and the choice of kernels belong to."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    lines = [re.search(rf"^{name}\s*:\s*(.*)$", text, re.M) for name in ("model name", "flags")]
    return " ".join(line[1] for line in lines if line)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    with suppress(OSError, AttributeError, ValueError):
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024  # type: ignore[union-attr]
    return 0
