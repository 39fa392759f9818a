"""Reproduction on two CPU cores: the gain from merged states on a key-door grid with tabular policies (section 7(a), items 1 to
3).

Axis legend: P tasks, L attempts per task, E = P L walkers, N steps in all, H horizon, S states; 4 moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.seeds import generator
from ramify.methods.graph_credit.algorithm import CreditConfig, credit
from ramify_experiments.lab import Checks, ResultCache, sized, tuned

REWARD = 10.0
ARMS = ("grpo", "gigpo", "ep+nc", "ep+ec", "g2po")
PICKS = ("spread", "focus", "mixed")
TASKS, ATTEMPTS, HORIZON = 16, 8, 60


@dataclass(frozen=True)
class GridWorld:
    """P key-door tasks on one empty grid: pick up the key, then reach the goal.
    A state is a cell, plus ``cells`` with the key."""

    start: np.ndarray
    key: np.ndarray
    goal: np.ndarray
    moves: np.ndarray
    """(cells, 4) cell after each move; a move into the border stays."""

    @classmethod
    def sample(cls, rng: np.random.Generator, tasks: int, side: int) -> GridWorld:
        """Start, key and goal of every task are three different random cells."""
        places = np.argsort(rng.random((tasks, side * side)), axis=1)[:, :3]
        row, column = np.divmod(np.arange(side * side), side)
        steps = [(-1, 0), (1, 0), (0, -1), (0, 1)]
        moves = [np.clip(row + r, 0, side - 1) * side + np.clip(column + c, 0, side - 1) for r, c in steps]
        return cls(places[:, 0], places[:, 1], places[:, 2], np.stack(moves, axis=1))

    @property
    def states(self) -> int:
        """S: every cell without and with the key."""
        return 2 * len(self.moves)


@dataclass(frozen=True)
class PaddedWalks:
    """Padded attempts: ``state``, ``action``, ``node`` have shape (P, L, H), ``length`` and ``success`` (P, L).

    ``node`` is equal where two attempts of a rollout tree share a physical step.
    """

    state: np.ndarray
    action: np.ndarray
    node: np.ndarray
    length: np.ndarray
    success: np.ndarray

    def rows(self) -> dict[str, np.ndarray]:
        """Step columns (N,): task, attempt, step, state, action, node, reward."""
        inside = np.arange(self.state.shape[2]) < self.length[..., None]
        task, attempt, step = np.nonzero(inside)
        ends = self.success[task, attempt] & (step + 1 == self.length[task, attempt])
        columns = {"task": task, "attempt": attempt, "step": step, "reward": np.where(ends, REWARD, 0.0)}
        return columns | {"state": self.state[inside], "action": self.action[inside], "node": self.node[inside]}


def walk(
    grid: GridWorld,
    policy: np.ndarray,
    rng: np.random.Generator,
    slip: float,
    attempts: int,
    state: np.ndarray | None = None,
    begin: np.ndarray | None = None,
) -> PaddedWalks:
    """``attempts`` walks of every task under ``policy`` (P, S, 4),
    from the start or from ``state`` (P,) at time ``begin`` (P,)."""
    tasks, cells = len(grid.start), len(grid.moves)
    task, every = np.repeat(np.arange(tasks), attempts), np.arange(tasks * attempts)
    held, cell = np.divmod((grid.start if state is None else state)[task], cells)
    since = np.zeros(len(task), dtype=np.int64) if begin is None else begin[task]
    cumulative = policy.cumsum(axis=2)
    states, actions = np.zeros((2, len(task), HORIZON), dtype=np.int64)
    length, success = np.full(len(task), HORIZON), np.zeros(len(task), dtype=bool)
    for time in range(HORIZON - int(since.min())):
        now = np.minimum(since + time, HORIZON - 1)
        live = ~success & (since + time < HORIZON)
        here = held * cells + cell
        action = np.minimum((rng.random((len(task), 1)) > cumulative[task, here]).sum(axis=1), 3)
        states[every[live], now[live]], actions[every[live], now[live]] = here[live], action[live]
        moved = np.where(rng.random(len(task)) < slip, rng.integers(0, 4, len(task)), action)
        cell = np.where(live, grid.moves[cell, moved], cell)
        held |= live & (cell == grid.key[task])
        done = live & (held == 1) & (cell == grid.goal[task])
        length[done] = now[done] + 1
        success |= done
    shape = (tasks, attempts, HORIZON)
    node = np.arange(tasks * attempts * HORIZON).reshape(shape)
    return PaddedWalks(states.reshape(shape), actions.reshape(shape), node, length.reshape(shape[:2]), success.reshape(shape[:2]))


def grow(
    grid: GridWorld, policy: np.ndarray, rng: np.random.Generator, slip: float, roots: int, branches: int, pick: str
) -> PaddedWalks:
    """A rollout tree per task: ``roots`` walks, then ``branches`` that rewind to a step of an earlier one and continue from
    there.

    ``pick``: spread (any step of any attempt), focus (one step takes all branches),
    mixed (a step of a success where there is one).
    """
    first = walk(grid, policy, rng, slip, roots)
    shape = (len(grid.start), roots + branches, HORIZON)
    state, action, ids = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    tree = PaddedWalks(state, action, ids, np.zeros(shape[:2], dtype=np.int64), np.zeros(shape[:2], dtype=bool))
    fresh = np.arange(np.prod(shape)).reshape(shape)
    for name in ("state", "action", "length", "success"):
        getattr(tree, name)[:, :roots] = getattr(first, name)
    tree.node[:] = fresh
    task, fork = np.arange(shape[0]), None
    for new in range(roots, roots + branches):
        weight = np.ones((shape[0], new))
        if pick == "mixed":
            weight = np.where(tree.success[:, :new].any(axis=1, keepdims=True), tree.success[:, :new], weight)
        share = weight.cumsum(axis=1) / weight.sum(axis=1, keepdims=True)
        parent = np.minimum((rng.random((shape[0], 1)) > share).sum(axis=1), new - 1)
        at = (rng.random(shape[0]) * tree.length[task, parent]).astype(np.int64)
        if pick == "focus":
            parent, at = fork = fork or (parent, at // 2)
        rest = walk(grid, policy, rng, slip, 1, tree.state[task, parent, at], at)
        shared = np.arange(HORIZON) < at[:, None]
        tree.state[:, new] = np.where(shared, tree.state[task, parent], rest.state[:, 0])
        tree.action[:, new] = np.where(shared, tree.action[task, parent], rest.action[:, 0])
        tree.node[:, new] = np.where(shared, tree.node[task, parent], fresh[:, new])
        tree.length[:, new], tree.success[:, new] = rest.length[:, 0], rest.success[:, 0]
    return tree


def paid(walks: PaddedWalks, grid: GridWorld, partial: float) -> dict[str, np.ndarray]:
    """Rows of ``walks``, in which an attempt that ends with the key and without the goal gets ``partial``."""
    rows = walks.rows()
    ends = np.append(rows["step"][1:] == 0, True) & (rows["state"] >= len(grid.moves)) & (rows["reward"] == 0)
    return rows | {"reward": np.where(ends, partial, rows["reward"])}


def policy_gradient(policy: np.ndarray, rows: Mapping[str, np.ndarray], advantage: np.ndarray) -> np.ndarray:
    """Policy gradient by the logits of ``policy``, both (P, S, 4): the sum over the steps of ``rows``."""
    place = (rows["task"] * policy.shape[1] + rows["state"]) * 4
    chosen = np.bincount(place + rows["action"], advantage, policy.size).reshape(policy.shape)
    return np.asarray(chosen - policy * chosen.sum(axis=2, keepdims=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def train(
    seed: int,
    config: dict[str, Any],
    lr: float = 0.3,
    side: int = 7,
    tasks: int = TASKS,
    updates: int = 20,
    slip: float = 0.1,
    unique: float = 0.0,
    pick: str = "",
    branches: int = 0,
    partial: float = 0.0,
) -> list[float]:
    """Success before each update and after the last, by policy gradient on ``credit``.

    Gradient: sum over steps, divided by the attempts per task. ``unique``: share of visits whose state key is made unlike all
    others. ``pick``: sample trees of 4 roots and ``branches`` instead of 8 flat attempts, each physical step trained once.
    ``partial``: as of :func:`paid`.
    """
    rng = generator(seed, "key-door", side, tasks)
    grid = GridWorld.sample(rng, tasks, side)
    logits = np.zeros((tasks, grid.states, 4))
    rule = CreditConfig(success_reward=REWARD, **config)
    curve = []
    for update in range(updates + 1):
        policy = softmax(logits)
        flat = walk(grid, policy, rng, slip, ATTEMPTS)
        curve.append(float(flat.success.mean()))
        if update == updates:
            break
        r = paid(grow(grid, policy, rng, slip, 4, branches, pick) if pick else flat, grid, partial)
        key = np.where(rng.random(len(r["state"])) < unique, grid.states + np.arange(len(r["state"])), r["state"])
        advantage = credit(r["task"], r["attempt"], r["step"], key, r["reward"], config=rule, nodes=r["node"] if pick else None)[
            "A"
        ]
        if pick:
            same = np.unique(r["node"], return_inverse=True)[1]
            advantage = advantage / np.bincount(same)[same]
        logits += lr / (4 + branches if pick else ATTEMPTS) * policy_gradient(policy, r, advantage)
    return curve


def visit_errors(seed: int, pick: str, branches: int, trees: int = 10, updates: int = 8) -> dict[str, list[float]]:
    """Error of V on the states of shared prefixes, for leaf and edge counting: [root mean square, mean], in reward units.

    The truth is what flat sampling would give: V over 512 attempts per task of the same half-trained policy.
    """
    rng = generator(seed, "visits", pick)
    grid = GridWorld.sample(rng, TASKS, 7)
    logits = np.zeros((TASKS, grid.states, 4))
    rule = CreditConfig(success_reward=REWARD)
    for _ in range(updates):
        policy = softmax(logits)
        r = walk(grid, policy, rng, 0.1, ATTEMPTS).rows()
        advantage = credit(r["task"], r["attempt"], r["step"], r["state"], r["reward"], config=rule)["A"]
        logits += 0.3 / ATTEMPTS * policy_gradient(policy, r, advantage)
    policy = softmax(logits)
    r = walk(grid, policy, rng, 0.1, 512).rows()
    truth = np.full(TASKS * grid.states, np.nan)
    truth[r["task"] * grid.states + r["state"]] = credit(
        r["task"], r["attempt"], r["step"], r["state"], r["reward"], config=rule
    )["V"]
    errors: dict[str, list[tuple[float, float]]] = {"leaf": [], "edge": []}
    for _ in range(trees):
        r = grow(grid, policy, rng, 0.1, 4, branches, pick).rows()
        same = np.unique(r["node"], return_inverse=True)[1]
        place = r["task"] * grid.states + r["state"]
        shared = np.unique(place[np.bincount(same)[same] > 1])
        for visits, found in errors.items():
            counted = CreditConfig(success_reward=REWARD, visits="leaf" if visits == "leaf" else "edge")
            value = np.full(len(truth), np.nan)
            value[place] = credit(r["task"], r["attempt"], r["step"], r["state"], r["reward"], config=counted, nodes=r["node"])[
                "V"
            ]
            error = (value - truth)[shared]
            error = error[np.isfinite(error)]
            found.append((float(np.sqrt((error**2).mean())), float(error.mean())))
    return {visits: np.mean(found, axis=0).tolist() for visits, found in errors.items()}


def variances(seed: int, tasks: int) -> dict[str, float]:
    """Appendix B: s leads to s' (probability 1/2, success .7) or s'' (.3), 8 attempts, gamma 1;
    over tasks where s' was visited."""
    rng = generator(seed, "variance")
    upper = rng.random((tasks, 8)) < 0.5
    success = rng.random((tasks, 8)) < np.where(upper, 0.7, 0.3)
    task, attempt = np.divmod(np.repeat(np.arange(tasks * 8), 2), 8)
    key = np.stack([np.zeros((tasks, 8), dtype=np.int64), np.where(upper, 1, 2)], axis=2).ravel()
    reward = np.stack([np.zeros((tasks, 8)), success], axis=2).ravel()
    out = credit(task, attempt, np.tile([0, 1], tasks * 8), key, reward, config=CreditConfig(gamma=1.0))
    to_upper = (key == 0) & (np.append(key[1:], 0) == 1)
    _, first = np.unique(task[to_upper], return_index=True)
    source, target = out["V"][to_upper][first], out["V_next"][to_upper][first]
    return {
        "Var V(s)": float(source.var()),
        "Var V(s')": float(target.var()),
        "Cov": float(np.cov(source, target, ddof=0)[0, 1]),
        "Var delta": float((target - source).var()),
        "Var R": float(success.var()),
    }


