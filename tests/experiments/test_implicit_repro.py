"""The reproduction's parts on small cases; the figures themselves come from `ramify repro implicit-advantage`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramify.env.builtin.desk import BOOKINGS, FILLERS, NAMES, VERBS, Desk, DeskEnvironment, rightful
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.records import ScoredStep, ScoreRecord
from ramify.model.chat import TagTemplate, train_tokenizer
from ramify.model.tokenizer import HfTokenizer
from ramify_experiments import lockstep
from ramify_experiments.implicit_advantage import repro
from ramify_experiments.lab import ResultCache
from ramify_experiments.lockstep import Episode

WORDS = [*NAMES, *FILLERS, *(f" {word}" for word in (*FILLERS, *VERBS, *BOOKINGS))]
TASK = Task(
    "t",
    {
        "name": "Ann",
        "a": {"wish": "cancel", "flex": True, "insured": False, "claim": True},
        "b": {"wish": "change", "flex": True, "insured": False, "claim": False},
        "c": {"wish": "cancel", "flex": False, "insured": True, "claim": True},
    },
)


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return train_tokenizer(WORDS * 5, 460)


def played(tokenizer: HfTokenizer, *replies: str, key: int = 1) -> Episode:
    """An episode with these replies, laid out as `play` does."""
    env, template, e = Desk(), TagTemplate(tokenizer), Episode(TASK, key)
    seen = env.reset(TASK, key)
    for i, reply in enumerate(replies):
        given = [*template.render("user", seen.text)[0], *template.open("assistant")]
        sampled = [*tokenizer.encode(reply), *template.stop_tokens]
        e.tokens += given + sampled
        e.turn += [-1] * len(given) + [i] * len(sampled)
        seen = env.step(reply)
    e.logprobs, e.replies, e.success, e.reward = [0.0] * len(e.tokens), list(replies), bool(seen.outcome), seen.reward
    return e


def test_a_violation_changes_one_word_against_the_record_shown(tokenizer: HfTokenizer) -> None:
    won = played(tokenizer, "well lookup b", "well so deny a", "now change b", "well cancel c")
    assert won.success
    assert repro._closings(won) == [(2, "change")]  # a and c were closed on a claim
    ((row, step),) = repro.violations([won], tokenizer, seed=0)
    assert step == 2
    assert tokenizer.decode(row.tokens[row.step == 2]) == "now deny b<|end|>"
    changed = np.flatnonzero(row.tokens != won.tokens)
    assert len(changed) == 1
    lost = played(tokenizer, "well lookup b", "well so deny a", "now deny b", "well cancel c")
    assert not lost.success
    # everything the environment says after it is what it would have said
    assert lost.tokens == row.tokens.tolist()
    assert repro.violations([lost], tokenizer, seed=0) == []


def step(grade: float, logp: float) -> ScoredStep:
    """A step of this grade, whatever the aggregation."""
    return ScoredStep(0, 2, *[grade] * 5, logp, -1.0, False)


def test_measures_and_choices() -> None:
    rng = np.random.default_rng(0)
    records = []
    for task in range(12):
        for trial in range(repro.ATTEMPTS):
            success = bool(rng.random() < 0.4)
            grade = float(success + rng.normal(0, 0.3))
            records.append(ScoreRecord(f"{task}-{trial}", f"t{task:02}", (step(grade, float(rng.normal())),), success=success))
    found = repro.measures(records)
    assert found["auroc"]["advantage"] > 0.9 > 0.7 > found["auroc"]["policy log-prob"]
    assert found["best-of-8"]["advantage"] - found["mean"] == pytest.approx(np.mean(found["gain by task"]), abs=1e-3)
    assert found["best-of-8"]["advantage"] <= found["oracle"]
    assert set(repro.optimism(records)) == {"tuned, own half", "tuned, other half", "a priori"}


def test_attribution_counts_the_changed_step() -> None:
    def record(*grades: float) -> ScoreRecord:
        return ScoreRecord("a", "t", tuple(step(grade, -abs(grade)) for grade in grades))

    found = repro.attribution([record(0.1, -3.0, 0.2), record(0.5, 0.4), record(-1.0, 0.0, -2.0)], [1, 1, 2])
    assert found["sharpest-drop"] == pytest.approx(2 / 3)
    assert found["least likely action"] == pytest.approx(2 / 3)
    assert found["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 3) / 3)


@pytest.mark.slow
def test_training_repeats_and_grades_are_of_the_pair(tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repro, "ATTEMPTS", 2)
    monkeypatch.setattr(repro, "ENVIRONMENT", DeskEnvironment(max_turns=2))
    monkeypatch.setattr(repro, "MOST", 1)
    fresh = repro.untrained(tokenizer, 0)
    models, curves = [], []
    for _ in range(2):
        model = repro.untrained(tokenizer, 0)
        near, curve = repro.improve(model, tokenizer, seed=0, target=1.0, lr=1e-3, validation=1, prompts=1)
        models.append(model)
        curves.append(curve)
        assert all(torch.equal(a, b) for a, b in zip(near.parameters(), fresh.parameters(), strict=True))
    assert curves[0] == curves[1]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    rows = [repro._trajectory(played(tokenizer, "well deny a", "well change b", "well cancel c"), 0)]
    same = repro.grade(models[0], fresh, tokenizer, rows)  # one group without contrast teaches nothing
    assert [step.A_sum for step in same[0].steps] == [0.0, 0.0, 0.0]
    other = repro.untrained(tokenizer, 1)
    forth, back = (repro.grade(*pair, tokenizer, rows)[0].steps for pair in ((fresh, other), (other, fresh)))
    np.testing.assert_allclose([s.A_sum for s in forth], [-s.A_sum for s in back], rtol=1e-6)
    assert abs(forth[0].A_sum) > 0.1


@pytest.mark.slow
def test_training_stops_by_tasks_it_never_meets(tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    played_tasks: list[set[str]] = []

    def play(forward, template, environment, tasks, keys):  # type: ignore[no-untyped-def]
        played_tasks.append({task.id for task in tasks})
        return lockstep.play(forward, template, environment, tasks, keys)

    monkeypatch.setattr(repro, "ATTEMPTS", 2)
    monkeypatch.setattr(repro, "ENVIRONMENT", DeskEnvironment(max_turns=1))
    monkeypatch.setattr(repro, "MOST", 5)
    monkeypatch.setattr(repro, "play", play)
    model = repro.untrained(tokenizer, 0)
    _, curve = repro.improve(model, tokenizer, seed=0, target=0.0, lr=1e-3, validation=6, prompts=2)
    assert len(curve) == 3
    *met, asked = played_tasks
    assert [len(tasks) for tasks in (*met, asked)] == [2, 2, 2, 6]
    assert not asked & set().union(*met)
    assert not asked & {task.id for task in repro.ENVIRONMENT.task_set("eval", 40, 0)}
    played_tasks.clear()
    repro.improve(model, tokenizer, seed=0, target=0.1, lr=1e-3, validation=6, prompts=2)  # no booking closes in one turn
    assert len(played_tasks) == 2 * 5 - 2


def test_the_exact_part_holds_its_thresholds() -> None:
    cells = ResultCache()
    runs = [cells.get(f"tabular {s}", repro.tabular, seed=s, tasks=300, rounds=300) for s in range(2)]
    status = {check.name: check.status for check in repro._exact(runs, range(2)) if "best-of-8" not in check.name}
    assert set(status.values()) == {"pass", "reported"}


def test_what_is_right_of_a_booking() -> None:
    assert rightful(TASK.data["a"]) == "deny"
