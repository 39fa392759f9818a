"""Training rows of an update whose attempts were compacted on the way:
what was sampled is trained once, behind what was shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.credit import training_rows
from ramify.methods.graph_credit.rules import G2po
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.compact import DropOldest
from ramify.rollout.run import Episodes
from ramify.score.credit.imitate import Imitate
from ramify.score.credit.protocol import CreditGroup, credit_group
from ramify.trace.db import Run
from ramify.trace.message import Message


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
