"""Reproduction on two CPU cores (section 7(a)): an exact process,
a small agent with and without nuisance language, and attribution.

Axis legend: N attempts (tasks x attempts at each), T tokens, H layers, S states, A actions.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from ramify.base.seeds import derive_key, generator
from ramify.engine.forward import TinyForward
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.env.builtin import desk
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.algorithm import A_PRIORI, RULES, best_of, blame, by_step
from ramify.methods.implicit_advantage.confidence import token_columns
from ramify.methods.implicit_advantage.records import ScoreRecord
from ramify.methods.implicit_advantage.report import baselines, calibrate, cell_scores, column, select
from ramify.methods.implicit_advantage.run import AdvantageScorer
from ramify.model.chat import TagTemplate
from ramify.model.pair import Pair
from ramify.model.tokenizer import HfTokenizer
from ramify.score.group import normalise
from ramify.score.trajectories import Trajectory
from ramify.stats import ranking
from ramify.stats.intervals import bootstrap, mean_t
from ramify.train.batch import Row
from ramify.train.loop import with_reference
from ramify_experiments.implicit_advantage.mdp import Layered, ascend, evaluate, luck, optimum, walk
from ramify_experiments.lab import Checks, ResultCache, columns, sized
from ramify_experiments.lockstep import Episode, play
from ramify_experiments.models import Course, Recipe, Report, chat_rows, silent, training, turns

ATTEMPTS = 8
ARMS = {"N0": 0, "N5": 5}
"""Filler words before each call; N0 has one that is always the same."""
BETA = 0.15
LOOK, SLIP = 0.35, 0.25
"""Demonstrators: share of bookings looked up, share of actions that are any possible one."""
KL = 0.05
NEAR, MOST = 4, 80
"""The reference that is too near is the policy so many updates before the end; training ends after so many at the latest."""
LAG = 0.15
"""Validation begins where the last three updates' attempts came this close to the target:
they lag the training by some updates."""
MAIN = ("advantage", "policy log-prob", "reference log-prob", "self-certainty")
"""Scorers that are reported on the policy's own attempts too; every one is on the reference's."""
OTHERS = ("too near", "too far")
"""References that the policy was not trained from."""
ENVIRONMENT = desk.DeskEnvironment()


# -- an exact process


def tabular(seed: int, tasks: int = 1000, rounds: int = 300) -> dict[str, Any]:
    """Item 1: how far Proposition 1 and the luck identity are from exact;
    how grades and log-probs rank; distance from the optimum."""
    rng = generator(seed, "layered")
    mdp = Layered.sample(rng)
    best = optimum(mdp, BETA)
    ratio = np.log(best.policy / mdp.reference)
    found: dict[str, Any] = {
        # the optimum is the fixed point: its own regularised value, computed without any soft maximum, is V*
        "value": float(np.abs(evaluate(mdp, best.policy, BETA)[0] - best.value).max()),
        "proposition": float(np.abs(best.advantage - BETA * ratio).max()),
    }
    task = np.repeat(np.arange(tasks), ATTEMPTS)
    start = rng.integers(0, mdp.reference.shape[1], tasks)[task]
    by_coin = np.where((rng.random(len(task)) < 0.5)[:, None, None, None], best.policy, mdp.reference)
    identity = 0.0
    for name, policies in {"optimum": best.policy, "reference": mdp.reference, "half-half": by_coin}.items():
        w = walk(mdp, policies, start, rng)
        own = w.along(best.advantage).sum(axis=1)
        left = w.final - best.value[0, start] - luck(mdp, best.value, w).sum(axis=1)
        identity = max(identity, float(np.abs(own - left).max()))
        scores = {"advantage": own, "log-prob": w.along(np.log(best.policy)).sum(axis=1)}
        found[name] = {"mean": float(w.final.mean())}
        for scorer, values in scores.items():
            found[name][f"auroc {scorer}"] = ranking.auroc(values, w.final > 0)
            found[name][f"best-of-8 {scorer}"] = float((w.final * best_of(values, task)).sum() / tasks)
        if name == "reference":
            off = w
    found["luck identity"] = identity
    for arm, beta in {"KL": BETA, "clip": 0.0}.items():
        path = ascend(mdp, rounds, beta)
        found[f"spearman {arm}"] = [_within_states(r, best.advantage) for r in path[1:]]
        marks = [r for r in (1, 10, 100, rounds) if r <= rounds]
        for scorer, offset in {"advantage": 0.0, "log-prob": np.log(mdp.reference)}.items():
            values = [off.along(path[r] + offset).sum(axis=1) for r in marks]
            found[f"auroc {arm} {scorer}"] = {str(r): ranking.auroc(v, off.final > 0) for r, v in zip(marks, values, strict=True)}
    return found


def _within_states(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over states of the rank correlation over the actions, both (H, S, A); ties are broken by order."""
    ranks = [np.argsort(np.argsort(x, axis=-1), axis=-1) for x in (a, b)]
    centred = [r - r.mean(axis=-1, keepdims=True) for r in ranks]
    return float(((centred[0] * centred[1]).sum(axis=-1) / (centred[0] ** 2).sum(axis=-1)).mean())


