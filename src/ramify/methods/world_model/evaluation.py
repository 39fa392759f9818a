"""How far a simulated environment can be trusted: predictions on true history, episodes on its own, and what agents did in it.

``forced``: every turn is predicted on true history, as the paper's benchmark does. ``closed``: the recorded actions are played
and the environment sees only its own answers, as an agent's training does. The gap between them by turn is the drift curve.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ramify.base import codec
from ramify.base.errors import InfrastructureError
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import Env, Environment, Task, close
from ramify.methods.world_model.algorithm import RUBRIC, normalised, same, turn_class, turn_statistics
from ramify.methods.world_model.environment import SimulatedEnv, SimulatedEnvironment
from ramify.methods.world_model.judging import prediction_item
from ramify.methods.world_model.predict import Predictor, tool_of
from ramify.methods.world_model.results import (
    BesideReal,
    DriftPoint,
    ExactShare,
    LoopDrift,
    NotedAnswers,
    ReplayedRun,
    RubricScores,
    TruePoint,
    WorldAudit,
    WorldEvaluation,
    WorldScores,
    WrongTurns,
)
from ramify.methods.world_model.training import opening_text
from ramify.methods.world_model.trajectories import EnvTrajectory, trajectories_of
from ramify.render.numbers import p_value, percent
from ramify.rollout.sampler import sample_key
from ramify.score.judge import Judge, judged
from ramify.stats.tests import sign_test
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.trace.view import View, views

Mode = Literal["forced", "closed"]
MODES: tuple[Mode, ...] = ("forced", "closed")
EVAL, AUDIT = "world-model eval", "world-model audit"
LEVEL = 0.05
"""Level of each of the tests: drift, and success that is not real."""
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One predicted turn."""

    trajectory: str
    turn: int
    """From 1."""
    tool: str
    kind: str
    """Class of the turn, see :func:`ramify.methods.world_model.algorithm.turn_class`."""
    exact: bool
    text: str | None
    """The prediction; None where there was none."""
    truth: str
    why: str = ""
    """Why there was none."""
    by: str = ""
    """Who answered: code, control or model; "" where nobody did."""
    dropped: int = 0
    """Oldest turns that did not fit the model's context and were left out."""


# -- forced and closed loop


async def play_recorded(environment: SimulatedEnvironment, one: EnvTrajectory, mode: Mode) -> list[TurnResult]:
    """The recorded actions of a trajectory, played in ``environment``: one result a turn. Runs in ``environment.run``.

    In closed loop nothing follows an episode that ended too early or failed: its later turns are wrong.
    """
    env = SimulatedEnv(environment)
    env.reset(Task(one.task, {**one.data, "opening": one.opening}), 0)
    found = []
    for number, turn in enumerate(one.turns, 1):
        before, text, why = env.turns, None, ""
        about: Mapping[str, Any] = {}
        if env.ended:
            why = "the episode ended before"
        else:
            try:
                seen = await env.answer(turn.action)
                about = seen.data
                text = f"{seen.text}\n{env.ended}" if env.ended and seen.text else env.ended or seen.text
            except InfrastructureError as error:
                why = error.message
        kind = turn_class(turn_statistics(turn.action, turn.observation))
        exact, by, dropped = same(text, turn.whole), str(about.get("by", "")), int(about.get("dropped", 0))
        found.append(TurnResult(one.id, number, tool_of(turn.action), kind, exact, text, turn.whole, why, by, dropped))
        if mode == "forced":
            env.correct(before, turn.action, turn.observation)
        elif text is None and not env.ended:
            env.correct(before, turn.action, "")
    return found


