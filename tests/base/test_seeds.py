"""Uniforms by sample key: one row at once has the bits of the general function, whatever its length."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.seeds import row_of_uniforms, uniforms


@given(st.integers(0, 2**63 - 1), st.integers(0, 600))
def test_a_row_has_the_bits_of_the_general_function(key: int, count: int) -> None:
    plain = uniforms(np.full(count, key), np.arange(count))
    assert row_of_uniforms(key, count).tobytes() == plain.tobytes()
    below = 1 - 2.0**-52
    assert row_of_uniforms(key, count, below).tobytes() == (plain * below).tobytes()


def test_splitmix64_has_its_published_values() -> None:
    """Nothing that is given is written to, and a value is that of the reference implementation in plain integers."""
    keys, counters = np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64)
    got = uniforms(keys, counters)
    assert keys.tolist() == counters.tolist() == [0, 1, 2]

    def mix(z: int) -> int:
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    wanted = [mix(mix((mix(i) + (i + 1) * 0x9E3779B97F4A7C15) % 2**64)) >> 11 for i in range(3)]
    assert got.tolist() == [one * 2.0**-53 for one in wanted]