# -- a small agent


class ReferenceRecipe(Recipe):
    """A decoder that imitates noisy demonstrations."""

    NAME: ClassVar[str] = "desk"
    fillers: int = 0
    """Filler words before each call."""
    demonstrations: int = 3000
    width: int = 64
    layers: int = 2
    steps: int = 360
    lr: float = 5e-3

    def make(self, report: Report = silent) -> tuple[TinyLM, HfTokenizer]:
        """Imitate the demonstrations."""
        tasks, seed = ENVIRONMENT.task_set("demo", self.demonstrations, self.seed), self.seed
        shown = (desk.demonstrate(task, i, generator(seed, "demo", i), LOOK, SLIP, self.fillers) for i, task in enumerate(tasks))
        tokenizer, rows = chat_rows([*map(turns, shown)], 400)
        return self.imitate(untrained(tokenizer, self.seed), rows, report), tokenizer


def untrained(tokenizer: HfTokenizer, seed: int) -> TinyLM:
    """Fresh weights, four times the decoder's default: at this width those leave the blocks silent,
    and it learns ten times slower."""
    shape = TinyConfig(tokenizer.size, 64, 2, 2, 2, 32, 192, context=384, eos=TagTemplate(tokenizer).stop_tokens)
    model = TinyLM(shape, seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4.0)
    return model.eval()


def improve(
    model: TinyLM, tokenizer: HfTokenizer, seed: int, target: float, lr: float, validation: int, prompts: int = 16
) -> tuple[TinyLM, list[float]]:
    """Group-relative policy gradient in place, with a KL to the model as it comes; ``prompts`` tasks an update, each met once.

    Ends when ``target`` of one attempt at each of ``validation`` tasks succeeds; they are used neither in training nor in the
    results. How well log-prob alone ranks depends on how far the policy was trained, so both arms stop alike. Returns a copy from
    NEAR updates before the end, and the success of each update.
    """
    reference, past, curve = copy.deepcopy(model), list[TinyLM](), list[float]()
    template, forward = TagTemplate(tokenizer), TinyForward(model)
    tasks = list(ENVIRONMENT.task_set("train", MOST * prompts, seed))
    order = generator(seed, "order").permutation(len(tasks))  # a task set is sorted by id
    task_set = list(ENVIRONMENT.task_set("tune", validation, seed))

    def batch(update: int) -> list[Row]:
        past[:] = [*past[1 - NEAR :], copy.deepcopy(model)]
        chosen = [tasks[i] for i in order[update * prompts : (update + 1) * prompts] for _ in range(ATTEMPTS)]
        forward.refresh()
        episodes = play(forward, template, ENVIRONMENT, chosen, [derive_key(seed, "play", update, i) for i in range(len(chosen))])
        success = np.array([e.success for e in episodes], np.float64)
        advantage = normalise(success, np.repeat(np.arange(prompts), ATTEMPTS))
        rows = [e.row(advantage=np.full(len(e.tokens), a, np.float32)) for e, a in zip(episodes, advantage, strict=True)]
        curve.append(float(success.mean()))
        return with_reference(reference, rows)

    for _ in training(model, batch, Course(lr, MOST), seed, {"policy_gradient": 1.0, "reference_kl": KL}):
        if len(curve) < 3 or np.mean(curve[-3:]) < target - LAG:
            continue
        if np.mean([e.success for e in attempts(model, tokenizer, task_set, seed, 1)]) >= target:
            break
    return past[0], curve


def attempts(model: TinyLM, tokenizer: HfTokenizer, tasks: Sequence[Task], seed: int, n: int = ATTEMPTS) -> list[Episode]:
    """``n`` episodes of each task, task by task."""
    chosen = [task for task in tasks for _ in range(n)]
    keys = [derive_key(seed, "attempt", task.id, i % n) for i, task in enumerate(chosen)]
    return play(TinyForward(model), TagTemplate(tokenizer), ENVIRONMENT, chosen, keys)


