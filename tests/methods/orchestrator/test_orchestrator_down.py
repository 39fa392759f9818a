"""Workers that are down: who is asked, who waits, and what a run says of it.
Servers are on real sockets; the clock of a rest is the test's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.env.protocol import Task, TaskSet
from ramify.methods.orchestrator.algorithm import SepCma
from ramify.methods.orchestrator.conversation import Orchestration
from ramify.methods.orchestrator.evolution import Trial, fitness
from ramify.methods.orchestrator.middleware import Composed, Routed
from ramify.methods.orchestrator.pool import MISSES, ModelPool, PoolWorker, Rest
from ramify.methods.orchestrator.settings import EvolveRouterConfig
from ramify.methods.orchestrator.table import collect
from ramify.methods.orchestrator.verbs import open_composer
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError
from ramify.model.protocol import Sampling
from ramify.score.judge import find_judge
from ramify.trace.message import Message
from ramify.web.api import Api
from ramify.web.limits import Slots
from tests.methods.orchestrator import workers as functions
from tests.methods.orchestrator.test_orchestrator_streams import chat_at, whole
from tests.methods.orchestrator.test_orchestrator_systems import Fixed
from tests.methods.orchestrator.workers import task_file
from tests.model.faulty_server import FaultyServer, good
from tests.web.api_server import HOUSEHOLD, client, served

NOBODY = "http://127.0.0.1:9/v1"
"""Where no server listens."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def pool_at(*urls: str, **more: Any) -> ModelPool:
    names = [f"w{at}" for at in range(len(urls))]
    return ModelPool([PoolWorker(name, chat_at(url, "m")) for name, url in zip(names, urls, strict=True)], retries=0, **more)


def router_over(pool: ModelPool) -> Routed:
    """Prefers the workers in order."""
    made = Routed(pool.models[0])
    made._over(pool)
    made.router = Fixed([-float(at) for at in range(len(pool))])
    made.router.identity = "in order"
    return made


class Clock:
    """Seconds as the test says."""

    def __init__(self, pool: ModelPool) -> None:
        self.now = 0.0
        for rest in pool.rests:
            rest.clock = lambda: self.now


def test_who_is_down_is_paid_for_once_and_asked_again_after_a_rest(stack: ExitStack) -> None:
    """One without a connection, one that answers 503, one that is well: each is asked as often as it needs to show what it is."""
    sick, well = stack.enter_context(FaultyServer("503")), stack.enter_context(FaultyServer())
    pool = pool_at(NOBODY, sick.url, well.url)
    clock = Clock(pool)
    api = client(stack.enter_context(served(router_over(pool))))

    def notes() -> list[str]:
        text, note, _ = whole(api)
        assert text == "fine"
        return [" ".join(one.split(":")[0].split()) for one in note["notes"]]

    assert notes() == ["'w0' failed (connection)", "'w1' failed (failed)"]
    assert notes() == notes() == ["'w0' was passed over (down)", "'w1' failed (failed)"]
    asked = len(sick.requests)
    assert asked == MISSES["connection"]
    assert notes() == ["'w0' was passed over (down)", "'w1' was passed over (down)"]
    assert len(sick.requests) == asked
    sick.plans, clock.now = [good], 30.5
    assert notes() == ["'w0' failed (connection)"]  # it is still down, and the other is back
    assert notes() == ["'w0' was passed over (down)"]
    assert len(sick.requests) > asked


def test_nobody_is_passed_over_where_nobody_else_is_left(stack: ExitStack) -> None:
    server = stack.enter_context(FaultyServer())
    pool = pool_at(NOBODY, NOBODY)
    Clock(pool)
    made = router_over(pool)

    def answered() -> str:
        chat = Orchestration(pool, [Message("user", "q")], "k", exclude=made.exclude)
        return asyncio.run(made._answer(chat)).answer

    for _ in range(2):  # asked each time, though both are down
        with pytest.raises(InfrastructureError, match=r"every worker failed: 'w0' \(connection\), 'w1' \(connection\)"):
            answered()
    pool.models[1] = HttpModel(server.url, "m")  # it is back before its rest is over
    pool._samplers[1].model = pool.models[1]
    assert answered() == "fine"
    made.exclude = ("w1",)
    with pytest.raises(InfrastructureError, match=r"every worker failed: 'w0' \(connection\)"):
        answered()


def test_a_rest_is_for_what_is_down_and_for_nothing_else() -> None:
    now = [0.0]
    rest = Rest(10.0, lambda: now[0])

    def call(*errors: BaseException | None) -> bool:
        for error in errors:
            try:
                with rest.watching():
                    if error is not None:
                        raise error
            except BaseException:
                pass
        return bool(rest.why)

    slow, gone, refused = TimeoutError(), ProviderError("connection", "nobody there"), ProviderError("filtered", "no")
    assert not call(refused, refused, refused, refused)  # the null case: whoever refuses is there
    assert not call(slow, slow, None, slow, slow, refused, slow, slow)
    assert call(slow)
    now[0] = 10.0
    assert not rest.why
    with rest.watching():
        assert rest.why, "the others wait while one finds out"
    assert not rest.why
    assert call(gone)
    now[0] = 20.0
    assert not call(asyncio.CancelledError())  # it told nothing, so the next may find out
    assert call(slow), "one failure is enough after a rest"
    together = Rest(10.0, lambda: 0.0)
    calls = [together.watching() for _ in range(9)]
    for one in calls:
        one.__enter__()
    assert not any(one.__exit__(TimeoutError, slow, None) for one in calls)
    assert not together.why, "what fails at the same time may have one cause"
    never = Rest(0.0, lambda: 0.0)
    for _ in range(3):
        with pytest.raises(ProviderError), never.watching():
            raise gone
    assert not never.why


