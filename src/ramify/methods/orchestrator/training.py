"""What ``ramify orchestrator train`` does: a router from a table, a router by evolution, a composer; each in a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ramify.base.errors import UserError
from ramify.base.files import folder_aside, refusal
from ramify.base.progress import Progress
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Environment, TaskSet, read_task_set
from ramify.methods.orchestrator import composer as composers
from ramify.methods.orchestrator import evolution
from ramify.methods.orchestrator.algorithm import RoutingGain, gain, population
from ramify.methods.orchestrator.baselines import BaselineRouter, BaselineRow, compared_on, fit_baselines
from ramify.methods.orchestrator.composer import Composer, GrpoUpdate
from ramify.methods.orchestrator.evolution import EvolvedRouter, Trial
from ramify.methods.orchestrator.pool import ModelPool, read_pool
from ramify.methods.orchestrator.settings import OrchestratorTraining, RouterFit
from ramify.methods.orchestrator.table import RewardTable, read_table, subset
from ramify.render.result import CALL, Planned, Result, Section, table
from ramify.score.judge import find_judge
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Finding, KeptResult

if TYPE_CHECKING:
    from ramify.methods.orchestrator.router import TurnRouter

KIND = "orchestrator train"
MOST_UPDATES = 12
"""Updates that a table of a training lists; of more the first four and the last eight."""


@dataclass(frozen=True)
class HeldOutRouter:
    """What a router's choices get on tasks kept back, by their mean rewards, beside the best single worker there."""

    tasks: int
    routed: float
    single: float
    best_single: str
    random: float
    gain: RoutingGain
    choices: Mapping[str, int]
    """How often each worker is chosen."""
    baselines: tuple[BaselineRow, ...] = ()
    """Simple routers fitted to the same tasks as this one."""

    def __str__(self) -> str:
        return (
            f"on {self.tasks} tasks kept back: router {self.routed:.3f}, best single '{self.best_single}' {self.single:.3f}, "
            f"random {self.random:.3f}: {self.gain}"
        )


@dataclass(frozen=True)
class FittedRouter(Result):
    """A router fitted to a table."""

    out: str
    parameters: int
    fit: RouterFit
    held_out: HeldOutRouter | None

    def sections(self) -> Iterable[Section]:
        """The fit, and what it is worth on tasks kept back."""
        fit = self.fit
        held = self.held_out
        says = f"{self.parameters} parameters, {fit.tasks} tasks that tell workers apart; divergence {fit.kl_before:.3f} -> "
        yield Section.of("", f"{says}{fit.kl:.3f}", "" if held is None else str(held))
        if held is not None:
            head = ("simple router", "setting", "reward", "USD a task", "the router's over it")
            rows = [(row.name, row.setting, row.reward, row.usd_a_task, str(row.gain)) for row in held.baselines]
            yield Section.of("", table(head, rows, "fitted to the same tasks, tuned on them, on the same tasks kept back"))


def fit_router(options: OrchestratorTraining, source: Path, out: Path, run: Path, bar: Progress) -> FittedRouter:
    """Fit a router to the table of ``source`` and write it to ``out``. Raises UserError where that is there."""
    from ramify.methods.orchestrator.router import TurnRouter

    own, held = options.router, _rewards(options, source, out)
    order = generator(options.seed, "holdout").permutation(len(held.tasks)).tolist()
    kept_back = sorted(order[: round(own.holdout * len(order))])
    router = TurnRouter.from_backbone(own.backbone, held.workers, hidden_pos=own.hidden_pos, svf=own.svf, roles=own.roles)
    parts = {"backbone": router.backbone_hash, "table": held.identity}
    with Run.begin(run, KIND, {"router": own.to_json(), "seed": options.seed}, {}, parts) as kept:
        known = subset(held, [i for i in order if i not in set(kept_back)])
        fitted = router.fit(known, own, options.seed, bar)
        simple = fit_baselines(known, options.seed)
        measured = None if len(kept_back) < 2 else measure(router, subset(held, kept_back), simple)
        made = FittedRouter(str(out), router.size, fitted, measured)
        gained = None if measured is None else measured.gain.value
        _keep(kept, made, None if measured is None else ("fitted router", str(measured), gained))
    router.save(out)
    return made


