"""The main job: rollouts -> credit for every step -> training -> before and after on held-out tasks.

One update samples attempts within its share of the tokens (``jobs/sampling.py``), credits every step (``score/credit``, for which
a critic may be asked: ``jobs/critic.py``), and trains on the credited tokens. Everything is in the run's one file, so an
interrupted run continues where it stopped, with the same result as an uninterrupted one."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ramify.base import registry
from ramify.base.config import check, load
from ramify.base.errors import RamifyError, UserError
from ramify.base.files import refusal, whole_file
from ramify.base.ids import stable_hash
from ramify.base.plugins import source_of
from ramify.base.processor import resident
from ramify.base.progress import SILENT, Progress
from ramify.base.seeds import generator
from ramify.base.version import VERSION
from ramify.base.words import plural
from ramify.engine.checkpoints import adapter_of, load_model, model_folder, save_model, weights_of
from ramify.env.protocol import AnyEnvironment, AnyTasks, Environment, Task, TaskSet, close
from ramify.jobs import changes, components, keep, room
from ramify.jobs.credit import answer_values, log_ratios, training_rows
from ramify.jobs.critic import SharedCritic, StepStates, outcomes_of, states_of
from ramify.jobs.curve import curves
from ramify.jobs.grown import EpisodeRecorder, Grown, gather_all
from ramify.jobs.own import START, Own, env_of
from ramify.jobs.pace import Pace
from ramify.jobs.play import open_players
from ramify.jobs.results import (
    Changes,
    ComparedArm,
    CriticReport,
    EvaluatedArm,
    Evaluation,
    EvaluationEntry,
    Fidelity,
    Improved,
    ImprovePlan,
    Stretch,
    SuccessGain,
    TrialEpisodes,
    UpdateReport,
    Validation,
    WhatWasLost,
)
from ramify.jobs.sampling import SamplingRule, UpdatePlan
from ramify.jobs.settings import ARMS as ARMS
from ramify.jobs.settings import ImproveConfig as ImproveConfig
from ramify.jobs.settings import TrainingConfig, pretrained_rate
from ramify.model.chat import ChatTemplate, JinjaTemplate, template_of
from ramify.model.protocol import Model, Sampling, require
from ramify.render.result import Cell
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt, Success
from ramify.rollout.backends import Player
from ramify.rollout.components import any_environment, check_trust
from ramify.rollout.run import Episodes
from ramify.rollout.stored import AGENT, keep_template, kept_template
from ramify.score.credit.protocol import CreditGroup, CreditRule, credit_group, find_rule
from ramify.stats.drops import Counts
from ramify.stats.intervals import paired_proportions, wilson
from ramify.trace.db import Run
from ramify.trace.node import EVAL
from ramify.train import checkpoint
from ramify.train.batch import Row, rows_from_path
from ramify.train.fidelity import GeneralTexts, weights_packed
from ramify.train.loop import TrainConfig, Trainer, with_reference

if TYPE_CHECKING:
    from torch import nn


REPLIES, TRIAL = (24, 48, 96), 16
"""Lengths of a pretrained model's replies that a trial of so many episodes chooses from."""
ATTEMPTS, MIXED = (4, 8, 16), 0.5
"""Attempts at a task that a trial chooses from, and the share of tasks at which some are to succeed and some are not."""
LEAST_TOGETHER = 4
"""Episodes at once that memory is not to bound further."""
COOLER, FEW = (0.7, 0.4), 3
"""Temperatures that are tried where fewer than so many of a trial's episodes succeed at the one before: there is little to learn
from, and a model that is nearly never right at 1 often is when it is sampled less at random."""
CUT = 0.1
"""Share of cut replies from which a caveat says so."""
CLIP_CREDIT = 4.0
"""Credit is clipped to plus and minus this for training: in a graph with little progress a small spread inflates it. An
outcome standardised among 16 attempts lies within it in any case."""


def resolved(config: ImproveConfig) -> ImproveConfig:
    """The settings with what 0 stands for in training; a comparison keeps the 0, because each arm takes its own."""
    return config if config.compare else config.model_copy(update={"train": config.train.of(config.arm, config.updates)})


def plan(config: ImproveConfig, out: Path | str | None = None, progress: Progress = SILENT) -> ImprovePlan:
    """The cost estimate before anything runs: upper bounds on tokens and episodes,
    and seconds estimated from a few trial episodes.

    ``trial`` holds the results of these episodes and the size of a checkpoint: one training step is made on them and its result
    packed, sent and saved as a run would do it, so what would fail there fails here. The caveats name reasons why there is
    nothing to learn from. Raises as :func:`improve` would in the folder ``out``, and leaves nothing behind."""
    arms = len(ARMS) if config.compare else 1
    episodes = config.eval_episodes * (1 + arms)
    episodes += changes.states_for(config.changes, config.eval_episodes) * 2 * (changes.FORKS + changes.POOL * changes.SCREEN)
    validations = arms * len(keep.milestones(config.updates)) * config.validation_episodes
    few = config.model_copy(update={"eval_episodes": min(16, config.eval_episodes)})
    with _trial_folder(Path(out) if out else None) as folder:
        path = folder / "run"
        with Job(few, path) as job:
            few = job.fit(few, path, progress)
            config = config.model_copy(update=job.chosen)
            with Run.create(path, {}, kind="improve") as run:
                seen, trial, pace = job.trial(run, progress)
        turns = job.max_turns
    played = episodes + (validations if job.pretrained else 0)
    expected = pace.seconds(config, arms, seen.tokens / seen.n * played)
    memory = pace.memory(job.model, config, job.adapter, job.loaded) if job.pretrained else None
    cost_estimate: dict[str, Cell] = {
        "arms": arms,
        "updates": config.updates * arms,
        "training tokens": config.tokens * arms,
        "evaluation episodes": episodes,
        "evaluation tokens": episodes * turns * config.max_reply,
        **({"validation episodes": validations} if job.pretrained else {}),
        "seconds, about": int(round(expected, -1)),
        **({"GiB of memory, about": round(memory.peak / 2**30, 1)} if memory else {}),
        **({"chosen by a trial": _named(job.chosen)} if job.chosen else {}),
        "calls to paid endpoints": 0,
        "cost": 0.0,
    }
    settings = resolved(config)
    if job.pretrained and not config.compare:
        settings = settings.model_copy(update={"lora": job.rank, "train": job.train_settings(config.arm)})
    return ImprovePlan(settings.to_json(), cost_estimate, trial, caveats=_caveats(trial))


