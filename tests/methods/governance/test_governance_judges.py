"""A jury on what survived: majority, agreement, constant judges, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.methods.governance.judges import find_survival_jury
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import Item, Jury, agreement, judged
from ramify.stats.intervals import Proportion

ITEMS = [("keep a", "a"), ("keep b", "nothing"), ("keep c", "c"), ("keep d", "nothing")]


def ask(**answers: Any) -> tuple[Jury, dict[str, list[Any]], list[Any]]:
    models = {
        name: ScriptedModel(lambda messages, key, own=own: own(messages[-1].text), tokens=False, name=name)
        for name, own in answers.items()
    }
    jury = find_survival_jury(list(models), lambda name: (models[name], None))
    found = asyncio.run(judged(jury, [Item(text, prompt=rule) for rule, text in ITEMS]))
    return jury, {n: [one.evidence["votes"][i] for one in found] for i, n in enumerate(jury.names)}, [one.value for one in found]


def honest(text: str) -> str:
    return "No." if "nothing" in text else "Yes, it does."


def contrary(text: str) -> str:
    return "yes" if "keep d" in text else honest(text)


def down(text: str) -> str:
    raise InfrastructureError("provider", "503")


def test_majority_agreement_and_a_constant_judge() -> None:
    jury, votes, majority = ask(h=honest, g=honest, c=contrary, never=lambda text: "no")
    assert jury.constant == ("never",)
    assert majority == [True, False, True, False]
    agreed = agreement(votes)
    assert agreed["h, g"] == Proportion.of(4, 4)
    assert agreed["h, c"] == Proportion.of(3, 4)
    assert agreement({"majority": majority, "keywords": [True, False, False, False]})["majority, keywords"] == Proportion.of(3, 4)


def test_silent_and_failing_judges_are_no_votes() -> None:
    jury, votes, majority = ask(h=honest, down=down, mumbles=lambda text: "perhaps")
    assert votes["down"] == votes["mumbles"] == [None] * 4
    assert jury.constant == ()
    assert jury.failed == {"down": "provider: 503"}
    assert majority == [True, False, True, False]
    assert agreement(votes)["h, down"] is None


def test_a_tie_and_no_judge() -> None:
    assert ask(h=honest, c=contrary)[2] == [True, False, True, None]
    with pytest.raises(UserError, match="at least one judge"):
        ask()