def _keep(run: Run, made: Result, finding: tuple[str, str, float | None] | None) -> None:
    """Keep what a training came to in its run, with its finding (name, why, reward), before ``out`` is written: where that is
    there, the same command does no more."""
    found = [] if finding is None else [Finding(finding[0], KIND, finding[1], value=finding[2], unit="reward")]
    with run.transaction():
        run.conclude(KIND, found)
        run.add(KeptResult(KIND, *made.as_kept()))


def _rewards(options: OrchestratorTraining, source: Path, out: Path) -> RewardTable:
    _free(out)
    held = read_table(source, options.router.scorer)
    if not all(held.prompts):
        raise UserError(f"{source} has tasks without a prompt: a router reads it")
    return held


def _free(out: Path) -> None:
    if out.exists():
        raise UserError(f"{out} is there already: choose another folder")


def measure(router: TurnRouter, held: RewardTable, simple: Sequence[BaselineRouter] = ()) -> HeldOutRouter:
    """What the router's choices get on a table's tasks, and those of ``simple`` routers fitted to a table of the same workers.
    Raises UserError below two tasks that every worker answered."""
    from ramify.methods.orchestrator.router import render

    means = router.means_of(held)
    rows = np.flatnonzero(np.isfinite(means).all(axis=1))
    if len(rows) < 2:
        raise UserError("fewer than 2 tasks were kept back on which every worker answered: raise --router.holdout")
    chosen = router.choices([render([Message("user", held.prompts[i])]) for i in rows]).argmax(axis=1)
    routed, best = means[rows, chosen], int(means[rows].mean(axis=0).argmax())
    single = means[rows, best]
    choices = {name: int((chosen == at).sum()) for at, name in enumerate(router.workers)}
    shares = (float(routed.mean()), float(single.mean()), router.workers[best], float(means[rows].mean()))
    return HeldOutRouter(len(rows), *shares, gain(routed, single), choices, compared_on(simple, held, rows, routed))


# -- evolution


@dataclass(frozen=True)
class TrainingTasks:
    """What training with live workers needs besides its settings."""

    pool: Path | None = None
    tasks: Path | None = None
    exclude: Sequence[str] = ()

    def workers(self, seed: int, cached: bool = False) -> ModelPool:
        """The pool. Raises UserError where none is named, and where ``exclude`` leaves no worker."""
        if self.pool is None:
            raise UserError("training with live workers needs --pool POOL, a TOML file of workers")
        held = read_pool(self.pool, seed, cached)
        held.available(self.exclude)
        return held


def _trial(options: OrchestratorTraining, router: Path, given: TrainingTasks) -> tuple[TurnRouter, Trial, TaskSet]:
    """The router, who plays, and the tasks. Raises UserError where tasks or judge are missing."""
    from ramify.methods.orchestrator.router import TurnRouter

    own, environment = options.evolved, None
    if given.tasks is None and own.env is None:
        raise UserError("evolution plays tasks with --tasks and --judge, or an environment with --evolved.env: give one of them")
    made, held = TurnRouter.load(router), given.workers(options.seed, cached=True)
    held.check_router(made.workers)
    if own.env is not None:
        from ramify.rollout.components import find_environment

        environment = find_environment(own.env)
    played = _played(given.tasks, environment, own.count, options.seed)
    judge = None if options.judge is None else find_judge(options.judge)
    return made, Trial(held, played, own, judge, environment, options.budget, given.exclude), played


def _played(tasks: Path | None, environment: Environment | None, count: int, seed: int) -> TaskSet:
    if tasks is not None or environment is None:
        assert tasks is not None
        return read_task_set(tasks)
    return environment.task_set("train", count, seed)


