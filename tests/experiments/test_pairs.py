"""Pairs of tokens as training rows: one trained token, ids as they are, bad pairs named."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify_experiments.cliffs.pairs import pair_rows

PAIR = {"prompt_ids": [1, 1, 2], "chosen_id": 3, "rejected_id": 16_777_215}


def test_a_pair_is_one_row_with_one_trained_token() -> None:
    (row,) = pair_rows([PAIR | {"class": "uncertain"}])
    assert row.tokens.tolist() == [1, 1, 2, 3]  # a doubled first token stays, nothing is appended
    assert row.mask.tolist() == [False, False, False, True]
    assert row.streams["rival"].tolist() == [0, 0, 0, 16_777_215]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_ids": []}, "pair 2: 'prompt_ids' must be"),
        ({"prompt_ids": "12"}, "pair 2: 'prompt_ids' must be"),
        ({"prompt_ids": [1, -1]}, "pair 2: 'prompt_ids' must be"),
        ({"chosen_id": None}, "pair 2: 'chosen_id' and 'rejected_id'"),
        ({"rejected_id": 1 << 24}, "pair 2: 'chosen_id' and 'rejected_id'"),
        ({"rejected_id": True}, "pair 2: 'chosen_id' and 'rejected_id'"),
        ({"rejected_id": 3}, "pair 2: token 3 is both"),
    ],
)
def test_bad_pairs_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        pair_rows([PAIR, PAIR | change])
