"""Which part of what the agent was shown caused a step: the search on decisions of known chance, parts of real shapes of prompts,
and runs of function and endpoint-like agents."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import halls
import pytest

import ramify
from ramify import Observation
from ramify.base.errors import UserError
from ramify.engine.checkpoints import model_folder
from ramify.engine.local import LocalModel
from ramify.jobs.context.ask import found_contexts, why_context
from ramify.jobs.context.parts import FILLER, NOTHING, ContextParts, take_apart
from ramify.jobs.context.search import CauseSearch, Searched, SearchSettings, Variant
from ramify.rollout.commands import NOBODY
from ramify.score.target import read_target
from ramify.stats.sequential import DropBet
from ramify.trace.db import Run
from ramify.trace.message import Message

GROUPS, EACH = 4, 4
LETTER = [
    "The roof is old. The lift works. The owner is away.",
    "The lease ends soon. Pay the agency now. It rains.",
    "All is well.",
]


def _searched(seed: int, chance: Any, **settings: Any) -> tuple[Searched, list[tuple[int, ...]]]:
    """A search over 4 groups of 4 leaves; ``chance(left_out, filler)`` is that of the decision."""
    leaves: list[tuple[int, ...]] = []
    children: list[tuple[int, ...]] = []
    top = []
    for group in range(GROUPS):
        top.append(len(leaves))
        leaves.append(tuple(range(group * EACH, (group + 1) * EACH)))
        children.append(tuple(range(len(leaves), len(leaves) + EACH)))
        leaves += [(leaf,) for leaf in leaves[-1]]
        children += [()] * EACH
    rng = random.Random(seed)

    async def decide(variants: Sequence[Variant]) -> list[bool | None]:
        return [rng.random() < chance(set(variant.left_out), variant.filler) for variant in variants]

    search = CauseSearch(leaves, children, top, decide, SearchSettings(**settings), seed=seed)
    searched = asyncio.run(search.run())
    return searched, [tuple(leaf for part in cause.parts for leaf in leaves[part]) for cause in searched.causes]


def _low(missing: bool) -> float:
    return 0.05 if missing else 0.9


@pytest.mark.parametrize(
    ("chance", "wanted", "kind"),
    [
        (lambda gone, filler: _low(6 in gone), (6,), "one"),
        (lambda gone, filler: _low(2 in gone or 13 in gone), (2, 13), "together"),
        (lambda gone, filler: _low(2 in gone and 13 in gone), (2, 13), "each"),
        (lambda gone, filler: _low(gone >= {8, 9, 10, 11}), (8, 9, 10, 11), "one"),
    ],
    ids=["one", "together", "each", "a whole group"],
)
def test_a_cause_is_named_whole_and_nothing_else(chance: Any, wanted: tuple[int, ...], kind: str) -> None:
    for seed in range(4):
        searched, named = _searched(seed, chance)
        assert [tuple(sorted(leaves)) for leaves in named] == [wanted]
        assert searched.causes[0].kind == kind
        assert searched.screened < searched.samples < 200


def test_what_deleting_alone_does_is_not_named() -> None:
    searched, named = _searched(1, lambda gone, filler: _low(6 in gone and not filler))
    assert named == []
    assert searched.unconfirmed != () or searched.nothing > 0.5


def test_nothing_is_named_where_nothing_matters() -> None:
    false = sum(bool(_searched(seed, lambda gone, filler: 0.5, budget=120)[1]) for seed in range(20))
    assert false <= 3  # of 20 at a level of 0.05: more has a chance of 0.016


def test_failed_samples_end_the_search_and_count_for_nothing() -> None:
    async def fail(variants: Sequence[Variant]) -> list[bool | None]:
        return [None] * len(variants)

    searched = asyncio.run(CauseSearch([(0,), (1,)], [(), ()], [0, 1], fail, SearchSettings()).run())
    assert searched.failed == searched.samples < 20
    assert searched.causes == ()


def test_a_bet_is_seldom_won_by_chance_and_soon_where_rates_differ() -> None:
    rng, won = random.Random(0), 0
    for _ in range(200):
        bet = DropBet((0.9, 0.05))
        for _ in range(60):
            bet.add(rng.random() < 0.5, rng.random() < 0.5)
        won += bet.best >= 2.9957  # log 20
    assert won <= 18  # a level of 0.05: 10 of 200 expected at most
    bet = DropBet((0.9, 0.05))
    for _ in range(4):
        bet.add(True, False)
    assert bet.best > 2.9957


MESSAGES = (
    Message("system", "Be brief.\nNever pay twice."),
    Message("user", "Read it. Then act."),
    Message("assistant", "", {"tool_calls": [{"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}]}),
    Message("tool", '{"rows": [{"id": 7, "note": "Pay now. It is late."}, "none"], "next": null}', {"tool_call_id": "a"}),
)
TOOLS = ({"type": "function", "function": {"name": "read"}}, {"name": "pay", "description": "Pays."})


def _leaf(parts: ContextParts, where: str) -> int:
    (part,) = [part for part in parts.parts if part.where == where]
    (leaf,) = part.leaves
    return leaf


def test_parts_are_rules_sentences_json_items_and_tools() -> None:
    parts = take_apart(MESSAGES, TOOLS, kept=("read",))
    assert {part.where for part in parts.parts if len(part.leaves) == 1} == {
        "the tool pay", "the system prompt, line 1", "the system prompt, line 2", "user 1, sentence 1", "user 1, sentence 2",
        "tool result 1.rows[0].id", "tool result 1.rows[0].note, sentence 1", "tool result 1.rows[0].note, sentence 2",
        "tool result 1.rows[1]", "tool result 1.next",
    }  # fmt: skip
    assert sorted(leaf for part in parts.top for leaf in parts.parts[part].leaves) == list(range(parts.size))


def test_leaving_out_keeps_the_rest_and_the_pairing_of_calls() -> None:
    parts = take_apart(MESSAGES, TOOLS)
    gone = _leaf(parts, "tool result 1.rows[0].note, sentence 1"), _leaf(parts, "tool result 1.rows[1]")
    *before, result = parts.without(MESSAGES, gone, filler=False)
    assert tuple(before) == MESSAGES[:3]
    assert json.loads(result.text) == {"rows": [{"id": 7, "note": " It is late."}], "next": None}
    assert result.data == {"tool_call_id": "a"}
    filled = json.loads(parts.without(MESSAGES, gone, filler=True)[3].text)
    assert filled["rows"][1] in FILLER
    assert filled["rows"][0]["note"].endswith(" It is late.")
    nothing = parts.without(MESSAGES, range(parts.size), filler=False)
    assert [(message.role, message.text) for message in nothing] == [("user", NOTHING), ("assistant", ""), ("tool", NOTHING)]
    assert parts.tools_left(range(parts.size)) == {"read", "pay"}


def test_many_parts_of_one_level_stand_in_groups() -> None:
    parts = take_apart((Message("user", "\n".join(f"Line {i}." for i in range(40))),))
    assert parts.size == 40
    assert max(len(part.children) for part in parts.parts) <= 12
    assert "user 1, line 1 to line 7" in {part.where for part in parts.parts}


class Letterbox(halls.Stateless):
    """One answer to three letters."""

    system = "Be brief.\nPay nobody twice."

    def reset(self, task: Any, seed: int) -> Observation:
        return Observation("\n\n".join(LETTER))

    def step(self, action: str) -> Observation:
        return Observation("done", 0.0, terminated=True, outcome=action != "pay")


def answer(messages: list[dict[str, Any]], key: int) -> str:
    there = any("Pay the agency now." in message["content"] for message in messages)
    return "pay" if random.Random(key).random() < (0.95 if there else 0.02) else "wait"


@pytest.fixture
def letters(tmp_path: Path) -> tuple[Path, str]:
    ramify.play(answer, Letterbox, [{"id": "letters"}], attempts=1, out=tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        nodes = [node for info in run.trees() for node in run.tree(info.name).nodes.values()]
    return tmp_path / "run", next(node.id for node in nodes if node.role == "assistant")


def test_a_run_of_a_function_names_the_sentence_and_loads_what_is_there(letters: tuple[Path, str]) -> None:
    folder, node = letters
    asked: list[int] = []
    answered = why_context(folder, node, target="says:pay", model=answer, on_sample=asked.append)
    ((cause,),) = (answered.causes,)
    assert [part.text.strip() for part in cause.parts] == ["Pay the agency now."]
    assert cause.parts[0].kept.k > cause.parts[0].deleted.k
    assert "Pay the agency now." in answered.headline
    assert asked[-1] == answered.samples
    with Run.open(folder) as run:
        assert found_contexts(run)[0].headline == answered.headline
        before = len(run.journal("why --context"))
    again = why_context(folder, node, target="says:pay", model=answer)
    with Run.open(folder) as run:
        assert len(run.journal("why --context")) == before  # nothing was sampled again
    assert again.headline == answered.headline


def test_what_the_model_had_cached_changes_nothing(tmp_path: Path) -> None:
    model = LocalModel.load(model_folder("builtin"))
    ramify.play(model, "household", attempts=1, out=tmp_path / "cold")
    shutil.copytree(tmp_path / "cold", tmp_path / "warm")
    kept = []
    for folder in (tmp_path / "cold", tmp_path / "warm"):
        with Run.open(folder) as run:
            nodes = run.tree(run.trees()[0].name).nodes.values()
            step = next(node.id for node in nodes if node.role == "assistant")
        answered = why_context(folder, step, samples=8, model=model, env="household")
        answered = replace(answered, run="", commands=NOBODY)
        with Run.open(folder) as run:
            kept.append((answered, [(entry.key, entry.payload) for entry in run.journal("why --context")]))
    assert kept[0] == kept[1]
    assert kept[0][1]


def test_the_outcome_is_counted_by_playing_on(letters: tuple[Path, str]) -> None:
    folder, node = letters
    answered = why_context(folder, node, outcome=True, model=answer, env=Letterbox)
    assert [part.text.strip() for cause in answered.causes for part in cause.parts] == ["Pay the agency now."]
    assert answered.measured == "outcome"


def test_an_attempt_that_parts_within_the_step_took_another(tmp_path: Path) -> None:
    ramify.play(halls.agent(), halls.Halls(), [{"id": f"t{i}"} for i in range(3)], attempts=4, out=tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        lost = next(each for info in run.trees() for each in run.attempts(info.name) if not each.success)
        tree = run.node(lost.leaf).tree
        replies = [node for node, _ in run.tree(tree).path(lost.leaf).segments if node.role == "assistant"]
    assert replies[1].message.text == "right"
    parted = ramify.fork_run(tmp_path / "run", replies[1].id, 1, n=12, model=halls.agent(), env=halls.Halls())
    assert parted.arm.successes
    answered = why_context(tmp_path / "run", replies[1].id, outcome=True, samples=4, model=halls.agent(), env=halls.Halls())
    assert answered.target == "failure"
    with Run.open(tmp_path / "run") as run:
        nodes = run.tree(tree).nodes.values()
        inside = next(node for node in nodes if node.parent == replies[1].id and node.message.text.endswith("eft"))
    asked = why_context(tmp_path / "run", inside.id, samples=4, model=halls.agent(), env=halls.Halls())
    assert asked.action.endswith("eft")  # what was said there, and not in the reply that it parted from
    with pytest.raises(UserError, match="--samples is at least 1"):
        why_context(tmp_path / "run", replies[1].id, samples=0, model=halls.agent(), env=halls.Halls())


def test_what_cannot_be_asked_is_refused(letters: tuple[Path, str]) -> None:
    folder, _ = letters
    with pytest.raises(UserError, match="no step was named yet"):
        why_context(folder, model=answer)
    with pytest.raises(UserError, match="not a regular expression"):
        read_target("says:(", Message("assistant", "x"))
    with pytest.raises(UserError, match="needs an argument"):
        read_target("calls:", Message("assistant", "x"))
    with pytest.raises(UserError, match="unknown target"):
        read_target("nonsense", Message("assistant", "x"))