def evolve_router(
    options: OrchestratorTraining, router: Path, given: TrainingTasks, out: Path, run: Path, bar: Progress
) -> EvolvedRouter:
    """Evolve the router in the folder ``router``, from the last generation in ``run``, and write it to ``out``."""
    _free(out)
    made, trial, played = _trial(options, router, given)
    own = options.evolved.to_json()
    free = {"generations": own.pop("generations")}
    decides = {"evolved": own, "judge": options.judge, "seed": options.seed, "exclude": list(given.exclude)}
    parts = {"router": made.identity, "pool": trial.pool.identity, "tasks": played.hash}
    with Run.begin(run, KIND, decides, free, parts) as kept:
        evolved = replace(wait_for(evolution.evolve(made, trial, kept, bar)), out=str(out))
        _keep(kept, evolved, ("evolved router", evolved.says, None if evolved.gain is None else evolved.gain.value))
    made.save(out)
    return replace(evolved, spent=trial.pool.ledger.spent, cached=trial.pool.ledger.cached)


# -- composer


@dataclass(frozen=True)
class TrainedComposer(Result):
    """A composer trained with live workers: every update."""

    out: str
    history: tuple[GrpoUpdate, ...]
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict, metadata=CALL)

    def sections(self) -> Iterable[Section]:
        """Updates."""
        rows = [(at, one.reward, one.parsed, one.steps) for at, one in enumerate(self.history, 1)]
        shown = rows if len(rows) <= MOST_UPDATES else [*rows[:4], *rows[-8:]]
        yield Section.of("", table(("update", "reward", "parsed", "steps"), shown))


def train_composer(
    options: OrchestratorTraining, model: str, given: TrainingTasks, out: Path, run: Path, bar: Progress
) -> TrainedComposer:
    """Train the checkpoint that ``model`` names and write it to ``out``."""
    from ramify.engine.checkpoints import load_model, model_folder, save_model

    _free(out)
    own, spec = options.composer, options.judge or "exact"
    folder, held, judge = model_folder(model), _asked(given.tasks), find_judge(spec)
    pool = given.workers(options.seed)
    policy, template = load_model(folder)
    composer = Composer(policy, pool, template, max_steps=own.max_steps)
    decides = {"composer": own.to_json(), "judge": spec, "seed": options.seed}
    parts = {"model": policy.identity.weights, "pool": pool.identity, "tasks": held.hash, "judge": judge.identity}
    with Run.begin(run, KIND, decides, {}, parts) as kept:
        history = wait_for(composers.train(composer, held, judge, own, options.budget, bar))
        made = TrainedComposer(str(out), tuple(history), pool.ledger.spent)
        _keep(kept, made, None)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(out.parent) as aside:  # whole or not at all: the same command refuses a folder that is there
            save_model(policy, folder, aside / "composer")
            (aside / "composer").rename(out)
    except OSError as error:
        raise refusal(f"cannot write the composer {out}", error) from error
    return made


def _asked(tasks: Path | None) -> TaskSet:
    if tasks is None:
        raise UserError("a composer is trained on --tasks FILE: JSON lines of id, prompt, what the judge needs")
    return read_task_set(tasks)


# -- what it takes


def planned(options: OrchestratorTraining, what: str, source: str, given: TrainingTasks, out: Path) -> Planned:
    """What a training takes at most; refuses what it would refuse."""
    _free(out)
    if what == "router":
        held = _rewards(options, Path(source), out)
        return Planned(options.router.to_json(), {"steps": options.router.steps, "tasks": len(held.tasks)})
    if what == "evolved":
        own, (router, trial, _) = options.evolved, _trial(options, Path(source), given)
        episodes = own.generations * (own.size or population(router.size)) * own.episodes + 2 * own.check
        turns = own.turns if router.roles else 1
        calls = {} if trial.environment is not None else {"calls": episodes * turns}
        return Planned(own.to_json(), {"episodes": episodes, **calls})
    mine = options.composer
    given.workers(options.seed)
    _asked(given.tasks)
    plans = mine.updates * mine.questions * mine.group
    return Planned(mine.to_json(), {"plans": plans, "calls": plans * mine.max_steps})
