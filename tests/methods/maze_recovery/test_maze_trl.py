"""The maze as an environment of TRL's GRPOTrainer: rows of sampled tokens with advantages, from live attempts."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from ramify.engine.named import find_model
from ramify.env.builtin.maze import MazeEnvironment
from ramify.integrations.trainers import trl_trainer
from ramify.model.protocol import Sampling
from ramify.rollout.agent import Agent
from ramify.trace.db import Run


def test_a_trainer_plays_mazes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, template = find_model("builtin")
    environment = MazeEnvironment("star-2-1-1", max_turns=3)
    monkeypatch.setattr(trl_trainer, "_dataset", list)  # TRL itself is not needed for what it is given
    monkeypatch.setattr(type(model), "refresh", lambda self: None, raising=False)
    with Run.create(tmp_path / "run", {}) as run:
        agent = Agent(model, template, Sampling(max_tokens=8, stop_tokens=template.stop_tokens))
        rollouts = trl_trainer.TreeRollouts(agent, environment, run, roots=2)
        rows: Any = rollouts.dataset(environment.task_set("train", 2))
        trainer: Any = types.SimpleNamespace(
            rollout_inputs=[row for row in rows for _ in range(3)],
            accelerator=types.SimpleNamespace(num_processes=1),
            model=types.SimpleNamespace(eval=lambda: None, train=lambda: None),
        )
        out = rollouts([], trainer)
    assert all(row["prompt"][0]["content"].startswith("Goal: find the exit.") for row in rows)
    assert [len(out[name]) for name in trl_trainer.TOKEN_FIELDS] == [6] * 5
    assert all(value in (0.0, 1.0) for value in out["reward"])
