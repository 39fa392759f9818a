"""Known ways to look fast, against the wall of kernel-search: none gains anything."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.kernel_search.algorithm import gain_of_rounds, paired_gain
from ramify.methods.kernel_search.task import from_c, from_python
from ramify.methods.kernel_search.wall import Wall, forged_idle, forged_times
from ramify_experiments.kernel_search.redteam import attempt, cheat_code, cheats_for, cheats_in_c, cheats_in_python
from tests.methods.kernel_search.kernels import CREEP, EXP, SUM

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is needed")
IN_C = {cheat.name: cheat for cheat in cheats_in_c()}


def wall(source: str, seconds: float = 0.001) -> Wall:
    task = from_python(source) if "import" in source.split() else from_c(source)
    return Wall(task, pairs=4, batch_seconds=seconds, call_seconds=5)


def test_cheats_are_read_from_their_files() -> None:
    assert (len(IN_C), len(cheats_in_python())) == (23, 27)
    assert IN_C["writes NaN"].says == "fills the outputs with NaN, which a careless comparison takes for equal"
    assert {one.name for one in cheats_in_python()} - set(IN_C) == {
        *("lazy result", "overridden result", "patched statistics", "reads how many", "remembers contents"),
        *("replaces the worker", "slow when idle"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remembers every address", "only the last calls"])
def test_what_skips_timed_calls_is_wrong_in_one_that_is_looked_at(name: str) -> None:
    """The first was 2.6 times as fast where the pool never changed; the second skips calls where every batch has one length."""
    long = Wall(from_c(SUM), pairs=4, batch_seconds=0.02)  # batches of hundreds of calls
    found = asyncio.run(long.trial(cheat_code(long.task, IN_C[name])))
    assert found.stage == "wrong", (found.refused, found.gain)
    assert "in a timed call" in found.refused


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["first answer", "right at first", "works elsewhere", "changes its inputs", "ends the others", "changes the files"]
)
def test_a_cheat_gains_nothing(name: str) -> None:
    elsewhere = name == "works elsewhere"
    large = EXP.replace("4000", "200000") if elsewhere else EXP  # starting a process takes longer than a small call
    found = asyncio.run(attempt(wall(large), IN_C[name]))
    assert found.held
    assert found.trial.refused or elsewhere  # on a fast machine it uses too little elsewhere to be told, and is slower


RIGHT = {
    "works elsewhere", "answers early", "another clock", "slows the reference", "looks for the answer",
    "remembers addresses", "remembers every address", "only the last calls",
}  # fmt: skip
"""Cheats whose trick may have nothing to take hold of here, the last two in batches of few calls or on a busy machine:
they then compute what they should, and are no faster. In long batches both are wrong, as the test above says."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("source", [SUM, EXP, CREEP])
def test_no_cheat_gains(source: str) -> None:
    made = wall(source)
    found = [asyncio.run(attempt(made, cheat)) for cheat in IN_C.values()]
    assert not [one.trial.refused for one in found if one.trial.stage == "build"]
    assert [one.cheat.name for one in found if not one.held] == []
    assert {one.cheat.name for one in found if not one.trial.refused} <= RIGHT


