"""Section 7(a) items 1 to 3: arms under two judges, writers that game a judge,
reviewers that lean to machines. Seconds of numpy each.

Axis legend: K arms, N nodes of an archive, A items of an anchor, M challengers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from ramify.base.seeds import generator
from ramify.methods.judge_evolution.algorithm import (
    ALPHA,
    RHO,
    Archive,
    PromotionConfig,
    SearchConfig,
    Select,
    UtilityRecord,
    best_belief,
    checkpoints,
    decide,
    gate_open,
)

# -- item 1: what old scores do under a new judge


def arms(seed: int, erase: bool, before: int = 512, after: int = 128, k: int = 32) -> dict[str, float]:
    """Thompson sampling of ``k`` arms under one judge, then under another whose rates are those of the first, shuffled.

    ``correlation`` is Spearman's of the arms' mean beliefs before the switch and at the end; ``regret`` that of the arm with the
    best belief at the end, under the new judge; ``kept`` that of the best arm before the switch (the baseline: keep the ranking).
    """
    rng = generator(seed, "arms")
    rates = rng.uniform(0.1, 0.9, k)
    shuffled = rng.permutation(rates)
    counts = np.zeros((k, 2))

    def play(steps: int, p: np.ndarray) -> None:
        for _ in range(steps):
            arm = int(np.argmax(rng.beta(1 + counts[:, 0], 1 + counts[:, 1])))
            counts[arm, 0 if rng.random() < p[arm] else 1] += 1

    def mean() -> np.ndarray:
        return np.asarray((1 + counts[:, 0]) / (2 + counts.sum(axis=1)))

    play(before, rates)
    old, kept = mean(), int(np.argmax(best_belief(counts[:, 0], counts[:, 1])))
    if erase:
        counts[:] = 0
    play(after, shuffled)
    chosen = int(np.argmax(best_belief(counts[:, 0], counts[:, 1])))
    top = float(shuffled.max())
    return {"correlation": float(spearmanr(old, mean())[0]), "regret": top - shuffled[chosen], "kept": top - shuffled[kept]}


# -- item 2: writers against a judge that pays for gloss

SEED_JUDGE = (0.5, 2.5, 0.0)
TRADE = 0.6
"""What a step of gloss costs in quality."""


def _accepts(judge: np.ndarray, q: np.ndarray | float, g: np.ndarray | float) -> Any:
    return judge[0] * q + judge[1] * g - judge[2]


def _step(node: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A child: (quality, gloss, three weights of its judge), all moved."""
    move = rng.normal(0.0, [0.4, 0.4, 0.5, 0.5, 0.3])
    move[0] -= TRADE * move[1]
    return np.asarray(node + move)


def gaming(
    seed: int,
    arm: str,
    budget: int = 1024,
    first: int = 64,
    rule: str = "best_belief",
    anchor: int = 200,
    by: Select = "clade",
    each: int = 16,
) -> dict[str, Any]:
    """One search. ``arm``: fixed (the judge stays), no-erasure (it is replaced, old outcomes continue counting), full, or greedy.

    ``greedy`` is hill climbing under the fixed judge with the same budget: ``each`` outcomes a child, kept where it has more than
    its parent. ``greedy-judge`` also takes, whenever judges would be reconsidered,
    the judge that has most of the anchor right of all so far, and measures anew.
    """
    rng = generator(seed, "gaming", "world")
    items = rng.normal(size=(anchor, 2))
    label = items[:, 0] > 0
    start = np.array([0.0, 0.0, *SEED_JUDGE])
    if arm in ("greedy", "greedy-judge"):
        return _greedy(seed, start, budget, each, checkpoints(first, RHO, budget) if arm == "greedy-judge" else [], items, label)
    nodes, archive, judges = [start], Archive(), {0: start[2:]}
    archive.incumbents = {"reviewer": "0"}
    config, promotion = SearchConfig(seed=seed, budget=budget, first=first), PromotionConfig(rule=rule)
    looks, incumbent, replaced, erased, rank = set(checkpoints(first, RHO, budget)), 0, 0, 0, []
    for n in range(budget):
        if n in looks and arm != "fixed":
            accepted = np.array([_accepts(node[2:], items[:, 0], items[:, 1]) > 0 for node in nodes]).astype(float)
            known = (_accepts(judges[incumbent], items[:, 0], items[:, 1]) > 0).astype(float)
            others = [i for i in range(len(nodes)) if i != incumbent]
            if others:
                found = decide(label, known, accepted[others], promotion)
                if found.winner is not None:
                    before = _ranking(archive)
                    incumbent = others[found.winner]
                    judges[incumbent] = nodes[incumbent][2:]
                    replaced += 1
                    if arm == "full":
                        erased += archive.replace({"reviewer": str(incumbent)})
                    rank.append((n, before))
        if gate_open(n, len(nodes), ALPHA):
            parent = archive.thompson(config, n, "expand")
            archive.grow(parent)
            nodes.append(_step(nodes[parent], generator(seed, "gaming", "child", n)))
        at = archive.thompson(config, n, "evaluate", by=by)
        score = _accepts(judges[incumbent], nodes[at][0], nodes[at][1])
        won = bool(generator(seed, "gaming", "outcome", n).random() < 1 / (1 + np.exp(-2 * score)))
        tag = {"reviewer": str(incumbent)} if arm == "full" else {}
        archive.add(UtilityRecord(at, "writer", str(n), won, tag))
    best, how = archive.best()
    final = (_accepts(judges[incumbent], items[:, 0], items[:, 1]) > 0) == label
    table = np.array(archive.own, float)
    return {
        "quality": float(nodes[best][0]),
        "gloss": float(nodes[best][1]),
        "judge": float(final.mean()),
        "acceptance": float(table[:, 0].sum() / max(1.0, table.sum())),
        "replaced": replaced,
        "erased": erased,
        "nodes": len(nodes),
        "rank": float(spearmanr(rank[-1][1], _ranking(archive)[: len(rank[-1][1])])[0]) if rank else None,
        "found": how,
    }


