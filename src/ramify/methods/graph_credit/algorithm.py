"""G2PO's credit rule: merge the attempts at one task by state, value each state,
credit each step by its progress (arXiv 2606.22995).

Notation of the paper: attempt i has steps j = 1..T and a terminal reward R; G is a group of steps with one state key.
Arrays have one entry per step, shape (N,). "Difference 4" refers to the numbered list in the method's page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from ramify.base.config import Config
from ramify.methods.graph_credit.returns import terminal_returns
from ramify.methods.graph_credit.table import TERMINAL, Table, Visits, edge_weights, index_steps, merge
from ramify.score.group import normalise
from ramify.trace.graph import MergedGraph

#: Which terms each rule adds up: the episode term always, times w the node-centric and the edge-centric one.
RULES = {
    "grpo": (),
    "gigpo": ("nc",),
    "ep+nc": ("nc",),
    "ep+ec": ("ec",),
    "g2po": ("nc", "ec"),
    "g2po-released": ("nc", "ec"),
}

RuleName = Literal["g2po", "g2po-released", "ep+nc", "ep+ec", "gigpo", "grpo"]

#: What the authors' released code computes (g2po/core_g2po.py); it leaves ``norm`` and ``w`` to its configuration.
RELEASED: dict[str, Any] = {
    "value": "mean",
    "gamma": 0.95,
    "weight": "step",
    "ddof": 1,
    "invalid_penalty": None,
    "zero_if_constant": False,
    "end": "success",
}


class GraphCreditSettings(Config):
    """How states are valued and steps weighed, whatever the rule."""

    value: Literal["mean", "single", "bellman", "distance", "max_decay", "loo"] = "mean"
    """State value: mean over all visits (G2PO), this attempt's return (GiGPO), expected backup on the graph, steps to success
    (GraphGPO), discounted best reachable success (RewardFlow), or the mean over visits of the other attempts."""
    gamma: float = Field(default=0.95, gt=0, le=1)
    """Discount per step; the last step carries gamma^1, a terminal gamma^0."""
    w: float = Field(default=1.0, ge=0)
    """Weight of the graph terms; 0 is GRPO exactly."""
    norm: Literal["mean_std", "mean"] = "mean_std"
    """Divide by the standard deviation, or only subtract the mean."""
    weight: Literal["attempt", "step"] = "attempt"
    """Episode statistics over attempts, or over steps (long attempts weigh more)."""
    ddof: Literal[0, 1] = 1
    """1: sample standard deviation; 0: population."""
    success_reward: float = Field(default=1.0, gt=0)
    """Reward of a success; scales the invalid-action penalty and defines successes for value = distance."""
    invalid_penalty: float | None = Field(default=None, ge=0)
    """Subtracted from the next value of an invalid action in the node term; none means 0.01 success_reward."""
    truncation: Literal["fail", "bootstrap", "drop"] = "fail"
    """Truncated attempts: keep the recorded reward, take the value of the last state, or give them no credit and no vote."""
    zero_if_constant: bool = True
    """No credit in a task whose attempts all have one reward: there only length preference would be left."""
    end: Literal["reward", "success"] = "reward"
    """Value of an attempt's end: its reward, or ``success_reward`` where the reward is exactly that and else 0."""
    visits: Literal["leaf", "edge"] = "edge"
    """Steps that attempts share in a rollout tree count once per leaf below, or once each."""


class CreditConfig(GraphCreditSettings):
    """How steps are credited."""

    rule: RuleName = "g2po"
    """g2po = episode + w (node + edge term); g2po-released = the same with the settings of the authors' code
    (over steps, constant rewards credited, ends by success); gigpo = episode + w (node term on this attempt's own return);
    grpo = episode."""

    @model_validator(mode="after")
    def _possible(self) -> CreditConfig:
        if self.rule == "g2po-released":
            for name, fixed in RELEASED.items():
                if getattr(self, name) not in (fixed, type(self).model_fields[name].default):
                    raise ValueError(f"rule g2po-released has {name} = {fixed}, as the authors' code: take rule g2po to set it")
                object.__setattr__(self, name, fixed)
        if self.end == "success" and self.truncation == "bootstrap":
            raise ValueError("end = success gives a truncated attempt's end 0, so truncation = bootstrap has no meaning there")
        if self.rule == "gigpo" and self.value not in ("mean", "single"):
            raise ValueError(f"rule gigpo uses each attempt's own return, so value = {self.value} has no meaning there")
        return self

    @property
    def penalty(self) -> float:
        """The invalid-action penalty in reward units; GiGPO's node term has none."""
        if self.rule == "gigpo":
            return 0.0
        return 0.01 * self.success_reward if self.invalid_penalty is None else self.invalid_penalty


