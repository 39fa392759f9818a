"""The wall and the clock: right candidates pass, wrong ones never do, and nothing that cheats gains."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.methods.kernel_search.task import from_c, from_python
from ramify.methods.kernel_search.wall import ROUNDS, Code, Wall, WallTrial
from tests.methods.kernel_search.kernels import CREEP, EXP, SUM

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is needed")
FLAGS = ("-O3", "-march=native")


def wall(source: str, **more: object) -> Wall:
    return Wall(from_c(source), pairs=4, batch_seconds=0.001, call_seconds=5, **more)  # type: ignore[arg-type]


def tried(made: Wall, *sources: str, flags: tuple[str, ...] = FLAGS) -> list[WallTrial]:
    async def each() -> list[WallTrial]:
        return [await made.trial(Code(source, flags), i) for i, source in enumerate(sources)]

    return asyncio.run(each())


def test_right_candidates_pass_and_wrong_ones_do_not() -> None:
    made = wall(SUM)
    simd = SUM.replace("  for", "#pragma omp simd reduction(+:s)\n  for")
    last = SUM.replace("i < n", "i < n - 1")
    same, faster, short, broken, crash = tried(
        made,
        SUM,
        simd,
        last,
        SUM.replace("return s", "return t"),
        SUM.replace("s += x[i]", "s += x[i * 100000]"),
        flags=(*FLAGS, "-fopenmp-simd"),
    )
    assert same.ok
    assert same.gain is not None
    assert same.checked > 10
    assert faster.ok
    assert short.stage == "wrong"
    assert "result[0]" in short.refused
    assert broken.stage == "build"
    assert "does not compile" in broken.refused
    assert crash.stage == "run"
    assert "SIGSEGV" in crash.refused
    assert codec.from_json(WallTrial, codec.to_json(same), "") == same
    code = Code(SUM, FLAGS, {"T": "2"})
    assert codec.from_json(Code, codec.to_json(code), "") == code


@pytest.mark.slow
def test_a_gain_is_confirmed_in_fresh_processes() -> None:
    made = wall(SUM)
    twice = SUM.replace("  for", "  for (int i = 0; i < n; i++)\n    ((volatile float *)x)[i];\n  for")
    slow = asyncio.run(made.confirm(Code(twice, FLAGS)))
    assert slow.ok, slow.refused
    assert slow.gain is not None
    assert (slow.gain.rounds, slow.gain.pairs) == (ROUNDS, 2 * ROUNDS)
    assert not slow.gain.gains
    wrong = asyncio.run(made.confirm(Code(SUM.replace("i < n", "i < n - 1"), FLAGS)))
    assert (wrong.stage, wrong.gain) == ("wrong", None)


@pytest.mark.slow
def test_an_array_that_is_changed_in_place_begins_anew_in_every_call() -> None:
    narrow, none, twice = tried(
        wall(CREEP),
        CREEP.replace("y[i] += a * x[i]", "y[i] += (float)a * x[i]"),
        CREEP.replace("y[i] +=", "y[i] ="),
        CREEP.replace("+= a", "+= a * 2"),
    )
    assert narrow.ok, narrow.refused
    assert none.stage == twice.stage == "wrong"


@pytest.mark.slow
def test_a_reference_of_ones_own_decides() -> None:
    def plus_one(n: int, x: np.ndarray) -> np.ndarray:
        return np.exp(x) + 1

    task = from_c(EXP, reference=plus_one)
    with pytest.raises(UserError, match="disagrees with its reference"):
        asyncio.run(Wall(task, pairs=4, batch_seconds=0.001).trial(Code(EXP, FLAGS)))
    right = from_c(EXP, reference=lambda n, x: {"y": np.exp(x)})
    assert asyncio.run(Wall(right, pairs=4, batch_seconds=0.001).trial(Code(EXP, FLAGS))).ok
    short = from_c(EXP, reference=lambda n, x: x[1:])
    with pytest.raises(UserError, match="gives no 'y'"):
        asyncio.run(Wall(short, pairs=4, batch_seconds=0.001).trial(Code(EXP, FLAGS)))


@pytest.mark.slow
def test_a_build_with_fast_mathematics_does_not_change_other_processes() -> None:
    (found,) = tried(wall(EXP), EXP, flags=(*FLAGS, "-ffast-math"))
    assert found.ok, found.refused  # denormals of the reference are as they were


@pytest.mark.slow
def test_what_is_faster_than_the_machine_is_refused() -> None:
    made = wall(SUM, floor=1.0)
    (found,) = tried(made, SUM)
    assert found.stage == "physics"


NUMBA = """import numba
# ramify: n = 20000, 33; out y[n]; flops 2*n
@numba.njit
def twice(n, x, y):
    for i in range(n):
        y[i] = 2 * x[i] + 1
# ramify: x[n]
"""
TORCH = """import torch
# ramify: n = 300, 5; x[n, 3]; result[n]
def total(n, x):
    return x.sum(1)
"""
LAZY = """import torch
# ramify: n = 300, 5; x[n, 3]; result[n]
class Lazy(torch.Tensor):
    pass
def total(n, x):
    return torch.zeros(n).as_subclass(Lazy)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_python_kernels_are_run_in_processes_of_their_own() -> None:
    made = Wall(
        from_python("# ramify: n = 300, 5; x[n, 3]; result[n]\ndef total(n, x):\n    return x.sum(1)\n"),
        pairs=4,
        batch_seconds=0.001,
    )
    right = asyncio.run(made.trial(made.original))
    assert right.ok, right.refused
    wrong = asyncio.run(made.trial(Code("def total(n, x):\n    return x[:, 0]\n")))
    assert wrong.stage == "wrong"
    duck = "import numpy\nclass Lazy(numpy.ndarray):\n    pass\ndef total(n, x):\n    return x.sum(1).view(Lazy)\n"
    refused = asyncio.run(made.trial(Code(duck)))
    assert "returned a Lazy" in refused.refused


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_numba_and_torch_kernels() -> None:
    pytest.importorskip("numba")
    made = Wall(from_python(NUMBA), pairs=4, batch_seconds=0.001, call_seconds=60)
    right = asyncio.run(made.trial(made.original))
    assert right.ok, right.refused
    assert right.gain is not None
    made = Wall(from_python(TORCH), pairs=4, batch_seconds=0.001, call_seconds=60)
    assert asyncio.run(made.trial(made.original)).ok
    assert "returned a Lazy" in asyncio.run(made.trial(Code(LAZY))).refused