def evaluate(
    environment: SimulatedEnvironment, trajectories: Sequence[EnvTrajectory], mode: Mode, progress: Progress = SILENT
) -> list[TurnResult]:
    """Every turn of ``trajectories`` in one mode."""

    async def all_of() -> list[TurnResult]:
        gate, done = asyncio.Semaphore(AT_ONCE), 0

        async def one(trajectory: EnvTrajectory) -> list[TurnResult]:
            nonlocal done
            async with gate:
                found = await play_recorded(environment, trajectory, mode)
            done += 1
            progress.at(done)
            return found

        return [result for each in await asyncio.gather(*map(one, trajectories)) for result in each]

    progress.begin(len(trajectories), 0, mode, "trajectories")
    return environment.run(all_of())


def summarised(results: Sequence[TurnResult], count_failures: bool = True) -> WorldScores:
    """Exact match in all, by tool, by class and by turn. A turn without a prediction is wrong; or, uncounted, as if it were not
    there."""
    counted = [one for one in results if count_failures or one.text is not None]
    tools = _grouped(counted, lambda one: one.tool)
    return WorldScores(
        turns=len(results),
        failed=sum(one.text is None for one in results),
        answered_by=dict(Counter(one.by for one in results if one.by)),
        cut=sum(one.dropped > 0 for one in results),
        exact=_share(counted),
        macro_over_tools=float(np.mean([own.value for own in tools.values()])) if tools else None,
        by_tool=tools,
        by_class=_grouped(counted, lambda one: one.kind),
        by_turn={str(turn): own for turn, own in _grouped(counted, lambda one: one.turn).items()},
    )


def _grouped(results: Sequence[TurnResult], by: Callable[[TurnResult], Any]) -> dict[Any, ExactShare]:
    found: dict[Any, list[TurnResult]] = defaultdict(list)
    for one in results:
        found[by(one)].append(one)
    return {name: _share(own) for name, own in sorted(found.items())}


def _share(results: Sequence[TurnResult]) -> ExactShare:
    return ExactShare.of([one.exact for one in results], [one.trajectory for one in results])


def drift(forced: Sequence[TurnResult], closed: Sequence[TurnResult]) -> LoopDrift:
    """Whether errors feed on errors: of each trajectory the wrong turns in closed loop against those on true history."""
    curve: dict[int, list[list[bool]]] = defaultdict(lambda: [[], []])
    for place, results in enumerate((forced, closed)):
        for one in results:
            curve[one.turn][place].append(one.exact)
    points = [DriftPoint(turn, float(np.mean(f)), float(np.mean(c)), len(f)) for turn, (f, c) in sorted(curve.items())]
    wrong = _wrong_turns(forced, closed)
    return LoopDrift(wrong.gap, wrong.more_wrong, wrong.less_wrong, wrong.p, wrong.found, tuple(points))


def _wrong_turns(first: Sequence[TurnResult], second: Sequence[TurnResult]) -> WrongTurns:
    """Whether ``second`` is wrong more often than ``first``: ``p`` is the exact sign test over trajectories where they differ."""
    wrong: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for place, results in enumerate((first, second)):
        for one in results:
            wrong[one.trajectory][place] += not one.exact
    more, less = sum(b > a for a, b in wrong.values()), sum(b < a for a, b in wrong.values())
    p, gap = sign_test(more, more + less), sum(b - a for a, b in wrong.values())
    return WrongTurns(gap / len(first) if first else 0.0, more, less, p, more > less and p < LEVEL)


