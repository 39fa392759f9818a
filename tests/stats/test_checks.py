from __future__ import annotations

import json

import pytest

from ramify.base import codec
from ramify.stats.checks import Check


def check(**changes: object) -> Check:
    fields = {"name": "gain", "value": 0.3, "interval": (0.1, 0.5), "n": 5, "seeds": (0, 1), "op": ">=", "threshold": 0.2}
    return Check(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"threshold": 0.3}, "pass"),
        ({"op": ">", "threshold": 0.3}, "miss"),
        ({"op": "<=", "threshold": 0.3}, "pass"),
        ({"op": "<", "threshold": 0.3}, "miss"),
        ({"op": "==", "threshold": 0.3}, "pass"),
        ({"threshold": 0.4}, "miss"),
        ({"threshold": 0.4, "known_failure": "see page"}, "known_failure"),
        ({"threshold": 0.2, "known_failure": "see page"}, "pass"),
        ({"value": float("nan")}, "miss"),
        ({"op": "report", "threshold": None, "value": float("nan")}, "reported"),
    ],
)
def test_status(changes: dict[str, object], status: str) -> None:
    assert check(**changes).status == status


def test_check_json_has_the_contract_fields() -> None:
    out = codec.to_json(check(value=float("inf"), known_failure="why"))
    assert list(out) == ["name", "value", "interval", "n", "seeds", "op", "threshold", "known_failure", "status"]
    assert out["value"] is None
    assert json.loads(json.dumps(out, allow_nan=False)) == out


@pytest.mark.parametrize("changes", [{"op": "=>"}, {"threshold": None}])
def test_impossible_checks_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="gain"):
        check(**changes)
