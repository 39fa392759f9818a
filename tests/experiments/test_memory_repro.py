"""The parts of the reproduction of earned-code-memory on small cases; its results come from `ramify repro earned-code-memory`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.earned_code_memory.memory import Memory
from ramify.methods.earned_code_memory.tools import ToolBox
from ramify_experiments.earned_code_memory import mechanism, writers
from ramify_experiments.earned_code_memory.office import (
    APPS,
    Goal,
    Office,
    Rules,
    catalogue,
    families,
    goal,
    picked,
    rules,
    weights,
)
from ramify_experiments.earned_code_memory.planner import finish, play

PLAIN, OTHER = Rules(frozenset(), frozenset()), Rules(frozenset(APPS), frozenset({"mail.delete"}))
GOAL = Goal("mail", "delete", "oldest", {"n": 3})


def office(ruled: Rules, seed: int = 0) -> Office:
    return Office(GOAL, ruled, generator(seed, "test office"))


def test_the_office_has_thirty_apis_and_sixty_families() -> None:
    assert len(catalogue()) == 30
    assert len(set(families(0))) == 60
    assert weights(40).sum() == pytest.approx(1)
    for family in families(3):
        wanted = goal(family, generator(1, *family))
        app, action, selector, values = writers.parsed(wanted.query)
        assert (app, action, selector, values) == (*family, dict(wanted.values))
    before, after = rules(0, False), rules(0, True)
    assert len(before.cursor ^ after.cursor) + len(before.confirm ^ after.confirm) == 8


def test_the_apis_page_hold_back_and_refuse() -> None:
    made = office(OTHER)
    with pytest.raises(UserError, match="401"):
        made.call("mail.list", {})
    token = made.call("mail.login", {"user": "me"})["token"]
    first = made.call("mail.list", {"token": token})
    assert made.call("mail.list", {"token": token, "page": 1})["items"] == first["items"], (
        "a parameter of the other rule is passed over"
    )
    assert made.call("mail.list", {"token": token, "cursor": first["next"]})["items"] != first["items"]
    held = made.call("mail.delete", {"token": token, "id": 0})
    assert (held["status"], made.items[0]["state"]) == ("pending", "open")
    made.call("mail.confirm", {"token": token, "code": held["code"]})
    assert made.items[0]["state"] == "delete"


def test_an_executor_that_overlooks_nothing_solves_what_it_is_asked() -> None:
    class Lucky:
        def random(self) -> float:
            return 0.999

    for ruled in (PLAIN, OTHER):
        executor = play(GOAL, office(ruled), "", Lucky())  # type: ignore[arg-type]
        finish(executor)
        assert executor.office.solved
        assert executor.chat.input > executor.chat.output > 0


def test_what_the_codifier_writes_is_right_under_its_rules_and_says_so_under_others(tmp_path: Path) -> None:
    async def run() -> None:
        with Memory(tmp_path / "m.sqlite", evidence="queries", review="auto", reviewer=lambda one: True) as memory:
            memory.offer(catalogue())
            for i, n in enumerate((2, 3, 4)):
                wanted = Goal("mail", "delete", "oldest", {"n": n})
                executor = play(wanted, Office(wanted, PLAIN, generator(i, "train")), "", np.random.default_rng(8))
                finish(executor)
                given = await memory.select(wanted.query, writers.manager)
                memory.record(wanted.query, executor.chat.messages, executor.office.solved, given)
                await memory.reflect(writers.reflector)
            assert (await memory.codify(writers.codifier)).active == ("mail_delete_oldest",)
            for ruled, ok in ((PLAIN, True), (OTHER, False)):
                made = office(ruled)
                async with ToolBox(memory, made.call) as box:
                    done = await box.call("mail_delete_oldest", {"n": 3})
                assert (done.ok, made.solved) == (ok, ok)
                assert json.loads(done.shown).get("do instead", "").startswith("delete in mail") is not ok

    asyncio.run(run())


def test_a_selector_picks() -> None:
    items = [{"label": "ab"[i % 2], "date": -i, "number": i} for i in range(6)]
    assert [one["number"] for one in picked(items, "label_oldest", label="a", n=2)] == [4, 2]
    assert [one["number"] for one in picked(items, "below", x=2)] == [0, 1]


def test_the_simulation_is_what_its_parts_say() -> None:
    none = [mechanism.simulate(seed, "none") for seed in range(6)]
    steps = np.mean([0.93**k for k in range(4, 10)])
    assert np.mean([run["accuracy"] for run in none]) == pytest.approx(steps, abs=0.05)
    assert mechanism.simulate(0, "eager") == mechanism.simulate(0, "gated, K = 1")
    assert mechanism.simulate(0, "text")["construction"] == mechanism.REFLECT * mechanism.TRAIN
