"""Standing rules: nine tasks in three languages, filler without their words, and a made-up agent that reads."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from ramify.base.errors import UserError
from ramify.methods.governance.calls import grade
from ramify.methods.governance.filler import LANGUAGES, filler, opening
from ramify.methods.governance.predicates import forbids
from ramify.methods.governance.standing_rules import CHANNELS, conversation, reader, scenarios, task_names, tools
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.compact import readable_text, text_of
from ramify.rollout.rules import keywords, survival, values
from ramify.trace.message import Message

ALL = scenarios(languages=LANGUAGES)


def test_nine_tasks_five_soft_four_hard_in_three_languages() -> None:
    assert len(ALL) == 27
    assert [s.kind for s in ALL[:9]] == ["soft"] * 5 + ["hard"] * 4
    assert len({s.policy for s in ALL}) == 27
    assert {s.call[0] for s in ALL} == {"send_email", "db_exec", "read_file", "disclose", "purchase"}


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: f"{s.id}-{s.language}")
def test_the_natural_call_breaks_the_rule_and_the_allowed_one_does_not(scenario) -> None:  # type: ignore[no-untyped-def]
    assert forbids(scenario.predicate, *scenario.call)
    assert not forbids(scenario.predicate, *scenario.allowed_call)
    assert re.search(scenario.must_match.pattern, json.dumps(scenario.allowed_call[1], ensure_ascii=False))
    assert scenario.must_match.tool == scenario.allowed_call[0]
    for value in scenario.call[1].values():  # the request is self-contained
        if isinstance(value, str) and value not in ("production",):
            assert value in scenario.trigger
    assert survival(scenario.policy, scenario.trigger).kind not in ("verbatim", "paraphrased")


@pytest.mark.parametrize("language", LANGUAGES)
def test_filler_holds_no_word_and_no_value_of_any_rule(language: str) -> None:
    texts = [text_of(m) for seed in range(20) for m in [*opening(language), *filler(language, 12, "words", seed=seed)]]
    found = {key for text in texts for key in keywords(text) | values(text).keys()}
    for scenario in scenarios(languages=[language]):
        assert not found & (keywords(scenario.policy) | values(scenario.policy).keys()), scenario.id
        assert survival(scenario.policy, "\n".join(texts[:200])).kind == "dropped"


def test_filler_depends_on_its_place_alone() -> None:
    assert filler("en", 4, "a", seed=1) == filler("en", 6, "a", seed=1)[:16]
    assert filler("en", 4, "a", seed=1) != filler("en", 4, "a", seed=2)
    assert filler("en", 4, "a") != filler("en", 4, "b")
    calls = [c["id"] for m in filler("zh", 20, "x") for c in m.get("tool_calls", ())]
    assert len(set(calls)) == 20


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_rule_arrives_by_its_channel(channel: str) -> None:
    scenario = ALL[0]
    messages, place = conversation(scenario, channel, 3)
    assert scenario.policy in text_of(messages[place])
    assert messages[place]["role"] == {"system": "system", "tool": "tool"}.get(channel, "user")
    assert place == {"system": 0, "tool": 5}.get(channel, 3)
    assert readable_text(messages).count(scenario.policy) == 1


def test_without_a_channel_there_is_no_rule() -> None:
    messages, place = conversation(ALL[0], None, 3)
    assert place == -1
    assert survival(ALL[0].policy, readable_text(messages)).kind == "dropped"


def test_the_reader_follows_what_it_can_read() -> None:
    model = reader()
    names = [tool["function"]["name"] for tool in tools()]
    for scenario in ALL:
        for shown, request, outcome in (
            ([scenario.policy], scenario.trigger, "refusal"),
            ([], scenario.trigger, "violation"),
            ([scenario.policy], scenario.allowed, "allowed_action"),
        ):
            prefix = Prefix(messages=tuple(Message("user", text) for text in [*shown, request]))
            (completion,) = asyncio.run(model.sample(prefix, 1, Sampling(), [0]))
            assert grade(completion.message, completion.stop, scenario.predicate, names).outcome == outcome


def test_names_that_are_none() -> None:
    with pytest.raises(UserError, match="did you mean 'email'"):
        scenarios(["emial"])
    with pytest.raises(UserError, match="no task or language 'fr'"):
        scenarios(languages=["fr"])
    with pytest.raises(UserError, match="did you mean 'memory'"):
        conversation(ALL[0], "memroy", 3)
    with pytest.raises(UserError, match="no filler in 'fr'"):
        filler("fr", 1)
    assert task_names()[0] == "email"
