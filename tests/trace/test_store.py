"""The record store: what comes out is what went in, one writer, whole commits, and one sentence for every fault."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_cases import PROVENANCE, fill, same_array, same_node, trees

from ramify.base.errors import RamifyError, UserError
from ramify.trace import db, schema
from ramify.trace.context import context_of_parts, resolve, with_rest
from ramify.trace.db import Run
from ramify.trace.node import (
    Annotation,
    Context,
    Finding,
    Insert,
    Node,
    PathRest,
    Score,
    Span,
    TokenValues,
    context_from_json,
    make_node,
)


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(tmp_path / "run", {"seed": 1}) as opened:
        yield opened


def grow(run: Run, n: int, tree: str = "t") -> list[Node]:
    run.add_tree(tree, {"id": tree})
    root = make_node(tree, None, 0, "root", "")
    nodes = [root, *(make_node(tree, root.id, 0, "user", "x", tokens=[1, 2, i], index=i) for i in range(n))]
    run.add(*nodes)
    return nodes


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_round_trip(data: st.DataObject) -> None:
    nodes = data.draw(trees(PROVENANCE.hash))
    with tempfile.TemporaryDirectory() as folder:
        with Run.create(Path(folder) / "r", {}) as run:
            run.add_tree("t", {"id": 1})
            run.add(PROVENANCE, *nodes)
            run.add(*nodes)  # again: nothing happens
        with Run.open(Path(folder) / "r") as run:
            assert len(run) == len(nodes)
            tree = run.tree("t")
            assert all(same_node(tree.nodes[n.id], n) for n in nodes)
            assert list(tree.nodes) == [n.id for n in nodes]
            for node in nodes:
                assert same_node(run.node(node.id), node)
                stored, memory = run.path(node.id), tree.path(node.id)
                assert [(n.id, k) for n, k in stored.segments] == [(n.id, k) for n, k in memory.segments]
            columns = run.columns(["id", "tokens", "sampled", "logprobs", "ends", "parent", "reward", "text", "offset"])
            assert columns["id"].tolist() == [n.id for n in nodes]
            for i, node in enumerate(nodes):
                row = slice(columns["rows"][i], columns["rows"][i + 1])
                for name, dtype in (("tokens", np.int32), ("sampled", bool), ("logprobs", np.float32), ("ends", np.int32)):
                    n = 0 if node.tokens is None else len(node.tokens)
                    value = getattr(node, name)
                    assert same_array(columns[name][row], np.zeros(n, dtype) if value is None else value)
                assert columns["text"][i] == node.text
                assert (nodes[columns["parent"][i]].id if columns["parent"][i] >= 0 else None) == node.parent
                assert np.array_equal(columns["reward"][i], np.nan if node.reward is None else node.reward, equal_nan=True)


def test_every_record(run: Run) -> None:
    ids = fill(run)
    assert run.meta == {"schema": 1, "ramify": run.meta["ramify"], "config": {"seed": 1}}
    assert [t.name for t in run.trees()] == ["update-000/task-1", "chat"]
    assert [t.name for t in run.trees("chats")] == ["chat"]
    assert run.trees()[0].task == {"id": "task-1", "data": {"goal": "dör"}}
    assert [run.tree_info(t.name) for t in run.trees()] == run.trees()
    with pytest.raises(UserError, match="has no tree 'chatt'"):
        run.tree_info("chatt")
    fork = run.node(ids["fork"])
    assert run.provenance(fork.provenance or "") == PROVENANCE
    shown = run.shown(fork.id)
    assert shown.tokens is None  # one insert has text only
    assert [(m.role, m.text) for m in shown.messages] == [("user", "so far: hi!")]
    assert [(m.role, m.text) for m in run.shown(ids["drawn"]).messages] == [("user", "hi")]
    assert run.shown(ids["drawn"]).tokens.tolist() == [1, 5, 6, 2]
    assert [s.values.tolist() for s in run.token_values(tree="update-000/task-1", name="credit")] == [[0.5]]
    assert np.isnan(run.token_values(node=ids["odd"])[0].values).all()
    assert [m.value for m in run.annotations(name="why")] == [{"V": 0.25}]
    assert [v.value for v in run.scores(node=ids["fork"])] == [1.0, None]
    assert run.scores(scorer="judge")[0].judges == {"a": "j1", "b": "j2"}
    assert [(e.kind, e.key, e.payload) for e in run.journal()] == [("update", "000", {"done": True})]
    assert run.get_blob(ids["blob"]) == b"\x00state\xff"
    assert "\ud800" in run.node(ids["odd"]).text
    assert run.node(ids["drawn"]).tokens.flags.writeable  # torch warns about arrays that are not


def test_same_place_replaces_and_journal_keeps(run: Run) -> None:
    nodes = grow(run, 1)
    for value in (1.0, 2.0):
        run.add(TokenValues(nodes[1].id, "credit", "m", np.full(3, value)), Annotation(nodes[1].id, 0, "n", "m", value))
        run.add(Score(nodes[1].id, "s", value, judges={"j": "x"}))
        run.log("k", "a", value)
    assert run.token_values()[0].values.tolist() == [2.0] * 3
    assert len(run.token_values()) == 1
    assert [m.value for m in run.annotations()] == [2.0]
    assert [v.value for v in run.scores()] == [2.0]
    assert [e.payload for e in run.journal("k")] == [1.0]
    assert run.log("k", "b") is True
    assert run.log("k", "b") is False


def test_erase_judge(run: Run) -> None:
    nodes = grow(run, 4)
    for i, node in enumerate(nodes[1:]):
        run.add(Score(node.id, "s", float(i), judges={"main": f"j{i % 2}"}))
        run.add(Score(node.id, "pair", 0.0, judges={"main": "j0", "second": f"j{i}"}))
    assert run.erase_judge("j1") == 3  # two of "s", one second slot
    assert {(v.scorer, tuple(v.judges.values())) for v in run.scores()} == {
        ("s", ("j0",)), ("pair", ("j0", "j0")), ("pair", ("j0", "j2")), ("pair", ("j0", "j3"))}  # fmt: skip
    assert run.erase_judge("nobody") == 0
    assert len(run) == 5


def test_faults_of_records(run: Run) -> None:
    nodes = grow(run, 1)
    text = make_node("t", nodes[0].id, 0, "user", "text only")
    run.add(text)
    bad = {
        "hangs on node": make_node("t", "f" * 24, 0, "user", "x"),
        "has no tree 'u': known: t": make_node("u", None, 0, "root", ""),
        "has a root already": make_node("t", None, 0, "system", "x"),
        "starts at offset 4": make_node("t", nodes[1].id, 4, "user", "x"),
        "starts at offset 2": make_node("t", text.id, 2, "user", "x"),
        "of provenances": make_node("t", nodes[0].id, 0, "user", "x", provenance="nobody"),
        "of contexts": make_node("t", nodes[0].id, 0, "user", "x", context="nothing"),
        "is nan": make_node("t", nodes[0].id, 0, "user", "x", reward=float("nan")),
        "not storable as JSON": make_node("t", nodes[0].id, 0, "user", "x", data={"a": float("inf")}),
        "have shape": TokenValues(nodes[1].id, "credit", "m", np.zeros(2)),
        "points at node": TokenValues("e" * 24, "credit", "m", np.zeros(2)),
        "at offset 9": Annotation(nodes[1].id, 9, "n", "m", None),
        "the value of the score": Score(nodes[1].id, "s", float("inf")),
    }
    for message, record in bad.items():
        with pytest.raises(UserError, match=message):
            run.add(record)
    run.add_tree("v", {})
    with pytest.raises(UserError, match="of tree 'v' hangs on node"):
        run.add(make_node("v", nodes[0].id, 0, "user", "x"))
    with pytest.raises(UserError, match="another task"):
        run.add_tree("t", {"id": "other"})
    with pytest.raises(UserError, match="not valid text"):
        run.tree("\ud800")
    with pytest.raises(UserError, match="cannot be stored"):
        run.add(Annotation(nodes[1].id, 0, "\ud800", "m", None))
    assert len(run) == 3
    with pytest.raises(ValueError, match="one entry per token"):
        make_node("t", None, 0, "user", "x", tokens=[[1, 2]])


def test_context_spans_outside(run: Run) -> None:
    nodes = grow(run, 1)
    context = Context((Span(nodes[1].id, 1, 9),))
    node = make_node("t", nodes[1].id, 3, "assistant", "y", context=context.hash)
    run.add(context, node)
    with pytest.raises(UserError, match="shows 1 to 9 of node"):
        run.shown(node.id)


def test_a_context_shows_the_rest_of_the_path(run: Run) -> None:
    nodes = grow(run, 1)
    for number in (7, 8):
        nodes.append(make_node("t", nodes[-1].id, 2, "user", "x", tokens=[1, number, 3]))
        run.add(nodes[-1])
    summary = Insert("so far", role="user")
    context = Context((summary, PathRest(nodes[1].id)))
    cut = make_node("t", nodes[3].id, 1, "assistant", "y", context=context.hash)
    run.add(context, cut)
    spelled = Context((summary, Span(nodes[2].id, 0, 2), Span(nodes[3].id, 0, 1)))
    same = make_node("t", nodes[3].id, 1, "assistant", "y", context=spelled.hash)
    run.add(spelled, same)
    assert context_of_parts(resolve(context, run.node, cut)) == spelled
    assert with_rest(spelled.parts, run.path(nodes[3].id).upto(1).segments) == context
    assert context_from_json(context.to_json()) == context != spelled
    assert with_rest((summary,), run.path(nodes[3].id).segments) == Context((summary,))
    apart = make_node("t", nodes[0].id, 0, "assistant", "z", context=context.hash)
    run.add(apart)
    with pytest.raises(UserError, match=f"what follows node {nodes[1].id}, which is not on its path"):
        run.shown(apart.id)


def test_prefixes(run: Run) -> None:
    nodes = grow(run, 200)
    ids = sorted(n.id for n in nodes)
    assert run.node(nodes[7].id[:12]).id == nodes[7].id
    with pytest.raises(UserError, match="ambiguous"):
        run.node("")
    first = next(a for a, b in itertools.pairwise(ids) if a[0] == b[0])
    with pytest.raises(UserError, match=first):
        run.path(first[0])
    with pytest.raises(UserError, match=r"no node '.*': did you mean"):
        run.node(ids[0][:-1] + ("0" if ids[0][-1] != "0" else "1"))
    with pytest.raises(UserError, match="has no node 'zzz'"):
        run.path("zzz")


def test_transactions(run: Run) -> None:
    nodes = grow(run, 2)
    with pytest.raises(UserError, match="points at node"), run.transaction():
        run.add(PROVENANCE, Annotation(nodes[0].id, 0, "n", "m", 1), Annotation("e" * 24, 0, "n", "m", 1))
    assert run.annotations() == []
    assert run.journal() == []
    assert len(run) == 3
    with Run.open(run.folder) as reader:
        assert len(reader) == 0  # the group's failure did not commit what came before it either
        with run.transaction(), run.transaction():
            run.add(PROVENANCE, make_node("t", nodes[0].id, 0, "user", "y", provenance=PROVENANCE.hash))
            run.commit()  # waits for the group
            assert len(reader) == 0
        assert len(reader) == 4


def test_commits_by_itself(run: Run) -> None:
    with Run.open(run.folder) as reader:
        nodes = grow(run, db.BATCH - 3)
        assert len(reader) == 0
        run.add(make_node("t", nodes[0].id, 0, "user", "y"), make_node("t", nodes[0].id, 0, "user", "z"))
        assert len(reader) == db.BATCH


def _try_to_write(folder: str, out: multiprocessing.Queue) -> None:
    try:
        Run.open(folder, write=True).close()
    except UserError as error:
        out.put(str(error))
    else:
        out.put("")


def test_one_writer(run: Run) -> None:
    grow(run, 3)
    run.commit()
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    child = context.Process(target=_try_to_write, args=(str(run.folder), out))
    child.start()
    assert "is being written by another process" in out.get(timeout=110)
    child.join()
    with pytest.raises(UserError, match="is being written by another process"):
        Run.create(run.folder, {})
    with Run.open(run.folder) as reader:
        assert len(reader) == 4
        for refused in (lambda: reader.add(PROVENANCE), lambda: reader.put_blob(b""), lambda: reader.erase_judge("x")):
            with pytest.raises(UserError, match="not open for writing"):
                refused()
    run.close()
    run.close()
    with pytest.raises(RamifyError):
        len(run)
    with Run.open(run.folder, write=True) as again:
        assert len(again) == 4


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    def refused(folder: Path, message: str) -> None:
        for write in (False, True):
            with pytest.raises(UserError, match=message) as caught:
                Run.open(folder, write=write)
            assert str(folder) in str(caught.value)

    refused(tmp_path, "is not a run")
    refused(tmp_path / "nothing", "is not a run")
    with Run.create(tmp_path / "good", {}) as run:
        grow(run, 500)
    content = (tmp_path / "good" / "run.sqlite").read_bytes()
    for name, data, message in (
        ("empty", b"", "the file is empty"),
        ("garbage", b"not a database at all" * 400, "not a run"),
        ("cut", content[: len(content) // 2], "cut short|damaged"),
        ("cut-at-page", content[: 4096 * 3], "cut short|damaged"),
        ("header", content[:100], "not a run|damaged|cut short"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.sqlite").write_bytes(data)
        refused(folder, message)
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / "run.sqlite") as connection:
        connection.execute("CREATE TABLE nodes (id)")
    connection.close()
    refused(other, "is not a run of ramify")
    for number in (0, schema.SCHEMA + 1):
        shutil.copytree(tmp_path / "good", tmp_path / f"schema-{number}")
        with sqlite3.connect(tmp_path / f"schema-{number}" / "run.sqlite") as connection:
            connection.execute(f"PRAGMA user_version = {number}")
        connection.close()
        says = f"has schema {number}, and this ramify reads schema {schema.SCHEMA}: open it with the version that wrote it"
        refused(tmp_path / f"schema-{number}", says)
    with pytest.raises(UserError, match="holds a run already"):
        Run.create(tmp_path / "good", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot make a run"):
        Run.create(tmp_path / "file", {})
    with pytest.raises(UserError, match="the config of the run is not storable"):
        Run.create(tmp_path / "odd", {"x": float("nan")})
    assert not (tmp_path / "odd").exists()


def test_damage_inside_is_named(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        grow(run, 2000)
    file = tmp_path / "run" / "run.sqlite"
    with closing(sqlite3.connect(file)) as db:
        ((page, size),) = db.execute(
            "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master WHERE name = 'nodes'"
        )
    content = bytearray(file.read_bytes())
    content[(page - 1) * size : page * size] = bytes(size)
    file.write_bytes(content)
    with Run.open(tmp_path / "run") as run, pytest.raises(RamifyError, match=r"cannot read .*run\.sqlite"):
        run.tree("t")


def test_a_mistake_before_the_first_node_leaves_no_run(tmp_path: Path) -> None:
    def stop(folder: Path, error: Exception, played: bool) -> bool:
        def mistaken() -> None:
            with Run.create(folder, {}) as run:
                if played:
                    run.add_tree("t", {})
                    run.add(make_node("t", None, 0, "user", "hello"))
                raise error

        with pytest.raises(type(error)):
            mistaken()
        return (folder / "run.sqlite").exists()

    assert not stop(tmp_path / "mistaken", UserError("wrong task"), played=False)
    assert stop(tmp_path / "played", UserError("wrong task"), played=True)
    assert stop(tmp_path / "faulty", RuntimeError("ours"), played=False)
    with pytest.raises(UserError), Run.open(tmp_path / "faulty", write=True):  # a run of an earlier call
        raise UserError("wrong task")
    assert (tmp_path / "faulty" / "run.sqlite").exists()


def test_a_reader_leaves_nothing_behind(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        grow(run, 2)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with Run.open(tmp_path / "run") as run:
        assert len(run) == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before == ["run.lock", "run.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        grow(run, 2)
    (tmp_path / "run").chmod(0o500)
    try:
        with Run.open(tmp_path / "run") as run:
            assert len(run) == 3
        with pytest.raises(UserError, match="cannot make a run"):
            Run.create(tmp_path / "run" / "inner", {})
    finally:
        (tmp_path / "run").chmod(0o700)


def test_blobs(run: Run) -> None:
    name = run.put_blob(b"abc" * 1000)
    assert run.put_blob(b"abc" * 1000) == name
    assert list(run.blobs.names()) == [name]
    with pytest.raises(UserError, match="no blob"):
        run.get_blob("0" * 24)
    with pytest.raises(UserError, match="not a blob hash"):
        run.get_blob("../../etc")
    next(run.blobs.folder.glob("??/*")).write_bytes(b"other")
    with pytest.raises(RamifyError, match="damaged"):
        run.get_blob(name)


def test_columns_filter(run: Run) -> None:
    grow(run, 3, "a")
    grow(run, 2, "b")
    assert run.columns(["tokens"], tree="b")["tokens"].tolist() == [1, 2, 0, 1, 2, 1]
    assert run.columns(["parent", "tree"], tree="b")["parent"].tolist() == [-1, 0, 0]
    assert run.columns(["offset"], group="none")["offset"].shape == (0,)
    assert run.columns(["tokens", "id", "reward"], group="none")["rows"].tolist() == [0]
    with pytest.raises(UserError, match="did you mean 'tokens'"):
        run.columns(["token"])
    with pytest.raises(UserError, match="no tree 'c'"):
        run.columns(["tokens"], tree="c")


def test_a_run_continues_only_as_it_began(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sampling = {"temperature": 1.0, "ban": (3,)}
    begun = {"seed": 1, "sampling": sampling}
    with Run.begin(folder, "rollout", begun, {"workers": 1}, {"weights": "w"}) as run:
        run.log("attempt", "a")
    with Run.begin(folder, "rollout", begun, {"workers": 4}, {"weights": "w"}) as run:
        assert [entry.key for entry in run.journal("attempt")] == ["a"]
    with Run.open(folder) as run:
        assert run.config == {"seed": 1, "sampling": {"temperature": 1.0, "ban": [3]}, "workers": 4}
    for kind, decides, parts, says in (
        (
            "rollout",
            {**begun, "seed": 2},
            {"weights": "w"},
            "cannot continue, it began with other settings: seed was 1, is 2",
        ),
        ("rollout", {**begun, "sampling": {**sampling, "temperature": 0.5}}, {}, "sampling.temperature was 1.0, is 0.5"),
        ("rollout", begun, {"weights": "v"}, "weights was 'w', is 'v'"),
        ("improve", begun, {}, "was not made by `ramify improve`"),
    ):
        with pytest.raises(UserError, match=re.escape(says)):
            Run.begin(folder, kind, decides, {}, parts)
    # a setting that the run does not know is taken over
    Run.begin(folder, "rollout", {**begun, "window": 9}).close()
    with pytest.raises(UserError, match="window was 9, is 8"):
        Run.begin(folder, "rollout", {**begun, "window": 8})


def test_findings_are_replaced_by_who_made_them(run: Run) -> None:
    ids = fill(run)
    first = [Finding("lost", "audit", f"rule {i}", ids["ask"], value=i) for i in range(3)]
    run.conclude("audit", first)
    run.conclude("credit", [Finding("decisive", "credit", "it stands out")])
    assert run.findings(maker="audit") == first
    run.conclude("audit", first[1:2])
    assert run.findings() == [Finding("decisive", "credit", "it stands out"), first[1]]
    with pytest.raises(UserError, match="points at node"):
        run.conclude("audit", [Finding("lost", "audit", "x", "no such node")])
    with pytest.raises(UserError, match="offset"):
        run.add(Finding("lost", "audit", "x", ids["ask"], 99))
    assert run.findings(maker="audit") == first[1:2]
    score = run.scores()[0]
    run.erase_judge(next(iter(score.judges.values())))
    assert len(run.findings()) == 2


def test_a_step_of_the_journal_is_done_once(tmp_path: Path) -> None:
    calls: list[str] = []

    def make() -> tuple[Span, list[Node]]:
        calls.append("made")
        return Span("n", 1, 2), [make_node("t", None, 0, "user", "hello")]

    async def awaited() -> tuple[Span, list[Node]]:
        return make()

    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {})
        assert run.once("step", "1", Span, make) == run.once("step", "1", Span, make) == Span("n", 1, 2)
        assert asyncio.run(run.once_awaited("step", "1", Span, awaited)) == Span("n", 1, 2)
    with Run.open(tmp_path / "run", write=True) as run:
        assert run.once("step", "1", Span, make) == Span("n", 1, 2)
        assert len(run) == 1
        assert asyncio.run(run.once_awaited("step", "2", Span, awaited)) == Span("n", 1, 2)
        run.log("step", "odd", {"node": "n", "start": "far", "end": 2})
        with pytest.raises(UserError, match=r"step 'odd': 'start' must be a valid integer, not 'far'"):
            run.once("step", "odd", Span, make)
    assert calls == ["made", "made"]


def test_a_step_is_kept_with_what_no_record_says_or_not_at_all(tmp_path: Path) -> None:
    def refused(made: Span) -> None:
        opened.replace_judge("slot", "b")
        raise ValueError("not now")

    with Run.create(tmp_path / "run", {}) as opened:
        opened.once("step", "1", Span, lambda: (Span("n", 1, 2), ()), lambda made: opened.replace_judge("slot", "a"))
        with pytest.raises(ValueError, match="not now"):
            opened.once("step", "2", Span, lambda: (Span("m", 1, 2), ()), refused)
    with Run.open(tmp_path / "run", write=True) as opened:
        assert opened.incumbents() == {"slot": "a"}
        assert opened.memo("step", Span) == {"1": Span("n", 1, 2)}
        opened.once("step", "1", Span, lambda: (Span("n", 1, 2), ()), refused)  # held: nothing is done again
        opened.log("step", "odd", {"name": 1})
        with pytest.raises(UserError, match="step 'odd'"):
            opened.memo("step", Span)
