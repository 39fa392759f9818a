"""Closed forms and invariants of routing, evolution, headroom, workflows and views."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.methods.orchestrator.algorithm import (
    CallEvent,
    SearchState,
    SepCma,
    Workflow,
    by_group,
    choose,
    composer_reward,
    cross_fitted,
    gain,
    group_advantages,
    informative,
    masked,
    parse_workflow,
    population,
    probabilities,
    read_workflow,
    recombination,
    soft_targets,
    view,
)


def test_soft_targets_have_their_closed_forms() -> None:
    assert soft_targets(np.array([1, 0.5, 0]), 0.5) == pytest.approx([0.6652, 0.2447, 0.0900], abs=5e-5)
    assert soft_targets(np.array([0.7, 0.7, 0.1]), 0).tolist() == [0.5, 0.5, 0.0]
    assert soft_targets(np.array([0.7, 0.2, 0.1]), 1e12) == pytest.approx([1 / 3] * 3)
    with pytest.raises(UserError, match="finite"):
        soft_targets(np.array([np.nan, 1.0]), 0.3)
    assert informative(np.array([[0.5, 0.5], [0.5, 0.6]])).tolist() == [False, True]


def test_the_gradient_of_the_kl_on_logits_is_pi_minus_p() -> None:
    torch = pytest.importorskip("torch")
    target = torch.tensor(soft_targets(np.array([1, 0.5, 0]), 0.5))
    logits = torch.tensor([0.3, -1.0, 0.2], dtype=torch.float64, requires_grad=True)
    pi = torch.softmax(logits, 0)
    (target * (target.log() - pi.log())).sum().backward()
    assert torch.allclose(logits.grad, (pi - target).detach())


def test_population_and_recombination() -> None:
    assert [population(10_000), population(320, up=False), population(19_456), population(19_456, up=False)] == [32, 21, 34, 33]
    assert recombination(8) == pytest.approx([0.328, 0.222, 0.160, 0.116, 0.081, 0.053, 0.030, 0.009], abs=6e-4)


def test_group_advantages() -> None:
    assert group_advantages([1, 0, 1, 0]) == pytest.approx([1, -1, 1, -1])
    assert group_advantages([0.5] * 4).tolist() == [0, 0, 0, 0]
    assert group_advantages([1, 0.5, 0, 0.5]) == pytest.approx([1.41421, 0, -1.41421, 0], abs=1e-5)
    assert [composer_reward(False, 1.0), composer_reward(True, 0.0), composer_reward(True, 1.0)] == [0.0, 0.5, 1.0]


def test_evolution_finds_an_optimum_and_continues_where_it_was() -> None:
    goal = np.linspace(-1, 1, 12)

    def fitness(found: np.ndarray) -> np.ndarray:
        return -((found - goal) ** 2 * np.arange(1, 13)).sum(axis=1)

    whole = SepCma(np.zeros(12), 0.3, seed=4)
    for at in range(160):
        if at == 37:
            whole = SepCma.of(codec.from_json(SearchState, json.loads(json.dumps(codec.to_json(whole.state)))))
        candidates = whole.ask()
        whole.tell(candidates, fitness(candidates))
    undisturbed = SepCma(np.zeros(12), 0.3, seed=4)
    for _ in range(160):
        candidates = undisturbed.ask()
        undisturbed.tell(candidates, fitness(candidates))
    assert whole.mean == pytest.approx(goal, abs=1e-2)
    assert (whole.mean == undisturbed.mean).all()
    with pytest.raises(UserError, match="finite"):
        whole.tell(whole.ask(), [np.nan] * whole.size)
    with pytest.raises(UserError, match="step size"):
        SepCma(np.zeros(3), 0.0)


def test_masks_are_applied_before_a_choice() -> None:
    logits = np.array([0.5, 2.0, 2.0, 1.0])
    assert choose(logits, [True] * 4) == 1  # ties: the lowest index
    assert choose(logits, [True, False, False, True]) == 3
    assert probabilities(logits, [False, True, True, False]) == pytest.approx([0, 0.5, 0.5, 0])
    with pytest.raises(UserError, match="none is left"):
        masked(logits, [False] * 4)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0.01, 100), st.randoms())
def test_scale_permutation_and_masked_workers(values: list[float], scale: float, random: object) -> None:
    logits = np.unique(np.round(values, 3))
    here = choose(logits, [True] * len(logits))
    assert choose(logits * scale, [True] * len(logits)) == here
    order = generator(len(values)).permutation(len(logits))
    assert order[choose(logits[order], [True] * len(logits))] == here
    assert choose(np.append(logits, 99.0), [*[True] * len(logits), False]) == here


# -- headroom


def test_the_winners_curse_and_its_cure() -> None:
    rewards = (generator(0, "equal").random((4000, 5, 6)) < 0.7).astype(float)
    assert rewards[:, :, :1].max(axis=1).mean() == pytest.approx(0.9976, abs=0.004)
    assert rewards[:, :, :5].mean(axis=2).max(axis=1).mean() == pytest.approx(0.9156, abs=0.006)
    oracle, single = cross_fitted(rewards)
    assert oracle.mean() == pytest.approx(0.70, abs=0.01)
    assert abs(gain(oracle, single).value) < 0.01
    with pytest.raises(UserError, match="2 repeats"):
        cross_fitted(rewards[:, :, :1])


def test_specialists_show_in_the_oracle_and_in_the_groups() -> None:
    groups = np.arange(120) % 3
    skill = np.where(groups[:, None] == np.arange(3), 0.9, 0.3)
    rewards = (generator(1, "special").random((120, 3, 8)) < skill[:, :, None]).astype(float)
    oracle, single = cross_fitted(rewards)
    found, grouped = gain(oracle, single), by_group(rewards, [str(one) for one in groups])
    assert found.interval is not None
    assert found.interval[0] > 0.15
    assert not found.tie
    assert grouped.mean() == pytest.approx(0.9, abs=0.05)
    assert gain(oracle, grouped).value < 0.03  # within a group there is nothing to gain


def test_isolation_beats_anchoring_by_the_stated_amounts() -> None:
    rng, n, p, kappa = generator(2, "copies"), 400_000, 0.7, 0.7
    first = rng.random(n) < p

    def later() -> np.ndarray:
        return np.where(rng.random(n) < kappa, first, rng.random(n) < p)

    isolated = np.stack([rng.random(n) < p for _ in range(3)])
    anchored = np.stack([first, later(), later()])
    assert (isolated.sum(axis=0) > 1).mean() == pytest.approx(0.784, abs=0.004)
    assert (anchored.sum(axis=0) > 1).mean() == pytest.approx(0.7076, abs=0.004)
    assert isolated.any(axis=0).mean() == pytest.approx(0.973, abs=0.002)
    assert anchored.any(axis=0).mean() == pytest.approx(0.8128, abs=0.004)


# -- workflows


def test_a_workflow_is_read_after_reasoning() -> None:
    record = {"subtasks": ["solve", "solve", "judge"], "workers": [0, 1, 0], "access": [[], [], "all"]}
    found = parse_workflow(f'First {{"subtasks": [] no. I choose:\n{json.dumps(record)} Done.', range(2))
    assert found == Workflow(("solve", "solve", "judge"), (0, 1, 0), ((), (), (0, 1)))
    assert found.waves() == [[0, 1], [2]]
    assert parse_workflow(found.written(), range(2)) == found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"workers": ["0", 1]}, "names worker '0'"), ({"workers": [True, 1]}, "names worker True"),
        ({"workers": [0, 2]}, "names worker 2"),
        ({"workers": [0]}, "lengths 2, 1 and 2"), ({"access": [[], [1]]}, "access of step 1"),
        ({"access": [[1], []]}, "access of step 0"),
        ({"access": [[], "none"]}, "access of step 1"), ({"access": [[], [False]]}, "access of step 1"),
        ({"access": [[], None]}, "access of step 1"),
        ({"subtasks": ["a", " "]}, "step 1 has no subtask"), ({"subtasks": ["a", 3]}, "step 1 has no subtask"),
        ({"access": None}, "is missing"),
        ({"subtasks": ["a"] * 6, "workers": [0] * 6, "access": [[]] * 6}, "6 steps"),
        ({"subtasks": [], "workers": [], "access": []}, "no step"),
    ],
)  # fmt: skip
def test_what_is_no_workflow_says_why(change: dict[str, object], why: str) -> None:
    record = {"subtasks": ["a", "b"], "workers": [0, 1], "access": [[], "all"]} | change
    with pytest.raises(ValueError, match=why):
        parse_workflow(json.dumps(record), [0, 1])


def test_empty_lists_accept_only_where_there_is_an_answer() -> None:
    empty = {"subtasks": [], "workers": [], "access": []}
    assert read_workflow(empty, [0], again=True) == Workflow()
    for text in ("", "no", "{" * 2000, '{"subtasks": [' + "[" * 5000, '{"workers": 1'):
        with pytest.raises(ValueError, match=r"holds no JSON|not closed"):
            parse_workflow(text, [0])


@st.composite
def plans(draw: st.DrawFn) -> Workflow:
    steps = draw(st.integers(1, 5))
    access = tuple(tuple(sorted(draw(st.sets(st.integers(0, step - 1))) if step else ())) for step in range(steps))
    return Workflow(tuple(f"task {step}" for step in range(steps)), tuple(draw(st.integers(0, 2)) for _ in range(steps)), access)


@settings(max_examples=60)
@given(st.lists(plans(), min_size=1, max_size=3))
def test_a_worker_sees_a_marker_exactly_where_it_was_granted(workflows: list[Workflow]) -> None:
    log: list[CallEvent] = []
    for at, plan in enumerate(workflows):
        log.append(CallEvent(at, -1, "query", f"<q {at}>"))
        for step in range(len(plan)):
            for kind in ("subtask", "call", "result", "output"):
                log.append(CallEvent(at, step, kind, f"<{kind} {at}.{step}>"))
    for at, plan in enumerate(workflows):
        for step in range(len(plan)):
            seen = {event.text for event in view(log, at, step, plan.access[step])}
            for event in log:
                if event.workflow < at:
                    last = event.step == len(workflows[event.workflow]) - 1
                    granted = event.kind in ("query", "call", "result") or (event.kind == "output" and last)
                elif event.workflow > at:
                    granted = False
                elif event.step in (-1, step):
                    granted = event.kind != "output"
                else:
                    granted = event.step in plan.access[step] and event.kind in ("subtask", "output")
                assert (event.text in seen) == granted, (event, at, step)
