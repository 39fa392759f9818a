from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.engine.profile import Profile

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


def test_beyond_the_table_the_last_slope_continues_with_one_warning():
    profile = Profile(**{name: getattr(EXAMPLE, name) for name in ("block", "requests", "plain", "draft", "verify")})
    with pytest.warns(UserWarning, match="ends at 4 requests"):
        assert profile.cycle(6, np.array([6.0]), 0) == pytest.approx([5.0])
    assert profile.cycle(6, np.array([6.0, 12.0]), 1) == pytest.approx([1.0 + 5.0, 1.0 + 9.0])


def test_one_load_is_a_profile_too():
    profile = Profile(1, (1,), (1.0,), ((0.1, 0.1),), ((1.0, 1.2),))
    assert profile.cycle(1, np.array([1.0, 2.0]), 1) == pytest.approx([1.1, 1.3])


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
