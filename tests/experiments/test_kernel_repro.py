"""The reproduction of kernel-search: its suite reads as tasks, its planted candidate is wrong, and its quick size passes."""

from __future__ import annotations

import pytest

from ramify.base.errors import UserError
from ramify_experiments.kernel_search.repro import MATMUL, WRONG, reproduce
from ramify_experiments.kernel_search.suite import HEALTHY, SUITE
from ramify_experiments.lab import ResultCache


def test_every_kernel_of_the_suite_is_a_task() -> None:
    from ramify.methods.kernel_search.task import from_c
    from ramify.methods.kernel_search.tools import TOOLS

    assert (len(SUITE), len(HEALTHY)) == (16, 4)
    for one in (*SUITE, *HEALTHY):
        assert one.task.symbol == one.name
        assert one.tools <= set(TOOLS)
        assert len(one.task.shapes()) >= 2
    assert from_c(MATMUL, "matmul").knobs["BLOCK"] == ("0", "32", "64")
    assert from_c(WRONG).symbol == "reduction"


def test_a_size_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="no size 'gpu'"):
        reproduce("gpu", ResultCache())