@pytest.mark.slow
def test_a_collection_waits_for_who_is_down_once_and_does_not_pay_for_every_call(stack: ExitStack, tmp_path: Path) -> None:
    """Of one that comes back every call is made; of one that does not, few are paid for and none is a wrong answer."""
    back = stack.enter_context(FaultyServer(*["503"] * 3, good))
    pool = ModelPool(
        [
            PoolWorker("well", functions.adder),
            PoolWorker("back", chat_at(back.url, "m")),
            PoolWorker("gone", chat_at(NOBODY, "m")),
        ],
        retries=0,
        rest=0.3,
    )
    tasks, judge = task_file(tmp_path, 10), find_judge("exact")
    table = collect(pool, tasks, judge, tmp_path / "run", n=4, settings=Sampling(max_tokens=8))
    at = {name: table.workers.index(name) for name in pool.names}
    assert np.isfinite(table.rewards[:, at["well"]]).all()
    assert not np.isfinite(table.rewards[:, at["gone"]]).any()
    gone = table.failures[at["gone"]]
    assert sum(gone.values()) == 40
    assert gone["down"] > gone["connection"] > 0
    assert pool.ledger.spent["gone"]["calls"] == gone["connection"]
    assert np.isfinite(table.rewards[:, at["back"]]).sum() + sum(table.failures[at["back"]].values()) == 40
    again = collect(pool, tasks, judge, tmp_path / "run", n=4, settings=Sampling(max_tokens=8))
    assert np.isfinite(again.rewards[:, at["back"]]).all()


@pytest.mark.parametrize("what", ["chat", "completions", "own chat", "own completions", "object", "token object", "composer"])
def test_opening_a_pool_or_a_composer_asks_no_server(what: str, stack: ExitStack, tmp_path: Path) -> None:
    server = stack.enter_context(FaultyServer("500"))
    folder = f"?tokenizer={HOUSEHOLD}"
    own = tmp_path / f"own_{what.replace(' ', '_')}.py"
    lines = [f"a = HttpModel({server.url!r}, 'm')", f"b = HttpModel({server.url + folder!r}, 'm', 'completions')"]
    own.write_text("\n".join(["from ramify.model.endpoint import HttpModel", *lines]))
    models: dict[str, Any] = {
        "chat": f"chat:m@{server.url}",
        "completions": f"completions:m@{server.url}{folder}",
        "own chat": f"{own}:a",
        "own completions": f"{own}:b",
        "object": HttpModel(server.url, "m"),
        "token object": HttpModel(server.url + folder, "m", "completions"),
    }
    pool = ModelPool([PoolWorker("w", models.get(what, functions.adder))])
    if what == "composer":
        for spec in models.values():
            if isinstance(spec, str):
                Api(Composed(pool.models[0]).over(open_composer(spec, pool)), "composer", Slots(1, 1, 0))
    assert server.requests == []


def test_a_composer_that_is_down_costs_one_request_and_the_best_single_worker_answers(stack: ExitStack) -> None:
    pool = ModelPool([PoolWorker("a", lambda messages: "from a"), PoolWorker("b", lambda messages: "from b")], retries=0)
    composer = open_composer(f"chat:m@{NOBODY}?retries=0", pool, fallback=1)
    api = client(stack.enter_context(served(Composed(pool.models[1]).over(composer))))
    said = [whole(api) for _ in range(2)]
    assert [(text, note["worker"]) for text, note, _ in said] == [("from b", "b")] * 2
    first, second = ([one.partition(":")[0] for one in note["notes"]] for _, note, _ in said)
    alone = "no workflow could be read"
    assert first == ["the composer failed (connection)", "the composer was passed over (down)", alone]
    assert second == ["the composer was passed over (down)", alone]


def test_an_outage_teaches_evolution_nothing() -> None:
    """Where a candidate's choice did not answer, another worker did: that episode counts for no candidate."""
    assert fitness([[1.0, None, 0.0], [0.0, 1.0, 1.0]]) == [0.5, 0.5]
    assert fitness([[1.0, 0.0], [0.0, 0.0]]) == [0.5, 0.0]  # the null case: all went well
    with pytest.raises(InfrastructureError, match="in every episode"):
        fitness([[1.0, None], [None, 1.0]])
    pool = ModelPool([PoolWorker("broken", functions.broken), PoolWorker("adder", functions.adder)], retries=0)
    tasks = TaskSet.of([Task(f"t{i}", {"prompt": f"add {i} 1", "answer": str(i + 1)}) for i in range(4)])

    def played(logits: list[float], **more: Any) -> list[float | None]:
        trial = Trial(pool, tasks, EvolveRouterConfig(), find_judge("exact"), **more)
        return asyncio.run(trial.rewards(Fixed(logits), "x", 6))  # type: ignore[arg-type]

    assert played([1.0, 0.0]) == [None] * 6
    assert None not in played([0.0, 1.0])
    assert None not in played([1.0, 0.0], exclude=["broken"])
    search = SepCma(np.zeros(2), 1.0, size=4)
    with pytest.raises(UserError, match="not a finite number"):
        search.tell(search.ask(), [0.0, 1.0, float("nan"), 0.0])


def test_a_run_says_who_was_passed_over() -> None:
    pool = pool_at(NOBODY, NOBODY)
    Clock(pool)
    chat = Orchestration(pool, [Message("user", "q")], "k")
    with pytest.raises(InfrastructureError):
        asyncio.run(router_over(pool)._answer(chat))
    assert json.loads(json.dumps(chat.notes)) == chat.notes
    assert not chat.passed_over, "both were asked"
    assert chat.outage
