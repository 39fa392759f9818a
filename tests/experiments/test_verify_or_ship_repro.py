"""What the reproduction of verify-or-ship is made of: programs that are parsed and run, bugs that are put in, closed cases."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from ramify.methods.verify_or_ship.algorithm import Plan
from ramify_experiments.verify_or_ship import mutants, programs, rewriter
from ramify_experiments.verify_or_ship.repro import CLOSED, closed, closed_case, sweep


def test_programs_are_parsed_and_run() -> None:
    x, y = np.array([5, -3, 0]), np.array([2, 4, 0])
    program = programs.parse("(if x y (% x y) (max 7 (* x y)))")
    assert program is not None
    assert programs.run(program, x, y).tolist() == [1, 7, 7]
    assert programs.text_of(program) == "(if x y (% x y) (max 7 (* x y)))"
    assert [programs.parse(text) for text in ("(+ x", "(+ x y z)", "(^ x y)", "x y", "")] == [None] * 5


def test_critics_of_programs_are_executed() -> None:
    """A right candidate passes everything; the verifier is stricter than the public test."""
    every = [one for attempt in programs.trajectories(0, range(150), "weak") for one in attempt.candidates]
    right, wrong = ([one for one in every if one.right is truth] for truth in (True, False))
    assert all(all(one.checks.values()) for one in right)
    assert 0 < sum(bool(one.checks["tests"]) for one in wrong) < len(wrong)
    assert 0 < sum(bool(one.checks["syntax"]) for one in wrong) < len(wrong)


@pytest.mark.slow
def test_the_learned_rewriter_reads_a_specification_and_writes_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly trained, it writes no programs yet; attempts are whole all the same, and another call gives the same ones."""
    monkeypatch.setenv("RAMIFY_MADE", str(tmp_path))
    recipe = rewriter.RewriterRecipe(steps=2, rows=4)
    made = rewriter.trajectories(0, range(6), "weak", recipe)
    assert [len(one.candidates) for one in made.attempts] == [3] * 6
    assert all(len(own) == 2 and max(own) <= 0 for own in made.logprobs)
    assert rewriter.trajectories(0, range(2, 4), "weak", recipe).attempts == made.attempts[2:4]


def test_symbols_of_a_program_are_a_program_again() -> None:
    text = "(if x y (% x y) (max 7 (* x y)))"
    assert rewriter.program_of(rewriter.symbols(text)) == text
    assert programs.parse(rewriter.program_of(["+", "x"])) is None
    assert programs.parse(rewriter.program_of(["x", "y"])) is None
    one = rewriter.Assignment(programs.parse(text) or (), ("if", "_", "y"))
    prompt = one.prompt(text[:-1]).split()
    assert len(prompt) == 2 * rewriter.LENGTH + 1
    assert (prompt[:4], prompt[-1]) == (["if", "_", "y", "."], rewriter.BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["networkx.algorithms.bridges", "mpmath.matrices.linalg"])
def test_bugs_are_put_into_real_modules(module: str) -> None:
    pytest.importorskip(module.partition(".")[0])
    source = mutants.source_of(module)
    for instance in range(12):
        texts = mutants.drafts(module, 0, instance, 3)
        assert texts == mutants.drafts(module, 0, instance, 3)
        for text in texts:
            changed = sum(a != b for a, b in zip(text.splitlines(), source.splitlines(), strict=False))
            assert changed <= 6
    parsed = [mutants._parses(text) for i in range(40) for text in mutants.drafts(module, 0, i, 1)]
    assert 0.8 < np.mean(parsed) <= 1
    assert ast.parse(source)


def test_closed_cases_are_those_of_two_implementations() -> None:
    for name, (_, _, _, value) in CLOSED.items():
        assert Plan(*closed_case(name)).value == pytest.approx(value, abs=1e-6)
    found = closed(seed=0, instances=300)
    for name, one in found.items():
        for policy in ("fitted", "greedy", "grid", "fixed"):
            assert one[policy] <= one["optimum"] + 1e-9, (name, policy)


@pytest.mark.slow
def test_a_small_sweep_has_every_policy_at_every_price() -> None:
    found = sweep(seed=0, test="strong", calibration=80, evaluation=60)
    assert set(found["prices"]) == {"2", "5", "15", "30", "40", "50", "60", "70"}
    assert {"stop at once", "always verify", "gate(tests)", "bayes greedy", "bayes"} <= set(found["prices"]["30"]["means"])
