"""The state graph of a set of attempts: credit, diagnostics, and the numbers that explain any one step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.config import check
from ramify.base.errors import UserError, nearest
from ramify.base.extras import told
from ramify.methods.graph_credit.algorithm import RULES, CreditConfig, credit_graph
from ramify.methods.graph_credit.decisive import LEVEL, Comparison, compare
from ramify.methods.graph_credit.report import DROPPED, CreditReport, StateVisit, StepCredit, StepNumbers, diagnose, doubts
from ramify.score.group import moments
from ramify.score.steps import OPTIONAL, Columns, canonicalise, run_columns, to_columns
from ramify.trace.graph import MergedGraph, factorize
from ramify.trace.keys import Canonicaliser

if TYPE_CHECKING:
    from ramify.trace.db import Run

MAKER = "graph-credit"
CREDIT = ("V", "V_next", "delta", "A_ep", "A_nc", "A_ec", "A")


class StateGraph:
    """Attempts merged by state. ``columns`` hold one entry per step; ``graph`` is the merged view, in the same order."""

    def __init__(self, columns: Columns, texts: bool = False) -> None:
        """``texts``: anchors are texts of observations, which may hold more than the state."""
        self.columns, self.texts = columns, texts
        c = columns
        ends = [f"end, reward {r:g}{', truncated' * bool(cut)}" for r, cut in zip(c["reward"], c["truncated"], strict=True)]
        self.graph = MergedGraph.of(c["task_id"], c["attempt_id"], c["step"], c["anchor"], c["action"], ends)
        self.config = CreditConfig()
        self._credit: dict[str, np.ndarray] | None = None
        self._comparison: Comparison | None = None

    @classmethod
    def from_steps(
        cls,
        steps: Iterable[Mapping[str, Any]],
        anchor: str | Callable[[Mapping[str, Any]], Any] = "anchor",
        keys: Canonicaliser | None = None,
        task_key: str | None = None,
    ) -> StateGraph:
        """From step records (section 3.8). ``anchor`` is the field with what was observed, or a function of the record; ``keys``
        turns an attempt's observations into state keys (``trace.keys``: scrub, with_history; None takes them as are).

        Raises UserError naming the record and field that is wrong.
        """
        rows = list(steps)
        columns = to_columns(rows, task_key)
        if isinstance(anchor, str):
            name = anchor
            if not any(name in row for row in rows):
                known = nearest(name, {str(field) for row in rows for field in row})
                raise UserError(f"no step has the field '{name}' that should identify states ({known})")
            columns["anchor"] = [row.get(name) for row in rows]
        else:
            columns["anchor"] = [anchor(row) for row in rows]
        return cls(columns if keys is None else canonicalise(columns, keys))

    @classmethod
    def from_arrays(cls, **columns: Sequence[Any] | np.ndarray) -> StateGraph:
        """From equally long columns named as the fields of a step record; raises UserError on an unknown or missing one."""
        required = ("task_id", "attempt_id", "step", "anchor", "reward")
        if missing := [name for name in required if name not in columns]:
            raise UserError(f"the column '{missing[0]}' is missing")
        if unknown := [name for name in columns if name not in (*required, *OPTIONAL)]:
            raise UserError(f"steps have no column '{unknown[0]}' ({nearest(unknown[0], (*required, *OPTIONAL))})")
        lists = {name: column.tolist() if isinstance(column, np.ndarray) else list(column) for name, column in columns.items()}
        return cls({name: [default] * len(lists["step"]) for name, default in OPTIONAL.items()} | lists)

    @classmethod
    def from_run(
        cls, run: Run, group: str | None = None, keys: Canonicaliser | None = None, scorer: str | None = None
    ) -> StateGraph:
        """From the scored attempts of a run's trees (see ``score.steps.run_columns``). ``scorer``: whose scores are the rewards.

        Raises UserError where nobody scored an attempt, there is no such scorer, or several could decide and none is named.
        """
        return cls.of_attempts(run_columns(run, group, keys, scorer))

    @classmethod
    def of_attempts(cls, columns: Columns) -> StateGraph:
        """From the columns of a run's attempts: their states are the environment's,
        or the texts of observations where it has none."""
        return cls(columns, texts=any(not isinstance(anchor, Mapping) for anchor in columns["anchor"]))

    def advantages(self, config: CreditConfig | None = None, **options: Any) -> dict[str, np.ndarray]:
        """Credit every step: columns as of ``algorithm.credit``; ``options`` are fields of ``CreditConfig``.

        Warns (UserWarning) where the credit says less than it seems to: no repetition, lone attempts, constant rewards.
        """
        credit = self.assign(config or check(CreditConfig, options))
        for doubt in self.doubts():
            warnings.warn(doubt, stacklevel=2)
        return credit

    def assign(self, config: CreditConfig) -> dict[str, np.ndarray]:
        """:meth:`advantages` without its warnings, which :meth:`doubts` gives."""
        self.config, c = config, self.columns
        self._credit = credit_graph(
            self.graph, c["reward"], config=self.config, truncated=c["truncated"], valid=c["valid"], nodes=self._nodes or None
        )
        self._comparison = None
        return self._credit

    def doubts(self) -> list[str]:
        """Why the credit says less than it seems to, a sentence each: no repetition, lone attempts, constant rewards."""
        return list(doubts(self.graph, self.credit, self.texts))

    @property
    def credit(self) -> dict[str, np.ndarray]:
        """The columns of the last :meth:`advantages`, or of a first one with defaults."""
        return self.advantages() if self._credit is None else self._credit

    @property
    def _nodes(self) -> Sequence[Any]:
        """The column of nodes, empty where there are none."""
        nodes: Sequence[Any] = self.columns["node"]
        return nodes if any(node is not None for node in nodes) else ()

    @property
    def comparison(self) -> Comparison:
        """Each move out of a state against what else was done there: which of the credit is more than chance."""
        credit = self.credit
        if self._comparison is None:
            cut = np.asarray(self.columns["truncated"], dtype=bool)
            ended = np.bincount(self.graph.visit_attempt, cut, len(self.graph.attempts)) > 0
            guessed = ended if self.config.truncation == "bootstrap" else np.zeros_like(ended)  # their reward is that of others
            votes = ~guessed[self.graph.visit_attempt]
            self._comparison = compare(self.graph, credit["reward"], credit["weight"], votes, self._nodes or None)
        return self._comparison

    def report(self, level: float = LEVEL) -> CreditReport:
        """Diagnostics, and which moves stand out of chance at ``level``; every number is explained on the method's page."""
        return diagnose(self.graph, self.credit, self.comparison, level, nodes=self._nodes, texts=self.texts)

    def rows(self, positive: bool = False) -> list[dict[str, Any]]:
        """Step records with credit added, NaN as None; ``positive``: only steps that made progress (delta > 0), for SFT."""
        credit = self.credit
        extra = {name: credit[name].tolist() for name in ("group_id", "next_group_id", "group_size", *CREDIT)}
        every = range(len(self.columns["step"]))
        kept = [i for i in every if credit["delta"][i] > 0] if positive else every
        return [
            {name: column[i] for name, column in self.columns.items()}
            | {name: _plain(column[i]) for name, column in extra.items()}
            for i in kept
        ]

    def to_json(self, task: Any = None) -> dict[str, Any]:
        """Node-link JSON of one task or all, with the mean value of each state (None for ends and states without a vote)."""
        return self.graph.to_json(task, {"value": self.state_values()})

    def to_networkx(self) -> Any:
        """The merged graph as a networkx MultiDiGraph. For export: the maths is not done on it. Raises NeedsError without it."""
        with told():
            import networkx

        return networkx.node_link_graph(self.to_json(), edges="edges")

    def state_values(self) -> list[float | None]:
        """Mean value of each group of ``graph``."""
        weight, value = self.credit["weight"], np.nan_to_num(self.credit["V"])
        votes = np.bincount(self.graph.visit_group, weight, len(self.graph.keys))
        total = np.bincount(self.graph.visit_group, weight * value, len(self.graph.keys))
        return [float(t / n) if n > 0 else None for t, n in zip(total, votes, strict=True)]

    def why(self, task: Any, attempt: Any, step: int, level: float = LEVEL) -> StepCredit:
        """The numbers that explain one step's credit, and whether it is ``decisive`` at ``level``.
        Raises UserError when there is no such step."""
        row = self._row(task, attempt, step)
        credit, c, config = self.credit, self.columns, self.config
        numbers: dict[str, Any] = {name: _plain(credit[name][row].item()) for name in (*CREDIT, "reward", "group_size")}
        step_credit = StepCredit(
            **numbers,
            task=c["task_id"][row],
            attempt=c["attempt_id"][row],
            step=c["step"][row],
            action=c["action"][row],
            key=c["anchor"][row],
            rule=config.rule,
            terms=("A_ep", *(f"A_{term}" for term in RULES[config.rule])),
            w=config.w,
            group=int(credit["group_id"][row]),
            next_group=int(credit["next_group_id"][row]),
        )
        if credit["weight"][row] == 0:
            return replace(step_credit, note=DROPPED)
        mine = (credit["task_id"] == credit["task_id"][row]) & (credit["weight"] > 0)
        same = mine & (credit["group_id"] == credit["group_id"][row])
        first = np.unique(credit["attempt_id"], return_index=True)[1]
        voters = mine if config.weight == "step" else mine & np.isin(np.arange(len(mine)), first)
        v_next = credit["V_next"] - config.penalty * ~np.asarray(c["valid"], dtype=bool)
        norms: dict[str, Any] = {}
        for name, values, rows in (
            ("reward", credit["reward"], voters),
            ("next", v_next, same),
            ("delta", credit["delta"], mine),
        ):
            weights = None if name == "reward" else credit["weight"][rows]
            mean, deviation, _ = moments(values[rows], weights=weights, ddof=config.ddof)
            norms |= {f"{name}_mean": float(mean[0]), f"{name}_std": float(deviation[0])}
        step_credit = replace(
            step_credit,
            **norms,
            **vars(self.comparison.of_step(int(self.graph.visit_edge[row]), level)),
            visits=tuple(
                StateVisit(c["attempt_id"][i], c["step"][i], c["action"][i], float(v_next[i]))
                for i in np.flatnonzero(same).tolist()
            ),
        )
        constant = config.zero_if_constant and step_credit.reward_std == 0
        return replace(step_credit, note="every attempt at this task has the same reward: no credit" * constant)

    def why_node(self, node: str, level: float = LEVEL) -> StepCredit:
        """The numbers that explain the credit of a step of a run,
        the mean over the attempts that share it. Raises UserError where it has none."""
        if node not in self.columns["node"]:
            raise UserError(f"node {node} carries no credit: it is not a step of a scored attempt")
        row = self.columns["node"].index(node)
        task, attempt, step = (self.columns[name][row] for name in ("task_id", "attempt_id", "step"))
        return replace(self.why(task, attempt, step, level), node=node, **vars(self.node_credit(level)[node]))

    def node_credit(self, level: float = LEVEL) -> dict[str, StepNumbers]:
        """:func:`node_credit` of a run's attempts, each step with its test at ``level``."""
        edges = dict(zip(self.columns["node"], self.graph.visit_edge.tolist(), strict=True))
        numbers = node_credit(self.columns, self.credit)
        return {node: replace(value, **vars(self.comparison.of_step(edges[node], level))) for node, value in numbers.items()}

    def _row(self, task: Any, attempt: Any, step: int) -> int:
        places = zip(self.columns["task_id"], self.columns["attempt_id"], self.columns["step"], strict=True)
        rows = {"/".join(map(str, place)): row for row, place in enumerate(places)}
        name = f"{task}/{attempt}/{step}"
        if name not in rows:
            raise UserError(f"there is no step {name} (task/attempt/step; {nearest(name, rows)})")
        return rows[name]


