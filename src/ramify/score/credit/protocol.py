"""The protocol of credit rules, the attempts they compare, and storing their credit in a run.

Axis legend: A attempts, N steps of all attempts (one after the other, in time order), P tasks, T tokens of one node.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.plugins import called, find_attribute, own_path
from ramify.base.registry import takes_text
from ramify.score.steps import Columns, run_attempts, scored_steps
from ramify.trace.graph import factorize
from ramify.trace.keys import Canonicaliser
from ramify.trace.node import Annotation, Node, TokenValues

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.tree import Tree

JOURNAL = "credit"
"""Kind of the journal entry that keeps what the numbers of a maker's credit mean."""


class CreditRule(ABC):
    """Assigns credit to each sampled token of a group of attempts, and explains it. Derive from it; ``maker`` and :meth:`assign`
    are needed.

    A rule's class is called without arguments, or with the text after ``NAME:`` where it takes one, and with those settings of
    the table ``credit`` of ``ramify improve`` that its parameters name (``gamma``, ``ddof``, ...).
    """

    maker: ClassVar[str]
    """The name under which the credit is stored in a run; a later call by the same maker replaces it."""
    numbers: ClassVar[Mapping[str, str]] = {}
    """What each number of :meth:`explain` means, in the order in which they are shown."""
    loss: ClassVar[str] = "policy_gradient"
    """The registered loss that trains on the credit: its per-token values ``advantage``, which are also given as ``weight``."""
    critic: ClassVar[bool] = False
    """Whether it reads :attr:`CreditGroup.values`, for which a critic is trained."""
    reference: ClassVar[bool] = False
    """Whether it reads :attr:`CreditGroup.log_ratios`, for which the steps are scored by the agent and by the one that training
    began with."""
    answers: ClassVar[bool] = False
    """Whether it reads :attr:`CreditGroup.answers`, for which the agent that training began with is asked before every step."""
    turn_bonus: float = 0.0
    """Expected credit of one more turn that changes nothing, by default settings, in the small case of ``docs/howto/credit.md``.
    Other than 0 it is a bias of the policy gradient (verl, issue 7244)."""
    doubts: Sequence[str] = ()
    """Caveats about the credit assigned last, a sentence each."""

    def turn_doubts(self, group: CreditGroup, remedy: str = "") -> tuple[str, ...]:
        """A caveat where the rule has a ``turn_bonus`` and attempts at one task differ in turns, else none."""
        if not (self.turn_bonus and group.uneven):
            return ()
        return (
            f"attempts at one task differ in turns: by '{self.maker}' a turn that changes nothing gets up to "
            f"{self.turn_bonus:+.2f} of credit{remedy}",
        )

    @abstractmethod
    def assign(self, group: CreditGroup) -> Mapping[str, np.ndarray]:
        """Per-token values: node id -> (T,), 0 on tokens that were not sampled. A node that is left out gets no credit.

        :meth:`CreditGroup.spread` makes them of one value a step, or of one an attempt.
        """

    def explain(self, node: str) -> Mapping[str, Any]:
        """The numbers that explain a node's credit in the group assigned last, as JSON by name.
        The credit itself is added as ``A``."""
        return {}


