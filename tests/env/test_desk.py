"""The desk environment: what wins, what cannot be undone, whose luck is whose, and the conformance battery."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.seeds import generator
from ramify.env.builtin.desk import FILLERS, Desk, DeskEnvironment, demonstrate, make_task, possible_actions, rightful, talk
from ramify.env.protocol import Task
from ramify.testing import check_env

ENVIRONMENT = DeskEnvironment()
TASK = Task(
    "t",
    {
        "name": "Ann",
        "a": {"wish": "cancel", "flex": True, "insured": False, "claim": True},
        "b": {"wish": "change", "flex": True, "insured": False, "claim": False},
        "c": {"wish": "cancel", "flex": False, "insured": True, "claim": True},
    },
)


def walk(*actions: str, seed: int = 0) -> tuple[Desk, list[str]]:
    env = ENVIRONMENT.make()
    seen = [env.reset(TASK, seed).text]
    seen += [env.step(action).text for action in actions]
    return env, seen


def test_the_battery_of_environments() -> None:
    assert check_env(ENVIRONMENT) == []


def test_the_rules_and_the_way_to_win() -> None:
    assert [rightful(TASK.data[b]) for b in "abc"] == ["deny", "change", "cancel"]
    env, seen = walk("well so deny a", "change b")
    assert seen == ["Ann asks. a cancel yes.", "done. b change no.", "done. c cancel yes."]
    last = env.step("cancel c")
    assert (last.text, last.reward, last.terminated, last.outcome) == ("All closed.", 1.0, True, True)


def test_what_closes_a_booking_is_not_commented_on_and_stays() -> None:
    env, seen = walk("cancel a", "deny a", "change b")
    assert seen[1:] == ["done. b change no.", "Nothing happens. b change no.", "done. c cancel yes."]
    assert env.step("cancel c").outcome is False


def test_a_lookup_fails_by_the_seed_of_the_environment_and_one_time_in_five() -> None:
    texts = [walk("lookup a", seed=seed)[1][1] for seed in range(1000)]
    assert set(texts) == {"busy. a cancel yes.", "a flex bare. a cancel yes."}
    assert texts.count("busy. a cancel yes.") == pytest.approx(200, abs=50)
    assert texts == [walk("lookup a", seed=seed)[1][1] for seed in range(1000)]


@pytest.mark.parametrize("action", ["", "lookup", "lookup d", "sell a", "a lookup", "\n", "deny a now"])
def test_what_makes_no_sense_costs_a_turn_only(action: str) -> None:
    env, seen = walk(action)
    assert seen[1] == "Nothing happens. a cancel yes."
    assert env.snapshot() == {"closed": {}, "turn": 1}


def test_a_claim_is_true_65_percent_of_the_time() -> None:
    tasks = [make_task("", generator(1, "claims", i)) for i in range(1000)]
    true = [t.data[b]["claim"] == (rightful(t.data[b]) != "deny") for t in tasks for b in "abc"]
    assert np.mean(true) == pytest.approx(0.65, abs=0.04)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 5]))
def test_demonstrations_without_slips_close_all_as_they_know(seed: int, fillers: int) -> None:
    task = make_task("t", generator(seed, "task"))
    pairs = demonstrate(task, seed, generator(seed, "demo"), look=1.0, slip=0.0, fillers=fillers)
    env = Desk()
    assert env.reset(task, seed).text == pairs[0][0]
    for _, action in pairs:
        words = action.split()
        assert len(words) == max(fillers, 1) + 2
        assert set(words[:-2]) <= set(FILLERS)
        assert " ".join(words[-2:]) in possible_actions(task, env.snapshot())
        last = env.step(action)
    # only an agent that was kept busy to the turn limit fails
    assert last.outcome or len(pairs) == env.max_turns


def test_talk_is_skewed_and_blind() -> None:
    assert talk(generator(0, "talk"), 0) == "well"
    words = talk(generator(0, "talk"), 4000).split()
    counts = [words.count(word) for word in FILLERS]
    assert counts[0] > 4 * counts[3] > 0


def test_mistakes() -> None:
    with pytest.raises(InfrastructureError, match="before reset"):
        Desk().step("deny a")
    with pytest.raises(UserError, match="lacks c, which the desk environment needs"):
        Desk().reset(Task("t", {k: TASK.data[k] for k in ("name", "a", "b")}), 0)
    with pytest.raises(UserError, match="unknown split"):
        ENVIRONMENT.task_set("test", 3)