def node_credit(columns: Columns, credit: Mapping[str, np.ndarray]) -> dict[str, StepNumbers]:
    """Credit of each physical step by node id, the mean over the attempts that share it: the value of its ``why`` annotation."""
    kept = [row for row, node in enumerate(columns["node"]) if node is not None]
    code, nodes = factorize([columns["node"][row] for row in kept])
    count, first = np.bincount(code), np.unique(code, return_index=True)[1]
    means = {name: (np.bincount(code, credit[name][kept]) / count).tolist() for name in (*CREDIT, "reward")}
    ids = {"group": "group_id", "next_group": "next_group_id", "group_size": "group_size"}
    numbers: dict[str, list[Any]] = {name: credit[column][kept][first].tolist() for name, column in ids.items()}
    numbers |= {name: [_plain(value) for value in mean] for name, mean in means.items()}
    attempts: list[list[Any]] = [[] for _ in nodes]
    for row, node in zip(kept, code.tolist(), strict=True):
        attempts[node].append(columns["attempt_id"][row])
    return {
        node: StepNumbers(
            **{name: column[i] for name, column in numbers.items()},
            task=columns["task_id"][kept[first[i]]],
            attempts=tuple(attempts[i]),
        )
        for i, node in enumerate(nodes)
    }


def _plain(value: float) -> float | None:
    return None if value != value else value