NUMPY = """import numpy as np
# ramify: n = 1000, 33; x[n]; out y[n]; result[n]
def waves(n, x, y):
    y[:] = np.sin(x)
    return np.tanh(np.exp(np.sin(x)))
"""
HONEST = {
    *("looks for the answer", "overridden result", "remembers contents", "slow when idle"),
    *("remembers addresses", "only the last calls"),
}
"""Python cheats whose trick may have nothing to take hold of, the last two on a busy machine:
they then compute what they should."""
CHANGED = NUMPY.replace("out y[n]", "inout y[n]").replace("y[:] =", "y[:] +=")
TENSORS = """import torch
# ramify: n = 1000, 33; x[n]; result[n]
def waves(n, x):
    return torch.tanh(torch.exp(torch.sin(x)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remembers addresses", "only the last calls", "lazy result", "replaces the worker"])
def test_a_cheat_in_python_gains_nothing(name: str) -> None:
    made = wall(NUMPY, 0.01)
    found = asyncio.run(attempt(made, next(one for one in cheats_for(made.task) if one.name == name)))
    assert found.held, found.trial.gain
    seldom = name in ("remembers addresses", "only the last calls")  # a busy machine calls too seldom for them
    assert found.trial.refused or seldom


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_cheat_in_python_gains() -> None:
    made = wall(NUMPY, 0.01)
    found = [asyncio.run(attempt(made, cheat)) for cheat in cheats_for(made.task)]
    assert not [one.trial.refused for one in found if re.search("NameError|AttributeError|TypeError", one.trial.refused)]
    assert [one.cheat.name for one in found if not one.held] == []
    assert {one.cheat.name for one in found if not one.trial.refused} <= HONEST


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("family", "source", "name", "why"),
    [
        ("aggregator underflow", CHANGED, "slow when idle", "spends time where nothing is asked"),
        ("in-process cache", NUMPY, "first answer", "are wrong"),
        ("lazy output", TENSORS, "lazy result", "returned a Lazy"),
        ("lazy output", TENSORS, "overridden result", "'detach' of its own"),
        ("patched timers", TENSORS, "patched statistics", "replaced statistics.mean"),
        ("patched timers", NUMPY, "another clock", "replaced time.time"),
    ],
)
def test_the_families_that_timing_layers_miss_are_refused(family: str, source: str, name: str, why: str) -> None:
    """The four of gpu-mode/reference-kernels, issue 162: each left a correct kernel with a forged time on a live leaderboard."""
    if source is TENSORS:
        pytest.importorskip("torch")
    made = wall(source, 0.01)
    found = asyncio.run(made.trial(cheat_code(made.task, next(one for one in cheats_in_python() if one.name == name))))
    assert why in found.refused, (family, found)


def test_a_clock_of_its_own_is_refused_before_it_runs() -> None:
    made = wall(SUM)
    found = asyncio.run(made.trial(cheat_code(made.task, IN_C["another clock"])))
    assert (found.stage, found.checked) == ("clock", 0)
    assert "defines clock_gettime" in found.refused


def test_times_that_collapse_are_refused_and_those_of_one_work_are_not() -> None:
    """A geometric mean over shapes or rounds becomes as small as its smallest time is made."""
    rng = generator(0, "busy machine")
    for _ in range(2000):  # times of equal batches, up to twice as long where others work
        honest = 1e-5 * (1 + rng.exponential(0.1, 10)) * rng.choice([1, 2], 10, p=[0.8, 0.2])
        assert not forged_times(honest.tolist())
    assert "not done where it is timed" in forged_times([1e-5] * 9 + [1e-7])
    assert not forged_times([1e-5] * 9 + [1e-7], threads=2), "wall times are as long as the machine is busy"
    for threads in (1, 2):
        assert "no time at all" in forged_times([1e-5] * 9 + [0.0], threads)
    assert not forged_idle(3e-6, 1e-6)
    assert not forged_idle(None, 1e-6)
    assert "where nothing is asked" in forged_idle(1e-4, 1e-6)


def test_one_round_that_collapses_is_no_gain() -> None:
    """Of five starts one with a millionth of its time: the geometric mean says 16 times as fast, its interval nothing."""
    same = paired_gain([1.0] * 4, [1.0] * 4, generator(0, "x"))
    found = gain_of_rounds([same] * 4 + [paired_gain([1.0] * 4, [1e-6] * 4, generator(0, "x"))], [same] * 5)
    assert found.speedup > 15
    assert not found.gains


def test_cheats_fit_the_kind_of_kernel() -> None:
    silent = from_python(NUMPY.replace("; result[n]", ""))
    assert {one.name for one in cheats_for(from_python(NUMPY))} - {one.name for one in cheats_for(silent)} == {"lazy result"}
    with pytest.raises(UserError, match="timed on a GPU only"):
        cheats_for(from_python("import triton\ndef f(x):\n    pass\n"))
