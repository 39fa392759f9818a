"""Back ends: the same tree whoever plays it, whoever dies meanwhile, and after the collector died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from ramify.base.budget import Budget
from ramify.base.errors import BudgetSpentError, InfrastructureError, RamifyError, UserError
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.jobs.collect import Collection, RolloutConfig
from ramify.jobs.play import open_players, play
from ramify.model.protocol import Sampling
from ramify.rollout import components
from ramify.rollout.backends import Player, Unit, parse, stored
from ramify.rollout.run import Episodes
from ramify.rollout.worker import Sink, add_records, pack_error, read_records, unpack_answer, write_records
from ramify.trace.db import Run
from ramify.trace.jsonl import write_lines
from ramify.trace.node import AttemptRecord, Context, Insert, Provenance, Score, Span, TreeInfo, make_node

HERE = Path(__file__).parent
TASKS = list(HouseholdEnvironment().task_set("train", 6, 3))


@pytest.fixture(autouse=True)
def _parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def lines(folder: Path) -> list[bytes]:
    """Everything in a run, in its order, without what tells runs apart (settings, times)."""
    with Run.open(folder) as run:
        write_lines(run, folder / "all.jsonl")
    kinds = [(line, json.loads(line)) for line in (folder / "all.jsonl").read_bytes().splitlines()]
    return [line for line, r in kinds if r["kind"] != "run" and r.get("entry") not in ("stretch", "start")]


def played(
    folder: Path, backend: str, model: str = "factory:worker_parts:walker", env: str = "household", **options: Any
) -> list:
    attempts = play(model, env, options.pop("tasks", TASKS), attempts=3, out=folder, seed=3, backend=backend, **options)
    return [
        (a.tree, a.index, a.leaf, a.reward, a.outcome, a.truncated, a.failure, len(a.turns), a.sampled_tokens) for a in attempts
    ]


@pytest.mark.slow
def test_processes_make_the_tree_that_this_process_makes(tmp_path: Path) -> None:
    for env in ("household", "chain", "factory:worker_parts:BytesEnvironment"):
        tasks = list(components.find_environment(env).task_set("train", 6, 3))
        model = "factory:worker_parts:guesser" if env == "chain" else "factory:worker_parts:walker"
        name = env.rpartition(":")[2]
        here = played(tmp_path / f"{name}-here", "local", model, env, tasks=tasks)
        workers = "processes:2" if env == "household" else "processes:1"
        there = played(tmp_path / f"{name}-there", workers, model, env, tasks=tasks, concurrency=5)
        assert here == there
        assert sorted(lines(tmp_path / f"{name}-here")) == sorted(lines(tmp_path / f"{name}-there"))


@pytest.mark.slow
def test_the_order_of_records_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    for name, concurrency in (("processes:1", 1), ("processes:2", 40)):
        played(tmp_path / name, name, concurrency=concurrency)
    assert lines(tmp_path / "processes:1") == lines(tmp_path / "processes:2")


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_that_is_killed_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int) -> None:
    monkeypatch.setenv("DOOMED", TASKS[2].data["start"])
    monkeypatch.setenv("DOOM_COUNT", str(tmp_path / "deaths"))
    (tmp_path / "deaths").write_bytes(b"")
    here = played(tmp_path / "here", "local", env="factory:worker_parts:DeadlyEnvironment")
    (tmp_path / "deaths").write_bytes(b"." * deaths)
    there = played(tmp_path / "there", "processes:2", env="factory:worker_parts:DeadlyEnvironment")
    assert (tmp_path / "deaths").read_bytes() == b"", "nobody died"
    assert here == there
    assert sorted(lines(tmp_path / "here")) == sorted(lines(tmp_path / "there"))


@pytest.mark.slow
def test_what_kills_every_worker_is_a_failed_attempt_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = TASKS[2]
    monkeypatch.setenv("DOOMED", doomed.data["start"])
    monkeypatch.setenv("DOOM_COUNT", str(tmp_path / "deaths"))
    (tmp_path / "deaths").write_bytes(b"." * 1000)
    config = RolloutConfig(
        model="factory:worker_parts:walker", env="factory:worker_parts:DeadlyEnvironment", seed=3, backend="processes:2"
    )
    task_set = [task for task in TASKS if task.id == doomed.id or task.data["start"] != doomed.data["start"]]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"id": t.id, **t.data}) + "\n" for t in task_set))
    config = config.model_copy(update={"tasks": str(tmp_path / "tasks.jsonl")})
    result = Collection(config).collect(tmp_path / "run")
    assert (result.failed, result.n, result.missing) == (1, len(task_set) - 1, 0)
    assert "engine: the worker that played this died 3 times" in next(iter(result.failures))
    with Run.open(tmp_path / "run") as run:
        (record,) = run.attempts(tree=doomed.id)
        assert (record.outcome, record.reward, run.scores(tree=doomed.id)) == (None, None, [])
        assert "died 3 times" in str(record.failure)
    (tmp_path / "deaths").write_bytes(b"")  # whatever it was is mended: the same call plays what failed
    again = Collection(config).collect(tmp_path / "run")
    assert (again.failed, again.n) == (0, len(task_set))


SLOW = RolloutConfig(model="factory:worker_parts:slow_walker", count=4, attempts=6, seed=3, backend="processes:2", concurrency=4)
FIRST = next(iter(HouseholdEnvironment().task_set("train", SLOW.count, SLOW.seed)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        Collection(SLOW.model_copy(update={"backend": "local"})).collect(folder)
    return lines(folder)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_collector_that_is_stopped_leaves_no_worker_and_a_run_to_continue_with(
    tmp_path: Path, how: signal.Signals, undisturbed: list[bytes]
) -> None:
    options = [f"--{name}={getattr(SLOW, name)}" for name in ("model", "count", "attempts", "seed", "backend", "concurrency")]
    process = subprocess.Popen(
        [sys.executable, "-m", "ramify.cli.main", "rollout", *options, "--out", str(tmp_path / "run")],
        # attempts of the first task are there soon, and those of the others take a minute
        env=os.environ | {"PYTHONPATH": str(HERE), "SLOW": "0.5", "QUICK": HouseholdEnvironment().make().reset(FIRST, 0).text},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert until(lambda: committed(tmp_path / "run") >= 3, 90)
    workers = children(process.pid)
    process.send_signal(how)
    _, said = process.communicate(timeout=90)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130)
    assert how == signal.SIGKILL or "finished work is kept: continue with `ramify resume" in said
    assert len(workers) == 2
    assert until(lambda: all(gone(pid) for pid in workers), 90)
    assert 3 <= committed(tmp_path / "run") < 24
    before = set(lines(tmp_path / "run"))
    assert Collection(SLOW).collect(tmp_path / "run").missing == 0
    assert before <= set(lines(tmp_path / "run")), "something committed was lost"
    assert sorted(lines(tmp_path / "run")) == sorted(undisturbed)


def committed(folder: Path) -> int:
    try:
        with Run.open(folder) as run:
            return len(run.journal("attempt"))
    except RamifyError:
        return 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Ended; nobody may have collected its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_branches_are_played_by_workers(tmp_path: Path) -> None:
    found = []
    for backend in ("local", "processes:2"):
        agent = components.make_agent("factory:worker_parts:walker", None, Sampling(max_tokens=20))
        environment = components.find_environment("factory:worker_parts:BytesEnvironment")
        name = ("factory:worker_parts:walker", "factory:worker_parts:BytesEnvironment")
        with Run.create(tmp_path / backend, {}) as run, open_players(backend, *name, agent, 3, 8) as players:
            player: Player = players.player(Episodes(agent, environment, run, 3, "a group"))
            first = players.run(player.attempt("t", TASKS[0], 0))
            branch = players.run(player.branch("t", TASKS[0], first.turns[3].answer.id, 5))
            again = players.run(player.branch("t", TASKS[0], first.turns[3].answer.id, 5))
            assert [t.node.id for t in again.turns] == [t.node.id for t in branch.turns]
            assert len(branch.turns) == len(first.turns) - 4
            assert player.episodes.trees["t"].hash == run.tree("t").hash
            found.append(([t.answer.id for t in branch.turns], branch.leaf, branch.start, branch.reward, run.tree("t").hash))
            assert run.trees()[0].group == "a group"
    assert found[0] == found[1]


def test_a_users_mistake_in_a_worker_is_the_same_sentence(tmp_path: Path) -> None:
    said = []
    for backend in ("local", "processes:2"):
        with pytest.raises(UserError) as caught:
            played(tmp_path / backend, backend, "factory:worker_parts:speechless")
        said.append(str(caught.value))
    assert said[0] == said[1] == "the script has 1 reply, and reply 2 was requested"


def test_workers_with_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="other weights"):
        played(tmp_path / "run", "processes:1", "factory:worker_parts:other_everywhere")


@pytest.mark.parametrize(
    ("backend", "message"),
    [("procesess", "unknown back end 'procesess' \\(local, processes, ray"), ("processes:0", "'0' is not a number"),
     ("processes:", "'' is not a number"), ("processes:-1", "not a number"), ("local:2", "local takes no number"),
     ("", "unknown back end ''"),
     ("processes:99999999999", "not a number"), ("processes:²", "not a number")],
)  # fmt: skip
def test_a_bad_back_end_is_one_sentence(backend: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(backend)


def test_objects_cannot_be_sent_to_workers(tmp_path: Path) -> None:
    model, _ = components.find_model("factory:worker_parts:walker")
    with pytest.raises(UserError, match="make model and environment themselves: give both by name"):
        play(model, "household", out=tmp_path / "a", backend="processes:2")
    with pytest.raises(UserError, match="names nothing that can be imported"):
        play("factory:no_such_module:x", "household", out=tmp_path / "b")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_spent_budget_starts_nothing_more_and_cuts_nothing(tmp_path: Path) -> None:
    agent = components.make_agent("factory:worker_parts:walker", None, None)
    units = [Unit(task.id, task, index) for task in TASKS for index in range(4)]
    for backend in ("local", "processes:2"):
        name = ("factory:worker_parts:walker", "household")
        with Run.create(tmp_path / backend, {}) as run, open_players(backend, *name, agent, 3, 2) as players:
            budget = Budget({"turns": 50})
            player = players.player(Episodes(agent, HouseholdEnvironment(), run, 3), budget)
            attempts = []

            async def work(player: Player = player, attempts: list = attempts) -> None:
                async for _, attempt in player.in_order(units):
                    attempts.append(attempt)

            with pytest.raises(BudgetSpentError):
                players.run(work())
            assert 50 <= budget.spent("turns") == sum(len(a.turns) for a in attempts) <= 50 + 3 * 12
            assert all(a.turns[-1].answer.stop for a in attempts)


@pytest.mark.slow
def test_no_more_attempts_are_under_way_than_asked_for(tmp_path: Path) -> None:
    agent = components.make_agent("factory:worker_parts:walker", None, None)
    name = ("factory:worker_parts:walker", "household")
    with Run.create(tmp_path / "run", {}) as run, open_players("processes:2", *name, agent, 3, 3) as players:
        player, most = players.player(Episodes(agent, HouseholdEnvironment(), run, 3)), 0
        message = player._message

        def counted(unit: Unit) -> bytes:
            nonlocal most
            assert players.pool is not None
            most = max(most, sum(member.load for member in players.pool._members))
            return message(unit)

        player._message = counted  # type: ignore[method-assign]

        async def work() -> int:
            return len([a async for a in player.in_order(Unit(t.id, t, i) for t in TASKS for i in range(4))])

        assert players.run(work()) == 24
        assert most == 3


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    root = make_node("t", None, 0, "root", "", tokens=[])
    odd = make_node("t", root.id, 0, "user", "\ud800 \x00 \u2028", tokens=[1, 2], ends=[1, 2], snapshot="blob:" + "0" * 24)
    infinite = make_node(
        "t", odd.id, 2, "assistant", "x", tokens=[3, 4], sampled=[True, False], logprobs=[float("-inf"), 0.1], index=0, reward=0.1
    )
    context = Context((Span(odd.id, 0, 1), Insert("...", (7,), "user")))
    provenance = Provenance("m", "w", {"temperature": 0.1}, 3, {"edit": 1})
    score = Score(odd.id, "env", 0.1 + 0.2, evidence={"a": None}, cost={"x": 1.0}, judges={"env": "j"})
    attempt = AttemptRecord(odd.id, "t", root.id, 0, "fork", 3, None, 0.1 + 0.2, True, "\ud800", provenance.hash)
    made = [provenance, context, b"\x00blob", root, odd, infinite]
    records = [TreeInfo("t", {"id": "\ud800"}, "g", {"a": 1}), *made, attempt, score]
    back = list(read_records(write_records(records)))
    assert [type(r) for r in back] == [type(r) for r in records]
    assert back[:4] == records[:4]
    assert back[-2:] == [attempt, score]
    for was, now in zip(records[4:7], back[4:7], strict=True):
        assert was.id == now.id
        assert was.reward == now.reward
        np.testing.assert_array_equal(was.logprobs, now.logprobs)
    sink = Sink(back)
    assert len(sink.tree("t")) == 3
    assert sink.context(context.hash) == context
    assert sink.added == []


def test_a_record_with_another_content_than_its_id_says_is_refused() -> None:
    node = make_node("t", None, 0, "root", "hello")
    line = write_records([node]).replace(b"hello", b"hallo")
    with pytest.raises(UserError, match="another content than its id"):
        list(read_records(line))


def test_errors_keep_their_kind_between_processes() -> None:
    for error in (UserError("a"), BudgetSpentError("b"), InfrastructureError("env", "c")):
        with pytest.raises(type(error), match=str(error)):
            unpack_answer(pack_error(error))
    with pytest.raises(Exception, match="a worker failed with ZeroDivisionError: d"):
        unpack_answer(pack_error(ZeroDivisionError("d")))


def test_a_worker_is_told_of_its_own_path_only(tmp_path: Path) -> None:
    played(tmp_path / "run", "local")
    with Run.open(tmp_path / "run") as run:
        tree = run.tree(TASKS[0].id)
        told = stored(tree, Unit(tree.name, TASKS[0], 1), run.context)
        assert {n.index for n in told if n.role == "assistant" and n.parent == told[1].id} == {1}
        assert len(told) < len(tree)
        with Run.create(tmp_path / "copy", {}) as copy:
            add_records(copy, [TreeInfo(tree.name, {}), *(r for r in run.each(Provenance)), *told])
            assert len(copy) == len(told)


@pytest.mark.parametrize("backend", ["local", "processes:1"])
def test_a_budget_of_tokens_holds_for_a_model_that_returns_text(tmp_path: Path, backend: str) -> None:
    config = RolloutConfig(model="factory:worker_parts:hosted", count=6, seed=3, backend=backend, concurrency=1)
    whole = Collection(config).collect(tmp_path / "whole")
    assert whole.tokens == 7 * whole.turns > 0
    limited = config.model_copy(update={"budget": config.budget.model_copy(update={"tokens": 7})})
    result = Collection(limited).collect(tmp_path / "run")
    assert (result.spent, result.n) == ("tokens", 1)


@pytest.mark.slow
def test_a_worker_pauses_where_this_process_does(tmp_path: Path) -> None:
    found = []
    for backend in ("local", "processes:1"):
        agent = components.make_agent(*components.find_model("factory:worker_parts:walker"), None)
        with (
            open_players(backend, "factory:worker_parts:walker", "household", agent, 3, 4) as players,
            Run.create(tmp_path / backend[:5], {}) as run,
        ):
            player = players.player(Episodes(agent, components.find_environment("household"), run, 3))
            first = players.run(player.attempt("t", TASKS[0], 0, 4))
            later = players.run(player.branch("t", TASKS[0], first.leaf, 7, 4))
            assert (first.paused, later.paused, len(first.turns), len(later.turns)) == (True, True, 4, 4)
            assert later.start == first.leaf
            found.append((first.leaf, later.leaf))
    assert found[0] == found[1]
