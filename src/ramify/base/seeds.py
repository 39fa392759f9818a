"""Random numbers whose seed is derived from the position in the tree (run seed, node, sample index), never from time or order.

So results depend neither on concurrency nor on a crash.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = ((np.uint64(30), _MIX1), (np.uint64(27), _MIX2))
_LAST = np.uint64(31)


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
        z = _mix(_mix(np.asarray(z)))
    u: np.ndarray = np.multiply(z >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return u


def row_of_uniforms(key: int, count: int, scale: float = 1.0) -> np.ndarray:
    """``uniforms`` of one key at counters 0 to ``count`` - 1, times ``scale``, float64 (count,): the same bits, faster."""
    z = _mix(_mix(_steps(1 << max(8, (count - 1).bit_length()))[:count] + np.uint64(_mixed(key))))
    z >>= np.uint64(11)
    row: np.ndarray = np.multiply(
        z, 2.0**-53 * scale, dtype=np.float64
    )  # the power of 2 is exact, so the product is rounded once
    return row


@lru_cache(maxsize=16)
def _steps(count: int) -> np.ndarray:
    """(counter + 1) * golden for counters below ``count``; not to be written to."""
    steps: np.ndarray = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    steps.flags.writeable = False
    return steps


def _mixed(z: int) -> int:
    """``_mix`` of one number, as Python's integers: of a single number arrays take ten times as long."""
    most = 2**64 - 1
    z = (z + int(_GOLDEN)) & most
    for shift, factor in _ROUNDS:
        z = ((z ^ (z >> int(shift))) * int(factor)) & most
    return z ^ (z >> int(_LAST))


def _mix(z: np.ndarray) -> np.ndarray:
    """splitmix64's output function, in place on ``z`` (uint64)."""
    spare = np.empty_like(z)
    z += _GOLDEN
    for shift, factor in _ROUNDS:
        z ^= np.right_shift(z, shift, out=spare)
        z *= factor
    z ^= np.right_shift(z, _LAST, out=spare)
    return z
