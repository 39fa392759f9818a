"""How far a simulated environment can be trusted: predictions on true history, episodes on its own, and what agents did in it.

``forced``: every turn is predicted on true history, as the paper's benchmark does. ``closed``: the recorded actions are played
and the environment sees only its own answers, as an agent's training does. The gap between them by turn is the drift curve.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ramify.base.errors import InfrastructureError
from ramify.base.progress import SILENT, Progress
from ramify.env.protocol import Env, Environment, Task, close
from ramify.methods.world_model.algorithm import RUBRIC, normalised, same, turn_class, turn_statistics
from ramify.methods.world_model.environment import SimulatedEnv, SimulatedEnvironment
from ramify.methods.world_model.judging import prediction_item
from ramify.methods.world_model.predict import Predictor, tool_of
from ramify.methods.world_model.training import opening_text
from ramify.methods.world_model.trajectories import EnvTrajectory, trajectories_of
from ramify.rollout.sampler import sample_key
from ramify.score.judge import Judge, judged
from ramify.stats.intervals import clustered_proportion
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


def summarised(results: Sequence[TurnResult], count_failures: bool = True) -> dict[str, Any]:
    """Exact match in all, by tool, by class and by turn. A turn without a prediction is wrong; or, uncounted, as if it were not
    there. ``cut``: turns that were predicted without the oldest of their history, which did not fit the model's context."""
    counted = [one for one in results if count_failures or one.text is not None]
    by: dict[str, dict[str, list[TurnResult]]] = {name: defaultdict(list) for name in ("tool", "class", "turn")}
    for one in counted:
        for name, value in (("tool", one.tool), ("class", one.kind), ("turn", str(one.turn))):
            by[name][value].append(one)
    tools = {name: _share(own) for name, own in sorted(by["tool"].items())}
    macro = float(np.mean([own["value"] for own in tools.values()])) if tools else None
    return {
        "turns": len(results),
        "failed": sum(one.text is None for one in results),
        "answered by": dict(Counter(one.by for one in results if one.by)),
        "cut": sum(one.dropped > 0 for one in results),
        "exact": _share(counted),
        "macro over tools": macro,
        "by tool": tools,
        "by class": {name: _share(own) for name, own in sorted(by["class"].items())},
        "by turn": {name: _share(own) for name, own in sorted(by["turn"].items(), key=lambda item: int(item[0]))},
    }


def _share(results: Sequence[TurnResult]) -> dict[str, Any]:
    found = clustered_proportion([one.exact for one in results], [one.trajectory for one in results])
    return found or {"value": None, "interval": None, "k": 0, "n": 0}


def drift(forced: Sequence[TurnResult], closed: Sequence[TurnResult]) -> dict[str, Any]:
    """Whether errors feed on errors: of each trajectory the wrong turns in closed loop against those on true history.

    ``p``: exact sign test over trajectories where they differ.
    ``curve``: (turn, forced, closed, trajectories) shares of exact turns.
    """
    curve: dict[int, list[list[bool]]] = defaultdict(lambda: [[], []])
    for place, results in enumerate((forced, closed)):
        for one in results:
            curve[one.turn][place].append(one.exact)
    turns = [[turn, float(np.mean(f)), float(np.mean(c)), len(f)] for turn, (f, c) in sorted(curve.items())]
    return _wrong_turns(forced, closed) | {"curve": turns}


def _wrong_turns(first: Sequence[TurnResult], second: Sequence[TurnResult]) -> dict[str, Any]:
    """Whether ``second`` is wrong more often than ``first``: ``p`` is the exact sign test over trajectories where they differ."""
    wrong: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for place, results in enumerate((first, second)):
        for one in results:
            wrong[one.trajectory][place] += not one.exact
    more, less = sum(b > a for a, b in wrong.values()), sum(b < a for a, b in wrong.values())
    p, gap = sign_test(more, more + less), sum(b - a for a, b in wrong.values())
    return {
        "gap": gap / len(first) if first else 0.0,
        "more wrong": more,
        "less wrong": less,
        "p": p,
        "found": more > less and p < LEVEL,
    }


async def scored(
    results: Sequence[TurnResult], trajectories: Sequence[EnvTrajectory], judge: Judge, count_failures: bool
) -> dict[str, Any]:
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
    return {
        "judge": judge.name,
        "failed": failed,
        "mean": mean,
        "of 100": None if mean is None else normalised(mean),
        **{name: float(np.mean(scores)) if scores else None for name, scores in each.items()},
    }