def _trajectory(e: Episode, i: int, tokens: Sequence[int] | None = None) -> Trajectory:
    row, step = np.array(e.tokens if tokens is None else tokens, np.int32), np.array(e.turn, np.int32)
    return Trajectory(f"{e.task.id}-{i}", e.task.id, row, step, len(e.replies), e.reward, e.success, actions=tuple(e.replies))


def grade(policy: TinyLM, reference: TinyLM, tokenizer: HfTokenizer, rows: Sequence[Trajectory]) -> list[ScoreRecord]:
    """Score records of the method's own scorer."""
    pair = Pair(LocalModel(policy, tokenizer, name="policy"), LocalModel(reference, tokenizer, name="reference"))
    return [scored.record() for scored in AdvantageScorer(pair).score_many(rows)]


def with_confidence(
    policy: TinyLM, tokenizer: HfTokenizer, rows: Sequence[Trajectory], records: Sequence[ScoreRecord]
) -> list[ScoreRecord]:
    """The records with self-certainty and DeepConf's confidence of each step, from the policy's whole distribution."""
    found = asyncio.run(token_columns(LocalModel(policy, tokenizer), [row.tokens for row in rows]))
    made = []
    for row, of_tokens, record in zip(rows, found, records, strict=True):
        sure, certain = (by_step(of_tokens[name], row.step, row.n, "mean").tolist() for name in ("confidence", "certainty"))
        steps = (
            replace(step, confidence=one, certainty=other) for step, one, other in zip(record.steps, sure, certain, strict=True)
        )
        made.append(replace(record, steps=tuple(steps)))
    return made


def measures(records: Sequence[ScoreRecord]) -> dict[str, Any]:
    """Every scorer's AUROC and best-of-8; attempt by attempt what the intervals over tasks need."""
    won = np.array([bool(record.success) for record in records])
    scores = {"advantage": cell_scores(records, *A_PRIORI), **baselines(records)}
    return {
        "mean": float(won.mean()),
        "oracle": select(records).oracle,
        "auroc": {name: ranking.auroc(values, won) for name, values in scores.items()},
        "best-of-8": {name: select(records, scores=values).best_of for name, values in scores.items()},
        "gain by task": _by_task(records, scores["advantage"], won),
    }


def _by_task(records: Sequence[ScoreRecord], scores: np.ndarray, won: np.ndarray) -> list[float]:
    """Success of the chosen attempt minus the mean of its task, (tasks,)."""
    codes = np.unique([record.task_id for record in records], return_inverse=True)[1]
    mean = np.bincount(codes, won) / np.bincount(codes)
    return [round(float(value), 4) for value in np.bincount(codes, won * best_of(scores, codes)) - mean]


def optimism(records: Sequence[ScoreRecord]) -> dict[str, float | None]:
    """Best-of-8 of the cell that is best on one half of the tasks, on that half and on the other; and of the a-priori cell."""
    half = len(records) // ATTEMPTS // 2 * ATTEMPTS
    first, second = records[:half], records[half:]
    cell, top = calibrate(first, "best-of")
    return {"tuned, own half": top, "tuned, other half": select(second, cell).best_of, "a priori": select(second).best_of}


def violations(episodes: Sequence[Episode], tokenizer: HfTokenizer, seed: int) -> list[tuple[Trajectory, int]]:
    """Each won episode with one booking closed against the record it had been shown, and the step of it.

    The environment does not comment on how a booking is closed, so everything after the changed word stays what it was.
    """
    out = []
    for i, e in enumerate(episodes):
        places = _closings(e) if e.success else []
        if not places:
            continue
        step, verb = places[int(generator(seed, "violate", i).integers(len(places)))]
        booking = e.task.data[e.replies[step].split()[-1]]
        old, new = (tokenizer.encode(f" {word}") for word in (verb, "deny" if verb != "deny" else booking["wish"]))
        at = [t for t, token in enumerate(e.tokens) if e.turn[t] == step and [token] == old]
        if len(new) == len(old) == len(at) == 1:
            out.append((_trajectory(e, i, [*e.tokens[: at[0]], *new, *e.tokens[at[0] + 1 :]]), step))
    return out


def _closings(e: Episode) -> list[tuple[int, str]]:
    """(step, verb) of each booking that was closed after its record had been shown."""
    env, known, found = ENVIRONMENT.make(), set[str](), []
    env.reset(e.task, e.key)
    for step, reply in enumerate(e.replies):
        verb, what = ["", "", *reply.split()][-2:]
        if verb != "lookup" and what in known:
            found.append((step, verb))
        note = env.step(reply).text
        if verb == "lookup" and note.startswith(f"{what} "):
            known.add(what)
    return found