def _named(chosen: Mapping[str, Any]) -> str:
    """What a trial chose, in one line."""
    values = {name: value.attempts if name == "splitting" else value for name, value in chosen.items()}
    words = {"splitting": "attempts at a task"}
    return ", ".join(f"{words.get(name, name)} {value:g}" for name, value in values.items())


@contextmanager
def _trial_folder(folder: Path | None) -> Iterator[Path]:
    """A temporary folder on the disk where ``folder`` is to be made. Raises UserError or RamifyError where
    nothing can be made there."""
    parent = None
    if folder is not None:
        parent = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not parent.is_dir():
            raise UserError(f"cannot make a run in {folder}: {parent} is a file")
    try:
        scratch = tempfile.TemporaryDirectory(dir=parent, prefix=".trial-")
    except OSError as error:
        raise refusal(f"cannot make a run in {folder}", error) from error
    with scratch as path:
        yield Path(path)


def _caveats(trial: TrialEpisodes) -> tuple[str, ...]:
    """Reasons not to start, from the trial's episodes."""
    caveats = []
    if trial.success in (0, 1):
        which = "every one" if trial.success else "none"
        why = "there is nothing left to learn" if trial.success else "good and bad steps cannot be distinguished"
        caveats.append(
            f"{which} of {trial.n} trial episodes succeeded: where all attempts at a task end alike {why}; choose "
            f"{'harder' if trial.success else 'easier'} tasks"
        )
    if trial.failed:
        caveats.append(f"{plural(trial.failed, 'trial episode')} ended in an infrastructure failure, not counted")
    return tuple(caveats)


def improve(
    config: ImproveConfig | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    progress: Progress = SILENT,
    *,
    model: Model | str | None = None,
    env: AnyEnvironment | None = None,
    tasks: AnyTasks | None = None,
) -> Improved:
    """Make an agent better and say by how much. Everything besides the result is in the run ``out``.

    ``config`` may be a dict of some settings. ``model``, ``env`` and ``tasks`` replace its own, as names or as objects: a
    LocalModel, which is not changed (the improved one is in ``out``/agent), an environment as in :func:`ramify.play`, and tasks
    as objects or dicts with an ``id``. Raises UserError or NeedsError before anything runs when the settings do not fit
    together."""
    if not isinstance(config, ImproveConfig):
        config = load(ImproveConfig, given=config or {})
    folder = Path(out) if out else Path("runs") / f"improve-{int(time.time())}"
    replaced = Own(model, env, tasks)
    config = replaced.named(config, folder)
    # bad components are refused before a run exists
    with Job(config, folder, replaced) as job:
        config = job.fit(config, folder, progress)
        with Run.create(folder, replaced.stored(config), kind="improve", parts=job.parts()) as run:
            job.own.keep(folder, job.model, job.task_set)
            return job.drive(run, progress)


def resume(path: Path | str, progress: Progress = SILENT, trust: bool = False, *, env: AnyEnvironment | None = None) -> Improved:
    """Continue an interrupted run; a finished one returns its result. ``env`` is needed where the run was made with an object.

    Raises UserError when components have changed since, or where they are untrusted (see
    :func:`ramify.rollout.components.check_trust`).
    """
    with Run.open(Path(path)) as run:
        check_trust(run, trust)
        if (done := finished(run)) is not None:
            return done
        stored, template = run.config, kept_template(run)
    config = check(ImproveConfig, env_of(stored, env, path), f"the stored settings of {path}")
    with Job(config, Path(path), Own(env=env), template) as job, Run.begin(path, "improve", stored, parts=job.parts()) as run:
        return job.drive(run, progress)


def finished(run: Run) -> Improved | None:
    """The result of a run that is done, else None."""
    return run.memo("result", Improved).get("improve")


