from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine.helpers import tiny
from engine.speculating import Shadow, prompts
from engine.test_profile import EXAMPLE

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile
from ramify.methods.dspark.profile import PLAIN, Cycles, break_even, measure, needed, rising
from ramify.methods.dspark.record import BreakEven, DraftingNeeds, LoadOutlook


def test_break_even_by_hand():
    rows = break_even(EXAMPLE)
    best = max(1.0 / 1.5, 1.9 / 2.0, 2.62 / 2.7)  # one draft made and 0 or 1 verified, or both
    assert rows[0].gain == pytest.approx(best)
    assert rows[0].plain == 1.0
    assert rows[0].drafting == pytest.approx(best)
    assert (rows[0].depth, rows[0].verified) == (2, 2.0)
    assert [row.requests for row in rows] == [1, 3, 4]


def test_what_pays_is_said_only_where_the_times_tell_it():
    def outlook(*gains: float, verified: float = 1.0) -> LoadOutlook:
        low, gain, high = gains
        return LoadOutlook(4, 1.0, gain, gain, 2, verified, (low, high))

    assert BreakEven((outlook(1.1, 1.2, 1.3),), "").verdict == "drafting promises to pay at 4 requests at once"
    assert BreakEven((outlook(0.9, 1.06, 1.2),), "").verdict == "at 4 it is open: the interval holds 1"
    assert BreakEven((outlook(1.01, 1.06, 1.2, verified=0.0),), "").verdict == "drafting pays at none of these loads"
    assert BreakEven((outlook(0.7, 0.8, 0.9),), "").verdict == "drafting pays at none of these loads"


def test_what_must_be_accepted_by_hand():
    """A pass costs as much as its tokens above two: one draft is free, and two drafts cost half a pass more."""
    costs = {"requests": (1, 8), "plain": (1.0, 4.0), "draft": ((0.2, 0.2), (1.0, 1.0))}
    profile = Profile(block=2, verify=((1.0, 1.0, 1.5), (4.0, 8.0, 12.0)), **costs)
    alone, many = needed(profile)
    assert alone.acceptance == pytest.approx(0.2, abs=1e-6)  # 1 + a tokens for 1.2 seconds
    assert alone.gains == pytest.approx([1.4 / 1.2, 1.6 / 1.2, 1.8 / 1.2, 3.0 / 1.7])
    assert alone.possible is True
    assert (many.acceptance, many.possible) == (None, False)  # at most 3 tokens for 13 seconds, or 2 for 9, and not 1 for 4
    said = DraftingNeeds((alone, many), 2, 1000).verdict
    assert said == "drafting can pay at 1 (from 20% accepted on) requests at once; it cannot at 8, whatever is accepted"


def test_cycles_drawn_again_are_as_wide_as_the_times_vary():
    rng = np.random.default_rng(0)

    def cycles(noise: float) -> Cycles:
        stages = [PLAIN, (1, 1), (1, 0)]
        times = {s: np.stack([1 + noise * rng.random(60), np.full(60, 0.1)], 1) for s in stages}
        return Cycles(1, "", "", {1: times}, np.array([1e6]), np.array([5e5]))

    widths = []
    for noise in (0.0, 0.1, 1.0):
        made = cycles(noise)
        (row,) = break_even(made.profile(), again=made.again(200))
        widths.append(row.interval[1] - row.interval[0])
    assert widths[0] < 0.02
    assert widths[0] < widths[1] < widths[2]


def test_costs_that_fall_are_pooled():
    assert rising([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    assert rising([1.0, 4.0, 2.0, 3.0, 5.0]) == [1.0, 3.0, 3.0, 3.0, 5.0]
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_measured_on_the_running_engine(tmp_path: Path):
    target = tiny(layers=2)
    model = LocalModel(target, eos=())
    drafter = Shadow(target, block=2)
    cycles = measure(model, drafter, prompts(4), loads=(2, 1), repeats=2)
    profile = cycles.profile()
    assert profile.requests == (1, 2)
    assert min(*profile.plain, *(s for row in profile.verify for s in row), *(s for row in profile.draft for s in row)) > 0
    assert all(0 < a < 1 for a in profile.acceptance)
    profile.save(tmp_path)
    loaded = Profile.load(tmp_path)
    loaded.check(model.identity.weights, profile.drafter)
    with pytest.raises(UserError, match="another target"):
        loaded.check("other", profile.drafter)
    outlook = break_even(profile, again=cycles.again(20))
    assert all(row.interval[0] <= row.interval[1] for row in outlook)
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
