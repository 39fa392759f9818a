"""What a branch is given instead of running a tool: recorded results and errors."""

from __future__ import annotations

import pytest

from ramify.env.tools import result_of, stored


@pytest.mark.parametrize(
    ("name", "kind"), [("ValueError", ValueError), ("UnicodeDecodeError", UnicodeDecodeError), ("OddError", Exception)]
)
def test_a_recorded_error_is_raised_again_with_its_name_and_text(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="what went wrong") as caught:
        result_of({"error": {"type": name, "text": "what went wrong"}})
    assert type(caught.value).__name__ == name


def test_what_ends_the_process_is_raised_as_an_error_only() -> None:
    with pytest.raises(Exception, match="stop") as caught:
        result_of({"error": {"type": "KeyboardInterrupt", "text": "stop"}})
    assert not isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.parametrize("value", [{"b": 1, "a": [None, 2.5]}, "text", [], 0])
def test_a_result_is_given_again_as_it_was(value: object) -> None:
    assert result_of(stored(value)) == value


def test_a_result_that_is_no_json_is_an_error() -> None:
    with pytest.raises(TypeError, match="a set was given"):
        result_of(stored({1, 2}))
