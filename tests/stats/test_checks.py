from __future__ import annotations

import json

import pytest

from ramify.stats.checks import Check


def check(**changes: object) -> Check:
    fields = {"name": "gain", "value": 0.3, "interval": (0.1, 0.5), "n": 5, "seeds": (0, 1), "op": ">=", "threshold": 0.2}
    return Check(**(fields | changes))  # type: ignore[arg-type]


def test_a_mean_has_students_interval_and_a_share_wilsons() -> None:
    mean = Check.mean("gain", [1.0, 2.0, 3.0], range(3), ">=", 0.5, "known")
    assert (mean.value, mean.n, mean.seeds, mean.status, mean.known_miss) == (2.0, 3, (0, 1, 2), "pass", "known")
    assert mean.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)
    one, none = Check.mean("gain", [1.0], (0,)), Check.mean("gain", [], (), ">", 0.0)
    assert (one.value, one.interval, one.op) == (1.0, None, "report")
    assert (none.to_json()["value"], none.n, none.status) == (None, 0, "miss")
    share = Check.share("fires", 23, 175, (0,), "<=", 0.2)
    assert (share.value, share.n, share.status) == (23 / 175, 175, "pass")
    assert share.interval == pytest.approx((0.0892, 0.1895), abs=5e-5)


def test_a_report_leaves_out_what_is_missing_and_a_check_misses_by_it() -> None:
    values = [1.0, None, 3.0]
    told, judged = Check.mean("gain", values, (5, 6, 7)), Check.mean("gain", values, (5, 6, 7), ">", 0.0)
    assert (told.value, told.n, told.seeds, told.status) == (2.0, 2, (5, 7), "reported")
    assert (judged.n, judged.interval, judged.status) == (3, None, "miss")


def test_pairs_differ_by_their_mean_and_the_worst_is_on_the_wrong_side() -> None:
    pair = Check.paired("gain", [3.0, 5.0], [1.0, 2.0], (0, 1), ">", 2.0)
    assert (pair.value, pair.n, pair.status) == (2.5, 2, "pass")
    assert pair.interval == pytest.approx((2.5 - 12.7062 * 0.5, 2.5 + 12.7062 * 0.5), abs=1e-3)
    worst = {op: Check.worst("w", [1.0, 3.0, 2.0], (0,), op, 2.0).value for op in ("<=", "<", "==", ">=", ">")}
    assert worst == {"<=": 3.0, "<": 3.0, "==": 3.0, ">=": 1.0, ">": 1.0}
    assert Check.worst("w", [1.0], (0,), ">=", 2.0, n=40).n == 40


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
        ({"threshold": 0.4, "known_miss": "see page"}, "known_miss"),
        ({"threshold": 0.2, "known_miss": "see page"}, "pass"),
        ({"value": float("nan")}, "miss"),
        ({"op": "report", "threshold": None, "value": float("nan")}, "reported"),
    ],
)
def test_status(changes: dict[str, object], status: str) -> None:
    assert check(**changes).status == status


def test_check_json_has_the_contract_fields() -> None:
    out = check(value=float("inf"), known_miss="why").to_json()
    assert list(out) == ["name", "value", "interval", "n", "seeds", "op", "threshold", "status", "known_miss"]
    assert out["value"] is None
    assert json.loads(json.dumps(out, allow_nan=False)) == out


@pytest.mark.parametrize("changes", [{"op": "=>"}, {"threshold": None}])
def test_impossible_checks_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="gain"):
        check(**changes)