async def scored(
    results: Sequence[TurnResult], trajectories: Sequence[EnvTrajectory], judge: Judge, count_failures: bool
) -> RubricScores:
    """The rubric: mean of each of the five scores and of all, 1 to 5, and as 0 to 100. A turn without a prediction, or without a
    judgement, has 1 in all where ``count_failures``, else it is left out."""
    known = {one.id: one for one in trajectories}
    items, where = [], []
    for i, one in enumerate(results):
        if one.text is not None:
            own = known[one.trajectory]
            said = "\n".join([opening_text(own), *(f"{t.action}\n{t.observation}" for t in own.turns[: one.turn - 1])])
            items.append(
                prediction_item(f"{one.trajectory}:{one.turn}", one.text, one.truth, own.turns[one.turn - 1].action, said)
            )
            where.append(i)
    found = await judged(judge, items)
    means: list[float] = []
    each: dict[str, list[float]] = {name: [] for name in RUBRIC}
    failed = len(results) - len(items)
    for judgement in found:
        if judgement.value is None:
            failed += 1
            continue
        means.append(float(judgement.value))
        if isinstance(judgement.evidence, Mapping):
            for name in RUBRIC:
                each[name].append(float(judgement.evidence.get(name, judgement.value)))
    if count_failures:
        means += [1.0] * failed
        for scores in each.values():
            scores += [1.0] * (failed if scores else 0)
    mean = float(np.mean(means)) if means else None
    return RubricScores(
        judge=judge.name,
        failed=failed,
        mean=mean,
        of_100=None if mean is None else normalised(mean),
        scores={name: float(np.mean(scores)) if scores else None for name, scores in each.items()},
    )


def compared(
    environment: SimulatedEnvironment,
    baselines: Iterable[Predictor],
    trajectories: Sequence[EnvTrajectory],
    modes: Sequence[Mode] = MODES,
    progress: Progress = SILENT,
    count_failures: bool = True,
) -> tuple[WorldEvaluation, dict[str, list[TurnResult]]]:
    """``environment`` in each mode, the baselines on true history, and the drift where both modes were played.

    ``better``: whether every baseline is wrong more often than ``environment`` on true history, each by a test at :data:`LEVEL`,
    so that all of them together have that level; ``against`` of a baseline is its test.
    """
    results: dict[str, list[TurnResult]] = {mode: evaluate(environment, trajectories, mode, progress) for mode in modes}
    scores = {mode: summarised(own, count_failures) for mode, own in results.items()}
    beside: dict[str, WorldScores] = {}
    for one in baselines:
        played = evaluate(environment.predicting(one), trajectories, "forced", progress)
        against = _wrong_turns(results["forced"], played) if "forced" in results else None
        beside[one.name] = replace(summarised(played), against=against)
    tests = [own.against.found for own in beside.values() if own.against is not None]
    both = drift(results["forced"], results["closed"]) if set(MODES) <= set(modes) else None
    found = WorldEvaluation("", scores.get("forced"), scores.get("closed"), beside, all(tests) if tests else None, both)
    return found, results


def eval_findings(found: WorldEvaluation) -> list[Finding]:
    """What an evaluation found, for the run whose turns it was made on."""
    made, world = [], found.world
    exact = found.first.exact
    best = max((own.exact.value for own in found.baselines.values() if own.exact.value is not None), default=None)
    beats = "" if best is None else f", the best baseline {percent(best)}"
    if exact.value is not None:
        why = f"{world} predicts {percent(exact.value)} of {exact.n} turns exactly{beats}"
        made.append(Finding("fidelity", EVAL, why, value=exact.value, unit="share of turns", identity={"world": world}))
    if found.drift is not None and found.drift.found:
        own = found.drift
        why = (
            f"played on its own, {world} is wrong more often than on true history in {own.more_wrong} trajectories, less "
            f"often in {own.less_wrong}"
        )
        made.append(
            Finding(
                "drift",
                EVAL,
                why,
                action="keep state in code (a store with effects), or shorten episodes to the turns before the curve falls",
                value=own.gap,
                unit="share of turns",
                evidence=codec.to_json(own),
                identity={"world": world},
            )
        )
    return made


# -- agents in a simulated environment, and in the real one


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """An attempt of a run in a simulated environment, its actions played twice in the real one with different luck."""

    leaf: str
    task: str
    turns: int
    success: bool | None
    """In the simulated environment."""
    real: bool
    again: bool
    different: int
    """Turns whose observation was not the real one."""
    noise: int
    """Turns whose real observations differ from each other."""
    first: int
    """The first different turn, from 1; 0 where there is none."""
    node: str = ""
    """The observation there."""


