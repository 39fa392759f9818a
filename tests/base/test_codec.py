"""Records become JSON and come back, and what is no such record is one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.base.codec import from_json, to_json
from ramify.base.errors import UserError


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Inner:
    name: str
    point: Point | None = None


@dataclass(frozen=True)
class Outer:
    n: int
    share: float | None
    inner: tuple[Inner, ...]
    by_name: dict[str, Inner]
    colour: Colour = Colour.RED
    hidden: object = field(default=None, metadata={"json": False})


names = st.text(max_size=8)
points = st.builds(Point, st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
inners = st.builds(Inner, names, st.none() | points)


@given(st.builds(Outer, st.integers(), st.none() | st.floats(0, 1), st.lists(inners).map(tuple), st.dictionaries(names, inners)))
def test_what_is_written_is_read_back(record: Outer) -> None:
    assert from_json(Outer, to_json(record)) == record


def test_numbers_of_numpy_paths_sets_and_what_is_no_number() -> None:
    assert to_json({"a": np.int64(3), "b": np.array([[1.5, math.nan]]), "c": Path("x/y"), 4: {2, 1}, "d": math.inf}) == {
        "a": 3,
        "b": [[1.5, None]],
        "c": "x/y",
        "4": [1, 2],
        "d": None,
    }
    assert "hidden" not in to_json(Outer(1, None, (), {}, hidden=object()))
    with pytest.raises(TypeError, match="a object has no JSON form"):
        to_json([object()])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"point": {"x": 1, "y": 2}}, "file:3: 'name' is missing"),
        ({"name": 4}, "file:3: 'name' must be text, not 4"),
        ({"name": "a", "point": {"x": "far", "y": 2}}, "file:3: 'point.x' must be a valid number, not 'far'"),
        ([1], "file:3: must be a dictionary or an instance of Inner, not \\[1\\]"),
    ],
)
def test_what_is_no_record_is_one_sentence_with_its_place(data: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        from_json(Inner, data, "file:3")
