"""Known ways to look fast, against the wall of kernel-search: none gains anything."""

from __future__ import annotations

import asyncio
import re
import shutil

import pytest

from ramify.base.errors import UserError
from ramify.methods.kernel_search.task import from_c, from_python
from ramify.methods.kernel_search.wall import Wall
from ramify_experiments.kernel_search.redteam import attempt, cheat_code, cheats_for, cheats_in_c, cheats_in_python
from tests.methods.kernel_search.kernels import CREEP, EXP, SUM

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is needed")
IN_C = {cheat.name: cheat for cheat in cheats_in_c()}


def wall(source: str, seconds: float = 0.001) -> Wall:
    task = from_python(source) if "import" in source.split() else from_c(source)
    return Wall(task, pairs=4, batch_seconds=seconds, call_seconds=5)


def test_cheats_are_read_from_their_files() -> None:
    assert len(IN_C) == len(cheats_in_python()) == 23
    assert IN_C["writes NaN"].says == "fills the outputs with NaN, which a careless comparison takes for equal"
    assert {one.name for one in cheats_in_python()} - set(IN_C) == {"lazy result", "reads how many", "replaces the worker"}


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
    "works elsewhere",
    "answers early",
    "another clock",
    "slows the reference",
    "looks for the answer",
    "remembers addresses",
    "remembers every address",
    "only the last calls",
}
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
HONEST = {"another clock", "looks for the answer", "remembers addresses", "only the last calls"}
"""Python cheats whose trick may have nothing to take hold of, the last two on a busy machine:
they then compute what they should."""


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


def test_cheats_fit_the_kind_of_kernel() -> None:
    silent = from_python(NUMPY.replace("; result[n]", ""))
    assert {one.name for one in cheats_for(from_python(NUMPY))} - {one.name for one in cheats_for(silent)} == {"lazy result"}
    with pytest.raises(UserError, match="timed on a GPU only"):
        cheats_for(from_python("import triton\ndef f(x):\n    pass\n"))