class Job:
    """One run of the main job. It holds the components; the run's file holds the state.
    A context manager: it closes the back end."""

    def __init__(
        self, config: ImproveConfig, folder: Path, replaced: Own | None = None, template: Mapping[str, Any] | None = None
    ) -> None:
        """``template``: the chat template that the run in ``folder`` began with, where it has begun."""
        self.config, self.folder, self.own = config, folder, replaced or Own()
        self.given = template or components.wanted_template(config.chat_template, folder)
        self.environment: Environment = any_environment(self.own.env or config.env)
        model = self.own.agent(config.concurrency)
        began = time.monotonic()
        if model is None:
            self.start = model_folder(config.model)
            self.model, self.template = load_model(self.start, config.concurrency, config.device, given=self.given)
        else:
            self.start, self.model = folder / START, model
            self.template = cast(ChatTemplate, template_of(model, self.given))
        self.loading, self.loaded = time.monotonic() - began, resident()
        require(self.model, ("tokens", "logprobs", "train"), "ramify improve")
        self.pretrained = self.model.pretrained
        self.rank = keep.rank_of(config, self.pretrained, self.start)
        self.adapter, self.trained = adapter_of(self.model, self.start, self.rank, config.seed), False
        self.general: GeneralTexts | None = None
        self.general_texts = keep.texts_of(config.keep) if self.pretrained else ()
        self.task_set = self.own.task_set()
        given = self.task_set or config.tasks
        self.train_task_set, self.eval_task_set = components.task_sets(
            self.environment, given, config.train_tasks, config.eval_episodes, config.seed
        )
        self.tune_task_set = self.train_task_set
        if self.pretrained:
            self.train_task_set, self.tune_task_set = components.tasks_to_choose_by(
                self.environment, given, self.train_task_set, config.validation_episodes, config.seed
            )
        self.agent().check(self.environment)
        names = ARMS if config.compare else (config.arm,)
        self.rules = {name: credit_rule(config, name) for name in names}
        self.samplings = {name: sampling_rule(config, name) for name in names}
        self.max_turns = _max_turns(self.environment)
        self.chosen: dict[str, Any] = {}
        """Settings that a trial chose."""
        self.weights = self.played_with = self.model.identity.weights
        env = self.own.stored(config)["env"]
        self.players = open_players(config.backend, config.model, env, self.agent(), config.seed, config.concurrency)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.players.__exit__(kind, error, trace)

    def drive(self, run: Run, progress: Progress) -> Improved:
        """Do the remaining work, and report."""
        if (done := finished(run)) is not None:
            return done
        keep_template(run, self.template)
        if not run.journal("environment"):
            run.log("environment", "versions", components.surroundings(self.model))
            run.commit()
        begun = time.monotonic()
        others = [name for name in ARMS if name != self.config.arm] if self.config.compare else []
        try:
            before = self.evaluate(run, "before", progress)
            spent = self.learn(run, self.config.arm, progress, 1 + len(others))
            after = self.evaluate(run, "after", progress)
            self.save(self.folder / AGENT)
            for name in others:
                self.reset()
                self.learn(run, name, progress, 1 + len(others))
                run.log("compare", name, EvaluatedArm(before, self.evaluate(run, f"after-{name}", progress)))
            changed = self._changes(run, progress)
            lost = self._lost(run)
            earlier = sum(stretch.seconds for stretch in run.memo("stretch", Stretch).values())
            seconds = time.monotonic() - begun + earlier
            result = Improved(
                before=before.told,
                after=after.told,
                gain=_gain(before, after),
                tokens=spent,
                **self._counts(run),
                seconds=round(seconds, 1),
                changes=Changes(changes.sentence(changed, self.config.changes), tuple(change.told for change in changed)),
                compare=self._compared(run, others) if others else None,
                run=str(self.folder),
                lost=lost,
                caveats=components.cautions(self.model) + (lost.caveats + self._as_sampled(after) if lost else ()),
            )
            run.log("result", "improve", result)
        finally:
            # interrupted work leaves its finished attempts and its time; commit is atomic
            run.log("stretch", str(len(run.journal("stretch"))), Stretch(time.monotonic() - begun))
            run.commit()
        return result

    def parts(self) -> dict[str, Any]:
        """What must be unchanged for a run to continue: code, weights, tasks and chat template."""
        tasks = {"train": self.train_task_set.hash, "eval": self.eval_task_set.hash}
        if self.pretrained:
            texts = stable_hash("general texts", *self.general_texts)
            tasks |= {"tune": self.tune_task_set.hash, "general texts": texts}
        rule = self.rules[self.config.arm]
        users_rule = {} if type(rule).__module__.startswith("ramify.") else {"credit rule": stable_hash(source_of(type(rule)))}
        return {"version": VERSION, "weights": self.weights, **tasks, **users_rule} | components.template_entry(self.template)

    def train_settings(self, arm: str) -> TrainingConfig:
        """How ``arm`` trains this agent."""
        lr = 0.0
        if self.pretrained:
            lr = pretrained_rate(sum(weight.numel() for weight in self.model.module.parameters()), self.adapter is not None)
        return self.config.train.of(arm, self.config.updates, lr)

    def trainer(self, config: TrainConfig) -> Trainer:
        """A trainer of the current agent, which is the starting one: of its adapter alone where it has one or is to get one."""
        if self.trained:
            self.adapter = None  # which holds a copy of the weights that it is for: never two of them
            self.adapter = adapter_of(self.model, self.start, self.rank, self.config.seed)
        self.trained = True
        return Trainer(self.model.module, config, self.config.seed, self.adapter)

    def save(self, folder: Path) -> None:
        """Write the current agent with its chat template, or its adapter. Raises RamifyError where it cannot be written."""
        save_model(self.model, self.start, folder, self.adapter)
        if self.config.chat_template and isinstance(self.template, JinjaTemplate):
            try:
                with whole_file(folder / "chat_template.jinja") as part:
                    part.write_text(self.template.source, encoding="utf-8")
            except OSError as error:
                raise refusal(f"cannot write the checkpoint {folder}", error) from error

    def reset(self, folder: Path | None = None) -> None:
        """Back to the starting weights, or on to the checkpoint in ``folder``."""
        c = self.config
        self.model, self.template = load_model(folder or self.start, c.concurrency, c.device, given=self.given)

    def agent(self) -> Agent:
        """The current agent."""
        c = self.config
        sampling = Sampling(temperature=c.temperature, max_tokens=c.max_reply, stop_tokens=self.template.stop_tokens)
        return Agent(self.model, self.template, sampling, follows=False)

    def player(self, run: Run, group: str) -> Player:
        """Plays episodes of the current agent."""
        weights = self.model.identity.weights
        if weights != self.played_with:
            if self.players.pool is not None:
                self.players.set_weights(weights, weights_of(self.model))
            self.played_with = weights
        return self.players.player(Episodes(self.agent(), self.environment, run, self.config.seed, group))

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, run: Run, when: str, progress: Progress = SILENT) -> EvaluationEntry:
        """Success on the held-out tasks, one attempt each (more where there are fewer tasks than episodes)."""
        return run.memo("eval", EvaluationEntry).get(when) or self._evaluated(run, when, progress)[0]

    def _evaluated(self, run: Run, when: str, progress: Progress) -> tuple[EvaluationEntry, list[Attempt]]:
        begun = time.monotonic()
        attempts = self._played(run, f"eval-{when}", self.eval_task_set, self.config.eval_episodes, f"evaluate {when}", progress)
        outcomes = [None if a.outcome is None else int(a.outcome) for a in attempts]
        scored = [o for o in outcomes if o is not None]
        if not scored:
            raise UserError(f"no evaluation episode could be scored; the first failed with: {attempts[0].failure}")
        evaluation = EvaluationEntry(
            success=sum(scored) / len(scored),
            interval=wilson(sum(scored), len(scored)),
            n=len(scored),
            failed=len(outcomes) - len(scored),
            tokens=sum(a.sampled_tokens for a in attempts),
            turns=float(np.mean([len(a.turns) for a in attempts])),
            entropy=_entropy(attempts),
            seconds=time.monotonic() - begun,
            cut=_cut(attempts),
            outcomes=tuple(outcomes),
        )
        run.log("eval", when, evaluation)
        run.commit()
        return evaluation, attempts

    def _played(self, run: Run, group: str, task_set: TaskSet, episodes: int, phase: str, progress: Progress) -> list[Attempt]:
        """So many attempts at ``task_set``, one a task (more where there are fewer), of which nothing is learned."""
        player, tasks = self.player(run, group), list(task_set)
        plays = [(tasks[i % len(tasks)], i // len(tasks)) for i in range(episodes)]
        success = Success()
        progress.begin(len(plays), 0, phase, "episodes")

        async def one(task: Task, index: int) -> Attempt:
            attempt = await player.attempt(f"{group}/{task.id}", task, index, purpose=EVAL)
            success.add(attempt)
            progress.at(success.ended, success.note)
            return attempt

        async def play() -> list[Attempt]:
            return await gather_all(one(task, index) for task, index in plays)

        played = self.players.run(play())
        self.model.forget()  # what follows begins elsewhere
        return played

    def fit(self, config: ImproveConfig, folder: Path, progress: Progress) -> ImproveConfig:
        """The settings with what a pretrained model needs here and was not given. The temperature: 1, or the first lower one at
        which a trial succeeds now and then where it hardly does at 1. The longest reply: of 24, 48 and 96 tokens the least that
        holds nine in ten replies of trial attempts that succeeded; 24 where none did. Attempts at a task: see :meth:`_group`.
        Episodes at once: as many as keep keys and values, at the length of the trial's longest row, within the weights' memory.

        Raises UserError where the memory is clearly too little for the job."""
        if not self.pretrained:
            return config
        need = room.needed(self.model, config, self.adapter, self.loaded)
        if str(self.model.forward.device) == "cpu":
            room.check_room(need, config, self.adapter is not None, room.available(), resident())
        open_ = {"max_reply", "temperature", "concurrency"} - config.model_fields_set
        if "attempts" not in config.splitting.model_fields_set:
            open_.add("splitting")
        if not open_ or config.backend != "local":
            return config
        self.config = config.model_copy(update={"max_reply": REPLIES[-1]} if "max_reply" in open_ else {})
        with _trial_folder(folder) as place, Run.create(place / "run", {}, kind="improve") as run:
            attempts, temperature = self._tried(run, "temperature" in open_, progress)
            longest = max((len(run.path(attempt.leaf)) for attempt in attempts), default=0)
        chosen: dict[str, Any] = {"temperature": temperature} if "temperature" in open_ else {}
        if "splitting" in open_:
            chosen["splitting"] = config.splitting.model_copy(update={"attempts": self._group(attempts)})
        if "concurrency" in open_:
            self.players.concurrency = chosen["concurrency"] = self._together(longest)
        if "max_reply" in open_:
            lengths = [turn.node.sampled_tokens for length in attempts if length.outcome for turn in length.turns]
            held = (most for most in REPLIES if sum(length <= most for length in lengths) >= 0.9 * len(lengths))
            chosen["max_reply"] = next(held, REPLIES[-1])
        self.chosen, self.config = chosen, config.model_copy(update=chosen)
        return self.config

    def _group(self, tried: Sequence[Attempt]) -> int:
        """Attempts at a task: the fewest of 4, 8 and 16 with which, at the trial's rate of success, half of the tasks have some
        that succeed and some that do not, as far as the tokens of an update pay for two tasks. A rule that imitates what
        succeeded compares nothing within a task, and has 4."""
        share, cost = self.config.tokens / self.config.updates, np.mean([attempt.sampled_tokens for attempt in tried])
        compared = any(rule.loss == "policy_gradient" for rule in self.rules.values())
        sizes = [n for n in ATTEMPTS if 2 * n * cost <= share and compared] or [ATTEMPTS[0]]
        rate = (sum(bool(attempt.outcome) for attempt in tried) + 0.5) / (len(tried) + 1)
        return next((n for n in sizes if 1 - rate**n - (1 - rate) ** n >= MIXED), sizes[-1])

    def _together(self, longest: int) -> int:
        """Episodes at once, of rows of at most so many tokens."""
        rows, weights = self.config.concurrency, self.model.sampling_bytes(0, 0, 0)
        while rows > LEAST_TOGETHER and self.model.sampling_bytes(rows, longest, 0) > 2 * weights:
            rows //= 2
        return rows

    def _tried(self, run: Run, cooler: bool, progress: Progress) -> tuple[list[Attempt], float]:
        """Attempts of a trial, and the temperature at which they were made: a lower one where it wins more."""
        fitted, temperature = self.config, self.config.temperature
        attempts = self._played(run, "trial", self.tune_task_set, TRIAL, "trial", progress)
        for lower in COOLER if cooler else ():
            if sum(bool(attempt.outcome) for attempt in attempts) >= FEW:
                break
            self.config = fitted.model_copy(update={"temperature": lower})
            others = self._played(run, f"trial at {lower:g}", self.tune_task_set, TRIAL, "trial", progress)
            if sum(bool(attempt.outcome) for attempt in others) >= FEW:
                attempts, temperature = others, lower
        self.config = fitted
        return attempts, temperature

    def trial(self, run: Run, progress: Progress) -> tuple[Evaluation, TrialEpisodes, Pace]:
        """An evaluation, one training step on it that is discarded, and the bytes that its checkpoint and saved agent take.

        Raises RamifyError where training, packing or saving fails.
        """
        seen, attempts = self._evaluated(run, "trial", progress)
        paths = [run.path(attempt.leaf) for attempt in attempts if attempt.turns]
        longest = self.model.context
        rows = [row for path in paths for row in rows_from_path(path, run.node, run.context, {"advantage": {}}, longest)]
        reference = copy.deepcopy(self.model.module) if self.config.kl else None
        losses = {"policy_gradient": 1.0}
        try:
            if reference is not None:
                rows, losses = with_reference(reference, rows), {**losses, "reference_kl": self.config.kl}
            trainer = self.trainer(self.train_settings(self.config.arm))
            pace = Pace.measured(seen, rows, trainer, losses)
            self.model.refresh()
            began = time.monotonic()
            saved_state = packed(trainer, SharedCritic(self.config.critic, self.config.seed))
            trainer.restore(*checkpoint.unpack(saved_state))
            sent = weights_of(self.model)
            self.player(run, "trial")  # which sends them to workers, where there are any
            self.save(self.folder / AGENT)
            pace = replace(pace, keep=time.monotonic() - began, load=self.loading, weigh=self._weighing())
        except (RuntimeError, ValueError, MemoryError) as error:
            why = " ".join(str(error).split())
            raise RamifyError(
                f"a training step on {plural(len(rows), 'row')} of the trial could not be made and saved: {why}"
            ) from error
        saved = sum(file.stat().st_size for file in (self.folder / AGENT).iterdir())
        sizes = len(rows), len(saved_state), len(sent), saved
        return seen, TrialEpisodes(seen.success, seen.interval, seen.n, seen.failed, *sizes, seen.cut), pace

    def _weighing(self) -> float:
        """Seconds that measuring what was lost takes once; 0 of a model that ramify made."""
        began = time.monotonic()
        if self.pretrained:
            GeneralTexts(self.model, self.general_texts)
        return (time.monotonic() - began) / 2  # it reads them twice

    def _counts(self, run: Run) -> dict[str, int]:
        """Attempts and forks of the updates of the run's arm, and their number."""
        updates = _updates(run, self.config.arm)
        return {
            "attempts": sum(update.attempts for update in updates),
            "forks": sum(update.forks for update in updates),
            "updates": len(updates),
        }

    def _compared(self, run: Run, others: Sequence[str]) -> dict[str, ComparedArm]:
        """Of every arm: success after, the gain, and the curve of success over tokens."""
        known, compared = curves(run), {}
        before = self.evaluate(run, "before")
        for name in (self.config.arm, *others):
            after = self.evaluate(run, "after" if name == self.config.arm else f"after-{name}")
            compared[name] = ComparedArm(after.success, after.interval, _gain(before, after), tuple(known[name]))
        return compared

    def _changes(self, run: Run, progress: Progress) -> list[changes.BehaviourChange]:
        """What the agent now does otherwise on the held-out tasks, and what comes of it; kept as findings."""
        c = self.config
        if not c.changes:
            return []

        def named() -> tuple[tuple[changes.BehaviourChange, ...], tuple[()]]:
            attempts = [view for when in ("before", "after") for view in changes.replies(run, f"eval-{when}")]
            scores = []
            for folder in (self.start, self.folder / AGENT):
                self.reset(folder)
                scores.append(self.players.run(changes.probabilities(self.model, run, attempts, c.temperature)))
            return tuple(changes.named(attempts, scores[0], scores[1], changes.POOL * c.changes)), ()

        behaviour = list(run.once("changes", "named", tuple[changes.BehaviourChange, ...], named))
        count = changes.states_for(c.changes, c.eval_episodes)
        if count and behaviour:
            pool = behaviour[: changes.POOL * count]
            few = changes.screened(pool, *self._continued(run, pool, 0, changes.SCREEN, progress), count)
            behaviour = changes.judged(few, *self._continued(run, few, changes.SCREEN, changes.FORKS, progress))
        behaviour = behaviour[: c.changes]
        run.conclude(changes.MAKER, [change.finding() for change in behaviour])
        return behaviour

    def _continued(
        self, run: Run, states: Sequence[changes.BehaviourChange], first: int, n: int, progress: Progress
    ) -> tuple[list[Counts], list[Counts]]:
        """Successes of continuations from ``states`` before and after training."""
        counts, tasks = [], {task.id: task for task in self.eval_task_set}
        progress.begin(2, 0, "compare", "agents")
        for number, folder in enumerate((self.start, self.folder / AGENT), 1):
            self.reset(folder)
            counts.append(self.players.run(changes.continued(self.player(run, "changes"), tasks, states, first, n)))
            progress.at(number)
        return counts[0], counts[1]

    # --- learning -----------------------------------------------------------------------------------------------------

    def learn(self, run: Run, name: str, progress: Progress = SILENT, arms: int = 1) -> int:
        """The updates, each with its share of the tokens that are left; returns the tokens generated. Continues after the last
        stored update. ``progress`` names the arm where it is one of several ``arms``."""
        c = self.config
        train = self.train_settings(name)
        if self.pretrained:  # the agent is the starting one here
            self.general = self.general or GeneralTexts(self.model, self.general_texts)
        trainer, critic = self.trainer(train), SharedCritic(c.critic, c.seed)
        compared = c.kl or self.rules[name].reference or self.rules[name].answers
        reference = copy.deepcopy(self.model.module) if compared else None
        done = _updates(run, name)
        spent, cost = self._restored(run, trainer, critic, done)
        last = done[-1].checkpoint if done else None
        note = ""

        def phase(what: str, update: int) -> str:
            return f"{name} {what} {update + 1}/{c.updates}" if arms > 1 else f"{what} {update + 1}/{c.updates}"

        ended = bool(done and done[-1].taken_back)
        for update in range(len(done), len(done) if ended else c.updates):
            if update in keep.milestones(c.updates):
                self._validated(run, name, trainer, update, progress)
            progress.begin(c.tokens, spent, phase("sample", update), "tokens")
            share = max((c.tokens - spent) / (c.updates - update), cost)
            times = {"sample": -time.monotonic()}
            success = Success()

            def on_attempt(attempt: Attempt, update: int = update, spent: int = spent, success: Success = success) -> None:
                nonlocal note
                success.add(attempt)
                note = success.note or note
                progress.at(min(spent + success.tokens, c.tokens), note, phase("sample", update))

            player = self.player(run, f"{name}-{update:04d}")
            grown = self.players.run(self._sample(run, player, name, update, share, cost, critic, on_attempt))
            times["sample"] += time.monotonic()
            progress.at(min(spent + success.tokens, c.tokens), note, phase("train", update))
            times["credit"] = -time.monotonic()
            states = self._states(player, name, grown)
            rows, losses, warned = self._rows(run, f"{name}-{update:04d}", self.rules[name], grown, critic, states, reference)
            times["credit"] += time.monotonic()
            times["train"] = -time.monotonic()
            if c.kl and reference is not None:
                rows, losses = with_reference(reference, rows), {**losses, "reference_kl": c.kl}
            trainer.set_rate(train.lr * (1.0 - update / c.updates))  # the decay reduces the noise of small groups
            self.model.forget()  # what is cached would not hold after the step, whose memory it takes
            metrics = trainer.update(rows, losses)
            self.model.refresh()
            judged = self._taught(critic, grown, states)
            times["train"] += time.monotonic()
            spent, cost = spent + grown.tokens, grown.cost or cost
            fidelity, ended = self._weighed()
            blob = self._taken_back(run, name, trainer, last) if ended else run.put_blob(packed(trainer, critic))
            report = UpdateReport(
                **vars(grown.report()),
                update=update,
                arm=name,
                tokens=spent,
                train=metrics,
                seconds=times,
                checkpoint=blob,
                warnings=warned,
                cost=cost,
                critic=judged,
                fidelity=fidelity,
                taken_back=ended,
            )
            with run.transaction():
                run.log("update", f"{name}/{update:05d}", report)
            if last and last != blob:
                run.drop_blob(last)  # only the newest is needed to continue
            last = blob
            if ended:
                break
        self._chosen(run, name, trainer, progress)
        return spent

    # --- a pretrained model: what is lost, and which checkpoint is kept ----------------------------------------------------

    def _weighed(self) -> tuple[Fidelity | None, bool]:
        """What the agent now makes of general texts, and whether it has lost more than is allowed."""
        if self.general is None:
            return None, False
        now, bound = self.general.measured(self.model.module), self.config.keep.perplexity
        return now, bool(bound) and now.perplexity > bound * self.general.start.perplexity

    def _taken_back(self, run: Run, name: str, trainer: Trainer, last: str | None) -> str:
        """Go back to the checkpoint before an update, which was within the bound; its blob."""
        blob = last or self._validations(run, name)[0].checkpoint  # before the first update: the start
        trainer.restore(*checkpoint.unpack(run.get_blob(blob)))
        self.model.refresh()
        return blob

    def _validations(self, run: Run, name: str) -> list[Validation]:
        """The validated checkpoints of an arm, in order."""
        return [entry for entry in run.memo("validation", Validation).values() if entry.arm == name]

    def _validated(self, run: Run, name: str, trainer: Trainer, updates: int, progress: Progress) -> None:
        """Validate the checkpoint after so many ``updates``, unless it was; the best one's weights are kept."""
        earlier = self._validations(run, name)
        if self.general is None or any(entry.updates == updates for entry in earlier):
            return
        begun, group = time.monotonic(), f"tune-{name}-{updates:04d}"
        attempts = self._played(run, group, self.tune_task_set, self.config.validation_episodes, f"validate {name}", progress)
        scored = [attempt.outcome for attempt in attempts if attempt.outcome is not None]
        reports = _updates(run, name)
        fidelity = reports[updates - 1].fidelity if updates else None
        validation = Validation(
            arm=name,
            updates=updates,
            success=sum(scored) / max(1, len(scored)),
            n=len(scored),
            tokens=sum(attempt.sampled_tokens for attempt in attempts),
            seconds=time.monotonic() - begun,
            fidelity=fidelity or self.general.start,
            checkpoint="",
        )
        superseded = keep.chosen(earlier, self.config.keep).checkpoint if earlier else ""
        better = keep.chosen([*earlier, validation], self.config.keep) is validation
        if better:
            validation = replace(validation, checkpoint=run.put_blob(weights_packed(trainer)))
        with run.transaction():
            run.log("validation", f"{name}/{updates:05d}", validation)
        if better and superseded not in ("", validation.checkpoint):
            run.drop_blob(superseded)

    def _chosen(self, run: Run, name: str, trainer: Trainer, progress: Progress) -> None:
        """Make the checkpoint that validation chose the agent, after the last one was validated, too."""
        if self.general is None:
            return
        reports = _updates(run, name)
        self._validated(run, name, trainer, sum(not entry.taken_back for entry in reports), progress)
        chosen = keep.chosen(self._validations(run, name), self.config.keep)
        trainer.restore(*checkpoint.unpack(run.get_blob(chosen.checkpoint)))
        self.model.refresh()

    def _as_sampled(self, after: EvaluationEntry) -> tuple[str, ...]:
        """Caveats where the agent was sampled at another temperature than 1, and where many replies did not end."""
        c, caveats = self.config, []
        if c.temperature != 1:
            caveats.append(
                f"success is of an agent that is sampled at temperature {c.temperature:g}, before and after: use it so"
            )
        if after.cut > CUT:
            caveats.append(
                f"max_reply cut {after.cut:.0%} of the replies after training at {c.max_reply} tokens: try a larger one"
            )
        return tuple(caveats)

    def _lost(self, run: Run) -> WhatWasLost | None:
        """What training cost a pretrained model; None of one that ramify made."""
        if self.general is None:
            return None
        c = self.config
        reports, validations = _updates(run, c.arm), self._validations(run, c.arm)
        chosen = keep.chosen(validations, c.keep)
        back = next((entry for entry in reports if entry.taken_back), None)
        return WhatWasLost(
            before=self.general.start,
            after=chosen.fidelity,
            bound=c.keep.perplexity,
            kept=chosen.updates,
            updates=c.updates,
            taken_back=None if back is None else back.update + 1,
            avoided=None if back is None else back.fidelity,
            left=0 if back is None else max(0, c.tokens - back.tokens),
            validations=tuple(replace(entry, checkpoint="") for entry in validations),
            texts=len(self.general.rows),
            tokens=self.general.tokens,
        )

    def _restored(self, run: Run, trainer: Trainer, critic: SharedCritic, done: Sequence[UpdateReport]) -> tuple[int, float]:
        """Bring trainer and critic to the state after the updates ``done``; the tokens spent, and those of one attempt."""
        if not done:
            known = run.memo("eval", Evaluation).get("before")
            # a quarter of the longest reply a turn, where nothing was played yet
            return 0, known.tokens / known.n if known else max(1.0, self.max_turns * self.config.max_reply / 4)
        tensors, record = checkpoint.unpack(run.get_blob(done[-1].checkpoint))
        trainer.restore(tensors, record)
        if "critic" in record:  # a start that training went back to has none
            critic.restore(tensors, record["critic"])
        self.model.refresh()
        return done[-1].tokens, done[-1].cost

    async def _sample(
        self,
        run: Run,
        player: Player,
        name: str,
        update: int,
        share: float,
        cost: float,
        critic: SharedCritic,
        on_attempt: Callable[[Attempt], object],
    ) -> Grown:
        """The attempts of one update within ``share`` tokens; ``on_attempt`` is called with every attempt that ended."""
        c, per = self.config, self.config.tasks_per_update
        tasks, recorder = self._tasks(update, 4 * per), EpisodeRecorder(player, self.max_turns, on_attempt)
        prefix = f"{name}-{update:04d}/"
        settings = c.tree, c.allocation, c.splitting
        plan = UpdatePlan(player, recorder, critic, tasks, min(per, len(tasks)), share, cost, c.seed, prefix, *settings)
        await self.samplings[name].sample(plan)
        run.commit()
        return Grown(recorder.attempts, player.episodes.trees, frozenset(plan.split), plan.abandoned)

    def _tasks(self, update: int, n: int) -> list[Task]:
        """The tasks of an update: the task set in a shuffled order, reshuffled every pass."""
        task_set = list(self.train_task_set)
        picks = []
        for position in range(update * self.config.tasks_per_update, update * self.config.tasks_per_update + n):
            turn, at = divmod(position, len(task_set))
            picks.append(task_set[int(generator(self.config.seed, "order", turn).permutation(len(task_set))[at])])
        return list({task.id: task for task in picks}.values())

    def _states(self, player: Player, name: str, grown: Grown) -> StepStates | None:
        """The states before the steps of an update, where its sampling or its credit rule asks the critic."""
        if not (self.samplings[name].critic or self.rules[name].critic):
            return None
        return self.players.run(states_of(self.model, player.episodes, grown.trees, grown.ends, self.max_turns))

    def _taught(self, critic: SharedCritic, grown: Grown, states: StepStates | None) -> CriticReport | None:
        """Train the critic on an update; what to report of it: how well it ranked these states before, and what it has seen."""
        critic.note(sum(any(attempt.outcome for attempt in group) for group in grown.attempts.values()), grown.outcomes)
        if states is None:
            return None
        spoke = critic.speaks
        ranked = critic.learn(*outcomes_of(critic, states, grown.trees, grown.ends))
        return CriticReport(spoke, ranked, critic.won, critic.rate)

    def _rows(
        self,
        run: Run,
        group: str,
        rule: CreditRule,
        grown: Grown,
        critic: SharedCritic,
        states: StepStates | None,
        reference: nn.Module | None,
    ) -> tuple[list[Row], dict[str, float], tuple[str, ...]]:
        """Training rows, the losses to train them with, and limits of the credit's validity."""
        losses = {rule.loss: 1.0}
        if not any(attempt.outcome is not None for attempt in grown.every):
            return [], losses, ("no attempt of this update could be scored",)
        attempts = CreditGroup.of(run, group, grown.trees, scorer="env")
        if states is not None and rule.critic and critic.speaks:
            attempts = replace(attempts, values=critic.value(states.of(attempts.columns["node"])))
        steps = grown.trees, grown.ends, self.config.train.micro_tokens, self.model.context
        if reference is not None and rule.reference:
            ratios = log_ratios(self.model.module, reference, run, *steps)
            attempts = replace(attempts, log_ratios=ratios)
        if reference is not None and rule.answers:
            encode, sampled = self.template.tokenizer.encode, (info for info in run.trees() if info.name in grown.trees)
            answers = {info.name: encode(info.answer) for info in sampled if info.answer}
            attempts = replace(attempts, answers=answer_values(reference, answers, run, *steps))
        credit = credit_group(run, rule, attempts)
        rows = training_rows(run, grown.trees, grown.ends, credit, CLIP_CREDIT, self.model.context)
        return rows, losses, tuple(rule.doubts)


def _updates(run: Run, arm: str) -> list[UpdateReport]:
    """The updates of an arm, in order."""
    return [update for update in run.memo("update", UpdateReport).values() if update.arm == arm]


def _gain(first: EvaluationEntry, second: EvaluationEntry) -> SuccessGain:
    """Difference of success, paired by episode, with its 95 % interval."""
    pairs = [(a, b) for a, b in zip(first.outcomes, second.outcomes, strict=True) if a is not None and b is not None]
    before, after = ([float(p[i]) for p in pairs] for i in (0, 1))
    return SuccessGain(float(np.mean(after) - np.mean(before)), paired_proportions(after, before), len(pairs))


def packed(trainer: Trainer, critic: SharedCritic) -> bytearray:
    """A checkpoint: everything that the next update needs."""
    (tensors, record), (arrays, known) = trainer.state(), critic.state()
    return checkpoint.pack({**tensors, **arrays}, {**record, "critic": known})


def sampling_rule(config: ImproveConfig, arm: str) -> SamplingRule:
    """The sampling of an arm: the one that was named, for the arm of the settings; else its own.
    Raises UserError where there is none."""
    name = config.sampling if config.sampling and arm == config.arm else ARMS[arm].sampling
    rule = registry.get("sampling", name)()
    if not isinstance(rule, SamplingRule):
        raise UserError(f"sampling '{name}' is not a sampling: derive its class from ramify.jobs.sampling.SamplingRule")
    return rule


def _entropy(attempts: Sequence[Attempt]) -> float | None:
    """Mean entropy of the replies' next-token distributions, nats a token, each reply counted once;
    None where the model gives none."""
    entropies = [turn.node.data["entropy"] for attempt in attempts for turn in attempt.turns if "entropy" in turn.node.data]
    return float(np.mean(entropies)) if entropies else None


def _cut(attempts: Sequence[Attempt]) -> float:
    """Share of the replies that were as long as is allowed and had not ended."""
    stops = [turn.node.stop for attempt in attempts for turn in attempt.turns]
    return stops.count("length") / max(1, len(stops))


def _max_turns(environment: Environment) -> int:
    env = environment.make()
    try:
        return env.max_turns
    finally:
        close(env)


def credit_rule(config: ImproveConfig, arm: str) -> CreditRule:
    """The rule that credits an arm: the one that was named,
    for the arm of the settings and those of graph credit; else the arm's own.

    Raises UserError where there is no such rule, no loss that trains on it, or it cannot be made with these settings.
    """
    arms_rule, c = ARMS[arm].credit, config.credit
    name = c.name if c.name and (arms_rule == "g2po" or arm == config.arm) else arms_rule
    rule = find_rule(name, {key: getattr(c, key) for key in type(c).model_fields if key != "name"})
    registry.get("loss", rule.loss)
    return rule