@dataclass(frozen=True, eq=False)
class CreditGroup:
    """Scored attempts, as columns; those at one task are what a rule compares."""

    columns: Columns
    """Lists of length N, see :mod:`ramify.score.steps`: task_id, attempt_id, step,
    anchor (the state before it), action, reward, node, ..."""
    reward: np.ndarray
    """float64 (A,): what each attempt got in all."""
    success: np.ndarray
    """bool (A,): as the environment said, else whether the reward is above 0."""
    nodes: Mapping[str, Node]
    """The node of each step by id: its tokens, which of them were sampled, their log-probs."""
    values: np.ndarray | None = None
    """float (N,): chance of success before each step, as a critic says; None where none was asked."""
    log_ratios: Mapping[str, np.ndarray] | None = None
    """Node -> float32 (T,): log-probability of each sampled token at temperature 1 under the agent, minus that under the agent
    that training began with; None where they were not scored."""
    answers: Mapping[str, float] | None = None
    """Node of a step -> log-probability of the task's answer instead of the step's reply, nats a token, under the agent that
    training began with; steps of tasks without an answer are left out; None where nobody asked."""
    _codes: dict[str, tuple[np.ndarray, list[Any]]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        run: Run,
        group: str | None = None,
        trees: Mapping[str, Tree] | None = None,
        keys: Canonicaliser | None = None,
        scorer: str | None = None,
    ) -> CreditGroup:
        """The scored attempts of a run, or of one group of its trees. ``trees`` are read where they are not given; ``keys`` makes
        the anchors from observations; ``scorer``: whose scores are the rewards.

        Raises UserError where nobody scored an attempt, there is no such scorer, or several could decide and none is named.
        """
        scored = scored_steps(run_attempts(run, group, scorer), group is None, keys)
        if trees is None:
            nodes = {name: run.node(name) for name in dict.fromkeys(scored.columns["node"])}
        else:
            nodes = {node.id: node for tree in trees.values() for node in tree.nodes.values()}
        return cls(scored.columns, scored.reward, scored.success, nodes)

    def _factors(self, name: str) -> tuple[np.ndarray, list[Any]]:
        if name not in self._codes:
            self._codes[name] = factorize(self.columns[name])
        return self._codes[name]

    def codes(self, name: str) -> np.ndarray:
        """int (N,): a number for each value of a column, equal where the values are."""
        return np.asarray(self._factors(name)[0])

    @property
    def attempt(self) -> np.ndarray:
        """int (N,): which attempt each step belongs to, 0..A-1."""
        return self._factors("attempt_id")[0]

    @cached_property
    def task(self) -> np.ndarray:
        """int (A,): the task of each attempt, 0..P-1."""
        codes: np.ndarray = self._factors("task_id")[0][np.unique(self.attempt, return_index=True)[1]]
        return codes

    @cached_property
    def truncated(self) -> np.ndarray:
        """bool (A,): a limit ended the attempt."""
        return np.bincount(self.attempt, np.asarray(self.columns["truncated"], dtype=np.float64)) > 0

    @cached_property
    def uneven(self) -> bool:
        """Whether attempts at one task differ in how many steps they took."""
        length, first = np.bincount(self.attempt), np.unique(self.task, return_index=True)[1]
        return bool((length != length[first][self.task]).any())

    def attempts_of(self, node: str) -> np.ndarray:
        """int (K,): the attempts that go through a node."""
        return np.asarray(self.attempt[self._rows[node]])

    def rows_of(self, node: str) -> np.ndarray:
        """int (K,): the rows of a node's step, one an attempt that goes through it."""
        return self._rows[node]

    @cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        codes, names = self._factors("node")
        order, ends = np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))
        return dict(zip(names, np.split(order, ends[:-1]), strict=True))

    def states(self) -> np.ndarray:
        """int64 (N,): the state before each step, equal where task and anchor are."""
        states: np.ndarray = self.codes("anchor").astype(np.int64) * (int(self.task.max(initial=0)) + 1) + self.task[self.attempt]
        return states

    def spread(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Per-token values of one value an attempt (A,) or a step (N,): on each sampled token of a step's node, 0 on the others.

        A node that several attempts share gets the mean of theirs.
        """
        per_step = values[self.attempt] if len(values) == len(self.success) else values
        codes, names = self._factors("node")
        means = np.bincount(codes, per_step) / np.bincount(codes)
        return {name: on_sampled(self.nodes[name], value) for name, value in zip(names, means.tolist(), strict=True)}


def on_sampled(node: Node, value: float) -> np.ndarray:
    """float32 (T,): ``value`` on each sampled token of a node, 0 on the others; a node without tokens counts as sampled."""
    return np.asarray(node.sampled_mask * np.float32(value))


def find_rule(spec: str, settings: Mapping[str, Any] | None = None) -> CreditRule:
    """The rule that ``NAME`` or ``NAME:ARGUMENT`` names, or ``FILE.py:ATTRIBUTE``, ``python:`` or ``factory:MODULE:ATTRIBUTE``.

    Of ``settings`` it gets those that its class or function names as parameters. Raises UserError where there is none of that
    name, or it cannot be made so.
    """
    path = own_path(spec)
    name, colon, argument = (spec, "", "") if path is not None else spec.partition(":")
    component = find_attribute(path[1]) if path is not None else registry.get("credit", name)
    if isinstance(component, CreditRule):
        return component
    if colon and not takes_text(component):
        raise UserError(f"the credit rule '{name}' takes no argument, and was given '{argument}'")
    rule = (
        called(spec, lambda: component(*([argument] if colon else []), **_settings_taken(component, settings or {})))
        if callable(component)
        else component
    )
    if not isinstance(rule, CreditRule):
        derive = "derive its class from ramify.score.credit.protocol.CreditRule"
        raise UserError(f"{spec} is a {type(rule).__name__}, which is not a credit rule: {derive}")
    return rule


def _settings_taken(make: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # code that is not Python's need not say
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(settings)
    taken = {
        parameter.name for parameter in parameters if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    return {name: value for name, value in settings.items() if name in taken}


def credit_group(run: Run, rule: CreditRule, group: CreditGroup) -> dict[str, np.ndarray]:
    """Credit a group of attempts of ``run`` and store it: node id -> credit along its tokens, (T,) float32.

    Each node gets TokenValues ``credit`` and an Annotation ``why`` with the numbers that explain it; they replace those of an
    earlier call by the same maker; what the numbers mean is noted once.
    Raises UserError where the rule returns invalid credit."""
    credited = assigned(rule, group)
    for name, values in credited.items():
        sampled = values[group.nodes[name].sampled_mask]
        mean = float(np.add.reduce(sampled) / len(sampled)) if len(sampled) else 0.0
        why = {"A": mean} | dict(rule.explain(name))
        run.add(Annotation(name, 0, "why", rule.maker, why), TokenValues(name, "credit", rule.maker, values))
    run.log(JOURNAL, rule.maker, {"numbers": [list(pair) for pair in rule.numbers.items()]})
    return credited


def assigned(rule: CreditRule, group: CreditGroup) -> dict[str, np.ndarray]:
    """The credit that ``rule`` assigns, validated: float32 (T,) by node id. Raises UserError naming the rule, the node and what
    is wrong."""
    credited = {}
    for name, values in rule.assign(group).items():
        if name not in group.nodes:
            raise UserError(f"credit rule '{rule.maker}': node {name!r} is in no attempt of the group")
        values = np.asarray(values, dtype=np.float32)
        if values.shape != (length := len(group.nodes[name]),):
            raise UserError(
                f"credit rule '{rule.maker}': node {name} has {length} tokens, and its credit has the shape {values.shape}"
            )
        credited[name] = values
    if credited and not np.isfinite(np.concatenate(list(credited.values()))).all():
        name = next(name for name, values in credited.items() if not np.isfinite(values).all())
        raise UserError(f"credit rule '{rule.maker}': the credit of node {name} is not a finite number")
    return credited


def meanings(run: Run) -> dict[str, dict[str, str]]:
    """Maker -> meaning of the numbers in its ``why`` annotations, as stored in the run."""
    numbers_of: dict[str, dict[str, str]] = {}
    for entry in run.journal(JOURNAL):
        pairs = entry.payload.get("numbers") if isinstance(entry.payload, Mapping) else None
        numbers_of[entry.key] = {str(pair[0]): str(pair[1]) for pair in pairs or () if isinstance(pair, list) and len(pair) == 2}
    return {
        maker: {"A": "credit of the step: the mean over its sampled tokens"} | numbers for maker, numbers in numbers_of.items()
    }
