"""A case on disk: runs of the agent in its environment with declared fields changed,
graded and kept in CASEDIR/run with what they show.

Everything sampled is stored and loaded by the next call, so a case may be interrupted anywhere.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from ramify.base import codec, verdicts
from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.base.ledger import Ledger
from ramify.base.progress import SILENT, Progress
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.env.protocol import Env, Environment, Observation, Task, TaskSet, read_task_set
from ramify.methods.forensics import record
from ramify.methods.forensics.case import CaseConfig, check_case, load_case, varied
from ramify.methods.forensics.experiment import TestResult, corrected
from ramify.methods.forensics.factors import FactorEnvironment, require_honest
from ramify.methods.forensics.filtered import SentenceFilter
from ramify.methods.forensics.judges import by_pattern, find_behaviour, says, shows
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model, Sampling
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.compact import reply
from ramify.rollout.components import find_environment, find_model, make_agent
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import Sampler
from ramify.score.judge import FunctionJudge, Judge
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.message import Message

DECIDES = ("env", "model", "behavior", "seed", "temperature", "top_p", "max_reply", "tasks", "count", "awareness")
"""Settings that decide what was run: a case with runs does not change them."""
FIRST = 10
"""Runs of a cell that are played before the others: where none of them counts, the others would not either."""


@dataclass(frozen=True, slots=True)
class Played:
    """One run, graded."""

    cell: str
    tree: str
    leaf: str
    behavior: bool | None
    aware: bool
    failure: str | None = None
    forbid: SentenceFilter | None = None
    """Of a run without a class of sentences."""
    cut: bool = False
    """Whether its last reply was cut by its limit of tokens: it counts neither as with the behaviour nor as without."""


def counted(runs: Iterable[Played]) -> Counts:
    """Runs with the behaviour among graded ones; the others are missing."""
    return Counts.of(run.behavior for run in runs)


class Patient:
    """An environment that ends an episode after ``patience`` invalid replies in a row: an agent that cannot act is not asked a
    thousand times."""

    name: str
    task_set: Callable[..., TaskSet]

    def __init__(self, inner: Environment, patience: int) -> None:
        self._inner, self._patience = inner, patience

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def make(self) -> Env:
        """An episode."""
        episode: Any = PatientEpisode(self._inner.make(), self._patience)
        return cast(Env, episode)


class PatientEpisode:
    """An episode of :class:`Patient`. A fork counts from its own first reply."""

    def __init__(self, inner: Env, patience: int) -> None:
        self._inner, self._patience, self._idle = inner, patience, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def reset(self, task: Task, seed: int) -> Observation:
        """Start ``task``."""
        self._idle = 0
        return self._inner.reset(task, seed)

    def step(self, action: str) -> Observation:
        """One reply."""
        seen = self._inner.step(action)
        self._idle = 0 if seen.valid else self._idle + 1
        return seen if seen.terminated or self._idle < self._patience else replace(seen, truncated=True)


class CaseRuns:
    """Methods play what is not there yet, then say what was found; call :meth:`close`, or use it as a context.

    ``config`` is that of CASEDIR/case.toml unless given. ``model``, ``environment`` and ``behavior`` replace those it names.
    Raises UserError where the stored runs were made with other settings.
    """

    def __init__(
        self,
        folder: Path | str,
        config: CaseConfig | None = None,
        *,
        model: Model | None = None,
        environment: Environment | None = None,
        behavior: Judge | Callable[[Sequence[Message]], Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.config = load_case(self.folder) if config is None else config
        check_case(self.config)
        c = self.config
        self.environment = environment or find_environment(c.env)
        self.agent = self.agent_of(c.model if model is None else model)
        self.judge = None if c.judge is None else find_model(c.judge)
        own = behavior or find_behaviour(c.behavior, self.judge)
        self.behavior = own if isinstance(own, Judge) else FunctionJudge(own, ("messages",))
        self.aware = by_pattern(c.awareness)
        self.task_set: TaskSet = read_task_set(Path(c.tasks)) if c.tasks else self.environment.task_set("eval", c.count, c.seed)
        self.run = self._open()
        self.progress: Progress = SILENT
        self.ledger = Ledger()
        """What the judges cost."""
        self.prefix = ""
        """Put before the names of cells; results of a study with one are not kept: it is on another agent."""

    def agent_of(self, model: Model | str) -> Agent:
        """An agent that samples as the case says and stops where its own template does."""
        c = self.config
        agent = make_agent(model, None, Sampling(c.temperature, c.top_p, max_tokens=c.max_reply))
        stops = () if agent.template is None else tuple(agent.template.stop_tokens)
        return replace(agent, sampling=replace(agent.sampling, stop_tokens=stops))

    def _open(self) -> Run:
        decides = {name: getattr(self.config, name) for name in DECIDES}
        self.folder.mkdir(parents=True, exist_ok=True)
        judges = {"behavior": self.behavior.identity, "awareness": self.aware.identity}
        free = {"judges": judges, "forensics": True, "sampling": self.agent.sampling.to_json()}
        return Run.begin(self.folder / "run", record.KIND, decides, free)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep everything and close the run."""
        self.run.close()

    # Playing

    def acting(self, name: str, agent: Agent | None = None, environment: Environment | None = None) -> Self:
        """This study with another agent, or in another environment: its cells are others, and its results are not kept."""
        other = copy.copy(self)
        other.prefix, other.agent, other.environment = f"{name}/", agent or self.agent, environment or self.environment
        return other

    def episodes(self, agent: Agent | None = None) -> Episodes:
        """Episodes of the case's agent, or another, in its environment."""
        environment = Patient(self.environment, self.config.patience) if self.config.patience else self.environment
        return Episodes(agent or self.agent, environment, self.run, self.config.seed)

    def play(self, cell: str, changes: Mapping[str, Any], n: int | None = None, agent: Agent | None = None) -> list[Played]:
        """``n`` runs (those of the case) of one cell, task after task; those that are stored are read.

        Raises UserError where the runs stored for the cell were made of other tasks, with other values, or by another agent,
        RamifyError where the first ten are all invalid, or all are.
        """
        self.check_honest(changes)
        n = n or self.config.n
        name = record.safe(self.prefix + cell)
        episodes, tasks = self.episodes(agent), [varied(task, self.config, changes) for task in self.task_set]
        self._check_cell(cell, name, tasks, episodes.agent)
        done = self.played(name)
        count = sum(f"{name}/{tasks[i % len(tasks)].id}#{i // len(tasks)}" in done for i in range(n))
        self.progress.begin(n, count, cell, "runs")

        async def one(i: int) -> Played:
            nonlocal count
            task = tasks[i % len(tasks)]
            tree, key = f"{name}/{task.id}", f"{name}/{task.id}#{i // len(tasks)}"
            if key not in done:
                attempt = await episodes.attempt(tree, task, i // len(tasks))
                done[key] = await self.grade(cell, episodes, attempt)
                if done[key].failure is None:
                    self.run.log("played", key, codec.to_json(done[key]))
                count += 1
                self.progress.at(count, f"{sum(run.behavior is True for run in done.values())} did it")
            elif done[key].cut:
                verdicts.left_open(done[key].leaf)
            return done[key]

        async def in_turn(left: Iterator[int], played: dict[int, Played]) -> None:
            for i in left:
                played[i] = await one(i)

        async def everything() -> list[Played]:
            runs: list[Played] = []
            for some in (range(min(FIRST, n)), range(FIRST, n)):
                left, played = iter(some), dict[int, Played]()
                # as many coroutines as run at once, and not one a run: an interrupt does not wait for the others to be made
                await asyncio.gather(*(in_turn(left, played) for _ in range(min(self.config.concurrency, len(some)))))
                runs += [played[i] for i in some]
                if len(runs) >= FIRST and all(run.behavior is None for run in runs):
                    raise RamifyError(self._invalid(cell, runs))
            return runs

        try:
            return wait_for(everything())
        finally:
            self.run.commit()

    def _invalid(self, cell: str, runs: Sequence[Played]) -> str:
        """One sentence on runs of which none counts: why, counted."""
        why = Counter(run.failure or f"no verdict, it ended with {self._ending(run)}" for run in runs)
        reasons = "; ".join(f"{count} x {reason}" for reason, count in why.most_common(3))
        more = f"; and {plural(len(why) - 3, 'other reason')}" if len(why) > 3 else ""
        return (
            f"stopped: the first {plural(len(runs), 'run')} of '{cell}' by '{self.agent.model.identity.name}' in "
            f"'{self.environment.name}' are all invalid "
            f"({reasons}{more}); no more are played"
        )

    def _ending(self, run: Played) -> str:
        last = self.messages_of(run)[-1]
        cut = f"a reply that max_reply cut at {plural(self.config.max_reply, 'token')}, and " if run.cut else ""
        return f"{cut}{' '.join(last.text.split())[:80]!r}"

    def _check_cell(self, cell: str, name: str, tasks: Sequence[Task], agent: Agent) -> None:
        """Runs are found by the name of their cell, so the name must mean what it meant when the first of them was played."""
        made = json_hash([self.environment.name, agent.model.identity.weights, [dict(task.data) for task in tasks]])
        if not self.run.log("cell", name, made):
            (stored,) = self.run.journal("cell", name)
            if stored.payload != made:
                raise UserError(
                    f"{self.run.folder} holds runs of '{cell}' that were made with other values, tasks, sentences or another "
                    "agent: "
                    "take another name, or another folder"
                )

    async def grade(self, cell: str, episodes: Episodes, attempt: Attempt) -> Played:
        """An attempt with its behaviour; one that failed, whose last reply was cut, or that the grader fails on, is invalid."""
        path = episodes.load(attempt.tree).path(attempt.leaf)
        messages, cut = path.messages(), path.cut
        replies = "\n".join(message.text for message in messages if message.role == "assistant")
        given = [mark for turn in attempt.turns if (mark := turn.node.data.get("forbid"))]
        marks = [codec.from_json(SentenceFilter, mark, "what forbade a sentence") for mark in given]
        forbid = SentenceFilter(sum(mark.rejected for mark in marks), any(mark.unfiltered for mark in marks))
        behavior, failure = None, attempt.failure
        if cut:
            verdicts.left_open(attempt.leaf)
        elif failure is None:
            behavior, why = await shows(self.behavior, messages, attempt.tree, self.ledger)
            failure = why or None
        aware = await says(self.aware, replies, self.ledger)
        return Played(cell, attempt.tree, attempt.leaf, behavior, aware, failure, forbid if marks else None, cut)

    def check_honest(self, changes: Mapping[str, Any]) -> None:
        """A scripted honest agent must succeed through the same tools, where the environment has one.
        Raises UserError where it does not."""
        if isinstance(self.environment, FactorEnvironment) and "honest" in self.environment.scripts:
            key = stable_hash("honest", json.dumps(dict(changes), sort_keys=True, default=str))
            if not self.run.journal("honest", key):
                require_honest(self.environment, varied(next(iter(self.task_set)), self.config, changes))
                self.run.log("honest", key)

    def played(self, cell: str = "") -> dict[str, Played]:
        """The runs that are stored, by key, those of one cell or all; of a cell none of a positive control."""
        where, start = f"{self.run.folder}, played", f"{cell}/" if cell else ""
        entries = [entry for entry in self.run.journal("played") if entry.key.startswith(start)]
        return {entry.key: codec.from_json(Played, entry.payload, where) for entry in entries}

    def messages_of(self, played: Played) -> Sequence[Message]:
        """The messages of a run."""
        return self.run.path(played.leaf).messages()

    async def ask(self, messages: Sequence[Message], key: tuple[str, ...], i: int, purpose: str) -> str:
        """What the agent answers to a conversation, sample ``i`` at ``key``; no node is made of it."""
        sampler, agent = Sampler(self.agent.model, self.config.seed), self.agent
        return (await reply(sampler, agent.template, messages, agent.sampling, key, i, purpose))[0]

    def asking(self) -> tuple[Model, ChatTemplate | None]:
        """The model that the case names as its judge, and its template. Raises NeedsError where it names none."""
        if self.judge is None:
            raise NeedsError("the case names no judge: set judge = in its case.toml")
        return self.judge

    def record(self, results: Sequence[TestResult]) -> list[TestResult]:
        """Keep tests in the case's run, with the confounds that the case declares for them.
        They come back as :meth:`results` has them."""
        if self.prefix:
            return corrected(results)
        declared = [replace(one, confounds=(*one.confounds, *self.config.confounds.get(one.name, ()))) for one in results]
        unique = [replace(one, confounds=tuple(dict.fromkeys(one.confounds))) for one in declared]
        known = {one.name: one for one in record.keep_tests(self.run, unique)}
        return [known[one.name] for one in results]

    def results(self) -> list[TestResult]:
        """Every test kept so far, by name, corrected over all of them; controls that were measured since are put to them."""
        return record.kept_tests(self.run)
