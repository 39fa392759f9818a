"""What the reproduction of orchestrator is made of: simulated workers whose truth is known,
plans as symbols, real models' problems."""

from __future__ import annotations

import numpy as np
import pytest

from ramify.base.seeds import generator
from ramify_experiments.orchestrator.composing import (
    ALL,
    END,
    FIRST,
    JUDGE,
    NONE,
    SOLVE,
    AnchoringWorkers,
    all_visible,
    read,
    warm_plans,
)
from ramify_experiments.orchestrator.routing import DOMAINS, WORKERS, TwoPhases, fit
from ramify_experiments.orchestrator.tiny import DOMAINS as TINY
from ramify_experiments.orchestrator.tiny import TOKENIZER, problem


@pytest.mark.slow
def test_hand_written_plans_are_worth_what_the_specification_says() -> None:
    workers = AnchoringWorkers(0)
    assert (workers.single, workers.routed) == (pytest.approx(0.55), pytest.approx(0.72))
    for solvers, isolated, visible in ((2, 0.873, 0.761), (3, 0.925, 0.799), (4, 0.940, 0.811)):
        assert workers.share(workers.by_hand(solvers), 3000, 0) == pytest.approx(isolated, abs=0.02)
        assert workers.share(workers.by_hand(solvers, visible=True), 3000, 0) == pytest.approx(visible, abs=0.02)
    plan = workers.by_hand(3)[0][1]
    assert all_visible(plan).access == ((), (0,), (0, 1), (0, 1, 2))


def test_symbols_are_read_as_plans_or_refused() -> None:
    plan = read([FIRST + 2, SOLVE, NONE, FIRST, JUDGE, ALL, END, END])
    assert plan is not None
    assert (plan.subtasks, plan.workers, plan.access) == (("solve", "judge"), (2, 0), ((), (0,)))
    step = [FIRST, SOLVE, NONE]
    assert [read(one) for one in ([END], step, [*step, FIRST, END], [SOLVE, SOLVE, NONE, END], [*step * 6, END])] == [None] * 5
    shaped = [read(row.tolist()) for row in warm_plans(200, True, generator(0, "warm"))]
    assert all(one is not None and (len(one) == 1 or one.subtasks[-1] == "judge") for one in shaped)


def test_episodes_are_the_same_for_everyone_who_plays_them() -> None:
    bench = TwoPhases(0)
    seen: list[np.ndarray] = []

    def same(worker: int) -> np.ndarray:
        def act(x: np.ndarray, domain: np.ndarray, phase: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            seen.append(domain)
            return np.full(len(x), worker)

        return bench.play(act, 3000, 1, "here")[0]

    best, oracle = (
        same(WORKERS - 1).mean(),
        bench.play(lambda x, d, p, r: bench.skill[d, p].argmax(axis=1), 3000, 1, "here")[0].mean(),
    )
    assert all((one == seen[0]).all() for one in seen)
    assert 0.6 < best < 0.75
    assert oracle > 0.94
    x = bench.features(np.arange(DOMAINS), np.zeros(DOMAINS, int), 0, generator(0, "x"))
    assert np.linalg.norm(x, axis=1) == pytest.approx(np.ones(DOMAINS))
    assert fit(bench, 0, tasks=200, steps=100).shape == (WORKERS * 64,)


def test_problems_have_the_answers_that_they_should() -> None:
    rng = generator(0, "problems")
    for domain in TINY:
        for _ in range(20):
            prompt, answer = problem(domain, rng)
            assert TOKENIZER.decode(TOKENIZER.encode(answer)).split() == answer.split()
            body = prompt.split()[1:-1]
            if domain == "reversal":
                assert answer.split() == body[::-1]
            elif domain == "sorting":
                assert answer.split() == sorted(body)
            elif domain == "brackets":
                assert [")]}"["([{".index(one)] for one in body[::-1]] == answer.split()
            else:
                a, b = (int(one) for one in (prompt.split()[0], prompt.split()[2]))
                assert answer == str((a + b) % 7)