def single_gap(seed: int) -> float:
    """Largest difference between GiGPO and the node term on own returns, over the steps of one batch: must be exactly 0."""
    rng = generator(seed, "single")
    grid = GridWorld.sample(rng, TASKS, 7)
    r = walk(grid, np.full((TASKS, grid.states, 4), 0.25), rng, 0.1, ATTEMPTS).rows()
    table = (r["task"], r["attempt"], r["step"], r["state"], r["reward"])
    own = credit(*table, config=CreditConfig(rule="ep+nc", value="single"))["A"]
    return float(np.abs(own - credit(*table, config=CreditConfig(rule="gigpo"))["A"]).max())


@sized("graph-credit", quick=2, cpu=5)
def reproduce(size: str, cells: ResultCache, seeds: Sequence[int]) -> Checks:
    """Section 7(a) items 1 to 3, the visit-counting study, the settings compared, and what a turn that changes nothing is paid.
    ``quick``: looser thresholds."""
    from ramify_experiments.graph_credit.defaults import compare_defaults  # which is made of this module's parts
    from ramify_experiments.graph_credit.turns import count_turns

    quick, checks = size == "quick", Checks(seeds)
    _matched(checks, cells, 0.12 if quick else 0.20)
    _tuned(checks, cells, (1.0, 3.0) if quick else (0.3, 1.0, 3.0, 10.0), 0.03 if quick else 0.05)
    _repetition(checks, cells, (0.0, 0.6, 1.0) if quick else (0.0, 0.3, 0.6, 0.9, 1.0))
    checks += _variance(cells, 20_000 if quick else 200_000, 0.003 if quick else 0.001)
    _visits(checks, cells, trees=2 if quick else 10, branches=(8,) if quick else (8, 28))
    if not quick:
        compare_defaults(checks, cells, (1.0, 3.0, 10.0), batches=40)
    count_turns(checks, cells)
    return checks


