"""ramify list: kinds, names of a kind, one part."""

from __future__ import annotations

import json

import pytest

from ramify.base.registry import KINDS, names
from ramify.cli.main import main


def listed(capsys: pytest.CaptureFixture, *args: str) -> dict:
    assert main(["list", *args, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_kinds_and_methods(capsys: pytest.CaptureFixture) -> None:
    record = listed(capsys)
    assert record["kinds"] == KINDS
    assert set(record["methods"]) == set(names("method"))
    assert all(record["methods"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_every_kind_says_what_it_is(capsys: pytest.CaptureFixture, kind: str) -> None:
    record = listed(capsys, kind)
    assert record["kind"] == kind
    assert [name for name, line in record["names"].items() if not line] == []


def test_one_part(capsys: pytest.CaptureFixture) -> None:
    (part,) = listed(capsys, "household")["parts"]
    assert part["kind"] == "env"
    assert part["where"].startswith("ramify.env.builtin.household.")
    assert main(["list", "household"]) == 0
    assert part["text"].splitlines()[0] in capsys.readouterr().out
