"""ramify list: kinds, names of a kind, one part."""

from __future__ import annotations

import pytest
from command import Verb

from ramify.base.registry import KINDS, names


def listed(verb: Verb, *args: str) -> dict:
    done = verb("list", *args, "--json")
    assert (done.code, done.out.count("\n")) == (0, 1)
    return done.json


def test_kinds_and_methods(verb: Verb) -> None:
    record = listed(verb)
    assert record["kinds"] == KINDS
    assert set(record["methods"]) == set(names("method"))
    assert all(record["methods"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_every_kind_says_what_it_is(verb: Verb, kind: str) -> None:
    record = listed(verb, kind)
    assert record["kind"] == kind
    assert [name for name, line in record["names"].items() if not line] == []


def test_one_part(verb: Verb) -> None:
    (part,) = listed(verb, "household")["parts"]
    assert part["kind"] == "env"
    assert part["where"].startswith("ramify.env.builtin.household.")
    assert part["text"].splitlines()[0] in verb.says("list", "household")