def _matched(checks: Checks, cells: ResultCache, threshold: float) -> None:
    """Item 1: one learning rate for all rules, 7x7, 20 updates."""
    curves = cells.grid(train, {f"matched {arm}": {"config": {"rule": arm}} for arm in ARMS}, checks.seeds)
    last = {arm: [curve[-1] for curve in curves[f"matched {arm}"]] for arm in ARMS}
    checks.mean("success at the start, 7x7", [curve[0] for curve in curves["matched grpo"]])
    for arm in ARMS:
        checks.mean(f"success after 20 updates, {arm}, 7x7, lr 0.3", last[arm])
    checks.paired("matched learning rate: g2po - grpo", last["g2po"], last["grpo"], ">=", threshold)
    gap = cells.grid(single_gap, {"single": {}}, checks.seeds, workers=1)["single"]
    checks.worst("node term on own returns - GiGPO, largest difference", gap, "==", 0.0)


def _tuned(checks: Checks, cells: ResultCache, rates: Sequence[float], threshold: float) -> None:
    """Item 1, the honest claim: each rule at its own best learning rate, mean success over 30 updates on 9x9, slip .2."""
    environment = {"side": 9, "tasks": 12, "updates": 30, "slip": 0.2}
    arms = {arm: {"config": {"rule": arm}, **environment} for arm in ARMS}
    found = tuned(cells, train, arms, rates, checks.seeds, lambda curve: float(np.mean(curve)))
    best = {arm: [float(np.mean(curve)) for curve in curves] for arm, (_, curves) in found.items()}
    graph = max(("g2po", "ep+ec"), key=lambda arm: float(np.mean(best[arm])))
    for arm in ARMS:
        checks.mean(f"mean success over 30 updates, {arm}, 9x9, best lr {found[arm][0]:g}", best[arm])
    checks.paired(f"each at its best learning rate: {graph} - grpo", best[graph], best["grpo"], ">=", threshold)


