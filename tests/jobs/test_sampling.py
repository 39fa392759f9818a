"""How an update spends its tokens: who continues after a pause, a task's first win,
rare and frequent success, trees that fork."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base import registry
from ramify.env.builtin.household import Household, HouseholdEnvironment, next_action
from ramify.env.protocol import Task
from ramify.jobs.critic import SharedCritic
from ramify.jobs.grown import EpisodeRecorder, Grown
from ramify.jobs.improve import ARMS, ImproveConfig, Job
from ramify.jobs.play import open_players
from ramify.jobs.results import UpdateReport
from ramify.jobs.sampling import SplittingConfig, UpdatePlan, resampled
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run

CONFIG = SplittingConfig()


def test_states_continue_in_proportion_to_their_value() -> None:
    values, rng = np.array([0.4, 0.1, 0.3]), np.random.default_rng(0)
    copies = [np.bincount(resampled(values, 0.0, CONFIG, rng), minlength=3) for _ in range(3000)]
    assert np.mean(copies, axis=0) == pytest.approx(4 * values / values.sum(), abs=0.06)
    assert all(count.sum() == CONFIG.attempts for count in copies)
    assert (np.abs(copies - 4 * values / values.sum()) < 1).all(), "systematic: never off by a whole copy"


def test_hopeless_states_are_dropped_but_for_a_few() -> None:
    values, rng = np.array([0.4, 0.01]), np.random.default_rng(0)
    kept = np.mean([1 in resampled(values, 0.1, CONFIG, rng) for _ in range(2000)])
    assert 0.03 < kept < 0.1, "one in ten is spared, and then has its share of the copies"
    assert set(resampled(np.array([0.01, 0.02]), 0.1, SplittingConfig(keep=0), rng)) == {1}, "the best continues where all are"


class Lucky(ScriptedModel):
    """Knows the way, and takes it with probability ``skill`` a step; else it stays where it is."""

    def __init__(self, task: Task, skill: float) -> None:
        env = Household()
        env.reset(task, 0)
        self.way: dict[str, str] = {}
        while (action := next_action(task, env.snapshot())) is not None:
            self.way[env._look()] = action
            if env.step(action).terminated:
                break

        def reply(messages: list[Any], key: int) -> str:
            seen = next(m.text for m in reversed(messages) if m.role == "user" and m.text != "Nothing happens.")
            seen = seen if not seen.startswith("Goal") else seen.split(". ", 1)[1]
            return self.way.get(seen, "wait") if key % 1000 < 1000 * skill else "wait"

        super().__init__(reply)


def plan_of(run: Run, tasks: list[Task], skill: float, players: Any, share: float, seed: int = 0) -> UpdatePlan:
    model = Lucky(tasks[0], skill)
    template = TagTemplate(model.tokenizer)
    agent = Agent(model, template, Sampling(max_tokens=40, stop_tokens=template.stop_tokens))
    player = players.player(Episodes(agent, HouseholdEnvironment(), run, seed, "g"))
    return UpdatePlan(player, EpisodeRecorder(player, 12), SharedCritic(), tasks, len(tasks), share, 100.0, seed, "g/")


def sampled(path: Path, name: str, skill: float, share: float, concurrency: int = 64, count: int = 1, seed: int = 0) -> Grown:
    """What a sampling plays at ``count`` tasks, the first of which the agent knows: seven right steps, of 12 turns."""
    tasks = sorted(HouseholdEnvironment().task_set("train", 40), key=lambda task: abs(len(Lucky(task, 1).way) - 7))[:count]
    agent = Agent(Lucky(tasks[0], 1), None, Sampling())
    with open_players("local", "", "", agent, 0, concurrency) as players, Run.create(path, {}) as run:
        plan = plan_of(run, tasks, skill, players, share, seed)
        players.run(registry.get("sampling", name)().sample(plan))
        run.commit()
        return Grown(plan.recorder.attempts, plan.player.episodes.trees, frozenset(plan.split))


@pytest.mark.slow
def test_splitting_finds_the_win_that_independent_attempts_miss(tmp_path: Path) -> None:
    """Seven right steps of 12, each taken with probability .2: one attempt in 256 succeeds. Six seeds together: a single one has
    three wins, or none."""

    def won(name: str) -> tuple[int, Grown]:
        grown = [sampled(tmp_path / f"{name}{seed}", name, 0.2, 16_000, seed=seed) for seed in range(6)]
        return sum(bool(one.outcome) for each in grown for one in each.ends), grown[0]

    (wins, split), (few, flat) = won("splitting"), won("flat")
    assert wins > 2 * few
    assert split.forks > 0 == flat.forks
    assert split.split == {next(iter(split.attempts))}
    assert split.outcomes == []
    with Run.open(tmp_path / "splitting0") as run:
        for one in split.every:
            assert bool(run.scores(node=one.leaf)) == (not one.paused), "a pause has no score"


def test_a_split_task_ends_at_its_first_win(tmp_path: Path) -> None:
    grown = sampled(tmp_path / "run", "splitting", 1.0, 400)
    waves = sum(one.start == grown.every[0].start for one in grown.every) // CONFIG.attempts
    assert all(one.outcome for one in grown.ends)
    assert len(grown.ends) == waves * CONFIG.attempts
    assert len(grown.every) == 2 * len(grown.ends), "each paused once"


def test_concurrency_changes_no_sample(tmp_path: Path) -> None:
    names = []
    for at_once in (1, 7):
        grown = sampled(tmp_path / str(at_once), "splitting", 0.5, 1500, at_once)
        names.append([(one.tree, one.index, one.leaf) for one in grown.every])
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.names("sampling"))
def test_every_sampling_spends_its_share(name: str, tmp_path: Path) -> None:
    grown = sampled(tmp_path / "run", name, 0.3, 4000, count=16)
    longest = max(one.sampled_tokens for one in grown.every)
    assert 4000 - 4 * 100 <= grown.tokens <= 4000 + 5 * longest


def test_auto_splits_where_wins_are_rare_and_only_there() -> None:
    class Noted(UpdatePlan):
        def __init__(self, critic: SharedCritic) -> None:
            self.critic, self.splitting, self.calls = critic, CONFIG, []

        async def waves(self, play: Any, tasks: int) -> None:
            await play([Task("a"), Task("b")])

        async def flat(self, tasks: Any) -> None:
            self.calls += [("flat", task.id) for task in tasks]

        async def split_at(self, tasks: Any, starts: Any) -> None:
            self.calls += [("split", task.id) for task in tasks]

        tasks = ()

    for wins, of, expected in ((0, 0, "flat"), (0, 100, "split"), (30, 100, "flat")):
        critic = SharedCritic()
        critic.note(0, [True] * wins + [False] * (of - wins))
        plan = Noted(critic)
        asyncio.run(registry.get("sampling", "auto")().sample(plan))
        assert plan.calls == [(expected, "a"), (expected, "b")]


@pytest.mark.slow
def test_the_tree_arm_really_forks(tmp_path: Path) -> None:
    """At the default settings: roots take what an update has for a task only where it has too little,
    and then there are fewer tasks."""
    config = ImproveConfig(arm="infotree+g2po", tokens=1200, updates=1, eval_episodes=2)
    assert ARMS[config.arm].sampling == "infotree"
    with Job(config, tmp_path / "run") as job, Run.create(tmp_path / "run", config.to_json(), kind="improve") as run:
        job.learn(run, config.arm)
        update = next(iter(run.memo("update", UpdateReport).values()))
    assert update.forks > update.attempts / 4
    assert update.groups > 1
