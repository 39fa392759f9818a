"""The controller at work: with scripted critics, with commands in the sandbox, as a judge, around a model, in a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.integrations.trainers.trl_trainer import reward_function
from ramify.integrations.trainers.verl import reward_function as verl_reward
from ramify.methods.verify_or_ship import ControlConfig, Controller, Critic, Tables
from ramify.methods.verify_or_ship.algorithm import Kernel, Likelihood
from ramify.methods.verify_or_ship.gate import BestOf, Gated
from ramify.methods.verify_or_ship.records import BELIEF, VERIFIER, candidates
from ramify.model.protocol import Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import FunctionJudge, Item, Judge, find_judge
from ramify.testing import check_judge
from ramify.trace.db import Run
from ramify.trace.message import Message

TABLES = Tables(prior=0.4, critics={"tests": Likelihood.of(0.95, 0.05)}, kernel=Kernel(fix=0.2, broken=0.08))
CONFIG = ControlConfig(c_ver=30, costs=("tests=2",))


def judge(answer: Any, asked: list[str] | None = None) -> Judge:
    def says(text: str) -> Any:
        if asked is not None:
            asked.append(text)
        return answer(text)

    return FunctionJudge(says, ("text",))


def rewriting(*texts: str) -> Any:
    left = list(texts)
    return lambda item, last, said: left.pop(0)


def run(controller: Controller, task: Any = "solve it", **more: Any) -> Any:
    return asyncio.run(controller.run(task, **more))


def test_a_task_is_rewritten_checked_and_verified() -> None:
    verified: list[str] = []
    controller = Controller(
        [Critic("tests", judge(lambda text: text != "bad"))],
        judge(lambda text: text == "good", verified),
        rewriting("bad", "good"),
        CONFIG,
        TABLES,
    )
    found = run(controller)
    assert found.actions == ["tests", "rewrite", "tests", "verify"]
    assert (found.candidate, found.delivered, found.verified, found.belief) == ("good", True, True, 1.0)
    assert found.cost == 2 + 5 + 2 + 30
    assert verified == ["good"]
    assert found.utility(100) == 61
    assert controller.regime().best_fixed


def test_a_critic_that_cannot_run_is_paid_and_believed_nothing() -> None:
    def broken(text: str) -> bool:
        raise RuntimeError("no docker")

    found = run(Controller([Critic("tests", judge(broken))], judge(lambda text: True), rewriting("x", "y", "z"), CONFIG, TABLES))
    assert found.actions[0] == "tests"
    assert found.failures[0] == "tests: RuntimeError: no docker"
    assert found.cost >= 2


def test_a_verifier_that_cannot_run_says_nothing_of_the_candidate() -> None:
    controller = Controller(
        [Critic("tests", judge(lambda text: True))], judge(lambda text: None), rewriting("x"), CONFIG, TABLES, tries=3
    )
    found = run(controller)
    assert (found.delivered, found.verified) == (False, None)
    assert 0.5 < found.belief < 1
    assert found.cost == 2 + 3 * 30


def test_the_same_text_is_not_asked_about_again() -> None:
    asked: list[str] = []
    controller = Controller(
        [Critic("tests", judge(lambda text: False, asked))],
        judge(lambda text: False),
        rewriting("x", "x ", "x\n"),
        CONFIG,
        TABLES,
    )
    found = run(controller)
    assert asked == ["x"]
    assert found.actions[-1] == "stop"
    assert [round(belief, 6) for _, belief in found.tried] == [round(found.belief, 6)] * 3


def test_costs_may_depend_on_the_candidate() -> None:
    critic = Critic("tests", judge(lambda text: True), cost=lambda text: 0.5 * len(text))
    found = run(Controller([critic], judge(lambda text: True), rewriting("four"), CONFIG, TABLES))
    assert found.cost == 2 + 30


def test_verified_transitions_are_learned() -> None:
    config = CONFIG.model_copy(update={"after_verify": "continue", "c_ver": 1.0})
    controller = Controller(
        [Critic("tests", judge(lambda text: True))],
        judge(lambda text: text == "good"),
        lambda item, last, said: "bad" if last is None else "good",
        config,
        TABLES,
        learn=True,
    )
    for _ in range(12):
        assert run(controller).delivered
    assert controller.tables is not None
    assert controller.tables.kernel.fix == pytest.approx(13 / 14)


def test_what_it_did_is_in_the_run(tmp_path: Path) -> None:
    controller = Controller(
        [Critic("tests", judge(lambda text: text == "good"))],
        judge(lambda text: text == "good"),
        rewriting("bad", "good"),
        CONFIG,
        TABLES,
    )
    with Run.begin(tmp_path / "run", "verify-or-ship", {}) as kept:
        run(controller, Item(id="task 1", prompt="solve"), record=kept)
    with Run.open(tmp_path / "run") as kept:
        (attempt,) = candidates(kept)
        assert [one.checks for one in attempt.candidates] == [{"tests": 0.0}, {"tests": 1.0}]
        assert [one.right for one in attempt.candidates] == [None, True]
        (record,) = kept.attempts()
        assert (record.outcome, record.reward, record.failure) == (True, 1.0, None)
        assert kept.node(record.leaf).text == "good"
        beliefs = [score.value for score in kept.scores(scorer=BELIEF)]
        assert sorted(beliefs)[-1] == 1.0
        assert all(score.judges for score in kept.scores(scorer=VERIFIER))
        actions = [[one["action"] for one in mark.value] for mark in kept.annotations(name="decisions")]
        assert sorted(actions) == [["tests", "rewrite"], ["tests", "verify"]]


def test_tables_must_know_the_critics() -> None:
    with pytest.raises(UserError, match="know no critic 'lint'"):
        Controller([Critic("lint", judge(lambda text: True))], judge(lambda text: True), rewriting(), CONFIG, TABLES)
    with pytest.raises(UserError, match="call calibrate first"):
        run(Controller([Critic("tests", judge(lambda text: True))], judge(lambda text: True), rewriting("x")))
    with pytest.raises(UserError, match="a candidate is text"):
        run(
            Controller(
                [Critic("tests", judge(lambda text: True))], judge(lambda text: True), lambda item, last, said: 3, CONFIG, TABLES
            )
        )  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="only yes and no"):
        run(Controller([Critic("tests", judge(lambda text: True))], judge(lambda text: 0.5), rewriting("x"), CONFIG, TABLES))


GATE = """
tables = "tables.json"
verifier = "cmd:full.sh"
[critics]
tests = "regex:return"
[control]
c_ver = 30
costs = ["tests=2"]
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A gate whose verifier is a script in the sandbox that counts nothing but a word."""
    (tmp_path / "tables.json").write_text(Tables(prior=0.5, critics={"tests": Likelihood.of(0.97, 0.45)}).model_dump_json())
    (tmp_path / "full.sh").write_text("#!/bin/sh\ngrep -q 'return 1'\n")
    (tmp_path / "gate.toml").write_text(GATE)
    return tmp_path / "gate.toml"


def test_the_gate_verifies_only_where_the_belief_is_uncertain(gate: Path) -> None:
    made = find_judge(f"verify-or-ship:{gate}")
    found = asyncio.run(made.judge([Item("return 1"), Item("return 2"), Item("pass")]))
    assert [one.value for one in found[:2]] == [1.0, 0.0]
    assert [one.evidence["verified"] for one in found] == [True, True, False]
    assert found[2].value == pytest.approx(0.5 * 0.03 / (0.5 * 0.03 + 0.5 * 0.55))
    assert check_judge(made, [Item("return 1"), Item("pass")]) == []
    assert check_judge(Gated()) == []


def test_the_gate_is_a_reward_in_trl_and_verl(gate: Path) -> None:
    made = find_judge(f"verify-or-ship:{gate}")
    rewards = asyncio.run(reward_function(made)(prompts=["write"] * 2, completions=["return 1", "pass"]))
    assert rewards[0] == 1.0
    assert 0 < float(rewards[1] or 0) < 0.1
    score = verl_reward(made)
    assert score(data_source="d", solution_str="return 2", ground_truth="1") == 0.0
    assert score("d", "pass", None, {}) == pytest.approx(rewards[1])


def test_best_of_n_around_a_model(gate: Path) -> None:
    """The third sample is the one that passes; the caller gets it and what it cost."""
    said: list[int] = []

    def reply(messages: Any, key: int) -> str:
        said.append(key)
        return "return 1" if len(said) == 3 else "pass"

    text = gate.read_text().replace("c_ver = 30", "c_ver = 5\nhorizon = 4")
    gate.write_text(text)
    model = BestOf(ScriptedModel(reply, tokens=False), str(gate))
    (completion,) = asyncio.run(model.sample(Prefix(messages=(Message("user", "write it"),)), 1, Sampling(), [7]))
    assert completion.text == "return 1"
    assert len(said) == len(set(said)) == 3
    plain = BestOf(ScriptedModel(lambda messages, key: "pass", tokens=False))
    (completion,) = asyncio.run(plain.sample(Prefix(messages=(Message("user", "x"),)), 1, Sampling(), [7]))
    assert completion.text == "pass"


def test_a_gate_that_does_not_fit_is_one_sentence(gate: Path) -> None:
    gate.write_text(GATE.replace("tests =", "lint ="))
    with pytest.raises(UserError, match="know no critic 'lint'"):
        find_judge(f"verify-or-ship:{gate}")
    gate.write_text(GATE.replace("[critics]", "[critic]"))
    with pytest.raises(UserError, match="unknown key"):
        find_judge(f"verify-or-ship:{gate}")
