"""The shared critic: what it reads, when it is silent, what it learns, and that it continues from its state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ramify.engine.checkpoints import load_model, model_folder
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.critic import CriticConfig, SharedCritic, outcomes_of, states_at, states_of
from ramify.model.protocol import Sampling
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run


def made_up(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """StepStates whose first feature decides, among others that do not."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 9)).astype(np.float32)
    return x, (x[:, 0] > 0.5).astype(float)


def test_it_is_silent_until_it_has_seen_wins_and_then_ranks_states() -> None:
    critic = SharedCritic(CriticConfig(wins=3))
    x, y = made_up(400)
    assert critic.learn(x, np.zeros(400)) is None
    assert not critic._weights, "of failures alone nothing is learned"
    for _ in range(3):
        assert not critic.speaks
        critic.note(1, [True, False])
        critic.learn(x, y)
    assert critic.speaks
    found = critic.learn(*made_up(200, 1))
    assert found is not None
    assert found > 0.9
    assert critic.rate == pytest.approx((1 + sum(0.8**i for i in range(3))) / (10 + 2 * sum(0.8**i for i in range(3))))


def test_it_continues_from_its_state_to_the_same_end() -> None:
    whole, cut = SharedCritic(seed=4), SharedCritic(seed=4)
    for critic in (whole, cut):
        critic.note(9, [True])
        critic.learn(*made_up(300))
    fresh = SharedCritic(seed=4)
    arrays, record = cut.state()
    fresh.restore({name: torch.as_tensor(value) for name, value in arrays.items()}, record)
    for critic in (whole, fresh):
        critic.note(1, [False])
        critic.learn(*made_up(300, 1))
    probe = made_up(50, 2)[0]
    assert (whole.value(probe) == fresh.value(probe)).all()
    assert whole.rate == fresh.rate


def test_a_critic_that_was_never_trained_can_be_stored() -> None:
    fresh = SharedCritic()
    fresh.restore(*SharedCritic().state())
    assert not fresh.speaks


def test_states_are_those_before_steps_and_a_pause_has_the_one_of_the_step_after_it(tmp_path: Path) -> None:
    """The hidden state at a step predicts the step's first token as the agent sampled it."""
    model, template = load_model(model_folder("builtin"))
    task, environment = next(iter(HouseholdEnvironment().task_set("train", 1))), HouseholdEnvironment()
    sampling = Sampling(max_tokens=24, stop_tokens=template.stop_tokens)
    with Run.create(tmp_path / "run", {}) as run:
        episodes = Episodes(Agent(model, template, sampling), environment, run)

        async def work() -> None:
            first = await episodes.attempt("t", task, 0, 3)
            second = await episodes.branch("t", task, first.leaf, 1)
            states = await states_of(model, episodes, episodes.trees, [second], environment.max_turns)
            steps = [*first.turns, *second.turns]
            assert list(states.at) == [turn.node.id for turn in steps]
            assert states.features[:, -1].tolist() == pytest.approx([i / 12 for i in range(len(steps))])
            logits = model.forward.logits(torch.from_numpy(states.features[:, :-1])).detach()
            for turn, row in zip(steps, torch.log_softmax(logits, -1), strict=True):
                at = int(turn.node.sampled.argmax())
                assert float(row[turn.node.tokens[at]]) == pytest.approx(float(turn.node.logprobs[at]), abs=1e-3)
            paused = await states_at(model, episodes, [episodes.trees["t"].node(first.leaf)], environment.max_turns)
            assert np.allclose(paused[0], states.of([second.turns[0].node.id])[0], atol=1e-4)
            features, targets = outcomes_of(SharedCritic(), states, episodes.trees, [second])
            assert (features == states.features).all()
            assert set(targets) == {float(bool(second.outcome))}
            dropped = outcomes_of(SharedCritic(), states, episodes.trees, [first])
            assert len(dropped[1]) == 0, "a critic that does not speak learns nothing of what was dropped"

        asyncio.run(work())
