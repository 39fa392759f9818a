"""Which step lost it: the one that was planted is found and stored, nothing is found where nothing was,
what is there is not played again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halls import Halls, Stateless, agent

import ramify
from ramify.base.errors import UserError
from ramify.base.seeds import generator
from ramify.jobs.decline import Decline
from ramify.jobs.helped import helped
from ramify.jobs.why import found
from ramify.jobs.why.alternatives import head, tools_of
from ramify.jobs.why.answer import Why
from ramify.jobs.why.moves import worst_moves
from ramify.jobs.why.records import Alternative, Chance, StepChance
from ramify.jobs.why.sentences import lost
from ramify.jobs.why.tables import steps
from ramify.model.scripted import ScriptedModel
from ramify.render.result import Section, to_text
from ramify.rollout.attempts import Attempt
from ramify.stats.drops import Counts
from ramify.stats.intervals import clopper_pearson
from ramify.trace.db import Run
from ramify.trace.node import Finding
from ramify.trace.outcome import settled


def failed_run(path: Path, attempts: int = 6) -> Path:
    """Attempts at one hall of three doors, of which only the second decides."""
    ramify.play(agent(), Halls(), [{"id": "train-0"}], attempts=attempts, out=path)
    return path


def test_the_step_that_decides_is_found_and_stored(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run")
    played: list[Attempt] = []
    why = ramify.why(run, model=agent(), env=Halls(), on_attempt=played.append)
    assert (why.verdict, why.action, why.counterfactual, why.success) == ("step", "right", True, False)
    assert why.headline.startswith("Lost at `right`: success ")
    assert "-> 0%. From the same state " in why.headline
    assert why.node == why.steps[1].node
    assert why.before.interval[0] <= 0.7 <= why.before.interval[1]
    assert why.after.k == 0
    (left,) = why.alternatives
    assert (left.action, left.p) == ("left", 1.0)
    assert len(played) == why.samples > 0
    assert [step.stands_out for step in why.steps] == [False, True, False]
    with Run.open(run) as stored:
        assert found(stored) == [why] == found(stored, why.tree)
        (finding,) = stored.findings(maker="why")
        assert (finding.why, finding.node, finding.name) == (why.headline, why.node, "lost here")
    # a second call plays nothing and says the same; a larger one plays the rest
    played.clear()
    assert ramify.why(run, model=agent(), env=Halls(), on_attempt=played.append) == why
    assert not played
    more = ramify.why(run, model=agent(), env=Halls(), first=32, n=128, on_attempt=played.append)
    assert 0 < len(played) < more.samples
    with Run.open(run) as stored:
        assert found(stored) == [more]


def obedient() -> ScriptedModel:
    """The agent of the halls, that goes left wherever it is told to in what it is shown."""

    def reply(messages: Any, key: Any) -> str:
        told = any("keep left" in message.text for message in messages)
        return "left" if told or generator(key, "hall").random() < 0.7 else "right"

    return ScriptedModel(reply)


def test_a_changed_context_helps_where_it_says_something_and_not_where_it_does_not(tmp_path: Path) -> None:
    run, edits = tmp_path / "run", {"says": "keep left", "empty": "good luck"}
    ramify.play(obedient(), Halls(), [{"id": "train-0"}], attempts=6, out=run)
    for name, text in edits.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"insert": {"role": "user", "text": text}}))
    why = ramify.why(run, model=obedient(), env=Halls())
    changes = [f"context={tmp_path / name}.json" for name in edits]
    says, empty = helped(run, why, changes, n=48, model=obedient(), env=Halls())
    assert (says.changed.k, says.changed.n) == (48, 48)
    assert says.control.k < 48
    assert says.p_corrected <= 0.05 < empty.p_corrected
    low, high = empty.interval
    assert low <= 0 <= high


class OneDoor(Stateless):
    """Three knocks at a door, which looks the same each time; a loud one opens it."""

    max_turns = 3

    def reset(self, task: Any, seed: int) -> ramify.Observation:
        return ramify.Observation("a door")

    def step(self, action: str) -> ramify.Observation:
        return ramify.Observation("a door", terminated=action == "loud", outcome=action == "loud")

    def key(self) -> str:
        return "door"


def test_who_has_more_turns_left_says_nothing_of_the_last_one(tmp_path: Path) -> None:
    """Who begins opens it two times in three, who has one knock left three times in ten: the same look is not the same state."""
    knock = ScriptedModel(lambda messages, key: "loud" if generator(key, "knock").random() < 0.3 else "soft")
    ramify.play(knock, OneDoor, [{"id": "door"}], attempts=60, out=tmp_path / "run")
    why = ramify.why(tmp_path / "run", model=knock, env=OneDoor, samples=60)
    left = [step.after for step in why.steps[:-1] if step.after is not None]
    for chance, true in zip(left, (0.51, 0.3), strict=True):
        assert chance.interval[0] <= true <= chance.interval[1]
    assert left[-1].interval[1] < 0.657


class OnePath(Stateless):
    """The way is open to who says it on two lines."""

    def reset(self, task: Any, seed: int) -> ramify.Observation:
        return ramify.Observation("a fork")

    def step(self, action: str) -> ramify.Observation:
        won = action == "go:\n    left"
        return ramify.Observation("the end", terminated=True, outcome=won)


def test_what_would_have_helped_is_played_with_its_line_ends(tmp_path: Path) -> None:
    walker = ScriptedModel(lambda messages, key: "go:\n    left" if generator(key, "path").random() < 0.7 else "stay")
    played = ramify.play(walker, OnePath, [{"id": "path"}], attempts=16, out=tmp_path / "run")
    failed = next(one.leaf for one in played if not one.outcome)
    why = ramify.why(tmp_path / "run", failed, model=walker, env=OnePath)
    assert why.alternatives[0].action == "go:\n    left"
    assert why.headline.endswith("chose `go: left`: 100%.")
    (tried,) = helped(tmp_path / "run", why, ["action"], n=8, model=walker, env=OnePath)
    assert tried.changed.p == 1.0


def test_a_success_says_what_won_it(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run")
    with Run.open(run) as stored:
        won = next(one.leaf for one in stored.attempts() if one.outcome)
    why = ramify.why(run, won, model=agent(), env=Halls(), n=64, first=32)
    assert why.attempt == won
    assert why.headline.startswith("Won at `left`") or why.verdict == "none"


def test_attempts_alone_are_no_counterfactual(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run", attempts=40)
    why = ramify.why(run)
    assert (why.verdict, why.action, why.counterfactual, why.samples) == ("step", "right", False, 0)
    assert why.headline.endswith("Recorded attempts only: this is not a counterfactual.")
    assert why.alternatives[0].action == "left"
    few = ramify.why(failed_run(tmp_path / "few", attempts=2))
    assert (few.verdict, few.node, few.counterfactual) == ("none", None, False)
    with Run.open(run) as stored:
        worst = worst_moves(stored, settled(stored))[0]
    assert worst.tool == "right"
    assert worst.difference is not None
    assert worst.difference < 0


def test_tools_are_what_is_called_and_else_the_first_word() -> None:
    look = 'I look.\nls({"path": "."})'
    assert tools_of([look, "I am done (nearly).", "ls()"]) == ["ls", "(no call)", "ls"]
    assert tools_of(["go north", "take: the mug", ""]) == ["go", "take", ""]
    assert head(look) == "ls"


def test_the_only_attempt_at_a_task_asks_for_others(tmp_path: Path) -> None:
    text = str(ramify.why(failed_run(tmp_path / "run", attempts=1)).sections())
    assert "It is the only judged attempt at its task." in text
    assert "It is the only" not in str(ramify.why(failed_run(tmp_path / "two", attempts=2)).sections())


def test_mistakes(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run", attempts=1)
    with pytest.raises(UserError, match="cannot be more than n=4"):
        ramify.why(run, n=4, first=8)
    with pytest.raises(UserError, match="no node"):
        ramify.why(run, "abc")
    with pytest.raises(UserError, match="model="):
        ramify.why(run, model=agent())


def search(chances: list[float], rng: np.random.Generator, **settings: float) -> tuple[tuple[int, ...], int]:
    """What the rule finds on a path with these chances of success, and how many forks it took."""
    last = len(chances) - 1
    rule = Decline(known=frozenset({last}), **settings)  # type: ignore[arg-type]
    looks, own = rule.looks(range(last + 1)), dict[int, Counts]()
    wanted = next(looks)
    while True:
        for t, n in wanted.items():
            more = n - own.get(t, Counts(0, 0)).forks
            own[t] = own.get(t, Counts(0, 0)) + Counts(int(rng.binomial(more, chances[t])), more)
        try:
            wanted = looks.send(dict(own))
        except StopIteration as end:
            return end.value, sum(c.forks for t, c in own.items() if t != last)


@pytest.mark.parametrize(
    "chances",
    [[0.0] * 6, [0.05] * 5 + [0.0], [0.2, 0.15, 0.1, 0.05, 0.0], [0.05, 0.0], [0.45 - 0.05 * t for t in range(10)]],
)
def test_nothing_is_found_where_no_step_lost_more_than_the_least(chances: list[float]) -> None:
    rng = np.random.default_rng(1)
    false = sum(bool(search(chances, rng)[0]) for _ in range(200))
    assert clopper_pearson(false, 200)[0] <= 0.05


@pytest.mark.parametrize("steps", [3, 6, 12])
def test_a_step_that_loses_is_found_with_few_forks(steps: int) -> None:
    rng = np.random.default_rng(2)
    for t in (1, (steps + 1) // 2, steps):
        chances = [0.8] * t + [0.0] * (steps - t + 1)
        results = [search(chances, rng) for _ in range(50)]
        assert clopper_pearson(sum(found == (t,) for found, _ in results), 50)[1] >= 0.95
        assert np.mean([forks for _, forks in results]) < 16 * (2 + np.log2(steps))


def test_the_budget_of_forks_holds() -> None:
    rng = np.random.default_rng(3)
    for samples in (1, 7, 20):
        assert search([0.5] * 6 + [0.0] * 6, rng, samples=samples)[1] <= samples


def test_a_finding_that_is_no_record_is_left_out(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run")
    with Run.open(run, write=True) as stored:
        leaf = next(iter(stored.scores(scorer="env"))).node
        stored.conclude(
            "why", [Finding("lost here", "why", "forged", leaf, evidence=value) for value in (None, [1], {"attempt": 3})]
        )
        stored.commit()
        assert found(stored) == []
    why = ramify.why(run, model=agent(), env=Halls())
    with Run.open(run) as stored:
        assert found(stored) == [why]


def test_a_headline_names_the_calls_of_a_step() -> None:
    def headline(action: str, other: str) -> str:
        chance = Chance.of(Counts(1, 2))
        instead = Alternative.of(other, Counts(3, 4))
        return lost(Why("t", "a", False, "step", "", chance, chance, "n", action, alternatives=(instead,)), 4)

    ls, rm = 'I look.\nbash({"command": "ls -l"})', 'I look.\nrm({"path": "a", "force": true})'
    assert headline(ls, rm).startswith("Lost at `bash: ls -l`: success")
    assert 'chose `rm({"force":true,"path":"a"})`' in headline(ls, rm)
    assert headline(ls, ls.replace("I look", "Well")).startswith('Lost at `I look. bash({"command": "ls -l"})`')
    assert headline("go hall", "go yard").startswith("Lost at `go hall`")


def test_a_long_action_takes_one_line_of_a_table() -> None:
    chance = Chance.of(Counts(1, 4))
    said = "echo a\\n" * 60
    long = StepChance("0", f'bash({{"command":"{said}"}})', chance)
    shown = to_text([Section.of("", *steps((long,), chance, "step", True))])
    assert max(map(len, shown.splitlines())) < 150
    assert '1   bash({"command":"echo a' in shown
    assert "…" in shown
