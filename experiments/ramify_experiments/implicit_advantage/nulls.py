"""Cases in which it is known what there is to find: walks of an exact process with their log-probs, and the built-in agent twice.

The walks go through the verbs as a trainer's rows: ``score`` reads the log-probs that they store, so no model is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.implicit_advantage.report import LEVEL
from ramify.score.steps import write_rows
from ramify_experiments.cases import KnownCase, Repetition
from ramify_experiments.implicit_advantage.mdp import Layered, MdpWalks, optimum, walk

METHOD = "implicit-advantage"
BETA = 0.05
TASKS, ATTEMPTS = 60, 4
COST = 0.25
"""A slip is decisive where it costs this much of the chance to win."""
SLIPS = 0.3
"""Share of attempts in which one action is replaced by the worst there is."""


def _process(seed: int) -> tuple[Layered, np.ndarray, np.ndarray]:
    """A process, its optimal policy (H, S, A), and a start state for each attempt, the same for those at one task."""
    rng = generator(seed, "null process")
    mdp = Layered.sample(rng)
    start = rng.integers(0, mdp.reference.shape[1], TASKS)
    return mdp, optimum(mdp, BETA).policy, np.repeat(start, ATTEMPTS)


def _scored(rep: Repetition, walks: MdpWalks, policy: np.ndarray, reference: np.ndarray, won: Sequence[bool]) -> Path:
    """The walks as attempts with stored log-probs, graded by ``score``: where the records are."""
    states = walks.state.shape[1] - 1
    logs = [np.log(walks.along(table)) for table in (policy, reference)]
    rows = []
    for i, end in enumerate(won):
        row: dict[str, Any] = {"task_id": f"task-{i // ATTEMPTS}", "trial": i % ATTEMPTS, "reward": float(end)}
        seen, done = walks.state[i].tolist(), walks.action[i].tolist()
        row |= {"prompt_ids": [seen[0]], "completion_ids": [], "env_mask": [], "old_log_probs": [], "ref_log_prob": []}
        for layer in range(states):  # an action, and the state it led to
            row["completion_ids"] += [done[layer], seen[layer + 1]]
            row["env_mask"] += [1, 0]
            for name, log in zip(("old_log_probs", "ref_log_prob"), logs, strict=True):
                row[name] += [float(log[i, layer]), 0.0]
        rows.append(row)
    write_rows(rep.folder / "attempts.jsonl", rows)
    out = rep.folder / "scores"
    rep.verb(METHOD, "score", "--trajectories", rep.folder / "attempts.jsonl", "--out", out)
    return out


def _luck(rep: Repetition) -> Path:
    """Walks of the optimum whose outcomes are independent of them:
    each task is won by chance, some tasks more often than others."""
    mdp, policy, start = _process(rep.seed)
    rng = generator(rep.seed, "null ends")
    walks = walk(mdp, policy, start, rng)
    won = rng.random(len(start)) < np.repeat(rng.beta(3.0, 1.0, TASKS), ATTEMPTS)
    return _scored(rep, walks, policy, mdp.reference, won.tolist())


def _ranks_luck(rep: Repetition) -> bool:
    found = rep.verb(METHOD, "report", "--scores", _luck(rep))
    return bool(found["better"] or found["beyond_chance"])


def _chooses_luck(rep: Repetition) -> bool:
    row = rep.verb(METHOD, "select", "--scores", _luck(rep), "--best-of", ATTEMPTS)["by"]["sum/mean"]
    return bool(row["gain_p"] <= LEVEL)


def _blames_itself(rep: Repetition) -> bool:
    """The built-in agent as policy and reference."""
    rng = generator(rep.seed, "null tokens")
    rows = []
    for i in range(24):
        turns = [("user", False), ("assistant", True)] * 3
        steps = [{"role": role, "token_ids": rng.integers(20, 90, 4).tolist(), "is_action": acts} for role, acts in turns]
        rows.append({"task_id": f"task-{i}", "steps": steps, "reward": float(rng.random() < 0.9)})
    write_rows(rep.folder / "attempts.jsonl", rows)
    pair = ("--policy", "builtin", "--reference", "builtin")
    rep.verb(METHOD, "score", "--trajectories", rep.folder / "attempts.jsonl", *pair, "--out", rep.folder / "scores")
    return bool(rep.verb(METHOD, "blame", "--scores", rep.folder / "scores")["blamed"])


def _blames_slips(rep: Repetition) -> bool:
    """Walks of the optimum, some with one slip; they end as the process has it, so that some fail by luck alone."""
    mdp, policy, start = _process(rep.seed)
    rng = generator(rep.seed, "planted slips")
    slip = np.where(rng.random(len(start)) < SLIPS, rng.integers(0, len(mdp.reward), len(start)), -1)
    slipping, advantage = np.flatnonzero(slip >= 0), optimum(mdp, BETA).advantage
    worst = np.zeros_like(policy)
    np.put_along_axis(worst, advantage.argmin(axis=2)[..., None], 1.0, axis=2)
    played = np.repeat(policy[None], len(start), axis=0)
    played[slipping, slip[slipping]] = worst[slip[slipping]]
    walks = walk(mdp, played, start, rng)
    out = _scored(rep, walks, policy, mdp.reference, (walks.final > 0).tolist())
    named = {row["trajectory_id"]: row["step"] for row in rep.verb(METHOD, "blame", "--scores", out)["blamed"]}
    graded = walks.along(advantage)
    decisive = [i for i in slipping if walks.final[i] == 0 and graded[i, slip[i]] < -COST]
    right = {i for i in slipping if named.get(f"task-{i // ATTEMPTS}/{i % ATTEMPTS}") == slip[i]}
    return 2 * len(right & set(decisive)) > len(decisive) and 10 * len(right) >= 9 * len(named)


def _ranks_a_foreign_pair(rep: Repetition) -> bool:
    """Walks of the reference, graded by the optimum and a reference unrelated to the process."""
    mdp, policy, start = _process(rep.seed)
    foreign = Layered.sample(generator(rep.seed, "foreign reference")).reference
    walks = walk(mdp, mdp.reference, start, generator(rep.seed, "planted walks"))
    out = _scored(rep, walks, policy, foreign**3 / (foreign**3).sum(axis=-1, keepdims=True), (walks.final > 0).tolist())
    return bool(rep.verb(METHOD, "report", "--scores", out)["better"] == "policy log-prob")


CASES = (
    KnownCase(
        "outcomes sampled at random",
        "nothing",
        "Attempts of a trained policy end by chance, whatever was done in them: a step that `blame` names is a false finding.",
        lambda rep: bool(rep.verb(METHOD, "blame", "--scores", _luck(rep))["blamed"]),
        wanted=0.05,
    ),
    KnownCase(
        "a model against itself",
        "nothing",
        "Policy and reference are one checkpoint: a step that `blame` names is a false finding.",
        _blames_itself,
        wanted=0.05,
        full=100,
        quick=5,
    ),
    KnownCase(
        "outcomes sampled at random, ranked",
        "nothing",
        "The same attempts: `report` finds the grade other than chance, or a better one of grade and log-prob.",
        _ranks_luck,
        wanted=0.05,
        quick=10,
    ),
    KnownCase(
        "outcomes sampled at random, chosen among",
        "nothing",
        "The same attempts: `select` says that choosing by the grade gained or lost success.",
        _chooses_luck,
        wanted=0.05,
    ),
    KnownCase(
        "one slip among failures by luck",
        "planted",
        "In 30 % of attempts one action was the worst there is; `blame` names most of the slips that cost the attempt a quarter "
        "of its chance "
        "or more, and of the steps it names nine in ten are slips.",
        _blames_slips,
        wanted=0.8,
    ),
    KnownCase(
        "a reference of another process",
        "planted",
        "The reference has nothing to do with the policy's training, so the policy's own log-prob ranks better; `report` says "
        "so.",
        _ranks_a_foreign_pair,
        wanted=0.8,
        full=100,
        quick=5,
    ),
)
