"""NVIDIA's chips: the limits of a multiprocessor, and how many blocks of a kernel fit one (section 3.5 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Limits of one streaming multiprocessor."""

    threads: int = 2048
    registers: int = 65536
    shared: int = 228 * 1024
    reserved: int = 1024
    """Shared memory that each block takes besides its own."""
    blocks: int = 32


DEVICES: Mapping[str, Device] = {
    "sm_80": Device(shared=164 * 1024),
    "sm_86": Device(threads=1536, shared=100 * 1024, blocks=16),
    "sm_89": Device(threads=1536, shared=100 * 1024, blocks=24),
    "sm_90": Device(),
    "sm_100": Device(),
    "sm_120": Device(threads=1536, shared=100 * 1024, blocks=24),
}


def occupancy(warps: int, registers: int, shared: int, device: Device | None = None) -> tuple[int, float, str]:
    """(blocks a multiprocessor, share of its threads, what limits) of blocks of ``warps`` with so many registers a thread and
    bytes of shared memory.

    Registers are given out 256 a warp, so 8 a thread; shared memory in KiB.
    """
    device = device or Device()
    threads = warps * 32
    per_warp = -(-registers * 32 // 256) * 256
    limits = {
        "threads": device.threads // threads,
        "registers": device.registers // max(1, per_warp * warps),
        "shared memory": device.shared // (-(-shared // 1024) * 1024 + device.reserved) if shared else device.blocks,
        "blocks": device.blocks,
    }
    limiter = min(limits, key=lambda name: limits[name])
    return limits[limiter], limits[limiter] * threads / device.threads, limiter