def attribution(records: Sequence[ScoreRecord], steps: Sequence[int]) -> dict[str, float]:
    """Item 3: how often each rule (token sum) names the changed step; how often the least likely action is it, and chance."""
    where = np.array(steps)
    found: dict[str, np.ndarray] = {rule: np.array([blame(column(r, "A_sum"), rule)[0] for r in records]) for rule in RULES}
    found["least likely action"] = np.array([int(column(r, "logp_theta").argmin()) for r in records])
    found["least likely action, a token"] = np.array(
        [int((column(r, "logp_theta") / column(r, "n_tokens")).argmin()) for r in records]
    )
    chance = float(np.mean([1 / len(r.steps) for r in records]))
    return {name: float((at == where).mean()) for name, at in found.items()} | {"chance": chance, "n": float(len(where))}


def agent(
    seed: int,
    fillers: int,
    steps: int,
    target: float,
    tasks: int,
    validation: int,
    demonstrations: int = 3000,
    lr: float = 5e-4,
) -> dict[str, Any]:
    """Items 2 and 3 on one seed of one arm: train both models,
    then grade ``tasks`` held-out tasks x ATTEMPTS of each one's attempts."""
    reference, tokenizer = ReferenceRecipe(seed=seed, fillers=fillers, steps=steps, demonstrations=demonstrations).make()
    policy = copy.deepcopy(reference)
    near, curve = improve(policy, tokenizer, seed, target, lr, validation)
    task_set = list(ENVIRONMENT.task_set("eval", tasks, seed))
    out: dict[str, Any] = {"curve": curve}
    for name, player in {"on": policy, "off": reference}.items():
        episodes = attempts(player, tokenizer, task_set, seed)
        rows = [_trajectory(e, i) for i, e in enumerate(episodes)]
        records = with_confidence(policy, tokenizer, rows, grade(policy, reference, tokenizer, rows))
        out[name] = measures(records) | {"actions": float(np.mean([row.n for row in rows])), "optimism": optimism(records)}
        if name == "on":
            broken = violations(episodes, tokenizer, seed)
            out["attribution"] = attribution(
                grade(policy, reference, tokenizer, [row for row, _ in broken]), [step for _, step in broken]
            )
    for name, other in zip(OTHERS, (near, untrained(tokenizer, seed)), strict=True):
        records = grade(policy, other, tokenizer, rows)
        out[name] = measures(records)
    return out


# -- checks


