"""What the doors of pins say without their harness, and the assertion that a compaction keeps rules. The harnesses:
test_harness_pins.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.integrations.harnesses import autogen_pins, langchain_pins, openai_agents_pins
from ramify.integrations.inspect import compaction as inspect_compaction
from ramify.integrations.pytest.plugin import Assertions
from ramify.rollout.pins import Pins, pin, without_blocks

RULE = "Never purchase anything above 100 dollars."


def newest(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return messages[-4:]


def test_rules_that_survive_and_rules_that_do_not() -> None:
    ramify = Assertions()
    ramify.assert_survives(pin(newest, RULE), RULE, rounds=3)
    ramify.assert_survives(lambda messages: messages[:5] + messages[-4:], RULE, rounds=1)
    with pytest.raises(AssertionError, match=r"compaction lost 1 rule: 'Never purchase .*' \(dropped in round 1\)"):
        ramify.assert_survives(newest, RULE)
    changed = {"role": "user", "content": RULE.replace("100", "900")}
    with pytest.raises(AssertionError, match=r"\(mutated in round 1\)"):
        ramify.assert_survives(lambda messages: [changed, *messages[-4:]], RULE)


def test_what_shows_nothing_is_no_success() -> None:
    def broken(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        raise RuntimeError("no summary today")

    ramify = Assertions()
    with pytest.raises(UserError, match=r"nothing is shown: the compactor failed \(RuntimeError: no summary today\)"):
        ramify.assert_survives(broken, RULE)
    with pytest.raises(UserError, match="nothing is shown: give a smaller budget"):
        ramify.assert_survives(list, RULE)


def test_blocks_inside_other_texts_are_found_and_forged_ones_left() -> None:
    blocks = [Pins([rule]).block() for rule in (RULE, "Only write English.")]
    assert without_blocks(f"You help.\n{blocks[0]}\n{blocks[1]}") == "You help.\n\n"
    forged = blocks[0].replace("100", "900")
    assert without_blocks(forged) == forged


@pytest.mark.parametrize(
    ("package", "install", "extra"),
    [
        ("langchain.agents", lambda: langchain_pins.keep_rules(RULE), "harnesses"),
        ("langchain_core", lambda: langchain_pins.keep_rules_node(None, RULE), "harnesses"),
        ("langgraph.graph", lambda: langchain_pins.compactor(None), "harnesses"),
        ("agents", lambda: openai_agents_pins.keep_rules(RULE), "harnesses"),
        ("autogen_core.model_context", lambda: autogen_pins.keep_rules(None, RULE), "harnesses"),
        ("inspect_ai", lambda: inspect_compaction.keep_rules(None, RULE), "serve"),
    ],
)
def test_a_missing_harness_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, install: Callable[[], Any], extra: str
) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NeedsError, match=rf"ramify\[{extra}\]"):
        install()
