"""Pools, tables, conversations and systems over plain functions:
failures are typed, views are isolated, runs say who saw what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ramify.base import codec
from ramify.base.budget import Budget
from ramify.base.errors import BudgetSpentError, InfrastructureError, UserError
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import Workflow
from ramify.methods.orchestrator.composer import Composer, warm_plan
from ramify.methods.orchestrator.conversation import Orchestration, ToolUse
from ramify.methods.orchestrator.middleware import Composed, Routed
from ramify.methods.orchestrator.pool import ModelPool, PoolWorker, fitted
from ramify.methods.orchestrator.router import TurnRouter
from ramify.methods.orchestrator.systems import at_random, evaluate, majority, mixture, oracle, routed, single
from ramify.methods.orchestrator.table import RewardRow, collect, headroom, make_table, read_table, table_of
from ramify.methods.orchestrator.turns import route, turn_loop
from ramify.model.protocol import Completion, Prefix, Sampling
from ramify.model.scripted import ScriptedModel
from ramify.score.judge import find_judge
from ramify.stats.intervals import mean_t
from ramify.testing import check_middleware
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import EVAL, ROLLOUT
from ramify.trace.outcome import ended, settled
from tests.methods.orchestrator import workers as functions
from tests.methods.orchestrator.test_orchestrator_algorithm import plans

SAMPLING = Sampling(max_tokens=32)


def pool_of(*names: str, **more: Any) -> ModelPool:
    return ModelPool(
        [PoolWorker(name, getattr(functions, name), (1.0, 2.0), tags=frozenset({name[:3]})) for name in names], **more
    )


class Fixed:
    """A router whose scores are given: of workers, then of roles, a row each turn."""

    def __init__(self, logits: list[float], roles: list[list[float]] | None = None) -> None:
        self._logits, self._roles, self.roles, self.seen = np.array(logits), roles or [], roles is not None, list[str]()

    def logits(self, messages: list[Message]) -> tuple[np.ndarray, np.ndarray]:
        self.seen.append(messages[-1].text)
        return self._logits, np.array(self._roles.pop(0) if self._roles else [])


# -- pool


def test_a_pool_refuses_what_is_none() -> None:
    with pytest.raises(UserError, match="no worker"):
        ModelPool([])
    with pytest.raises(UserError, match="two workers"):
        pool_of("adder", "adder")
    with pytest.raises(UserError, match="price"):
        ModelPool([PoolWorker("a", functions.adder, (-1.0, 0.0))])
    pool = pool_of("adder", "turner")
    assert pool.available(["tur"]) == [True, False]
    with pytest.raises(UserError, match="did you mean 'turner'"):
        pool.available(["turnr"])
    with pytest.raises(UserError, match="none is left"):
        pool.available(["adder", "tur"])


@pytest.mark.parametrize(("name", "kind"), [("broken", "failed"), ("refusing", "refusal"), ("slow", "timeout")])
def test_failures_are_typed_and_never_a_reply(name: str, kind: str) -> None:
    pool = pool_of(name, seconds=0.2 if name == "slow" else 60, retries=0)
    found = asyncio.run(pool.call(0, [Message("user", "add 1 2")], SAMPLING, ("x",)))
    assert (found.failure, found.completion, found.text) == (kind, None, "")
    assert pool.ledger.total("failed") == 1


def test_the_same_position_is_the_same_sample_whatever_the_order_and_a_cached_call_is_free() -> None:
    asked = [[Message("user", f"add {i} 2")] for i in range(8)]

    async def texts(pool: ModelPool, order: list[int]) -> list[str]:
        done = await asyncio.gather(*(pool.call(0, asked[i], SAMPLING, ("p", i)) for i in order))
        return (
            [one.text for _, one in sorted(zip(order, done, strict=True))]
            if False
            else [done[order.index(i)].text for i in range(8)]
        )

    pool = pool_of("middling", cached=True)
    first = asyncio.run(texts(pool, list(range(8))))
    assert first == asyncio.run(texts(pool_of("middling"), [5, 1, 7, 0, 2, 6, 3, 4]))
    spent = pool.ledger.total("usd")
    assert first == asyncio.run(texts(pool, list(range(8))))
    assert pool.ledger.total("usd") == spent > 0
    assert pool.ledger.total("calls", cached=True) == 8


def test_a_budget_stops_before_the_call_that_could_exceed_it() -> None:
    pool, budget = pool_of("adder"), Budget({"calls": 2})
    for at in range(2):
        asyncio.run(pool.call(0, [Message("user", "add 1 2")], SAMPLING, ("b", at), budget=budget))
    with pytest.raises(BudgetSpentError):
        asyncio.run(pool.call(0, [Message("user", "add 1 2")], SAMPLING, ("b", 2), budget=budget))
    assert pool.ledger.total("calls") == 2
    with pytest.raises(BudgetSpentError, match="may cost"):
        asyncio.run(pool.call(0, [Message("user", "add 1 2")], SAMPLING, ("c",), budget=Budget({"money": 1e-6})))


def test_a_local_models_reply_has_no_end_token_in_it() -> None:
    pool = ModelPool([PoolWorker("local", "builtin")])
    found = [asyncio.run(pool.call(0, [Message("user", "hello")], Sampling(max_tokens=64), ("x", i))) for i in range(4)]
    assert any(one.completion is not None and one.completion.stop != "length" for one in found)
    assert all("<|" not in one.text for one in found)
    assert all(one.given > 0 for one in found)


def test_old_text_is_left_out_where_a_worker_has_no_room() -> None:
    given = [Message("system", "rule"), Message("user", "a" * 400), Message("assistant", "b" * 400), Message("user", "c" * 40)]
    held, dropped = fitted(given, 60)
    assert held[0].text == "rule"
    assert held[-1].text == "c" * 40
    assert dropped >= 400
    assert fitted(given, 0) == (given, 0)


# -- table


def test_collect_keeps_scores_and_failures_apart_and_continues(tmp_path: Path) -> None:
    tasks = functions.task_file(tmp_path, 6)
    pool = pool_of("adder", "turner", "broken", retries=0)
    table = collect(pool, tasks, find_judge("exact"), tmp_path / "run", n=2, settings=SAMPLING)
    assert table.workers == ["adder", "turner"] or table.workers == ["adder", "turner", "broken"]
    assert table.rewards.shape[:1] == (6,)
    assert np.isfinite(table.rewards[:, :2]).all()
    at = table.workers.index("broken")
    assert table.failures[at] == {"failed": 12}
    assert not np.isfinite(table.rewards[:, at]).any()  # never 0
    assert table.groups == ["words", "sums"] * 3
    again = pool_of("adder", "turner", "broken", retries=0)
    more = collect(again, tasks, find_judge("exact"), tmp_path / "run", n=5, settings=SAMPLING)
    assert (more.rewards[:, :2, :2] == table.rewards[:, :2]).all()
    assert again.ledger.spent["adder"]["calls"] == 18  # what was there was not asked again
    with Run.open(tmp_path / "run") as run:
        assert (table_of(run).rewards[:, :2] == more.rewards[:, :2]).all()
        attempts = run.attempts(purpose=EVAL)
        assert len(attempts) == 6 * 5 * 3
        failed = [one.failure for one in attempts if one.failure is not None]
        assert failed == ["failed: it is down"] * 30
        assert all((one.outcome is None) == (one.failure is not None) for one in attempts)
    found = headroom(read_table(tmp_path / "run"))
    assert found.workers_left_out == ("broken",)
    assert found.repeats == 5
    with pytest.raises(UserError, match="other settings"):
        collect(pool_of("adder", "turner"), tasks, find_judge("exact"), tmp_path / "run", n=2, settings=SAMPLING)


def test_headroom_is_undecided_on_few_repeats() -> None:
    rows = [RewardRow(f"t{i}", w, float((i + at) % 2)) for i in range(8) for at, w in enumerate("ab")]
    found = headroom(make_table(rows))
    assert (found.worth, found.oracle) == (None, None)
    assert "undecided" in found.says
    with pytest.raises(UserError, match="2 or more workers"):
        headroom(make_table([row for row in rows if row.worker == "a"]))
    with pytest.raises(UserError, match="no reward"):
        make_table([])


# -- conversations


def test_the_router_falls_back_and_says_so() -> None:
    pool = pool_of("broken", "adder", retries=0)
    chat = Orchestration(pool, [Message("user", "add 2 2")], "k")
    made = asyncio.run(route(chat, Fixed([5.0, 0.0])))  # type: ignore[arg-type]
    assert [call.worker for call in made.calls] == ["broken", "adder"]
    assert "'broken' failed (failed)" in made.notes[0]
    alone = Orchestration(pool_of("broken", retries=0), [Message("user", "add 2 2")], "k")
    with pytest.raises(InfrastructureError, match="every worker failed"):
        asyncio.run(route(alone, Fixed([0.0])))  # type: ignore[arg-type]


def test_a_verifier_accepts_only_what_a_worker_has_answered() -> None:
    said = iter(["ACCEPT", "NEXT: worker", "the answer", "REVISE", "ACCEPT"])
    pool = ModelPool([PoolWorker("one", lambda messages: next(said))])
    chat = Orchestration(pool, [Message("user", "q")], "k")
    verify, think = [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]
    made = asyncio.run(turn_loop(chat, Fixed([0.0], [verify, think, think, verify, verify]), turns=5))  # type: ignore[arg-type]
    assert [call.role for call in made.calls] == ["verifier", "thinker", "worker", "verifier", "verifier"]
    assert made.answer == "the answer"
    with pytest.raises(UserError, match="no roles"):
        asyncio.run(turn_loop(chat, Fixed([0.0])))  # type: ignore[arg-type]


def echoing(number: int) -> PoolWorker:
    """Says who it is and at which step its subtask stands."""

    def reply(messages: list[dict[str, Any]]) -> str:
        return f"<said by {number} of {messages[-1]['content'].split(chr(10))[-1]}>"

    return PoolWorker(f"w{number}", reply)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans())
def test_a_prompt_holds_a_marker_exactly_where_it_was_granted(tmp_path_factory: pytest.TempPathFactory, plan: Workflow) -> None:
    """End to end: what workers were really sent, in parallel and in a row, and what the run says they were shown."""
    pool = ModelPool([echoing(number) for number in range(3)])
    sent: dict[bool, list[tuple[int, list[str]]]] = {}
    folder = tmp_path_factory.mktemp("run")
    for parallel in (True, False):
        with Run.create(folder / str(parallel), {}) as run:
            chat = Orchestration(pool, [Message("user", "the question")], "k", run=run)
            composer = Composer(ScriptedModel(tokens=False), pool)
            last = asyncio.run(composer.execute(chat, plan, parallel=parallel))
            assert last.step == len(plan) - 1
            calls = sorted(chat.calls, key=lambda call: call.step)
            sent[parallel] = [(call.step, [m.text for m in call.saw]) for call in calls]
            for call in calls:
                text = "\n".join(m.text for m in call.saw)
                assert [f"of task {other}>" in text for other in range(len(plan))] == [
                    other in plan.access[call.step] for other in range(len(plan))
                ]
                assert [(m.role, m.text) for m in run.shown(call.node).messages] == [(m.role, m.text) for m in call.saw]
    assert sent[True] == sent[False]


def test_a_plan_is_requested_twice_then_the_fallback_answers_alone() -> None:
    pool = pool_of("adder", "turner")
    composer = Composer(ScriptedModel(["no plan", "no plan"], tokens=False), pool, fallback=1)
    made = asyncio.run(composer.run("turn abc"))
    assert [call.worker for call in made.calls] == ["turner"]
    assert [m.text for m in made.calls[0].saw] == ["turn abc"]
    assert sum("cannot be read" in note for note in made.notes) == 2
    assert "answered alone" in made.notes[-1]


def plan_text(workers: list[int], access: list[Any]) -> str:
    import json

    return json.dumps({"subtasks": [f"task {i}" for i in range(len(workers))], "workers": workers, "access": access})


def test_excluded_and_failed_workers_are_never_asked_and_names_never_shown() -> None:
    shown: list[str] = []

    def policy(messages: tuple[Message, ...], key: int) -> str:
        shown.append(messages[-1].text)
        return plan_text([0, 2], [[], "all"])

    pool = pool_of("adder", "turner", "broken", retries=0)
    made = asyncio.run(Composer(ScriptedModel(policy, tokens=False), pool).run("add 1 1", exclude=["turner"]))
    assert {call.worker for call in made.calls} == {"adder", "broken"}
    assert made.calls[-1].worker == "adder"
    assert not any(name in text for text in shown for name in pool.names)
    assert "a model: 0, 2." in shown[0]


def test_rounds_see_the_last_answer_and_empty_lists_accept_it() -> None:
    replies = iter([plan_text([0], [[]]), plan_text([], [])])
    seen: list[str] = []

    def policy(messages: tuple[Message, ...], key: int) -> str:
        seen.append(messages[-1].text)
        return next(replies)

    made = asyncio.run(Composer(ScriptedModel(policy, tokens=False), ModelPool([echoing(0)]), rounds=3).run("q"))
    assert len(made.calls) == 1
    assert made.answer == "<said by 0 of task 0>"
    assert made.answer in seen[1]
    assert "accepted" in made.notes[-1]


def test_a_step_may_be_the_composer_itself_and_its_depth_is_bounded() -> None:
    def policy(messages: tuple[Message, ...], key: int) -> str:
        return plan_text([2], [[]]) if "yourself" in messages[-1].text else plan_text([1], [[]])

    pool = ModelPool([echoing(0), echoing(1)])
    made = asyncio.run(Composer(ScriptedModel(policy, tokens=False), pool, depth=2).run("q"))
    assert [call.worker for call in made.calls] == ["w1"]
    excluded = asyncio.run(Composer(ScriptedModel(policy, tokens=False), pool, depth=2).run("q", exclude=["w1"]))
    assert [call.worker for call in excluded.calls] == ["w0"]  # the inner plan names who is excluded, and is none
    with pytest.raises(UserError, match="1 step"):
        Composer(ScriptedModel(tokens=False), pool, max_steps=0)


def test_a_tools_result_goes_to_the_agent_that_called_it() -> None:
    saw: dict[str, list[str]] = {}

    def worker(messages: list[dict[str, Any]]) -> Completion:
        text = "\n".join(str(m["content"]) for m in messages)
        who = "first" if "task 0" in text else "second"
        saw[who] = [text]
        if "weather is" in text:
            return Completion(f"{who} is done", "eos")
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        return Completion("", "eos", data={"tool_calls": [call]})

    async def run_tool(message: Message) -> list[Message]:
        return [Message("tool", f"weather is {len(ran.append(1) or ran)}")]  # type: ignore[func-returns-value]

    ran: list[int] = []
    tools = ToolUse([{"type": "function", "function": {"name": "weather", "parameters": {}}}], run_tool)
    composer = Composer(ScriptedModel([plan_text([0, 0], [[], []])], tokens=False), ModelPool([PoolWorker("w", worker)]))
    made = asyncio.run(composer.run("q", tools=tools))
    assert made.answer == "second is done"
    assert "weather is 1" in saw["first"][0]
    assert "weather is 2" not in saw["first"][0]
    assert "weather is 1" not in saw["second"][0]


def test_random_plans_of_the_warm_start_are_workflows() -> None:
    from ramify.base.seeds import generator
    from ramify.methods.orchestrator.algorithm import read_workflow

    rng = generator(0, "plans")
    lengths = [len(read_workflow(codec.to_json(warm_plan(rng, [0, 2, 3])), [0, 2, 3])) for _ in range(200)]
    assert set(lengths) == {1, 2, 3, 4, 5}


# -- systems


def test_systems_are_compared_on_the_same_samples_and_continue(tmp_path: Path) -> None:
    from ramify.env.protocol import read_task_set

    tasks = read_task_set(functions.task_file(tmp_path, 8))
    pool = pool_of("adder", "turner")
    table = collect(pool, functions.task_file(tmp_path, 8), find_judge("exact"), tmp_path / "table", n=6, settings=SAMPLING)
    systems = [single(pool, 0), single(pool, 1), majority(pool), mixture(pool, 0), oracle(pool, table)]
    with Run.create(tmp_path / "eval", {}) as run:
        first = asyncio.run(evaluate(systems, pool, tasks, find_judge("exact"), settings=SAMPLING, run=run))
        calls = pool.ledger.total("calls")
        again = asyncio.run(evaluate(systems, pool, tasks, find_judge("exact"), settings=SAMPLING, run=run))
        assert (first, pool.ledger.total("calls")) == (again, calls)
        assert len(run.scores(scorer="exact")) == 8 * len(systems)
        ends = run.attempts(purpose=EVAL)
        assert len({(one.tree, one.provenance) for one in ends}) == len(ends) == 8 * len(systems)
        assert {one.leaf for one in ends} == {one.node for one in run.scores(scorer="exact")}
        assert [ended(run, one.tree, settled(run))[0].success for one in ends] == [one.outcome for one in ends]
    rows = {row.system: row for row in first.systems}
    assert (rows["oracle"].mean or 0) > (rows["single adder"].mean or 0)
    assert (rows["oracle"].within_groups or {})["words"] > 0.4
    assert rows["mixture of agents"].tokens_a_task > 3 * rows["single adder"].tokens_a_task
    own = [1.0 if x else 0.0 for x in (1, 0, 1)]
    assert mean_t(own)[0] < 2 / 3


@pytest.mark.parametrize(("limits", "at_once"), [({}, 16), ({"calls": 1000.0}, 1)])
def test_conversations_are_held_at_once_but_not_within_a_limit(limits: dict[str, float], at_once: int) -> None:
    under_way = [0, 0]

    async def slow(messages: list[dict[str, Any]]) -> str:
        under_way[0] += 1
        under_way[1] = max(under_way)
        await asyncio.sleep(0.01)
        under_way[0] -= 1
        return "3"

    pool = ModelPool([PoolWorker("slow", slow)])
    tasks = TaskSet.of(Task(f"t{i}", {"prompt": "add 1 2", "answer": "3"}) for i in range(20))
    found = asyncio.run(evaluate([single(pool, 0)], pool, tasks, find_judge("exact"), budget=Budget(limits)))
    assert (found.systems[0].mean, under_way[1]) == (1.0, at_once)


def test_who_is_excluded_is_asked_by_no_system(tmp_path: Path) -> None:
    """Each of the compared systems works with the others; without an exclusion all are asked."""
    asked: set[str] = set()

    def named(name: str) -> PoolWorker:
        def reply(messages: Any) -> str:
            asked.add(name)
            return "1"

        return PoolWorker(name, reply)

    pool = ModelPool([named("a"), named("b"), named("c")])
    tasks = TaskSet.of([Task(f"t{i}", {"prompt": "q", "answer": "1"}) for i in range(6)])
    rows = [RewardRow(f"t{i}", w, float(w == "b"), prompt="q") for i in range(6) for w in "abc"]
    router = Fixed([1.0, 3.0, 2.0])
    for exclude in ((), ("b",)):
        asked.clear()
        allowed = pool.available(exclude)
        systems = [single(pool, 0), at_random(pool), majority(pool), mixture(pool, 0, allowed), oracle(pool, make_table(rows))]
        found = asyncio.run(evaluate([*systems, routed(router)], pool, tasks, find_judge("exact"), exclude=exclude))  # type: ignore[arg-type]
        assert [row.unanswered for row in found.systems] == [0] * 6
        assert asked == {"a", "b", "c"} - set(exclude)
    alone = asyncio.run(evaluate([single(pool, 1)], pool, tasks, find_judge("exact"), exclude=["b"]))
    assert alone.systems[0].unanswered == 6


def test_a_router_in_a_program_uses_tools_and_chooses_anew_after_each_result(tmp_path: Path) -> None:
    """The result of a tool goes to whom the router chooses then, and the run says what was seen."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    router = TurnRouter.from_backbone("builtin", ["first", "second"])
    states = router.features(["user: q\n", "user: q\nassistant: calls\ntool: rain\n"])
    assert router.head.shape == (2, states.shape[1])

    def first(messages: list[dict[str, Any]]) -> Completion:
        return Completion("calls", "eos", data={"tool_calls": [call]})

    def second(messages: list[dict[str, Any]]) -> str:
        assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
        assert messages[1]["tool_calls"][0]["function"]["name"] == "weather"
        return f"it is {messages[2]['content']}"

    async def weather(message: Message) -> list[Message]:
        return [Message("tool", "rain", {"tool_call_id": "c"})]

    router.logits = lambda messages: (np.array([0.0, float(len(messages) - 2)]), np.array([]))  # type: ignore[method-assign]
    pool = ModelPool([PoolWorker("first", first), PoolWorker("second", second)])
    tools = ToolUse([{"type": "function", "function": {"name": "weather", "parameters": {}}}], weather)
    with Run.create(tmp_path / "run", {}) as run:
        made = asyncio.run(router.run(pool, "q", tools=tools, run=run))
        assert (made.answer, [one.worker for one in made.calls]) == ("it is rain", ["first", "second"])
        assert [one.text for one in run.shown(made.calls[-1].node).messages] == ["q", "calls", "rain"]
    assert asyncio.run(router.run(pool, "q")).answer == "calls"  # without tools a call is the caller's
    with pytest.raises(UserError, match="the router chooses among first, second, and the pool has adder"):
        asyncio.run(router.run(pool_of("adder"), "q"))


