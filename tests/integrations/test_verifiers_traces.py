"""Traces that verifiers wrote, in: branches, tokens, rewards, failures; and the older results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import write

from ramify.base.errors import UserError
from ramify.integrations.formats import verifiers
from ramify.methods.governance.lost_rules import audit
from ramify.methods.governance.written_rules import Rule
from ramify.trace.convert import read_run
from ramify.trace.db import Run
from ramify.trace.node import Annotation, Node, Provenance, TokenValues

#: Made by verifiers itself: see make_verifiers_traces.py beside it.
TRACES = Path(__file__).parents[1] / "fixtures" / "verifiers-traces.jsonl"
EPISODES = [json.loads(line) for line in TRACES.read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Any:
    assert read_run(TRACES, tmp_path / "run") == "verifiers"
    with Run.open(tmp_path / "run") as opened:
        yield opened


def paths(trace: dict) -> list[list[int]]:
    """The branches of a trace as verifiers has them: node numbers from a root to each leaf."""
    parents = [node.get("parent") for node in trace["nodes"]]
    found = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while parents[path[0]] is not None:
            path.insert(0, parents[path[0]])
        found.append(path)
    return found


def test_every_branch_is_a_path_token_for_token(run: Run) -> None:
    assert [(t.name, t.group) for t in run.trees()] == [("sums/sum-0", "sums"), ("sums/sum-1", "sums")]
    seen = {}
    for tree in (run.tree(t.name) for t in run.trees()):
        for leaf in tree.leaves():
            path = tree.path(leaf.id)
            seen[tuple((m.role, m.text) for m in path.messages()), leaf.tokens is None, leaf.stop] = path
    branches = 0
    for episode in EPISODES:
        for trace in episode["traces"]:
            for branch in paths(trace):
                branches += 1
                nodes = [trace["nodes"][i] for i in branch]
                messages = tuple((node["message"]["role"], node["message"]["content"]) for node in nodes)
                text_only = not any(node["token_ids"] for node in nodes)
                path = seen[messages, text_only, "failed" if trace["errors"] else "stop"]
                if text_only:
                    continue
                mask = np.array([m for node in nodes for m in node["mask"]])
                assert path.tokens.tolist() == [t for node in nodes for t in node["token_ids"]]
                assert path.sampled.tolist() == mask.tolist()
                np.testing.assert_allclose(path.logprobs[mask], [p for node in nodes for p in node["logprobs"]], rtol=1e-6)
                assert not path.logprobs[~mask].any()
    assert branches == len(seen) == 5


def test_what_traces_share_is_one_node(run: Run) -> None:
    tree = run.tree("sums/sum-0")
    (system,) = tree.children(tree.root.id)
    question, rewritten = tree.children(system.id)  # the branch starts behind the system message, where the history was rewritten
    assert (question.text, rewritten.text) == ("1 + 2 ?", "so far : 1 + 2 is 4")
    assert rewritten.offset == len(system) == 6
    one, two = tree.children(question.id)  # two samples that are equal
    assert one.tokens.tolist() == two.tokens.tolist()
    assert one.data["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1, "y": 2}'}}
    ]
    assert tree.children(one.id)[0].data == {"name": "add", "tool_call_id": "c1"} | {
        "timestamp": tree.children(one.id)[0].data["timestamp"]
    }
    assert [p.model for p in run.each(Provenance)] == ["scripted"]
    assert next(run.each(Provenance)).settings == {"temperature": 0.7}
    token_values = list(run.each(TokenValues))
    assert {(s.name, s.maker) for s in token_values} == {("advantages", "verifiers")}
    assert all(np.array_equal(s.values != 0, run.node(s.node).sampled) for s in token_values)
    (link,) = run.each(Annotation)
    assert (run.node(link.node).text, link.value["type"], run.node(link.value["node"]).text) == (
        "done .",
        "compaction",
        "it is 4",
    )


def test_rewards_and_ends(run: Run) -> None:
    leaves = {leaf.text or leaf.stop: leaf for t in run.trees() for leaf in run.tree(t.name).leaves()}
    values = {(v.scorer, v.unit): (v.value, v.evidence) for v in run.scores(node=leaves["done ."].id)}
    assert values == {
        ("correct", "reward"): (0.0, {"weight": 1.0}), ("brief", "reward"): (0.5, {"weight": 0.2}),
        ("imported", "reward"): (0.1, None), ("turns", "metric"): (3.0, None)}  # fmt: skip
    assert run.scores(node=leaves["it is 4"].id) == []  # a trace is judged once, where it ended
    assert [(v.scorer, v.value) for v in run.scores(node=leaves["failed"].id)] == [("correct", None)]
    error = leaves["failed"].data["trace"]["errors"][0]
    assert error["message"] == "the endpoint went away <script>alert(1)</script>"
    assert leaves["done ."].data["trace"]["agent"]["name"] == "solver"


def test_a_folder_and_a_bare_trace(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "traces.jsonl").write_bytes(TRACES.read_bytes())
    assert read_run(tmp_path / "out", tmp_path / "a") == "verifiers"
    assert read_run(write(tmp_path / "bare.jsonl", *(e["traces"][0] for e in EPISODES)), tmp_path / "b") == "verifiers"
    with Run.open(tmp_path / "a") as a, Run.open(tmp_path / "b") as b:
        assert len(a) == len(b) == 18
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds none of verifiers' files"):
        verifiers.read_traces(tmp_path / "empty", tmp_path / "c")


def test_episodes_without_traces_and_tasks_of_one_name(tmp_path: Path) -> None:
    other = json.loads(json.dumps(EPISODES[0]))
    other["task"] |= {"key": "another-task", "data": {"name": "sum-0", "prompt": "9 + 9 ?"}}
    none = EPISODES[0] | {"traces": [], "ok": False, "errors": [{"type": "EnvError", "message": "no box"}]}
    read_run(write(tmp_path / "t.jsonl", EPISODES[0], other, none, none), tmp_path / "r")
    with Run.open(tmp_path / "r") as run:
        assert [t.name for t in run.trees()] == ["sums/sum-0", "sums/sum-0#another-task"]
        assert [leaf.stop for leaf in run.tree("sums/sum-0").leaves()] == ["stop", "failed", "failed"]
        assert run.tree("sums/sum-0").leaves()[1].data["episode"]["errors"][0]["message"] == "no box"


def result(**fields: Any) -> dict:
    call = json.dumps({"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}})
    return {
        "example_id": 3,
        "task": "sums",
        "answer": "3",
        "info": {"level": 1},
        "reward": 1.0,
        "metrics": {"exact": 1.0},
        "exact": 1.0,
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            {"role": "assistant", "content": "3"},
        ],
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "done",
        "timing": {"total_ms": 5},
        "error": None,
        **fields,
    }


def test_older_results(tmp_path: Path) -> None:
    broken = result(completion=[], reward=0.0, error={"error": "ModelError", "error_chain_str": "gone"})
    file = write(
        tmp_path / "results.jsonl",
        result(),
        result(reward=float("nan"), is_truncated=True),
        broken,
        result(prompt="q", completion="3", example_id=4),
    )
    assert read_run(file, tmp_path / "r") == "verifiers"
    with Run.open(tmp_path / "r") as run:
        assert [(t.name, t.task["data"]) for t in run.trees()] == [
            (f"sums/{i}", {"answer": "3", "info": {"level": 1}}) for i in (3, 4)
        ]
        tree = run.tree("sums/3")
        one, two, three = tree.leaves()
        assert [(m.role, m.text) for m in tree.path(one.id).messages()] == [
            ("system", "s"), ("user", "q"), ("assistant", ""), ("tool", "3"), ("assistant", "3")]  # fmt: skip
        assert tree.path(one.id).segments[3][0].data["tool_calls"][0]["function"]["name"] == "add"
        assert (one.stop, two.stop, three.stop) == ("", "truncated", "failed")
        assert one.data["result"] == {
            "is_completed": True,
            "is_truncated": False,
            "stop_condition": "done",
            "timing": {"total_ms": 5},
        }
        assert three.data["result"]["error"]["error_chain_str"] == "gone"
        assert [{(v.scorer, v.unit): v.value for v in run.scores(node=n.id)} for n in (one, two, three)] == [
            {("imported", "reward"): value, ("exact", "metric"): 1.0} for value in (1.0, None, None)]  # fmt: skip
        assert [v.evidence for v in run.scores(node=three.id, scorer="imported")] == [{"reported": 0.0}]
        assert [(r.outcome, r.reward, r.truncated, r.failure) for n in (one, two, three) for r in run.attempts(leaf=n.id)] == [
            (None, 1.0, False, None), (None, None, True, None), (None, None, False, "ModelError")]  # fmt: skip
        assert [(m.role, m.text) for m in run.tree("sums/4").path(run.tree("sums/4").leaves()[0].id).messages()] == [
            ("user", "q"), ("assistant", "3")]  # fmt: skip


def changed(**fields: Any) -> dict:
    """The first episode with fields of its trace, or with ``node_`` in front, of its third node, changed."""
    episode = json.loads(json.dumps(EPISODES[0]))
    for name, value in fields.items():
        at = episode["traces"][0]["nodes"][2] if name.startswith("node_") else episode["traces"][0]
        at[name.removeprefix("node_")] = value
    return episode


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (changed(version=2), "trace 0: 'version' is 2; only traces of version 1"),
        (changed(nodes=3), "trace 0: 'nodes' must be a list"),
        (changed(nodes=[3], calls=[]), "trace 0: node 0 is not an object"),
        (changed(node_parent=2), "node 2: 'parent' is 2, which is no node before it"),
        (changed(node_parent="x"), "node 2: 'parent' must be an integer"),
        (changed(node_message=None), "node 2: 'message' must be an object"),
        (changed(node_token_ids=[1.5]), "node 2: 'token_ids' holds something that is not a token id"),
        (changed(node_token_ids=[1 << 40]), "node 2: 'token_ids' holds something that is not a token id"),
        (changed(node_mask=[True]), "node 2: 'mask' must be true or false for each of 8 tokens"),
        (changed(node_logprobs=[0.0]), "node 2: 'logprobs' must hold a number for each of 6 sampled tokens"),
        (changed(node_logprobs=["a"] * 6), "node 2: 'logprobs' must hold a number"),
        (changed(node_advantages=[1.0]), "node 2: 'advantages' must hold a number"),
        (changed(node_semantic_parents=[{"node": 99}]), "node 2: 'semantic_parents' names no node"),
        (changed(calls=[{"node": 99}]), "call 0: 'node' is 99, and there are 5 nodes"),
        (changed(calls=[3]), "call 0 is not an object"),
        (changed(rewards={"a": 3}), "reward 'a' is not an object with 'score' and 'weight'"),
        (changed(rewards={"a": {"score": "x"}}), "reward 'a': 'score' must be a number"),
        (EPISODES[0] | {"traces": [3]}, "trace 0 is not an object"),
        (EPISODES[0] | {"traces": 3}, "'traces' must be a list"),
        (EPISODES[0] | {"task": 3}, "'task' must be an object"),
        (EPISODES[0] | {"task": {}}, "'task': 'data' must be an object, and it is missing"),
        (EPISODES[0] | {"env": "x"}, "'env' must be an object"),
        (result(prompt=3), "'prompt' must be a list or text"),
        (result(completion=[3]), "'completion', message 0 is not an object"),
        (result(reward="x"), "'reward' must be a number"),
        (result(example_id=None), "'example_id' must be an integer or text"),
    ],
)  # fmt: skip
def test_bad_records(tmp_path: Path, record: dict, message: str) -> None:
    file = write(tmp_path / "bad.jsonl", EPISODES[1], record)
    with pytest.raises(UserError) as caught:
        read_run(file, tmp_path / "run")
    assert str(caught.value).startswith(f"{file}:2: ")
    assert message in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]


def test_odd_but_honest_traces(tmp_path: Path) -> None:
    """No node, no call, a score that is not a number, a trace that ends in what it was given: each is its own attempt."""
    given = changed()
    given["traces"][0]["nodes"] = given["traces"][0]["nodes"][:2]
    given["traces"][0]["calls"] = []
    odd = changed(rewards={"correct": {"score": float("nan")}}, metrics={"turns": None})
    read_run(write(tmp_path / "t.jsonl", changed(nodes=[], calls=[]), given, given, odd), tmp_path / "r")
    with Run.open(tmp_path / "r") as run:
        leaves = run.tree("sums/sum-0").leaves()
        assert [leaf.text for leaf in leaves] == ["", "1 + 2 ?", "1 + 2 ?", "it is 3"]
        assert len({leaf.id for leaf in leaves}) == 4
        assert [v.value for v in run.scores(node=leaves[3].id)] == [None, None]
        assert sum(1 for _ in run.each(Node)) == 9


def test_an_audit_follows_the_compaction_that_a_trace_declares() -> None:
    """Four attempts in two trees; in one of them the history was rewritten, and nothing was between the others."""
    found = audit(TRACES, [Rule("Use the tool .")])
    assert (found.sessions, found.replies) == (4, 8)
    [compaction] = found.compactions
    assert (compaction.session, compaction.dropped) == ("sums/sum-0", 3)
    assert found.rules[0].lost == ()  # the system message stayed
