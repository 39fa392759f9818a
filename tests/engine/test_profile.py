from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.engine.local import LocalModel
from ramify.engine.profile import Profile, break_even, measure, rising

from .helpers import tiny
from .speculating import Shadow, prompts

EXAMPLE = Profile(
    block=2,
    requests=(1, 3, 4),
    plain=(1.0, 2.0, 3.0),
    draft=((0.5, 0.7), (0.7, 1.1), (0.8, 1.3)),
    verify=((1.0, 1.5, 2.0), (2.0, 3.0, 4.0), (3.0, 5.0, 6.0)),
    acceptance=(0.9, 0.8),
)


def test_between_the_loads_costs_are_straight_lines():
    assert EXAMPLE.cycle(1, np.array([1.0]), 0).tolist() == [1.0]
    assert EXAMPLE.cycle(1, np.array([1.0, 2.0, 2.5, 3.0]), 1) == pytest.approx([1.5, 2.0, 2.25, 2.5])
    assert EXAMPLE.cycle(2, np.array([2.0]), 0) == pytest.approx([1.5])
    assert EXAMPLE.cycle(2, np.array([2.0, 4.0]), 2) == pytest.approx([0.9 + 1.5, 0.9 + 2.25])
    assert EXAMPLE.cycle(4, np.array([4.0, 8.0]), 2) == pytest.approx([1.3 + 3.0, 1.3 + 5.0])


def test_beyond_the_table_the_last_slope_goes_on_with_one_warning():
    profile = Profile(**{name: getattr(EXAMPLE, name) for name in ("block", "requests", "plain", "draft", "verify")})
    with pytest.warns(UserWarning, match="ends at 4 requests"):
        assert profile.cycle(6, np.array([6.0]), 0) == pytest.approx([5.0])
    assert profile.cycle(6, np.array([6.0, 12.0]), 1) == pytest.approx([1.0 + 5.0, 1.0 + 9.0])


def test_one_load_is_a_profile_too():
    profile = Profile(1, (1,), (1.0,), ((0.1, 0.1),), ((1.0, 1.2),))
    assert profile.cycle(1, np.array([1.0, 2.0]), 1) == pytest.approx([1.1, 1.3])


def test_break_even_by_hand():
    rows = break_even(EXAMPLE)
    best = max(1.0 / 1.5, 1.9 / 2.0, 2.62 / 2.7)  # one draft made and 0 or 1 verified, or both
    assert rows[0]["gain"] == pytest.approx(best)
    assert rows[0]["plain"] == 1.0
    assert rows[0]["drafting"] == pytest.approx(best)
    assert (rows[0]["depth"], rows[0]["verified"]) == (2, 2.0)
    assert [row["requests"] for row in rows] == [1, 3, 4]


def test_saved_and_read_again(tmp_path: Path):
    EXAMPLE.save(tmp_path)
    again = Profile.load(tmp_path)
    assert again.cycle(3, np.array([5.0]), 2) == EXAMPLE.cycle(3, np.array([5.0]), 2)
    assert again.prior is not None
    assert again.prior.tolist() == [0.9, 0.8]


@pytest.mark.parametrize(
    "change",
    [
        {"requests": [3, 1, 4]},
        {"plain": [1.0]},
        {"verify": [[1.0]]},
        {"draft": [1.0, 2.0, 3.0]},
        {"acceptance": [0.5]},
        {"speed": 3},
        {"block": "two"},
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, change: dict[str, object]):
    path = EXAMPLE.save(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="profile"):
        Profile.load(tmp_path)
    path.write_text("[]")
    with pytest.raises(UserError, match="not hold a JSON object"):
        Profile.load(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="cannot read"):
        Profile.load(tmp_path)


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