def test_a_router_with_roles_works_in_turns_on_a_server_too() -> None:
    said = iter(["the answer", "ACCEPT", "a call of a tool"])
    pool = ModelPool([PoolWorker("one", lambda messages: next(said))])
    made = Routed(pool.models[0])
    made._over(pool)
    work, verify = [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    made.router = Fixed([0.0], [work, verify, verify])
    asked = (Message("user", "q"),)
    (found,) = asyncio.run(made.sample(Prefix(messages=asked), 1, SAMPLING, [1]))
    assert found.data is not None
    assert (found.text, found.data["orchestrator"]["calls"]) == ("the answer", 2)
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    (found,) = asyncio.run(made.sample(Prefix(messages=asked, tools=tools), 1, SAMPLING, [2]))
    assert found.text == "a call of a tool"  # which is the client's to run, so it is one turn


def test_what_a_composer_costs_is_in_the_budget_the_ledger_and_the_run(tmp_path: Path) -> None:
    """Also of a composer within a composer: the sum over the run's calls is the total."""

    def policy(messages: tuple[Message, ...], key: int) -> str:
        return plan_text([1], [[]]) if "yourself" in messages[-1].text else plan_text([0], [[]])

    pool = ModelPool([PoolWorker("w", lambda messages: "done", price=(1.0, 2.0))])
    priced = Composer(ScriptedModel(policy, tokens=False), pool, depth=1, price=(3.0, 4.0), settings=Sampling(max_tokens=256))
    budget = Budget({"money": 1.0, "calls": 1})
    with Run.create(tmp_path / "run", {}) as run:
        made = asyncio.run(priced.run("q", budget=budget, run=run))
        nodes = [node for info in run.trees() for node in run.tree(info.name).nodes.values() if "usd" in node.data]
        attempts = {one.tree: one.purpose for one in run.attempts()}
    assert attempts == {"query": ROLLOUT, "query/0.0": "step"}
    assert len(nodes) == 3  # two plans and a call
    assert not made.notes, "both plans were read"
    for name, total in (("usd", made.usd), ("usd", budget.spent("money")), ("usd", pool.ledger.total("usd"))):
        assert sum(node.data[name] for node in nodes) == pytest.approx(total)
    assert sum(node.data["given_tokens"] + node.data["sampled_tokens"] for node in nodes) == made.tokens
    assert made.planned[2] > made.calls[0].result.usd > 0
    with pytest.raises(BudgetSpentError, match="a plan of the composer may cost"):
        asyncio.run(priced.run("q", budget=Budget({"money": made.planned[2] / 9})))


def test_an_outage_is_no_wrong_answer() -> None:
    pool = pool_of("broken", "adder", retries=0)
    tasks = TaskSet.of([Task(f"t{i}", {"prompt": f"add {i} 1", "answer": str(i + 1)}) for i in range(4)])
    found = asyncio.run(evaluate([single(pool, 1), single(pool, 0)], pool, tasks, find_judge("exact")))
    down = found.systems[1]
    assert (down.unanswered, down.n, down.mean) == (4, 0, None)


def test_a_reward_outside_0_to_1_is_refused(tmp_path: Path) -> None:
    judge = tmp_path / "judge.py"
    judge.write_text("def twice(text, data):\n    return 2.0\n")
    with pytest.raises(UserError, match="rewards lie between 0 and 1"):
        collect(
            pool_of("adder"),
            functions.task_file(tmp_path, 2),
            find_judge(f"{judge}:twice"),
            tmp_path / "run",
            n=1,
            settings=SAMPLING,
        )


# -- middleware


@pytest.mark.parametrize("make", [Routed, Composed])
def test_the_middleware_conforms(make: Any) -> None:
    assert check_middleware(make) == []


def test_middleware_routes_falls_back_and_refuses() -> None:
    inner = ScriptedModel(["from the inner model"], tokens=False)
    composed = Composed(inner).over(Composer(ScriptedModel([plan_text([0], [[]])], tokens=False), ModelPool([echoing(0)])))
    prefix = Prefix(messages=(Message("user", "q"),))
    (found,) = asyncio.run(composed.sample(prefix, 1, SAMPLING, [1]))
    assert found.text == "<said by 0 of task 0>"
    assert found.data is not None
    assert found.data["orchestrator"]["worker"] == "w0"
    assert composed.capabilities == frozenset()
    down = Composed(inner).over(Composer(ScriptedModel([plan_text([0], [[]])], tokens=False), pool_of("broken", retries=0)))
    (found,) = asyncio.run(down.sample(prefix, 1, SAMPLING, [1]))
    assert found.text == "from the inner model"
    with pytest.raises(UserError, match=r"route:POOL\.toml,ROUTER"):
        Routed(inner, "pool.toml")
