"""Collect attempts: play a task set with any agent on any back end, in a run that the same call continues."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ramify.base.budget import Budget
from ramify.base.config import Config, check
from ramify.base.errors import BudgetSpentError
from ramify.base.processor import resident
from ramify.base.progress import SILENT, Progress
from ramify.engine.named import is_local
from ramify.env.builtin.agents import with_agent
from ramify.env.protocol import TaskSet, close, read_task_set
from ramify.jobs import components, play
from ramify.jobs.results import AttemptEntry, Collected, Stretch
from ramify.model.protocol import sampling_of
from ramify.rollout.attempts import Attempt, Success
from ramify.rollout.backends import Unit, parse
from ramify.rollout.components import check_trust, find_environment, find_model, make_agent
from ramify.rollout.run import Episodes
from ramify.rollout.stored import keep_template, kept_template
from ramify.stats.intervals import wilson
from ramify.trace.db import Run


class RunLimits(Config):
    """Limits of a whole run, interrupted calls included. Once one is reached no attempt starts; running ones finish."""

    calls: int | None = Field(None, ge=0)
    """Replies sampled from the model."""
    tokens: int | None = Field(None, ge=0)
    """Tokens sampled from the model."""
    turns: int | None = Field(None, ge=0)
    """Turns of the agent."""
    seconds: float | None = Field(None, ge=0)
    """Seconds of work."""


class RolloutConfig(Config):
    """Settings of ``ramify rollout``."""

    model: str = "builtin"
    """The agent: builtin, smollm2, hf:PATH, gguf:FILE, chat:MODEL@URL, completions:MODEL@URL, or your own:
    FILE.py:ATTRIBUTE, python: or factory:MODULE:ATTRIBUTE."""
    env: str = "household"
    """Environment the agent acts in: NAME or NAME:ARGUMENT (see ``ramify list env``),
    or your own: FILE.py:ATTRIBUTE, python:MODULE:ATTRIBUTE."""
    tasks: str | None = None
    """JSON lines of your own tasks. Default: tasks the environment generates."""
    count: int = Field(8, ge=1, le=1_000_000)
    """Tasks to generate where no file is given."""
    attempts: int = Field(1, ge=1, le=1_000_000)
    """Attempts at every task."""
    seed: int = 0
    """Seed of the run; each sample's seed is derived from it and the sample's position in the tree."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature; 0 is greedy. Default: what the checkpoint's generation_config.json says, else 1."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus sampling: sample from the most likely tokens with this total probability. Default: as for the temperature."""
    top_k: int | None = Field(None, ge=0)
    """Sample from this many most likely tokens; 0 keeps all. Default: as for the temperature, else 0."""
    min_p: float | None = Field(None, ge=0, le=1)
    """Exclude tokens less likely than this share of the likeliest one's probability. Default: as for the temperature, else 0."""
    repetition_penalty: float | None = Field(None, gt=0)
    """Above 1, tokens of the prompt and the reply so far become less likely. Default: as for the temperature, else 1."""
    max_reply: int = Field(64, ge=1)
    """Longest reply of the agent, in tokens."""
    chat_template: str | None = None
    """File with a chat template (jinja) to use instead of the checkpoint's own."""
    compactor: str | None = None
    """Compactor that shortens a prompt beyond the window: NAME or NAME:ARGUMENT (see ``ramify list compactor``), or your own:
    FILE.py:ATTRIBUTE."""
    window: int = Field(0, ge=0)
    """Longest prompt in tokens (characters for a model that takes messages); goes with a compactor."""
    backend: str = "local"
    """Where attempts are played: local, processes:WORKERS or ray:WORKERS (see ``ramify list backend``); changes no result."""
    concurrency: int = Field(64, ge=1)
    """Attempts that run at once, over all workers; changes no result."""
    device: str = ""
    """Where a model of this machine runs: cpu, cuda, cuda:1, ...; default: what RAMIFY_DEVICE says, else cpu."""
    dtype: Literal["", "float32", "bfloat16", "int8"] = ""
    """Data type of a model: int8 for speed on a CPU; bfloat16 on an accelerator, where attempts may not repeat exactly.
    Default: RAMIFY_DTYPE, else float32."""
    budget: RunLimits = RunLimits()
    """Limits of the run."""

    _agent = model_validator(mode="before")(with_agent)


