from __future__ import annotations

import pytest

from ramify.base.errors import UserError
from ramify.rollout.components import check_model


@pytest.mark.parametrize(
    "spec", ["builtin", "chat:any@http://127.0.0.1:9/v1", "factory:ramify.env.builtin.household:HouseholdEnvironment"]
)
def test_a_name_is_known_without_loading_or_asking(spec: str) -> None:
    check_model(spec)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("zzz", "unknown model 'zzz'"),
        ("hf:/nowhere/at/all", "there is no folder"),
        ("chat:any", "chat:MODEL@URL"),
        ("factory:nowhere:x", "names nothing that can be imported"),
    ],
)
def test_a_name_of_nothing_is_one_sentence(spec: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_model(spec)
