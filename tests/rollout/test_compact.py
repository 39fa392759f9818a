"""Compaction: what is shown is stored, the history stays whole, training rows are built from what was shown."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, UserError
from ramify.engine.checkpoints import load_model, model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Observation, Task, TaskSet
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.compact import DropOldest, Entry, Summarize, Window, faults
from ramify.rollout.fork import fork
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Insert
from ramify.train.batch import rows_from_path

TASK = Task("t", {})
TURNS = 14


class Corridor:
    """Says the number of the room and what was heard; ends never."""

    max_turns = TURNS
    system = "Rule 1: never open the red door."

    def reset(self, task: Task, seed: int) -> Observation:
        self.room = 0
        return Observation("room 0")

    def step(self, action: str) -> Observation:
        self.room += 1
        return Observation(f"room {self.room} heard {action[:30]}")

    def snapshot(self) -> Any:
        return {"room": self.room}

    def restore(self, snapshot: Any) -> None:
        self.room = snapshot["room"]

    def key(self) -> str:
        return str(self.room)


class CorridorEnvironment:
    name = "corridor"

    def make(self) -> Corridor:
        return Corridor()

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        return TaskSet.of([TASK])


def says(messages: Sequence[Message], key: int) -> str:
    """A summary where one is asked for, else a reply that differs from place to place."""
    if messages[-1].text.startswith("Summarise"):
        return f"continued {messages[-1].text.count('[assistant]')} times"
    return f"go {key % 1000}"


class Recorder(ScriptedModel):
    """Remembers every prefix it was shown, by place key."""

    def __init__(self, **options: Any) -> None:
        super().__init__(says, **options)
        self.prefixes: dict[int, Prefix] = {}

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        self.prefixes[keys[0]] = prefix
        return await super().sample(prefix, n, settings, keys)


def episodes(run: Run, compactor: Any, window: int, tokens: bool = True, **options: Any) -> Episodes:
    model = Recorder(tokens=tokens)
    template = TagTemplate(model.tokenizer) if tokens else None
    sampling = Sampling(max_tokens=40, stop_tokens=template.stop_tokens if template else ())
    return Episodes(Agent(model, template, sampling, compactor, window), CorridorEnvironment(), run, seed=5, **options)


def play(made: Episodes, index: int = 0) -> Attempt:
    return asyncio.run(made.attempt("t", TASK, index))


COMPACTORS = [DropOldest(), Summarize(length=30)]


@pytest.mark.parametrize("compactor", COMPACTORS, ids=lambda c: c.name)
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "messages"])
def test_what_was_shown_is_what_is_stored_and_fits(tmp_path: Path, compactor: Any, tokens: bool) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, compactor, 160, tokens)
        attempt = play(made)
        run.commit()
        assert attempt.failure is None
        nodes = [turn.node for turn in attempt.turns]
        compacted = [node for node in nodes if node.context is not None]
        assert nodes[0].context is None
        assert compacted == nodes[-len(compacted) :], "once compacted, every later context is explicit"
        prompts = list(made.agent.model.prefixes.values())
        for node in nodes:
            seen = run.shown(node.id)
            if tokens:
                assert any(np.array_equal(p.tokens[:-1], seen.tokens) for p in prompts)
                assert len(seen.tokens) + 1 <= 160
            else:
                said = [(m.role, m.text) for m in seen.messages]
                assert any([(m.role, m.text) for m in p.messages] == said for p in prompts)
                assert sum(len(m.text) for m in seen.messages) <= 160
            assert seen.messages[0].text == Corridor.system
        if compactor.name == "summarize":
            assert any("Summary of the conversation" in m.text for m in run.shown(nodes[-1].id).messages)
        history = run.path(attempt.leaf).messages()
        assert next(m.text for m in history if m.role == "user") == "room 0"
        assert len(history) == 2 + 2 * TURNS


def test_compaction_happens_now_and_then_not_at_every_turn(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        attempt = play(episodes(run, DropOldest(), 160))
        spans = [[part.node for part in run.context(t.node.context).parts] for t in attempt.turns if t.node.context]
        goes_on = [after[: len(before)] == before for before, after in itertools.pairwise(spans)]
        assert any(goes_on)
        assert not all(goes_on)


@pytest.mark.parametrize("compactor", COMPACTORS, ids=lambda c: c.name)
def test_training_rows_hold_each_sampled_token_once_behind_what_was_shown(tmp_path: Path, compactor: Any) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        attempt = play(episodes(run, compactor, 160))
        path = run.path(attempt.leaf)
        credit = {t.node.id: np.full(len(t.node), i + 1, np.float32) for i, t in enumerate(attempt.turns)}
        rows = rows_from_path(path, run.node, run.context, {"advantage": credit})
        sampled = np.concatenate([t.node.tokens[t.node.sampled] for t in attempt.turns])
        assert np.array_equal(np.concatenate([row.tokens[row.mask] for row in rows]), sampled)
        logprobs = np.concatenate([t.node.logprobs[t.node.sampled] for t in attempt.turns])
        assert np.array_equal(np.concatenate([row.token_values["logprobs"][row.mask] for row in rows]), logprobs)
        assert 1 < len(rows) < TURNS
        for number, turn in enumerate(attempt.turns):
            shown = run.shown(turn.node.id).tokens
            row = next(row for row in rows if (row.token_values["advantage"] == number + 1).any())
            assert np.array_equal(row.tokens[: len(shown)], shown), "the row begins with what the model saw"
            assert (row.token_values["advantage"][: len(shown)] != number + 1).all()


def test_without_compaction_the_rows_are_the_path(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        attempt = play(episodes(run, DropOldest(), 100_000))
        path = run.path(attempt.leaf)
        (row,) = rows_from_path(path, run.node, run.context)
        assert (row.tokens.tolist(), row.mask.tolist()) == (path.tokens.tolist(), path.sampled.tolist())
        assert all(turn.node.context is None for turn in attempt.turns)


@pytest.mark.parametrize("compactor", COMPACTORS, ids=lambda c: c.name)
def test_an_interrupted_run_ends_as_the_undisturbed_one(tmp_path: Path, compactor: Any) -> None:
    def end(run: Run, **options: Any) -> str:
        play(episodes(run, compactor, 160, **options))
        run.commit()
        return run.tree("t").hash

    with Run.create(tmp_path / "whole", {}) as run:
        whole = end(run)
    with Run.create(tmp_path / "cut", {}) as run:
        assert end(run, budget=Budget({"turns": 6})) != whole
    with Run.open(tmp_path / "cut", write=True) as run:
        assert end(run) == whole


def test_forks_behind_a_compaction_continue_from_what_was_shown(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, Summarize(length=30), 160)
        attempt = play(made)
        turn = attempt.turns[6]
        assert turn.node.context is not None
        at = int(np.argmax(turn.node.sampled)) + 2
        result = asyncio.run(fork(made, "t", TASK, turn.node.id, at, 2, {"append": "wait "}))
        run.commit()
        first = result.arm.attempts[0].turns[0].node
        shown = run.shown(first.id)
        assert np.array_equal(shown.tokens[: len(run.shown(turn.node.id).tokens)], run.shown(turn.node.id).tokens)
        assert shown.messages[-1].text == turn.node.text[:2] + "wait "
        assert shown.messages[0].text == Corridor.system


def test_other_settings_of_the_compactor_are_other_provenances(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        hashes = {episodes(run, DropOldest(fill), window).provenance.hash for fill in (0.4, 0.5) for window in (100, 200)}
        assert len(hashes) == 4
    with pytest.raises(UserError, match="go together"):
        Agent(ScriptedModel(), compactor=DropOldest())
    with pytest.raises(UserError, match="go together"):
        Agent(ScriptedModel(), window=10)


class Misbehaves:
    name = "misbehaves"
    identity = "x"

    async def compact(self, messages: Sequence[Entry], window: Window) -> Any:
        raise ValueError("lost the thread")


def test_a_failing_compactor_is_a_failure_on_the_tree(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        attempt = play(episodes(run, Misbehaves(), 160))
        assert attempt.outcome is None
        assert attempt.failure == "compactor: 'misbehaves' raised ValueError: lost the thread"
        assert play(episodes(run, DropOldest(), 30), index=1).failure == (
            "compactor: the newest message leaves no room: 8 where at most -5 fit"
        )


def test_the_summary_costs_what_it_costs(tmp_path: Path) -> None:
    spent = []
    for number, compactor in enumerate((DropOldest(), Summarize(length=30))):
        with Run.create(tmp_path / str(number), {}) as run:
            budget = Budget()
            play(episodes(run, compactor, 160, budget=budget))
            spent.append(budget.spent("calls"))
    assert spent[0] == TURNS
    assert spent[1] > TURNS


def test_a_model_of_its_own_writes_the_summary(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, Summarize(model=ScriptedModel(["Too long. " * 50], tokens=False)), 160)
        attempt = play(made)
        assert attempt.failure is None
        inserts = [p for p in run.context(attempt.turns[-1].node.context).parts if isinstance(p, Insert)]
        assert inserts[0].text.startswith("Summary of the conversation so far:\nToo long.")


roles = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 40)), max_size=12)


@given(roles, st.integers(0, 120), st.floats(0.05, 1))
@settings(max_examples=200, deadline=None)
def test_the_promises_hold_on_any_history(shape: list[tuple[str, int]], limit: int, fill: float) -> None:
    async def ask(messages: Sequence[Message], max_tokens: int) -> str:
        return "s" * max_tokens

    window = Window(limit, lambda message: len(message.text) + 3, ask)
    entries = [Entry(role, "m" * size, size + 3, place) for place, (role, size) in enumerate(shape)]
    for compactor in (DropOldest(fill), Summarize(fill, 20)):
        try:
            shown = asyncio.run(compactor.compact(entries, window))
        except InfrastructureError:
            continue
        assert faults(entries, shown, window) == [] or sum(e.size for e in entries if e.role == "system") > limit


@pytest.mark.slow
@pytest.mark.parametrize("compactor", COMPACTORS, ids=lambda c: c.name)
def test_a_real_models_tree_does_not_depend_on_concurrency(tmp_path: Path, compactor: Any) -> None:
    tasks = list(HouseholdEnvironment().task_set("eval", 3))
    found = []
    for at_once in (1, 6):
        model, template = load_model(model_folder("builtin"), max_sequences=at_once)
        agent = Agent(model, template, Sampling(max_tokens=12, stop_tokens=template.stop_tokens), compactor, 150)
        with Run.create(tmp_path / str(at_once), {}) as run:
            made = Episodes(agent, HouseholdEnvironment(), run, seed=2)

            async def work(made: Episodes = made, at_once: int = at_once) -> list[Attempt]:
                gate = asyncio.Semaphore(at_once)

                async def one(task: Task, index: int) -> Attempt:
                    async with gate:
                        return await made.attempt(task.id, task, index)

                return list(await asyncio.gather(*(one(task, index) for task in tasks for index in range(2))))

            attempts = asyncio.run(work())
            run.commit()
            assert all(attempt.failure is None for attempt in attempts)
            assert any(turn.node.context for attempt in attempts for turn in attempt.turns)
            found.append([run.tree(task.id).hash for task in tasks])
            rows = [row for a in attempts for row in rows_from_path(run.path(a.leaf), run.node, run.context)]
            scores = asyncio.run(model.logprobs([row.tokens for row in rows]))
            for row, score in zip(rows, scores, strict=True):
                assert np.abs(row.token_values["logprobs"] - score.logprobs)[row.mask].max() < 2e-3, (
                    "the rows are what was sampled from"
                )
    assert found[0] == found[1]


class Begins(TagTemplate):
    """Puts a token in front of a conversation's first message, as many templates do."""

    def render(self, role: str, text: str, after: str = "user") -> tuple[list[int], list[int], str]:
        tokens, ends, text = super().render(role, text, after)
        return ([*self.tokenizer.encode("^"), *tokens], [0, *ends], text) if after == "" else (tokens, ends, text)


class Ruleless(Corridor):
    system = ""


class RulelessEnvironment(CorridorEnvironment):
    def make(self) -> Corridor:
        return Ruleless()


def test_what_a_template_puts_in_front_counts_where_another_message_comes_first(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        for window in range(25, 60):
            model = Recorder()
            template = Begins(model.tokenizer)
            sampling = Sampling(max_tokens=40, stop_tokens=template.stop_tokens)
            made = Episodes(Agent(model, template, sampling, DropOldest(1.0), window), RulelessEnvironment(), run, seed=5)
            attempt = asyncio.run(made.attempt(str(window), TASK, 0))
            assert all(len(prefix.tokens) <= window for prefix in model.prefixes.values())
            assert attempt.failure is None or attempt.failure.startswith("compactor: ")
