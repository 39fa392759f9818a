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
    z = np.atleast_1d(counters).astype(np.uint64)
    z += np.uint64(1)
    z *= _GOLDEN
    z = z + _mix(np.atleast_1d(keys).astype(np.uint64))
    _mix(_mix(z))
    z >>= np.uint64(11)
    u: np.ndarray = np.multiply(z, 2.0**-53, dtype=np.float64)
    return u.reshape(np.broadcast_shapes(np.shape(keys), np.shape(counters)))


def _mix(z: np.ndarray) -> np.ndarray:
    """splitmix64's output function in place on ``z``, uint64: temporaries took half of its time (docs/methods/kernel-search.md)."""
    spare = np.empty_like(z)
    z += _GOLDEN
    for shift, factor in ((np.uint64(30), _MIX1), (np.uint64(27), _MIX2)):
        z ^= np.right_shift(z, shift, out=spare)
        z *= factor
    z ^= np.right_shift(z, np.uint64(31), out=spare)
    return z
