from __future__ import annotations

from pathlib import Path

import pytest
from engine.helpers import tiny
from engine.speculating import Shadow, prompts
from engine.test_profile import EXAMPLE

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile
from ramify.methods.dspark.profile import break_even, measure, rising


def test_break_even_by_hand():
    rows = break_even(EXAMPLE)
    best = max(1.0 / 1.5, 1.9 / 2.0, 2.62 / 2.7)  # one draft made and 0 or 1 verified, or both
    assert rows[0].gain == pytest.approx(best)
    assert rows[0].plain == 1.0
    assert rows[0].drafting == pytest.approx(best)
    assert (rows[0].depth, rows[0].verified) == (2, 2.0)
    assert [row.requests for row in rows] == [1, 3, 4]


def test_costs_that_fall_are_pooled():
    assert rising([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    assert rising([1.0, 4.0, 2.0, 3.0, 5.0]) == [1.0, 3.0, 3.0, 3.0, 5.0]
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_measured_on_the_running_engine(tmp_path: Path):
    target = tiny(layers=2)
    model = LocalModel(target, eos=())
    drafter = Shadow(target, block=2)
    profile = measure(model, drafter, prompts(4), loads=(2, 1), repeats=2)
    assert profile.requests == (1, 2)
    assert min(*profile.plain, *(s for row in profile.verify for s in row), *(s for row in profile.draft for s in row)) > 0
    assert all(0 < a < 1 for a in profile.acceptance)
    profile.save(tmp_path)
    loaded = Profile.load(tmp_path)
    loaded.check(model.identity.weights, profile.drafter)
    with pytest.raises(UserError, match="another target"):
        loaded.check("other", profile.drafter)
    speculating = LocalModel(target, drafter=drafter, profile=loaded, schedule="stale2", eos=())
    assert speculating.speculation is not None


def test_another_machine_is_a_warning():
    with pytest.warns(UserWarning, match="was made on abacus"):
        Profile(**{n: getattr(EXAMPLE, n) for n in ("block", "requests", "plain", "draft", "verify")}, machine="abacus").check(
            "", ""
        )


def test_measuring_needs_prompts_and_loads():
    target = tiny(layers=2)
    for given, loads in (([], (1,)), (prompts(1), ())):
        with pytest.raises(UserError, match="at least one"):
            measure(LocalModel(target), Shadow(target), given, loads=loads)