def replayed(run: Run, environment: Environment, seed: int = 0, progress: Progress = SILENT) -> list[ReplayedAttempt]:
    """Every attempt of ``run`` in the real ``environment``. Raises what the environment raises."""
    own, listed = {}, list(views(run, unjudged=True))
    for one in trajectories_of(run):
        own[one.id] = one
    progress.begin(len(listed), 0, "replay", "attempts")
    found = []
    for done, view in enumerate(listed, 1):
        trajectory = own.get(f"{view.info.name}/{view.leaf}")
        if trajectory is not None and view.failure is None:
            found.append(_replayed(view, trajectory, environment, seed))
        progress.at(done)
    return found


def _replayed(view: View, one: EnvTrajectory, environment: Environment, seed: int) -> ReplayedAttempt:
    task = Task(one.task, {name: value for name, value in one.data.items() if name != "opening"})
    seen, ends = [], []
    for luck in (0, 1):
        texts, won = played_actions(environment, task, one.actions, sample_key(seed, ("audit", view.info.name, view.leaf), luck))
        seen.append(texts)
        ends.append(won)
    wrong = [i for i, turn in enumerate(one.turns) if i >= len(seen[0]) or not same(turn.observation, seen[0][i])]
    longest = max(map(len, seen))
    noise = sum(i >= min(map(len, seen)) or not same(seen[0][i], seen[1][i]) for i in range(longest))
    node = one.turns[wrong[0]].node if wrong else ""
    return ReplayedAttempt(
        view.leaf,
        view.task,
        len(one.turns),
        view.success,
        ends[0],
        ends[1],
        len(wrong),
        noise,
        wrong[0] + 1 if wrong else 0,
        node,
    )


def played_actions(environment: Environment, task: Task, actions: Sequence[str], seed: int) -> tuple[list[str], bool]:
    """What ``environment`` answers to ``actions``, and whether it called the episode a success;
    after its end nothing is answered."""
    env: Env = environment.make()
    texts, won = [], False
    try:
        env.reset(task, seed)
        for action in actions:
            answer = env.step(action)
            texts.append(answer.text)
            if answer.terminated or answer.truncated:
                won = answer.outcome if answer.outcome is not None else answer.terminated and answer.reward > 0
                break
    finally:
        close(env)
    return texts, bool(won)


def audited(attempts: Sequence[ReplayedAttempt]) -> ReplayedRun:
    """What replays come to: success here and there, drift, and success that is not real.

    ``loophole``: exact sign test over attempts that succeeded in one of the two only. ``drift``: exact sign test over attempts,
    their wrong turns against those that the real environment's own luck changes. Where that luck changes anything (``unstable``),
    an agent that reacts to it cannot be replayed: compare a run in the real environment (``--real``) instead, and no loophole is
    reported.
    """
    simulated, real = [bool(one.success) for one in attempts], [one.real for one in attempts]
    only, missed = (
        sum(s and not r for s, r in zip(simulated, real, strict=True)),
        sum(r and not s for s, r in zip(simulated, real, strict=True)),
    )
    more, less = sum(one.different > one.noise for one in attempts), sum(one.different < one.noise for one in attempts)
    unstable = sum(one.noise > 0 for one in attempts)
    p_loophole, p_drift = sign_test(only, only + missed), sign_test(more, more + less)
    turns = sum(one.turns for one in attempts)
    by_turn: dict[int, list[bool]] = defaultdict(list)
    for one in attempts:
        for turn in range(1, one.turns + 1):
            by_turn[turn].append(not one.first or turn < one.first)
    return ReplayedRun(
        attempts=len(attempts),
        simulated_success=ExactShare.of(simulated, [one.task for one in attempts]),
        real_success=ExactShare.of(real, [one.task for one in attempts]),
        only_simulated=only,
        only_real=missed,
        p_of_a_loophole=p_loophole,
        loophole=not unstable and only > missed and p_loophole < LEVEL,
        turns=turns,
        different_turns=sum(one.different for one in attempts),
        unstable=unstable,
        p_of_drift=p_drift,
        drift=more > less and p_drift < LEVEL,
        true_so_far=tuple(TruePoint(turn, float(np.mean(own)), len(own)) for turn, own in sorted(by_turn.items())),
    )