def _repetition(checks: Checks, cells: ResultCache, shares: Sequence[float]) -> None:
    """Item 2: make a share of the state keys unique per visit, gamma 1.
    Without repetition nothing but the episode term is left."""
    arms = ("grpo", "gigpo", "g2po")
    cases = {f"unique {q:g} {arm}": {"config": {"rule": arm, "gamma": 1.0}, "unique": q} for q in shares for arm in arms}
    curves = cells.grid(train, cases, checks.seeds)
    last = {(q, arm): [curve[-1] for curve in curves[f"unique {q:g} {arm}"]] for q in shares for arm in arms}
    gains = [float(np.mean(np.subtract(last[q, "g2po"], last[q, "grpo"]))) for q in shares]
    for (q, arm), values in last.items():
        checks.mean(f"success after 20 updates, {arm}, unique keys {q:g}", values)
    for arm in ("gigpo", "g2po"):
        apart = np.abs(np.subtract(curves[f"unique 1 {arm}"], curves["unique 1 grpo"])).max(axis=1)
        checks.worst(f"no repetition: {arm} - grpo, largest difference", apart, "==", 0.0)
    fall = -max(np.diff(gains))
    checks.value("smallest fall of the gain of g2po between shares of unique keys", fall, len(checks.seeds), ">", 0.0)


