"""The conformance battery every credit rule must pass: what a run and the trainer rely on, each point one check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ramify.base.errors import UserError
from ramify.base.problem import Problem
from ramify.model.chat import TagTemplate, assistant_node_parts
from ramify.model.scripted import CharTokenizer, scripted_completion
from ramify.score.credit.protocol import CreditGroup, CreditRule, assigned, on_sampled
from ramify.score.steps import OPTIONAL
from ramify.testing.probe import run_checks
from ramify.trace.node import Node, make_node

ENDS = {
    "mixed": (1.0, 0.0, 1.0, 0.0),
    "shared": (0.0, 1.0),
    "lost": (0.0, 0.0, 0.0),
    "alone": (1.0,),
    "graded": (0.25, 0.5, 1e6, -3.0),
}
"""Task -> the reward of each attempt at it. Those at ``shared`` have their first step in common."""


def check_credit(rule: CreditRule) -> list[Problem]:
    """Run every check on made-up groups of attempts; no problem means the rule conforms."""
    return run_checks(CHECKS, _Probe(rule))


def example_group(tasks: Sequence[str] = tuple(ENDS), tokens: bool = True) -> CreditGroup:
    """Attempts at ``tasks`` (see :data:`ENDS`) of one to three steps, some cut off by a limit; with token ids or text only."""
    columns: dict[str, list[object]] = {name: [] for name in ("task_id", "attempt_id", "step", "reward", *OPTIONAL)}
    rewards, nodes = list[float](), {}
    for task in tasks:
        for index, reward in enumerate(ENDS[task]):
            rewards.append(reward)
            length, parent = 1 + index % 3 if task != "shared" else 2, ""
            for step in range(length):
                sample = index if task != "shared" or step else 0
                node = _step(task, parent, f"go {step % 2}", sample, tokens)
                nodes[node.id], parent, ends = node, node.id, step == length - 1
                row = {"task_id": task, "attempt_id": f"{task}/{index}", "step": step, "reward": reward if ends else 0.0}
                row |= {"anchor": {"key": f"{task} {step}"}, "action": node.text, "done": ends, "node": node.id, "valid": True}
                row |= {"truncated": ends and index == 3}
                for name, column in columns.items():
                    column.append(row[name])
    return CreditGroup(columns, np.array(rewards, float), np.array(rewards) > 0, nodes)


def _step(task: str, parent: str, text: str, index: int, tokens: bool) -> Node:
    parts = assistant_node_parts(TagTemplate(CharTokenizer()), scripted_completion(text)) if tokens else {"text": text}
    return make_node(task, parent or None, 0, "assistant", parts.pop("text"), index=index, **parts)


@dataclass(frozen=True)
class _Probe:
    rule: CreditRule

    @cached_property
    def group(self) -> CreditGroup:
        return example_group()

    def values(self, group: CreditGroup | None = None) -> dict[str, np.ndarray]:
        return assigned(self.rule, group or self.group)


def _protocol(probe: _Probe) -> Iterator[str]:
    if not isinstance(probe.rule, CreditRule):
        yield "its class is not derived from ramify.score.credit.protocol.CreditRule"
        return
    maker = getattr(probe.rule, "maker", None)
    if not isinstance(maker, str) or not maker.strip():
        yield "'maker' is not a name: its credit is stored under it"
    if not isinstance(probe.rule.loss, str) or not probe.rule.loss:
        yield "'loss' is not the name of a registered loss"
    if not all(isinstance(name, str) and isinstance(text, str) and text for name, text in probe.rule.numbers.items()):
        yield "'numbers' does not say of each name in a text what it means"


def _per_token(probe: _Probe) -> Iterator[str]:
    for group in (probe.group, example_group(tokens=False)):
        try:
            probe.values(group)
        except UserError as error:
            yield str(error)


def _sampled_tokens_only(probe: _Probe) -> Iterator[str]:
    for name, values in probe.values().items():
        if values[on_sampled(probe.group.nodes[name], 1.0) == 0].any():
            yield "it credits tokens that the agent did not sample (CreditGroup.spread leaves them out)"


def _credits_something(probe: _Probe) -> Iterator[str]:
    if not any(values.any() for values in probe.values(example_group(["mixed"])).values()):
        yield "where two of four attempts at a task succeed, every credit is 0"


def _small_groups(probe: _Probe) -> Iterator[str]:
    for task, what in (("alone", "one attempt"), ("lost", "attempts that all fail"), ("graded", "rewards of any size")):
        try:
            probe.values(example_group([task]))
        except Exception as error:  # whatever it is, a group like this comes up in training
            yield f"a group of {what} raises {type(error).__name__}: {error}"


def _repeats(probe: _Probe) -> Iterator[str]:
    first = probe.values()
    probe.values(example_group(["shared", "graded"]))
    again = probe.values()
    if first.keys() != again.keys() or not all(np.array_equal(first[name], again[name]) for name in first):
        yield "two looks at one group give different credit"


def _order_of_attempts(probe: _Probe) -> Iterator[str]:
    first, turned = probe.values(), probe.values(example_group([*reversed(ENDS)]))
    for name in first.keys() | turned.keys():
        if not np.allclose(first.get(name, 0.0), turned.get(name, 0.0), rtol=1e-4, atol=1e-5):
            yield "the credit depends on the order in which the tasks come"
            return


def _leaves_the_group(probe: _Probe) -> Iterator[str]:
    group = example_group()
    arrays = ("reward", "task", "attempt", "truncated", "success")
    columns, kept = json.dumps(group.columns), {name: getattr(group, name).copy() for name in arrays}
    probe.values(group)
    if json.dumps(group.columns) != columns or not all(np.array_equal(getattr(group, name), kept[name]) for name in arrays):
        yield "it changes the group it is given"


def _explains(probe: _Probe) -> Iterator[str]:
    for name in probe.values():
        explained = probe.rule.explain(name)
        try:
            json.dumps(dict(explained), allow_nan=False)
        except (TypeError, ValueError) as error:
            yield f"what it explains is not JSON: {error}"
            return
        for number in explained:
            if number not in probe.rule.numbers:
                yield f"it explains with '{number}', and 'numbers' does not say what that means"


CHECKS: tuple[Callable[[_Probe], Iterator[str]], ...] = (
    _protocol, _per_token, _sampled_tokens_only, _credits_something, _small_groups, _repeats, _order_of_attempts,
    _leaves_the_group, _explains,
)  # fmt: skip
