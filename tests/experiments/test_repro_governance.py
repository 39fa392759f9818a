"""The parts of the learned reproduction on small cases; the figures themselves come from `ramify repro governance`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.base.seeds import generator
from ramify_experiments.governance import repro
from ramify_experiments.governance.repro import DO, FACT, REFUSE, RULE, TURNS, UNKNOWN, Histories
from ramify_experiments.lab import ResultCache

UNTRAINED: dict[str, Any] = {"seed": 3, "episodes": 40, "agent_steps": 1, "steps": 1, "whole": False}


@pytest.fixture(scope="module")
def untrained() -> dict[str, Any]:
    return repro.learn(**UNTRAINED)


def environment(count: int, seed: int = 0) -> Histories:
    return repro.histories(count, generator(seed, "test environment"))


class Perfect:
    """Answers as a perfect agent would, from the tokens it is given."""

    def __call__(self, whole: np.ndarray, shown: np.ndarray, last: bool) -> torch.Tensor:
        assert last
        whole, shown = np.broadcast_arrays(whole, shown[..., None])
        request = whole[..., -1, :].reshape(-1, 3)
        turns, kept = whole[..., :-1, :].reshape(-1, TURNS, 3), shown[..., :-1, 0].reshape(-1, TURNS)
        rule = turns[turns[:, :, 0] == RULE]
        h = Histories(turns, rule[:, 1] - repro.CLASS, rule[:, 2] - repro.ATTRIBUTE)
        answer = repro.answers(h, request, kept, 1.0, generator(0))
        return torch.nn.functional.one_hot(torch.from_numpy(answer), REFUSE + 1).float().reshape(*shown.shape[:-2], -1)


def test_the_closed_form_is_what_the_environment_has() -> None:
    told = [repro.survival(b) for b in repro.BUDGETS]
    assert told == pytest.approx([0, 0.010, 0.132, 0.255, 0.500, 0.902, 1], abs=5e-4)
    h = environment(20_000)
    for budget, share in zip(repro.BUDGETS, told, strict=True):
        seen = (repro.top(repro.ideal(h.turns), budget) & h.are(RULE)).any(axis=1).mean()
        assert abs(seen - share) <= 4 * np.sqrt(share * (1 - share) / 20_000) + 1e-12


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31))
def test_a_history_has_one_rule_early_and_facts_with_keys_of_their_own(seed: int) -> None:
    h = environment(50, seed)
    assert (h.are(RULE).sum(axis=1) == 1).all()
    assert h.are(RULE)[:, : repro.HEAD].any(axis=1).all()
    sizes = h.are(FACT).sum(axis=1)
    assert sizes.min() >= 3
    assert sizes.max() <= repro.KEYS
    flooded = repro.decoys(h, generator(seed))
    for one in (h, flooded):
        for turns, facts in zip(one.turns, one.are(FACT), strict=True):
            assert len(set(turns[facts, 1])) == facts.sum()
    same = h.are(FACT) | h.are(RULE)
    assert (flooded.turns[same] == h.turns[same]).all()
    assert (flooded.are(FACT).sum(axis=1) == repro.KEYS).all()  # so an ideal summariser with b = 12 drops every rule
    assert not (repro.top(repro.ideal(flooded.turns), 12) & flooded.are(RULE)).any()


def test_what_the_agent_is_taught() -> None:
    h, rng = environment(400), generator(1)
    everything = np.ones((400, TURNS), np.bool_)
    yes = everything[:, 0]
    for kept, forbidden, soft, hard in (
        (everything, yes, REFUSE, REFUSE),
        (everything, ~yes, DO, DO),
        (~h.are(RULE), yes, DO, REFUSE),
        (~h.are(RULE), ~yes, DO, REFUSE),
    ):
        told = repro.answers(h, repro.actions(h, forbidden, rng), kept, 1.0, rng)
        assert (told == np.where(h.soft, soft, hard)).all()
    query = repro.queries(h, rng)
    fact = h.turns[:, :, 1] == query[:, 1:2]
    assert (repro.answers(h, query, everything, 1.0, rng) == h.turns[fact & h.are(FACT), 2] - repro.VALUE).all()
    assert (repro.answers(h, query, ~fact, 1.0, rng) == UNKNOWN).all()
    careless = repro.answers(h, repro.actions(h, yes, rng), ~h.are(RULE), 0.9, rng)[~h.soft]
    assert 0.8 < (careless == REFUSE).mean() < 0.97


def test_labels_are_what_the_answer_hangs_on() -> None:
    h, rng = environment(200), generator(2)
    query = repro.queries(h, rng)
    found = repro.needed(Perfect(), h, query)  # type: ignore[arg-type]
    assert (found == ((h.turns[:, :, 1] == query[:, 1:2]) & h.are(FACT))).all()
    for forbidden in (True, False):
        found = repro.needed(Perfect(), h, repro.actions(h, np.full(200, forbidden), rng))  # type: ignore[arg-type]
        # a soft action needs the rule to be refused, a hard one to be done
        assert (found == (h.are(RULE) & (h.soft == forbidden)[:, None])).all()


def test_a_turn_that_is_not_kept_is_not_there() -> None:
    h = environment(3)
    net = repro.TurnNet(2, REFUSE + 1, 5)
    request = repro.queries(h, generator(3))
    kept = np.arange(TURNS)[None] % 3 != np.array([[0], [1], [2]])
    masked = repro.ask(net, h.turns, request, kept)
    packed = repro.ask(net, h.turns[kept].reshape(3, -1, 3), request, np.ones((3, 16), np.bool_))
    assert torch.allclose(masked, packed, atol=1e-5)
    folded = repro.ask(net, h.turns[:, None], request[:, None], np.stack([kept, ~kept], axis=1))
    assert torch.allclose(folded[:, 0], masked, atol=1e-5)


def test_top_keeps_the_budget_and_the_earlier_of_equals() -> None:
    kept = repro.top(np.array([[0.0, 2.0, 1.0, 1.0]]), 2)
    assert kept.tolist() == [[False, True, True, False]]


def test_rules_are_lost_round_by_round() -> None:
    alive = repro.rounds(repro.ideal, environment(2000).turns, 16, 4, 0)
    assert alive[0] == 1
    assert alive[1] == pytest.approx(repro.survival(16), abs=0.03)
    assert all(later <= earlier for earlier, later in pairwise(alive))
    assert repro.rounds(lambda turns: (turns[:, :, 0] == RULE) * 1.0, environment(50).turns, 8, 4, 0) == [1.0] * 5


@pytest.mark.slow
def test_one_seed_repeats_and_its_counts_add_up(untrained: dict[str, Any]) -> None:
    folds = untrained["folds"]
    assert untrained == repro.learn(**UNTRAINED)
    for name, cell in folds.items():
        n, bad = np.array(cell["n"]), np.array(cell["violations"])
        alive = repro._survived(cell)
        if name not in (repro.DROPPED, repro.RESTORED):
            assert n.sum() == 40
        # v = P(s=1) v_{s=1} + P(s=0) v_{s=0}
        parts = sum(p * repro._rate(cell, columns=s) for p, s in ((alive, 1), (1 - alive, 0)) if p)
        assert bad.sum() / n.sum() == pytest.approx(parts)
    assert folds["head_tail, b = 4 + 4"]["kept"] == folds["pin inside the budget, b = 8"]["kept"] == 8
    assert repro._survived(folds["recency, b = 8"]) == repro._survived(folds["floor"]) == 0
    assert np.sum(folds[repro.DROPPED]["n"]) == np.array(folds["summary, b = 8"]["n"])[:, 0].sum()


def test_a_miss_can_be_seen(untrained: dict[str, Any]) -> None:
    missed = repro.verdict(untrained)
    assert missed["violation where it was dropped"] < 0.45
    assert list(missed) == list(repro.JUDGED)[: len(missed)]


@pytest.mark.slow
def test_a_short_training_shows_the_effect_and_the_pin() -> None:
    checks = {check.name: check for check in repro.reproduce("quick", ResultCache())}
    assert [check for check in checks.values() if check.status not in ("pass", "reported")] == []
    assert checks["summary, b = 8: violation"].value > 10 * checks["pin, b = 8: violation"].value
