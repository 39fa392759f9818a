"""Training rows of an update whose attempts were compacted on the way:
what was sampled is trained once, behind what was shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.credit import answer_values, training_rows
from ramify.methods.graph_credit.rules import G2po
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.compact import DropOldest
from ramify.rollout.run import Episodes
from ramify.score.credit.imitate import Imitate
from ramify.score.credit.protocol import CreditGroup, credit_group
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.train.fidelity import logprobs

SHAPE = TinyConfig(vocab=1200, width=16, layers=1, heads=2, kv_heads=1, head_size=8, ffn=32, context=4096)


def walk(messages: list[Message], key: int) -> str:
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else "wait"


def test_compacted_attempts_become_rows_that_train_each_sampled_token_once(tmp_path: Path) -> None:
    model = ScriptedModel(walk)
    template = TagTemplate(model.tokenizer)
    sampling = Sampling(max_tokens=40, stop_tokens=template.stop_tokens)
    tasks = list(HouseholdEnvironment().task_set("train", 3, 0))
    for window in (0, 500):
        agent = Agent(model, template, sampling, DropOldest() if window else None, window)
        with Run.create(tmp_path / str(window), {}) as run:
            made = Episodes(agent, HouseholdEnvironment(), run, seed=3, group="g")

            async def play(made: Episodes = made) -> dict:
                return {t.id: [await made.attempt(t.id, t, index) for index in range(6)] for t in tasks}

            attempts = asyncio.run(play())
            played = [a for group in attempts.values() for a in group]
            nodes = {turn.node.id: turn.node for a in played for turn in a.turns}
            assert any(node.context is not None for node in nodes.values()) == bool(window)
            credit = {id_: np.where(node.sampled, 1.0 + i, 0.0).astype(np.float32) for i, (id_, node) in enumerate(nodes.items())}
            rows = training_rows(run, made.trees, played, credit, 1e9)
            got = np.concatenate([row.token_values["advantage"][row.mask] for row in rows])
            assert sorted(got) == sorted(np.concatenate([c[c != 0] for c in credit.values()])), "each sampled token in one row"
            if window:
                assert all(len(row.tokens) <= 2 * window for row in rows)
                assert len(rows) > len(played)
            else:
                paths = [made.trees[a.tree].path(a.leaf) for a in played if a.outcome]
                weights = credit_group(run, Imitate(), CreditGroup.of(run, "g", made.trees))
                wins = training_rows(run, made.trees, played, weights, 4.0)
                assert [row.tokens.tolist() for row in wins] == [path.tokens.tolist() for path in paths]
            found = credit_group(run, G2po(), CreditGroup.of(run, "g", made.trees))
            for row in training_rows(run, made.trees, played, found, 0.5):
                assert np.abs(row.token_values["advantage"]).max() <= 0.5


def test_the_answer_is_asked_for_in_place_of_each_step_of_a_task_that_has_one(tmp_path: Path) -> None:
    model = ScriptedModel(walk)
    template = TagTemplate(model.tokenizer)
    agent = Agent(model, template, Sampling(max_tokens=40, stop_tokens=template.stop_tokens))
    known, without = list(HouseholdEnvironment().task_set("train", 2, 0))
    with Run.create(tmp_path / "run", {}) as run:
        made = Episodes(agent, HouseholdEnvironment(), run, seed=3, group="g")

        async def play() -> list[Attempt]:
            return [await made.attempt(task.id, task, index) for task in (known, without) for index in range(2)]

        ends, start, answer = asyncio.run(play()), TinyLM(SHAPE, seed=1), model.tokenizer.encode("in the safe")
        found = answer_values(start, {known.id: answer}, run, made.trees, ends, 500)
        asked = {turn.node.id: end for end in ends if end.tree == known.id for turn in end.turns}
        assert found.keys() == asked.keys()
        for node, end in list(asked.items())[::3]:
            path = made.trees[known.id].path(end.leaf)
            before = sum(kept for one, kept in path.segments[: [one.id for one, _ in path.segments].index(node)])
            first = before + int(np.argmax(run.node(node).sampled_mask))
            row = torch.tensor(np.concatenate([path.tokens[:first], answer]), dtype=torch.int64)
            scores = logprobs(start, row)[-len(answer) :].gather(1, row[-len(answer) :, None])
            assert found[node] == pytest.approx(float(scores.mean()), abs=1e-4)
        longest = max(len(made.trees[end.tree].path(end.leaf).tokens) for end in ends) // 2
        fits = answer_values(start, {known.id: answer}, run, made.trees, ends, 500, longest)
        assert 0 < len(fits) < len(found), "what leaves no room for the answer is left out"
        assert fits == pytest.approx({node: found[node] for node in fits}, abs=1e-4)
