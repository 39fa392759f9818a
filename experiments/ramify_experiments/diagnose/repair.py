"""Repair agents that enumerate edits, told a finding or not (section 7):
how many test runs each needs, and whether the budget suffices.

A weak agent orders functions by the words they share with the issue, a strong one by Ochiai's coverage. Each test run tries one
edit. A finding that is told is trusted first: its function with the causes its solution idea names, then with all others, then
the rest of its file, up to a share ``rho`` of the budget; then the agent's own order.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ramify.methods.diagnose.case import Diagnosis
from ramify.methods.diagnose.code import words
from ramify_experiments.diagnose.corpus import Instance
from ramify_experiments.diagnose.machine import Machine
from ramify_experiments.diagnose.mutate import OPERATORS, repairs


@dataclass
class RepairBench:
    """One instance, with what every edit comes to. Edits of functions that a failing test does not call cannot pass it and are
    not run."""

    one: Instance
    _edits: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)

    def edits(self, name: str) -> list[tuple[str, bool]]:
        """(operator, whether all tests pass with it) of every edit of a function, in the order of operators."""
        if name not in self._edits:
            tree = self.one.trees[name]
            useful = all(name in self.one.coverage[at] for at in self.one.failing)
            self._edits[name] = list(self._tried(name, tree)) if useful else [(operator, False) for operator in repairs(tree)]
        return self._edits[name]

    def _tried(self, name: str, tree: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
        machine = self._machine
        order = [
            *self.one.failing,
            *(at for at, seen in enumerate(self.one.coverage) if name in seen and at not in self.one.failing),
        ]
        tests = [self.one.repo.tests[at] for at in order]
        kept = machine.functions[name]
        for operator in repairs(tree):
            machine.functions[name] = machine.compile(tree)
            yield operator, all(machine.outcome(entry, arguments) == wanted for entry, arguments, wanted in tests)
        machine.functions[name] = kept

    @property
    def _machine(self) -> Machine:
        if not hasattr(self, "_made"):
            self._made = Machine(self.one.trees)
        return self._made

    def weak(self) -> list[str]:
        """Functions by the words that they share with the issue, the rarer the more; of equals in the order of files."""
        mentioned = set(words(self.one.issue))
        own = {name: set(words(function.text)) & mentioned for name, function in self.one.repo.functions.items()}
        often = {word: sum(word in have for have in own.values()) for word in mentioned}
        weight = {name: sum(math.log(len(own) / often[word]) for word in sorted(have)) for name, have in own.items()}
        return sorted(own, key=lambda name: (-weight[name], self.one.repo.functions[name].path, name))

    def strong(self) -> list[str]:
        """Functions by Ochiai's coefficient of their calls in failing and passing tests."""
        failing = set(self.one.failing)
        score = {}
        for name in self.one.repo.functions:
            called = [at for at, seen in enumerate(self.one.coverage) if name in seen]
            bad = sum(at in failing for at in called)
            score[name] = bad / math.sqrt(len(failing) * len(called)) if called else 0.0
        return sorted(score, key=lambda name: (-score[name], self.one.repo.functions[name].path, name))

    def suggested(self, finding: Diagnosis | None) -> list[tuple[str, Sequence[str]]]:
        """What a finding makes an agent try first: (function, operators)."""
        if finding is None or finding.file not in self.one.snapshot:
            return []
        inside = [n for n in self._spans(finding.file) if n[1] <= finding.end and finding.start <= n[2]]
        named = [operator for operator in OPERATORS if operator in finding.solution_idea]
        rest = [operator for operator in OPERATORS if operator not in named]
        first = [(name, group) for name, _, _ in inside for group in (named, rest)]
        return [*first, *((name, OPERATORS) for name, _, _ in self._spans(finding.file) if name not in [n for n, _, _ in inside])]

    def _spans(self, path: str) -> list[tuple[str, int, int]]:
        tree = ast.parse("\n".join(self.one.snapshot.lines(path)))
        return [(n.name, n.lineno, n.end_lineno or n.lineno) for n in tree.body if isinstance(n, ast.FunctionDef)]

    def run(self, own: Sequence[str], finding: Diagnosis | None, budget: int, rho: float = 0.5) -> tuple[bool, int]:
        """Whether an agent with its ``own`` order solves it within ``budget`` test runs,
        and how many it made before it touched the true function."""
        spent, tried, first = 0, set[tuple[str, str]](), budget
        for limit, plan in ((int(rho * budget), self.suggested(finding)), (budget, [(name, OPERATORS) for name in own])):
            for name, operators in plan:
                for operator in operators:
                    if (name, operator) in tried:
                        continue
                    if spent >= limit:
                        break
                    if name == self.one.function:
                        first = min(first, spent)
                    results = [passes for op, passes in self.edits(name) if op == operator]
                    if len(results) <= limit - spent:
                        tried.add((name, operator))
                    for passes in results[: limit - spent]:
                        spent += 1
                        if passes:
                            return True, first
        return False, first