def _variance(cells: ResultCache, tasks: int, tolerance: float) -> Checks:
    """Item 3: subtracting two noisy values cancels noise."""
    found, checks = cells.get(f"variance {tasks}", variances, seed=0, tasks=tasks), Checks((0,))
    printed = {"Var V(s)": 0.031, "Var V(s')": 0.062, "Cov": 0.026, "Var delta": 0.040, "Var R": 0.25}
    for name, value in printed.items():
        checks.value(f"{name} = {found[name]:.4f}, distance from {value}", abs(found[name] - value), tasks, "<=", tolerance)
    total = found["Var V(s)"] + found["Var V(s')"]
    checks.value("Var delta / sum of the two variances", found["Var delta"] / total, tasks, "<", 0.5)
    return checks


def _visits(checks: Checks, cells: ResultCache, trees: int, branches: Sequence[int]) -> None:
    """Steps that attempts share in a tree: count them once per leaf or once each? Reported, not judged."""
    cases = {f"visits {pick} {b}": {"pick": pick, "branches": b, "trees": trees} for pick in PICKS for b in branches}
    errors = cells.grid(visit_errors, cases, checks.seeds)
    ways = [(visits, pick) for pick in PICKS for visits in ("leaf", "edge")]
    kinds = {f"{visits} {pick}": {"config": {"visits": visits}, "pick": pick, "branches": 8} for visits, pick in ways}
    curves = cells.grid(train, kinds, checks.seeds)
    for key, case in cases.items():
        for i, what in enumerate(("error of V (rms)", "bias of V")):
            edge, leaf = ([abs(run[visits][i]) for run in errors[key]] for visits in ("edge", "leaf"))
            name = f"{what} on shared prefixes, {case['pick']}, 4 + {case['branches']} leaves"
            checks.mean(f"{name}, once per leaf", leaf)
            checks.paired(f"{name}, edge - leaf", edge, leaf)
    for pick in PICKS:
        edge, leaf = ([curve[-1] for curve in curves[f"{visits} {pick}"]] for visits in ("edge", "leaf"))
        checks.paired(f"success after 20 updates, {pick} trees, edge - leaf", edge, leaf)