def compared(
    environment: SimulatedEnvironment,
    baselines: Iterable[Predictor],
    trajectories: Sequence[EnvTrajectory],
    modes: Sequence[Mode] = MODES,
    progress: Progress = SILENT,
    count_failures: bool = True,
) -> tuple[dict[str, Any], dict[str, list[TurnResult]]]:
    """``environment`` in each mode, the baselines on true history, and the drift where both modes were played.

    ``better``: whether every baseline is wrong more often than ``environment`` on true history, each by a test at :data:`LEVEL`,
    so that all of them together have that level; ``against`` of a baseline is its test.
    """
    results: dict[str, list[TurnResult]] = {mode: evaluate(environment, trajectories, mode, progress) for mode in modes}
    found: dict[str, Any] = {mode: summarised(own, count_failures) for mode, own in results.items()}
    for one in baselines:
        played = evaluate(environment.predicting(one), trajectories, "forced", progress)
        own = found.setdefault("baselines", {})[one.name] = summarised(played)
        if "forced" in results:
            own["against"] = _wrong_turns(results["forced"], played)
            found["better"] = found.get("better", True) and own["against"]["found"]
    if set(MODES) <= set(modes):
        found["drift"] = drift(results["forced"], results["closed"])
    return found, results


def eval_findings(found: Mapping[str, Any], world: str) -> list[Finding]:
    """What an evaluation found, for the run whose turns it was made on."""
    made = []
    exact = found["forced" if "forced" in found else "closed"]["exact"]
    best = max(
        (own["exact"]["value"] for own in found.get("baselines", {}).values() if own["exact"]["value"] is not None), default=None
    )
    beats = "" if best is None else f", the best baseline {best:.1%}"
    if exact["value"] is not None:
        why = f"{world} predicts {exact['value']:.1%} of {exact['n']} turns exactly{beats}"
        made.append(Finding("fidelity", EVAL, why, value=exact["value"], unit="share of turns", identity={"world": world}))
    if found.get("drift", {}).get("found"):
        own = found["drift"]
        why = (
            f"played on its own, {world} is wrong more often than on true history in {own['more wrong']} trajectories, less "
            f"often in {own['less wrong']}"
        )
        action = "keep state in code (a store with effects), or shorten episodes to the turns before the curve falls"
        made.append(
            Finding(
                "drift",
                EVAL,
                why,
                action=action,
                value=own["gap"],
                unit="share of turns",
                evidence=own,
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


def audited(attempts: Sequence[ReplayedAttempt]) -> dict[str, Any]:
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
    return {
        "attempts": len(attempts),
        "simulated success": clustered_proportion(simulated, [one.task for one in attempts]),
        "real success": clustered_proportion(real, [one.task for one in attempts]),
        "only simulated": only,
        "only real": missed,
        "p of a loophole": p_loophole,
        "loophole": not unstable and only > missed and p_loophole < LEVEL,
        "turns": turns,
        "different turns": sum(one.different for one in attempts),
        "unstable": unstable,
        "p of drift": p_drift,
        "drift": more > less and p_drift < LEVEL,
        "true so far": [[turn, float(np.mean(own)), len(own)] for turn, own in sorted(by_turn.items())],
    }


def against_real(run: Run, other: Run) -> dict[str, Any]:
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
    rates = [clustered_proportion([hit for hit, _ in own], [task for _, task in own]) for own in flat]
    return {
        "tasks": len(tasks),
        "simulated success": rates[0],
        "real success": rates[1],
        "higher in the simulation": up,
        "lower": down,
        "p of a loophole": p,
        "loophole": up > down and p < LEVEL,
    }


def noted(run: Run) -> dict[str, Any]:
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
    return {"answered by": dict(by), "cut": cut, "further tries": tries, "invented": dict(top)}


def audit_findings(found: Mapping[str, Any], attempts: Sequence[ReplayedAttempt]) -> list[Finding]:
    """What an audit found, for its run."""
    made = []
    if found.get("loophole"):
        where = next((one.node for one in attempts if one.success and not one.real), "") or None
        rates = [found[name]["value"] for name in ("simulated success", "real success")]
        why = (
            f"success is {rates[0]:.1%} in the simulated environment and {rates[1]:.1%} in the real one (p "
            f"{found['p of a loophole']:.2g})"
        )
        action = "decide success by a verifier over the state (verify = FILE.py:FUNCTION), not by what the world model writes"
        made.append(
            Finding(
                "success that is not real",
                AUDIT,
                why,
                where,
                action=action,
                value=rates[0] - rates[1],
                unit="share of attempts",
                evidence=dict(found),
            )
        )
    if found.get("drift"):
        where = next((one.node for one in attempts if one.different > one.noise), "") or None
        why = f"{found['different turns']} of {found['turns']} observations are not the real ones (p {found['p of drift']:.2g})"
        made.append(
            Finding(
                "drift",
                AUDIT,
                why,
                where,
                action="record these turns in the real environment and train on them",
                value=found["different turns"] / max(1, found["turns"]),
                unit="share of turns",
            )
        )
    invented = found.get("noted", {}).get("invented", {})
    if invented:
        first = ", ".join(f"{name} ({count})" for name, count in list(invented.items())[:5])
        why = f"fields that nothing before held: {first}"
        made.append(
            Finding(
                "invented fields",
                AUDIT,
                why,
                action="put what must be true into the state store",
                value=float(sum(invented.values())),
                unit="fields",
                evidence=dict(invented),
            )
        )
    return made
