"""Random numbers whose seed is derived from the position in the tree (run seed, node, sample index), never from time or order.

So results depend neither on concurrency nor on a crash.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def derive_key(seed: int, *position: str | int) -> int:
    """A 63-bit key of one position: any mix of ids, names and indices, in order."""
    text = "\x1f".join(str(part) for part in (seed, *position))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *position: str | int) -> np.random.Generator:
    """A numpy generator for one position (Philox, counter-based)."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, *position)))


def uniforms(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """One uniform in [0, 1) per row from (key, counter): splitmix64 applied to both (Steele, Lea, Flood 2014).

    ``keys`` and ``counters`` are integer arrays whose shapes broadcast; the value of a row depends on that row alone.
    """
    with np.errstate(over="ignore"):
        z = _mix(keys.astype(np.uint64)) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = _mix(_mix(z))
    u: np.ndarray = np.multiply(z >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return u


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    mixed: np.ndarray = np.bitwise_xor(z, z >> np.uint64(31))
    return mixed
