"""The kernel of ramify that kernel-search made faster, once more:
the uniforms of one sample, as the engine drew them before, and in the steps since.

``python -m ramify_experiments.kernel_search.engine_uniforms [--pairs 20]`` writes each version to a file, and prints what
``bench`` says of it. The last one is taken from :mod:`ramify.base.seeds`, so what is timed is what the engine runs.
"""

from __future__ import annotations

import argparse
import inspect
import tempfile
from pathlib import Path

from ramify.base import seeds
from ramify.cli.main import main as ramify
from ramify.render.terminal import say

HEAD = """from functools import lru_cache

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = ((np.uint64(30), _MIX1), (np.uint64(27), _MIX2))
_LAST = np.uint64(31)
"""
KERNEL = """
# ramify: n = 256, 1000, 1; key[1] i64; result[n] f64
def key_uniforms(n, key):
    return {call}
"""
BEFORE = """
def uniforms(keys, counters):
    with np.errstate(over="ignore"):
        z = _mix(keys.astype(np.uint64)) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = _mix(_mix(z))
    return np.multiply(z >> np.uint64(11), 2.0**-53, dtype=np.float64)
"""
MIX = """
def _mix(z):
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return np.bitwise_xor(z, z >> np.uint64(31))
"""
ONCE = BEFORE.replace("_mix(keys.astype(np.uint64))", "np.uint64(_mixed(int(keys[0])))")
CALL = "uniforms(key, np.arange(n)) * (1 - 2.0**-52)"


def versions() -> dict[str, tuple[str, str]]:
    """Name -> (what it changes, source); the first is the original."""
    in_place, mixed, steps, row = (
        "\n" + inspect.getsource(one) for one in (seeds._mix, seeds._mixed, seeds._steps.__wrapped__, seeds.row_of_uniforms)
    )
    call = KERNEL.format(call=CALL)
    return {
        "engine": ("the same code", HEAD + MIX + BEFORE + call),
        "inplace": ("no temporaries", HEAD + in_place + BEFORE + call),
        "once": ("the key is mixed once, in plain integers", HEAD + MIX + mixed + ONCE + call),
        "row": (
            "both, and the counters kept: ramify.base.seeds.row_of_uniforms",
            HEAD + in_place + mixed + steps + row + KERNEL.format(call="row_of_uniforms(int(key[0]), n, 1 - 2.0**-52)"),
        ),
    }


def main() -> None:
    """Print what `bench` says of each version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = versions()
        for name, (_, source) in found.items():
            Path(folder, f"{name}.py").write_text(source, encoding="utf-8")
        for name, (changes, _) in found.items():
            say(f"$ ramify kernel-search bench engine.py:key_uniforms {name}.py     # {changes}")
            ramify(
                [
                    "kernel-search",
                    "bench",
                    f"{folder}/engine.py:key_uniforms",
                    f"{folder}/{name}.py",
                    "--pairs",
                    str(options.pairs),
                ]
            )


if __name__ == "__main__":
    main()