FREE = {"chat_template", "attempts", "backend", "concurrency", "device", "budget"}
"""Settings that may change between calls on one run: they change no stored attempt. (Of the template its text is compared.)"""


def resume(path: Path, progress: Progress = SILENT, trust: bool = False) -> Collected:
    """Continue the run in ``path`` with its stored settings. Raises UserError when its components have changed since, or where
    they are untrusted (see :func:`ramify.rollout.components.check_trust`)."""
    with Run.open(path) as run:
        check_trust(run, trust)
        stored = {name: value for name, value in run.config.items() if name in RolloutConfig.model_fields}
        kept = kept_template(run)
    return Collection(check(RolloutConfig, stored, f"the stored settings of {path}"), kept).collect(path, progress)


class Collection:
    """One collection: its components, and the run it writes."""

    kind = "rollout"
    """The verb that makes the run (:attr:`ramify.trace.db.Run.kind`)."""
    replays = False
    """Whether continuing reads and counts the stored attempts again instead of starting after them."""

    def __init__(self, config: RolloutConfig, template: Mapping[str, Any] | None = None, weights: bool = True) -> None:
        """``template``: the chat template to use instead of the model's own (see :func:`ramify.jobs.components.wanted_template`).
        Without ``weights`` it can :meth:`plan` and nothing else.

        Raises UserError or NeedsError on components that do not exist or do not fit together.
        """
        self.config = config
        parse(config.backend)
        self.environment = find_environment(config.env)
        listed = None if config.tasks is None else read_task_set(Path(config.tasks))
        self.task_set: TaskSet = listed or self.environment.task_set("train", config.count, config.seed)
        model, chat_template = find_model(config.model, config.device, config.dtype, template, weights)
        stops = () if chat_template is None else chat_template.stop_tokens
        wanted = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
        sampling = sampling_of(model, **wanted, max_tokens=config.max_reply, stop_tokens=stops)
        # the run stores the settings in effect, whatever their source
        self.config = config.model_copy(update={name: getattr(sampling, name) for name in wanted})
        self.agent = make_agent(model, chat_template, sampling, config.compactor, config.window)
        self.agent.check(self.environment)
        self.workers_lost = 0
        """Workers that died in the last call."""

    def plan(self) -> dict[str, int]:
        """The cost estimate before anything runs: upper bounds."""
        attempts = len(self.task_set) * self.config.attempts
        env = self.environment.make()
        calls = attempts * env.max_turns
        close(env)
        limits = self.config.budget
        return {
            "tasks": len(self.task_set),
            "attempts": attempts,
            "calls": calls if limits.calls is None else min(calls, limits.calls),
            "tokens": calls * self.config.max_reply
            if limits.tokens is None
            else min(calls * self.config.max_reply, limits.tokens),
        }

    def memory(self) -> dict[str, float]:
        """GiB that the processes of a model of this machine take, about; nothing of another model."""
        c, model = self.config, self.agent.model
        if not is_local(c.model):
            return {}
        from ramify.engine.local import LocalModel
        from ramify.jobs.room import SHOWN

        assert isinstance(model, LocalModel)
        most, shown = self.plan(), int(SHOWN)
        env = self.environment.make()
        longest = shown * env.max_turns * c.max_reply
        close(env)
        rows = min(c.concurrency, most.get("attempts", c.concurrency))
        each = resident() + model.sampling_bytes(rows, longest, shown * most["tokens"])
        return {"GiB of memory, about": round((1 + parse(c.backend)[1]) * each / 2**30, 1)}

    def collect(self, folder: Path, progress: Progress = SILENT) -> Collected:
        """Play the attempts that the run in ``folder`` lacks and return what the run holds then.

        Raises UserError where the run was begun with other settings or components (see :meth:`ramify.trace.db.Run.begin`).
        """
        settings = {**self.config.to_json(), "sampling": self.agent.sampling.to_json()}
        free = {name: settings.pop(name) for name in FREE}
        parts = {"weights": self.agent.model.identity.weights, "tasks": self.task_set.hash} | components.template_entry(
            self.agent.template
        )
        with Run.begin(folder, self.kind, settings, free, parts) as run:
            keep_template(run, self.agent.template)
            if not run.journal("environment"):
                run.log("environment", "versions", components.surroundings(self.agent.model))
            done = run.memo("attempt", AttemptEntry)
            budget = Budget(self.config.budget.model_dump())
            if not self.replays:
                turns = sum(entry.turns for entry in done.values())
                budget.charge(calls=turns, tokens=sum(entry.tokens for entry in done.values()), turns=turns)
            earlier = sum(stretch.seconds for stretch in run.memo("stretch", Stretch).values())
            budget.charge(seconds=earlier)
            begun = time.monotonic()
            try:
                spent = self._play(run, done, budget, progress)
            finally:
                seconds = time.monotonic() - begun
                run.log("stretch", str(len(run.journal("stretch"))), Stretch(seconds))
            played = replace(self._report(done), seconds=round(earlier + seconds, 1), spent=spent, run=str(folder))
            ending = (played.ending,) if played.ending else ()
            return replace(played, caveats=components.cautions(self.agent.model) + ending)

    def _play(self, run: Run, done: dict[str, AttemptEntry], budget: Budget, progress: Progress) -> str | None:
        """Play what ``done`` lacks, add it there, and return the budget that ended it early."""
        c = self.config
        wanted = [Unit(task.id, task, index) for task in self.task_set for index in range(c.attempts)]
        units = [unit for unit in wanted if _key(unit) not in done]
        count = len(wanted) - len(units)
        outcomes = Counter(entry.outcome for entry in done.values())
        success = Success(outcomes[True], outcomes[True] + outcomes[False])
        progress.begin(len(wanted), count, "play", "attempts")
        if not units:
            return None
        with play.open_players(c.backend, c.model, c.env, self.agent, c.seed, c.concurrency, c.compactor) as players:
            episodes = Episodes(self.agent, self.environment, run, c.seed)
            player = players.player(episodes, budget)

            async def work() -> None:
                nonlocal count
                async for unit, attempt in player.in_order(units):
                    done[_key(unit)] = entry = entry_of(attempt)
                    if attempt.failure is None:  # the next call retries a failed one
                        run.log("attempt", _key(unit), entry)
                    run.commit()
                    if unit.index == c.attempts - 1:
                        episodes.trees.pop(unit.tree, None)  # its last: memory does not grow with the task set
                    count += 1
                    success.add(attempt)
                    progress.at(count, success.note)

            try:
                players.run(work())
            except BudgetSpentError:
                return budget.spent_out
            finally:
                self.workers_lost = 0 if players.pool is None else players.pool.lost
        return None

    def _report(self, done: Mapping[str, AttemptEntry]) -> Collected:
        wanted = [f"{task.id}#{i}" for task in self.task_set for i in range(self.config.attempts)]
        return self._counted([done[key] for key in wanted if key in done], len(wanted))

    def _counted(self, attempts: Sequence[AttemptEntry], wanted: int | None) -> Collected:
        """Counts over these attempts; ``missing`` is how many of those ``wanted`` were not played."""
        scored = [attempt.outcome for attempt in attempts if attempt.outcome is not None]
        failures = Counter(attempt.failure for attempt in attempts if attempt.failure is not None)
        return Collected(
            success=sum(scored) / len(scored) if scored else None,
            interval=wilson(sum(scored), len(scored)) if scored else (0.0, 1.0),
            successes=sum(scored),
            n=len(scored),
            tasks=len(self.task_set),
            solved=len({attempt.task for attempt in attempts if attempt.outcome}),
            failed=failures.total(),
            failures=dict(failures.most_common(5)),
            missing=None if wanted is None else wanted - len(attempts),
            tokens=sum(attempt.tokens for attempt in attempts),
            turns=sum(attempt.turns for attempt in attempts),
            workers_lost=self.workers_lost,
            seconds=0.0,
            spent=None,
            run="",
        )


def entry_of(attempt: Attempt) -> AttemptEntry:
    """What the journal keeps of an attempt."""
    return AttemptEntry(
        task=attempt.task.id,
        outcome=attempt.outcome,
        reward=attempt.reward,
        truncated=attempt.truncated,
        failure=attempt.failure,
        turns=len(attempt.turns),
        tokens=attempt.sampled_tokens,
        leaf=attempt.leaf,
    )


def _key(unit: Unit) -> str:
    return f"{unit.tree}#{unit.index}"