def credit(
    task_ids: Sequence[Any] | np.ndarray,
    attempt_ids: Sequence[Any] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    keys: Sequence[Any] | np.ndarray,
    rewards: Sequence[float] | np.ndarray,
    *,
    config: CreditConfig | None = None,
    truncated: Sequence[bool] | np.ndarray | None = None,
    valid: Sequence[bool] | np.ndarray | None = None,
    nodes: Sequence[Any] | np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Credit every step; O(total steps). Rows may come in any order.

    ``keys`` are the states the steps were taken in (any JSON value, None included); ``rewards`` are paid step by step and an
    attempt's reward R is their sum; ``truncated`` is true on an attempt's last row when a limit ended it; ``nodes`` say which
    rows of several attempts are physically one step of a rollout tree.

    Returns columns in the order of the input: task_id, attempt_id, group_id (codes), next_group_id (-1 terminal), group_size,
    weight (how much a visit the row is), reward (R as used), V, V_next, delta, A_ep, A_nc, A_ec, A. Rows of dropped attempts have
    weight 0, group -1, credit 0 and NaN values.
    Raises UserError naming the step on NaN rewards, missing or duplicate steps and columns of unequal length.
    """
    graph = merge(task_ids, attempt_ids, steps, keys)
    return credit_graph(graph, rewards, config=config, truncated=truncated, valid=valid, nodes=nodes)


def credit_graph(
    graph: MergedGraph | Visits,
    rewards: Sequence[float] | np.ndarray,
    *,
    config: CreditConfig | None = None,
    truncated: Sequence[bool] | np.ndarray | None = None,
    valid: Sequence[bool] | np.ndarray | None = None,
    nodes: Sequence[Any] | np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """:func:`credit` on a graph merged already; columns have one entry per visit of ``graph``, in its order."""
    config = config or CreditConfig()
    table = index_steps(graph, rewards, truncated=truncated, valid=valid, nodes=nodes)
    keep = np.ones(len(table.order), dtype=bool)
    if config.truncation == "drop":
        keep = ~table.truncated[table.attempt]
    columns = _credit(table.subset(keep), config)
    columns["task_id"], columns["attempt_id"] = table.task[keep], table.attempt[keep]
    named = np.append(np.unique(table.group[keep]), TERMINAL)  # groups keep the numbers they have in the graph
    columns["group_id"], columns["next_group_id"] = named[columns["group_id"]], named[columns["next_group_id"]]
    out = {}
    for name, column in columns.items():
        fill: Any = {"V": np.nan, "V_next": np.nan, "delta": np.nan, "group_id": -1, "next_group_id": TERMINAL}.get(name, 0)
        out[name] = np.full(len(keep), fill, dtype=column.dtype)
        out[name][table.order[keep]] = column
    out["task_id"][table.order], out["attempt_id"][table.order] = table.task, table.attempt
    out["reward"][table.order] = np.where(keep, out["reward"][table.order], table.reward[table.attempt])
    return out


def _credit(t: Table, config: CreditConfig) -> dict[str, np.ndarray]:
    """Sections 3.3 and 3.4 on a checked table."""
    std, ddof = config.norm == "mean_std", config.ddof
    weight = edge_weights(t) if config.visits == "edge" else np.ones(len(t.order))
    reward, voters = _bootstrap(t, weight, config)
    value, terminal = state_values(t, reward, voters, config)
    if config.end == "success" and config.value != "distance":
        terminal = np.where(np.isclose(reward, config.success_reward), config.success_reward, 0.0)
    v_next = np.where(t.last, terminal[t.attempt], np.roll(value, -1))
    delta = v_next - value
    if config.weight == "attempt":
        a_ep = normalise(reward, t.attempt_task, std=std, ddof=ddof)[t.attempt]
    else:
        a_ep = normalise(reward[t.attempt], t.task, std=std, ddof=ddof)
    a_nc = normalise(v_next - config.penalty * ~t.valid, t.group, weights=weight, std=std, ddof=ddof)
    a_ec = normalise(delta, t.task, weights=weight, std=std, ddof=ddof)
    if config.zero_if_constant:
        constant = (_by(np.minimum, reward, t.attempt_task) == _by(np.maximum, reward, t.attempt_task))[t.task]
        a_ep, a_nc, a_ec = (np.where(constant, 0.0, part) for part in (a_ep, a_nc, a_ec))
    total, graph = a_ep, [{"nc": a_nc, "ec": a_ec}[name] for name in RULES[config.rule]]
    if graph and config.w:
        total = a_ep + config.w * sum(graph[1:], graph[0])
    return {
        "group_id": t.group,
        "next_group_id": np.where(t.last, TERMINAL, np.roll(t.group, -1)),
        "group_size": np.rint(np.bincount(t.group, weight)).astype(np.int64)[t.group],
        "weight": weight,
        "reward": reward[t.attempt],
        "V": value,
        "V_next": v_next,
        "delta": delta,
        "A_ep": a_ep,
        "A_nc": a_nc,
        "A_ec": a_ec,
        "A": total,
    }


def state_values(t: Table, reward: np.ndarray, weight: np.ndarray, config: CreditConfig) -> tuple[np.ndarray, np.ndarray]:
    """Value of the state before each step (N,) and of each attempt's terminal (A,), section 3.3 and the options of 3.7.

    ``reward`` (A,); ``weight`` (N,): how much each row counts as a visit.
    General terminal rule: V(terminal of i) = R_i (difference 4).
    """
    kind = "single" if config.rule == "gigpo" else config.value
    returns = terminal_returns(reward[t.attempt], t.left, config.gamma)
    if kind == "single" or not len(returns):
        return returns, reward
    if kind == "distance":
        return _distance_values(t, reward, config.success_reward)
    if kind == "max_decay":
        ends = np.where(t.last & (reward[t.attempt] > 0), config.gamma * reward[t.attempt], -np.inf)
        best = _best_reachable(t, ends, lambda v: config.gamma * v)
        return np.where(np.isfinite(best), best, 0.0)[t.group], reward
    visits = np.bincount(t.group, weight)
    if kind == "bellman":
        return _bellman_values(t, reward, weight, visits, config.gamma)[t.group], reward
    sums = np.bincount(t.group, weight * returns)
    mean = (sums / visits)[t.group]
    if kind == "mean":
        return mean, reward
    pair = np.unique(t.group * (int(t.attempt.max()) + 1) + t.attempt, return_inverse=True)[1]
    others = visits[t.group] - np.bincount(pair, weight)[pair]
    alone = others < 1e-9  # nobody else was here: the mean is all there is
    rest = sums[t.group] - np.bincount(pair, weight * returns)[pair]
    return np.where(alone, mean, rest / np.where(alone, 1.0, others)), reward


def _bootstrap(t: Table, weight: np.ndarray, config: CreditConfig) -> tuple[np.ndarray, np.ndarray]:
    """Rewards (A,) and visit weights (N,) under the truncation policy.

    Bootstrapping gives a truncated attempt the mean value of its last state over completed attempts (its recorded reward where
    none came by) and lets it vote on the value of a state only where no completed attempt does.
    """
    if config.truncation != "bootstrap" or not t.truncated.any():
        return t.reward, weight
    complete = np.where(t.truncated[t.attempt], 0.0, weight)
    votes = np.bincount(t.group, complete)
    returns = terminal_returns(t.reward[t.attempt], t.left, config.gamma)
    mean = np.bincount(t.group, complete * returns) / np.where(votes > 0, votes, 1.0)
    last_group = t.group[t.last]
    known = t.truncated & (votes[last_group] > 0)
    return np.where(known, mean[last_group], t.reward), np.where((votes > 0)[t.group], complete, weight)


def _bellman_values(t: Table, reward: np.ndarray, weight: np.ndarray, visits: np.ndarray, gamma: float) -> np.ndarray:
    """Solve V = gamma (P V + r) on the empirical graph, (G,). Every state reaches a terminal, so the system is regular."""
    from scipy.sparse import coo_matrix, identity
    from scipy.sparse.linalg import spsolve

    count, inner = len(visits), np.flatnonzero(~t.last)
    share = weight / visits[t.group]
    moves = coo_matrix((share[inner], (t.group[inner], t.group[inner + 1])), shape=(count, count))
    ends = np.bincount(t.group, np.where(t.last, share * reward[t.attempt], 0.0), count)
    return np.atleast_1d(spsolve((identity(count) - gamma * moves).tocsc(), gamma * ends))


def _distance_values(t: Table, reward: np.ndarray, success_reward: float) -> tuple[np.ndarray, np.ndarray]:
    """Minus the steps to the nearest success (GraphGPO); one more than the farthest of the task where no success is reachable."""
    success = reward >= success_reward
    best = _best_reachable(t, np.where(t.last & success[t.attempt], -1.0, -np.inf), lambda v: v - 1.0)
    value = best[t.group]
    lost = _by(np.minimum, np.where(np.isfinite(value), value, 0.0), t.task) - 1.0
    return np.where(np.isfinite(value), value, lost[t.task]), np.where(success, 0.0, lost[t.attempt_task])


def _best_reachable(t: Table, ends: np.ndarray, back: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Largest value each group reaches, (G,), -inf where none:
    ``ends`` (N,) from its own last steps, ``back`` once per step walked."""
    best = _by(np.maximum, ends, t.group)
    inner = np.flatnonzero(~t.last)
    source, target = np.unique(np.stack([t.group[inner], t.group[inner + 1]]), axis=1)
    by_target = np.argsort(target, kind="stable")
    source, target = source[by_target], target[by_target]
    frontier = np.flatnonzero(np.isfinite(best))
    while len(frontier):
        start, stop = np.searchsorted(target, frontier), np.searchsorted(target, frontier, side="right")
        size = stop - start
        edges = np.repeat(start - np.append(0, np.cumsum(size)[:-1]), size) + np.arange(size.sum())
        reached = back(best[target[edges]])
        better = reached > best[source[edges]]
        np.maximum.at(best, source[edges][better], reached[better])
        frontier = np.unique(source[edges][better])
    return best


def _by(reduce: np.ufunc, values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Minimum or maximum of each group, (G,)."""
    out = np.full(int(groups.max(initial=-1)) + 1, np.inf if reduce is np.minimum else -np.inf)
    reduce.at(out, groups, values)
    return out