def _ranking(archive: Archive) -> np.ndarray:
    table = np.array(archive.clade, float)
    return np.asarray((1 + table[:, 0]) / (2 + table.sum(axis=1)))


def _greedy(
    seed: int, start: np.ndarray, budget: int, each: int, looks: list[int], items: np.ndarray, label: np.ndarray
) -> dict[str, Any]:
    """Hill climbing: a child replaces its parent where ``each`` outcomes of it hold more successes."""
    here, best, spent, number, replaced = start, -1, 0, 0, 0
    judge, judges, left = start[2:], [start[2:]], list(looks)

    def right(weights: np.ndarray) -> float:
        return float(((_accepts(weights, items[:, 0], items[:, 1]) > 0) == label).mean())

    def measured(node: np.ndarray) -> int:
        rng = generator(seed, "gaming", "greedy", number, replaced)
        return int((rng.random(each) < 1 / (1 + np.exp(-2 * _accepts(judge, node[0], node[1])))).sum())

    while spent + each <= budget:
        if left and spent >= left[0]:
            left.pop(0)
            top = max(judges, key=right)
            if right(top) > right(judge):
                judge, replaced = top, replaced + 1
                best, spent = measured(here), spent + each  # its old outcomes are by another judge
                continue
        node = here if number == 0 else _step(here, generator(seed, "gaming", "child", number))
        judges.append(node[2:])
        won = measured(node)
        spent, number = spent + each, number + 1
        if won > best:
            here, best = node, won
    end = {"quality": float(here[0]), "gloss": float(here[1]), "judge": right(judge), "acceptance": best / each, "nodes": number}
    return end | {"replaced": replaced, "erased": 0, "rank": None, "found": "hill climbing"}


# -- item 3: a reviewer that leans to machines


def bias(
    seed: int,
    cap: float | None,
    rounds: int = 6,
    challengers: int = 64,
    anchor: int = 200,
    rule: str = "best_belief",
    fresh: int = 4000,
) -> dict[str, float]:
    """Linear reviewers of (quality, style), evolved on people's decisions, which mildly reward style;
    machine papers have more of it.

    ``cap`` is the pool's share of the anchor (0: no pool, None: no cap).
    Parity and accuracy are measured on papers nobody has seen.
    """
    rng = generator(seed, "bias")

    def papers(n: int, machine: bool) -> np.ndarray:
        return rng.normal(size=(n, 2)) + (np.array([-0.3, 1.5]) if machine else 0.0)

    def labels(x: np.ndarray) -> np.ndarray:
        return np.asarray(x[:, 0] + 0.45 * x[:, 1] + rng.normal(0, 0.4, len(x)) > 0)

    def accepts(w: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ w[:2] > w[2])

    items = papers(anchor, False)
    label = labels(items)
    people, machines = papers(fresh, False), papers(fresh, True)
    truth = labels(people)
    judge, pool = np.array([1.0, 0.8, 0.0]), np.zeros((0, 2))
    config = PromotionConfig(rule=rule)

    def ratio(w: np.ndarray) -> float:
        return float(accepts(w, machines).mean() / max(1e-9, accepts(w, people).mean()))

    start, replaced = ratio(judge), 0
    for _ in range(rounds):
        new = papers(1000, True)
        pool = np.vstack([new[accepts(judge, new)][:100], pool])  # the newest first
        most = len(pool) if cap is None else int(cap * anchor)
        x, y = np.vstack([items, pool[:most]]), np.concatenate([label, np.zeros(min(most, len(pool)), bool)])
        others = judge + rng.normal(0, 0.25, (challengers, 3))
        found = decide(y, accepts(judge, x).astype(float), np.array([accepts(w, x) for w in others]).astype(float), config)
        if found.winner is not None:
            judge, replaced = others[found.winner], replaced + 1
    return {
        "start": start,
        "ratio": ratio(judge),
        "accuracy": float((accepts(judge, people) == truth).mean()),
        "replaced": float(replaced),
    }


# -- how often a judge that is no better takes over


def false_promotions(seed: int, rule: str, challengers: int, anchor: int = 100, accuracy: float = 0.6, looks: int = 200) -> int:
    """Of ``looks`` at an anchor, in how many one of equally good independent challengers was promoted."""
    config, hits = PromotionConfig(rule=rule), 0
    for look in range(looks):
        rng = generator(seed, "promotions", rule, challengers, anchor, look)
        label = rng.random(anchor) < 0.5
        right = rng.random((challengers + 1, anchor)) < accuracy
        answers = np.where(right, label, ~label).astype(float)
        hits += decide(label, answers[0], answers[1:], config).winner is not None
    return hits