def against_real(run: Run, other: Run) -> BesideReal:
    """Success of an agent in a simulated environment and of one in the real environment, on the tasks that both runs hold.

    ``loophole``: exact sign test over tasks whose share of successes is higher in the simulation,
    against those where it is lower.
    """
    shares: list[dict[str, list[bool]]] = []
    for one in (run, other):
        own: dict[str, list[bool]] = defaultdict(list)
        for view in views(one):
            if view.success is not None and view.broken_off is None:
                own[view.task].append(view.success)
        shares.append(own)
    tasks = sorted(set(shares[0]) & set(shares[1]))
    gaps = [float(np.mean(shares[0][task]) - np.mean(shares[1][task])) for task in tasks]
    up, down = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    p = sign_test(up, up + down)
    flat = [[(hit, task) for task in tasks for hit in own[task]] for own in shares]
    rates = [ExactShare.of([hit for hit, _ in own], [task for _, task in own]) for own in flat]
    return BesideReal(
        tasks=len(tasks),
        simulated_success=rates[0],
        real_success=rates[1],
        higher_in_the_simulation=up,
        lower=down,
        p_of_a_loophole=p,
        loophole=up > down and p < LEVEL,
    )


def noted(run: Run) -> NotedAnswers:
    """Who answered in the attempts of a run (code, a control, the model), how many answers were made without the oldest turns
    (``cut``), and which fields the model invented, how often."""
    by: dict[str, int] = defaultdict(int)
    fields: dict[str, int] = defaultdict(int)
    tries = cut = 0
    for info in run.trees():
        for node in run.nodes(info.name):
            if "by" in node.data:
                by[str(node.data["by"])] += 1
                cut += "dropped" in node.data
                tries += int(node.data.get("tries", 1)) - 1
                for name in node.data.get("invented", ()):
                    fields[str(name)] += 1
    top = sorted(fields.items(), key=lambda item: (-item[1], item[0]))[:20]
    return NotedAnswers(dict(by), cut, tries, dict(top))


def audit_findings(found: WorldAudit, attempts: Sequence[ReplayedAttempt]) -> list[Finding]:
    """What an audit found, for its run."""
    made = []
    success, replay, fields = found.success, found.replay, found.noted.invented
    if found.loophole and success is not None:
        where = next((one.node for one in attempts if one.success and not one.real), "") or None
        here, there = success.simulated_success.value or 0.0, success.real_success.value or 0.0
        why = (
            f"success is {percent(here)} in the simulated environment and {percent(there)} in the real one "
            f"(p {p_value(success.p_of_a_loophole)})"
        )
        made.append(
            Finding(
                "success that is not real",
                AUDIT,
                why,
                where,
                action="decide success by a verifier over the state (verify = FILE.py:FUNCTION), not by what the world model "
                "writes",
                value=here - there,
                unit="share of attempts",
                evidence=found.to_json(),
            )
        )
    if found.drift and replay is not None:
        where = next((one.node for one in attempts if one.different > one.noise), "") or None
        why = f"{replay.different_turns} of {replay.turns} observations are not the real ones (p {p_value(replay.p_of_drift)})"
        made.append(
            Finding(
                "drift",
                AUDIT,
                why,
                where,
                action="record these turns in the real environment and train on them",
                value=replay.different_turns / max(1, replay.turns),
                unit="share of turns",
            )
        )
    if fields:
        first = ", ".join(f"{name} ({count})" for name, count in list(fields.items())[:5])
        made.append(
            Finding(
                "invented fields",
                AUDIT,
                f"fields that nothing before held: {first}",
                action="put what must be true into the state store",
                value=float(sum(fields.values())),
                unit="fields",
                evidence=dict(fields),
            )
        )
    return made