@sized("implicit-advantage", quick=1, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a) items 1 to 3. ``cpu``: both arms; ``quick``: the exact process whole, and one seed of a smaller agent in the
    short arm with looser thresholds (what nuisance language changes takes five seeds to see)."""
    quick = size == "quick"
    scale: dict[str, Any] = {"steps": 360, "target": 0.6, "tasks": 120, "validation": 480}
    if quick:
        scale = {"steps": 200, "target": 0.4, "tasks": 24, "validation": 96, "demonstrations": 2000, "lr": 1e-3}
    arms = {"N0": 0} if quick else ARMS
    five = range(seeds[0], seeds[0] + 5)
    exact, checks = _exact(cells.grid(tabular, {"tabular": {}}, five, workers=1)["tabular"], five), Checks(seeds)
    found = cells.grid(agent, {arm: {"fillers": n, **scale} for arm, n in arms.items()}, seeds)
    for arm, runs in found.items():
        _headline(checks, arm, runs, quick)
        _details(checks, arm, runs)
    if not quick:
        gaps = {arm: np.array([_gap(run["off"]) for run in runs]) for arm, runs in found.items()}
        name, more = "off-policy AUROC, advantage - log-prob, N5 - N0", gaps["N5"] - gaps["N0"]
        low, high = mean_t(more)
        checks.mean(name, more, ">", 0.0)
        checks.value(f"{name}, lower 95 % bound", low, len(more), ">", 0.0, (low, high))
    exact += checks
    return exact


def _exact(runs: Sequence[dict[str, Any]], seeds: Sequence[int]) -> Checks:
    checks, got = Checks(seeds), columns(runs)
    for name in ("value", "proposition", "luck identity"):
        checks.worst(f"exact: {name}, largest error", got[name], "<=", 1e-10)
    for source, shown in (("optimum", "the optimum"), ("reference", "the reference"), ("half-half", "both")):
        name, cell = f"exact, rollouts of {shown}", {key: np.array(values) for key, values in columns(got[source]).items()}
        auroc, best = (cell[f"{what} advantage"] - cell[f"{what} log-prob"] for what in ("auroc", "best-of-8"))
        checks.mean(f"{name}: success", cell["mean"])
        checks.mean(f"{name}: AUROC of the advantage", cell["auroc advantage"])
        checks.mean(f"{name}: AUROC, advantage - log-prob", auroc, ">=", 0.04)
        checks.mean(f"{name}: best-of-8, advantage - log-prob", best, ">=", 0.02)
        checks.mean(f"{name}: best-of-8 - Mean@8", cell["best-of-8 advantage"] - cell["mean"], ">=", 0.10)
    curves = {arm: np.array(got[f"spearman {arm}"]) for arm in ("KL", "clip")}
    for arm, curve in curves.items():
        for rounds in (1, 10, 30, 100, 200, 300):
            checks.mean(f"exact, {arm} arm: rank correlation with A*, round {rounds}", curve[:, rounds - 1])
        for scorer in ("advantage", "log-prob"):
            for mark, values in columns(got[f"auroc {arm} {scorer}"]).items():
                checks.mean(f"exact, {arm} arm: off-policy AUROC of the {scorer}, round {mark}", values)
    checks.mean("exact, KL arm: rank correlation with A*, last round", curves["KL"][:, -1], ">=", 0.99)
    fall = curves["clip"].max(axis=1) - curves["clip"][:, -1]
    checks.mean("exact, clip arm: peak - last round", fall, ">=", 0.3)
    return checks


def _gap(cell: Mapping[str, Any]) -> float:
    return float(cell["auroc"]["advantage"] - cell["auroc"]["policy log-prob"])


def _headline(checks: Checks, arm: str, runs: Sequence[dict[str, Any]], quick: bool) -> None:
    """What the claim rests on, one arm. Best-of-8: tasks of all seeds are resampled; AUROC: seeds are the units."""
    off, on = (columns([run[kind] for run in runs]) for kind in ("off", "on"))
    checks.mean(f"{arm}, success of the reference", off["mean"])
    checks.mean(f"{arm}, success of the policy", on["mean"])
    checks.mean(f"{arm}, updates of the policy", [len(run["curve"]) for run in runs])
    checks.worst(f"{arm}, success of the policy, lowest seed", on["mean"], ">=", 0.25 if quick else 0.5)
    gains, name = [gain for one in off["gain by task"] for gain in one], f"{arm}, off-policy best-of-8 - Mean@8"
    low, high = bootstrap(gains)
    checks.value(name, np.mean(gains), len(gains), ">=", 0.03 if quick else 0.06, (low, high))
    checks.value(f"{name}, lower 95 % bound over tasks", low, len(gains), ">", -0.1 if quick else 0.0, (low, high))
    wanted = (">=", 0.05) if arm == "N5" else ()
    checks.mean(f"{arm}, off-policy AUROC, advantage - log-prob", [_gap(run["off"]) for run in runs], *wanted)
    hits = columns([run["attribution"] for run in runs])
    checks.mean(f"{arm}, attribution, sharpest-drop", hits["sharpest-drop"], ">=", 0.4 if quick else 0.6)
    for rule, values in hits.items():
        if rule not in ("sharpest-drop", "n"):
            checks.mean(f"{arm}, attribution, {rule}", values)


def _details(checks: Checks, arm: str, runs: Sequence[dict[str, Any]]) -> None:
    """Every scorer on both sets, other references, and what choosing the cell on the data would have promised."""
    got, labels = (
        {name: columns(values) for name, values in columns(runs).items() if name in ("off", "on", *OTHERS)},
        {"auroc": "AUROC"},
    )
    for kind in ("off", "on"):
        checks.mean(f"{arm}, {kind}-policy Pass@8", got[kind]["oracle"])
        for what in ("auroc", "best-of-8"):
            for scorer, values in columns(got[kind][what]).items():
                if kind == "off" or scorer in MAIN:
                    checks.mean(f"{arm}, {kind}-policy {labels.get(what, what)}, {scorer}", values)
    for other in OTHERS:
        for what in ("auroc", "best-of-8"):
            values = columns(got[other][what])["advantage"]
            checks.mean(f"{arm}, reference {other}: off-policy {labels.get(what, what)}", values)
    for name in ("tuned, own half", "tuned, other half", "a priori"):
        checks.mean(f"{arm}, off-policy best-of-8, cell {name}", columns(got["off"]["optimism"])[name])
