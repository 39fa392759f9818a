"""Episodes on the tree: what is stored, the same tree whatever the concurrency, interruption, failures, replay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.budget import Budget
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin.household import Household, HouseholdEnvironment
from ramify.env.protocol import Observation, Task
from ramify.model.chat import TagTemplate, train_tokenizer
from ramify.model.protocol import Sampling
from ramify.model.scripted import MergingTokenizer, ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.node import AttemptRecord
from ramify.trace.view import TokenMessage, views
from ramify.train.batch import rows_from_path

TASKS = list(HouseholdEnvironment().task_set("eval", 4))


def wander(messages: Any, key: int) -> str:
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else "wait"


def episodes(run: Run, model: Any = None, environment: Any = None, **options: Any) -> Episodes:
    model = model or ScriptedModel(wander)
    template = TagTemplate(model.tokenizer) if "tokens" in model.capabilities else None
    sampling = Sampling(max_tokens=20, stop_tokens=() if template is None else template.stop_tokens)
    return Episodes(Agent(model, template, sampling), environment or HouseholdEnvironment(), run, seed=3, **options)


def play(made: Episodes, attempts: int = 3, at_once: int = 100) -> list[Attempt]:
    async def work() -> list[Attempt]:
        gate = asyncio.Semaphore(at_once)

        async def one(task: Task, index: int) -> Attempt:
            async with gate:
                return await made.attempt("t/" + task.id, task, index)

        return list(await asyncio.gather(*(one(task, i) for task in TASKS for i in range(attempts))))

    return asyncio.run(work())


def hashes(run: Run) -> list[str]:
    run.commit()
    return [run.tree(info.name).hash for info in sorted(run.trees(), key=lambda t: t.name)]


def tiny_model(max_sequences: int = 64) -> LocalModel:
    dialogue = [text for task in TASKS for text in (Household().reset(task, 0).text, "go hall", "take red-key")]
    tokenizer = train_tokenizer(dialogue, 300)
    shape = TinyConfig(vocab=tokenizer.size, width=32, layers=2, heads=2, kv_heads=1, head_size=16, ffn=64, context=1024)
    return LocalModel(TinyLM(shape, seed=1), tokenizer, max_sequences=max_sequences)


@pytest.mark.parametrize("tokens", [True, False])
def test_an_attempt_is_stored_whole(tmp_path: Path, tokens: bool) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, ScriptedModel(wander, tokens=tokens))
        attempt = play(made)[0]
        run.commit()
        path = run.path(attempt.leaf)
        said = [(m.role, m.text) for m in path.messages()]
        assert len(said) == 1 + 2 * len(attempt.turns)
        assert said[0][1].startswith("Goal: take the")
        assert said[1] == ("assistant", attempt.turns[0].node.text)
        assert attempt.truncated
        assert attempt.outcome is False
        assert [score.value for score in run.scores(node=attempt.leaf)] == [0.0]
        (record,) = run.attempts(leaf=attempt.leaf)
        by = made.provenance.hash
        assert record == AttemptRecord(attempt.leaf, attempt.tree, None, 0, "rollout", 0, False, 0.0, True, None, by)


def test_training_tokens_are_the_sampled_ones_even_if_encoding_again_would_merge(tmp_path: Path) -> None:
    tokenizer = MergingTokenizer()
    model = ScriptedModel(wander, tokenizer=tokenizer)
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, model)
        attempt = play(made)[0]
        encoded = list(tokenizer.encoded)
        (row,) = rows_from_path(made.trees[attempt.tree].path(attempt.leaf), run.node, run.context)
        assert tokenizer.encoded == encoded, "making a training row encoded text"
        sampled = np.concatenate([turn.node.tokens[turn.node.sampled] for turn in attempt.turns])
        assert (row.tokens[row.mask] == sampled).all()
        assert all(turn.node.text not in encoded for turn in attempt.turns)
        assert tokenizer.encode(attempt.turns[0].node.text) != sampled[: attempt.turns[0].node.sampled_tokens - 1].tolist()


@pytest.mark.slow
def test_same_seed_same_tree_whatever_the_concurrency(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2, 8):
        with Run.create(tmp_path / str(workers), {}) as run:
            attempts = play(episodes(run, tiny_model(workers), HouseholdEnvironment(6)), 2, at_once=workers)
            found.append((hashes(run), [a.leaf for a in attempts]))
    assert found[0] == found[1] == found[2]


def test_an_interrupted_run_ends_as_the_undisturbed_one_and_samples_nothing_twice(tmp_path: Path) -> None:
    with Run.create(tmp_path / "whole", {}) as run:
        play(episodes(run, tiny_model()), attempts=1)
        whole = hashes(run)
    with Run.create(tmp_path / "cut", {}) as run:
        play(episodes(run, tiny_model(), budget=Budget({"turns": 25})), attempts=1)
        assert hashes(run) != whole
        stored = len(run)
    with Run.open(tmp_path / "cut", write=True) as run:
        model = tiny_model()
        play(episodes(run, model), attempts=1)
        assert hashes(run) == whole
        with Run.open(tmp_path / "whole") as other:
            sampled_before = sum(node.sampled_tokens for info in other.trees() for node in other.tree(info.name).nodes.values())
        assert model.stats.sampled_tokens < sampled_before
        assert stored < len(run)


def test_branching_restores_the_environment(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run)
        first = play(made, attempts=1)[0]
        turn = first.turns[4]
        branch = asyncio.run(made.branch(first.tree, TASKS[0], turn.answer.id, 7))
        assert branch.start == turn.answer.id
        assert len(branch.turns) == len(first.turns) - 5
        path = made.trees[first.tree].path(branch.leaf)
        assert path.messages()[:11] == made.trees[first.tree].path(first.leaf).messages()[:11]


class NoSnapshot(Household):
    """An environment that cannot tell its state."""

    drift = False

    def snapshot(self) -> Any:
        return None

    def step(self, action: str) -> Observation:
        seen = super().step(action)
        return Observation(seen.text + " Dust.") if self.drift else seen


class NoSnapshotEnvironment(HouseholdEnvironment):
    def make(self) -> Household:
        return NoSnapshot(self.max_turns)


@pytest.mark.parametrize("tokens", [True, False])
def test_a_branch_holds_turns_at_replies_that_are_given(tmp_path: Path, tokens: bool) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, ScriptedModel(wander, tokens=tokens))
        attempt, other = play(made, attempts=2)[:2]
        view = next(view for view in views(run) if view.leaf == attempt.leaf)
        replies = [step.reply for step in view.steps]

        def branch(index: int, held: dict[int, TokenMessage]) -> Attempt:
            return asyncio.run(made.branch(attempt.tree, attempt.task, attempt.start, index, held=held))

        held = branch(9, {0: replies[0], 2: replies[2]})
        assert [turn.node.provenance is None for turn in held.turns[:4]] == [True, False, True, False]
        for t in (0, 2):
            given, said = held.turns[t].node, attempt.turns[t].node
            assert given.text == said.text
            assert given.data["edit"] == {"hold": said.id}
            assert (given.sampled, given.sampled_tokens, given.index) == (None, 0, -1)
            if tokens:
                np.testing.assert_array_equal(given.tokens, said.tokens)
        assert [turn.node.index for turn in held.turns[1::2]][:2] == [9, 0]  # the first that is sampled
        scores = len(run.scores())
        again = branch(9, {0: replies[0], 2: replies[2]})
        assert [turn.node.id for turn in again.turns] == [turn.node.id for turn in held.turns]
        # everything held comes to the same, and is not a sample of the agent
        whole = branch(10, dict(enumerate(replies)))
        assert (whole.outcome, whole.reward, len(whole.turns)) == (attempt.outcome, attempt.reward, len(attempt.turns))
        assert len(run.scores()) == scores
        assert other.start == attempt.start


def test_a_environment_without_snapshots_is_replayed_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        made = episodes(run, environment=NoSnapshotEnvironment())
        first = play(made, attempts=1)[0]
        branch = asyncio.run(made.branch(first.tree, TASKS[0], first.turns[2].answer.id, 1))
        assert len(branch.turns) == len(first.turns) - 3
        monkeypatch.setattr(NoSnapshot, "drift", True)
        failed = asyncio.run(made.branch(first.tree, TASKS[0], first.turns[2].answer.id, 2))
        assert "differs at step 1" in str(failed.failure)
        assert (failed.outcome, failed.turns) == (None, ())


class Breaking(Household):
    def step(self, action: str) -> Observation:
        if self.snapshot()["room"] != self._task["start"]:
            raise ValueError("the roof fell in")
        return super().step(action)


class BreakingEnvironment(HouseholdEnvironment):
    def make(self) -> Household:
        return Breaking(self.max_turns)


def test_a_failure_becomes_data_and_siblings_continue(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        attempts = play(episodes(run, environment=BreakingEnvironment()))
        run.commit()
        assert len(attempts) == 12
        failed = [a for a in attempts if a.failure]
        assert failed
        assert all(a.outcome is None and "the roof fell in" in str(a.failure) for a in failed)
        assert sorted(str(a.failure) for a in failed) == sorted(one.failure for one in run.attempts() if one.failure)
        assert all(not run.scores(node=a.leaf) for a in failed)


def test_a_spent_budget_ends_cleanly(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        budget = Budget({"tokens": 200})
        attempts = play(episodes(run, budget=budget))
        assert budget.spent_out == "tokens"
        assert all(a.failure is None for a in attempts)
        assert sum(a.sampled_tokens for a in attempts) == budget.spent("tokens")


def test_a_paused_attempt_continued_is_the_whole_one(tmp_path: Path) -> None:
    """Turn for turn, and as often as it is asked; a pause has no score, so nobody counts it as an attempt."""
    with Run.create(tmp_path / "whole", {}) as run:
        whole = play(episodes(run, tiny_model()), 1)[0]
        expected = run.path(whole.leaf).tokens.tolist()

    async def halting(made: Episodes) -> list[Attempt]:
        parts = [await made.attempt(whole.tree, whole.task, 0, turns=5)]
        while parts[-1].paused:
            parts.append(await made.branch(whole.tree, whole.task, parts[-1].leaf, 0, turns=5))
        return parts

    with Run.create(tmp_path / "parts", {}) as run:
        for _ in range(2):  # the second call loads what is stored
            parts = asyncio.run(halting(episodes(run, tiny_model())))
            assert [len(part.turns) for part in parts] == [5, 5, 2]
            assert [part.outcome for part in parts] == [None, None, whole.outcome]
            assert [bool(run.scores(node=part.leaf)) for part in parts] == [False, False, True]
            assert run.path(parts[-1].leaf).tokens.tolist() == expected
        assert len(run.tree(whole.tree)) == 2 + 2 * len(whole.turns)
