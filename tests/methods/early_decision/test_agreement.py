"""Agreement of raters, equality of shares, discrimination apart from bias."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.early_decision.agreement import detection, equality, fleiss_kappa, kappa_interval

# Fleiss 1971, table 1 as reprinted everywhere: 14 raters, 10 subjects, 5 categories
TABLE = [
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
]  # fmt: skip


def test_kappa_of_the_textbook_table() -> None:
    assert fleiss_kappa(np.array(TABLE)) == pytest.approx(0.210, abs=5e-4)
    assert fleiss_kappa(np.array([[3, 0], [0, 3]])) == pytest.approx(1.0)
    assert fleiss_kappa(np.array([[3, 0], [3, 0]])) is None
    for bad in ([[3, 0], [1, 1]], [[1, 0]], np.zeros((0, 2))):
        with pytest.raises(ValueError, match="same number of raters"):
            fleiss_kappa(np.array(bad))


def test_kappa_interval_is_wider_where_items_come_in_clusters() -> None:
    rng = generator(0, "raters")
    truth = np.repeat(rng.integers(0, 2, 30), 10)  # ten chunks of one trace are alike
    agree = np.repeat(rng.random(30) < 0.7, 10)
    counts = np.array([[3 * (t == 0), 3 * (t == 1)] if a else [2 - t, 1 + t] for t, a in zip(truth, agree, strict=True)])
    clustered, alone = kappa_interval(counts, np.repeat(np.arange(30), 10)), kappa_interval(counts, np.arange(300))
    value = fleiss_kappa(counts)
    assert clustered is not None
    assert alone is not None
    assert value is not None
    assert clustered[0] < value < clustered[1]
    assert clustered[1] - clustered[0] > 1.5 * (alone[1] - alone[0])
    assert kappa_interval(np.array([[3, 0], [3, 0]]), [0, 1]) is None


def test_equal_different_or_not_known() -> None:
    assert equality(0, 100, 0, 100)[0] == "equivalent"
    assert equality(50, 100, 50, 100)[0] == "undecided"  # a margin of 10 points needs more than 100 samples here
    assert equality(500, 1000, 500, 1000)[0] == "equivalent"
    assert equality(50, 100, 78, 100)[0] == "different"
    assert equality(0, 100, 14, 100)[0] == "different"
    assert equality(0, 0, 1, 3)[0] == "undecided"
    assert equality(980, 1000, 1000, 1000)[0] == "equivalent"  # certain, and too small to matter
    with pytest.raises(UserError, match="margin"):
        equality(1, 2, 1, 2, margin=0)


def test_discrimination_and_bias_are_two_things() -> None:
    d, c = detection(841, 1000, 159, 1000)
    assert d == pytest.approx(2.0, abs=0.01)
    assert c == pytest.approx(0.0, abs=0.01)
    stricter = detection(977, 1000, 500, 1000)
    assert stricter[0] == pytest.approx(2.0, abs=0.02)
    assert stricter[1] == pytest.approx(-1.0, abs=0.01)
    assert np.isfinite(detection(10, 10, 0, 10)).all()
    with pytest.raises(ValueError, match="no counts"):
        detection(3, 2, 0, 1)
