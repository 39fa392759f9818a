"""The facade, its diagnostics, stored runs, files and verbs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.methods.graph_credit import StateGraph
from ramify.methods.graph_credit.algorithm import CreditConfig
from ramify.methods.graph_credit.rules import GraphCredit
from ramify.methods.graph_credit.run import MAKER
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.score.credit.protocol import CreditGroup, credit_group
from ramify.score.steps import read_steps, run_columns, write_rows
from ramify.trace.db import Run
from ramify.trace.keys import scrub
from ramify.trace.node import Score, make_node
from ramify.web.pages import report_html

PATHS = [(1, "AB", 10.0), (2, "AB", 0.0), (3, "ADB", 10.0), (4, "AD", 0.0)]


def steps(paths=PATHS, task="t") -> list[dict]:
    return [
        {
            "task_id": task,
            "attempt_id": i,
            "step": j,
            "anchor": key,
            "action": f"leave {key}",
            "reward": r if j == len(p) - 1 else 0,
        }
        for i, p, r in paths
        for j, key in enumerate(p)
    ]


def test_the_report_shows_where_two_long_states_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rooms = {"A": "hall", "B": "kitchen", "D": "cellar"}
    rows = [{**row, "anchor": {"key": f"{'the same words, ' * 5}room {rooms[row['anchor']]}"}} for row in steps()]
    write_rows(tmp_path / "long.jsonl", rows)
    assert main(["graph-credit", "report", str(tmp_path / "long.jsonl")]) == 0
    moves = capsys.readouterr().out.split("top gains")[1]
    assert "room hall" in moves
    assert "room cellar" in moves


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    write_rows(path, steps())
    return path


def test_facade_and_why():
    graph = StateGraph.from_steps(steps())
    found = graph.advantages(success_reward=10.0)
    assert found["A"][2] == pytest.approx(0.4774, abs=1e-4)
    why = graph.why("t", 2, 0)
    assert found["A"][2] == pytest.approx(why.A)
    assert why.A_ep == pytest.approx((why.reward - why.reward_mean) / why.reward_std, abs=1e-5)
    assert why.A_nc == pytest.approx((why.V_next - why.next_mean) / why.next_std, abs=1e-5)
    assert why.A_ec == pytest.approx((why.delta - why.delta_mean) / why.delta_std, abs=1e-5)
    assert [visit.attempt for visit in why.visits] == [1, 2, 3, 4]
    report = graph.report()
    assert report.top_losses[0].source == "B"
    assert report.mean_group_size == pytest.approx((4 * 4 + 3 * 3 + 2 * 2) / 9)
    assert report.group_sizes == {2: 2, 3: 3, 4: 4}
    assert not report.caveats
    assert [row["anchor"] for row in graph.rows(positive=True)] == ["A", "B", "A", "A", "D", "B", "A"]
    exported = graph.to_networkx()
    assert exported.number_of_nodes() == 5
    assert exported.nodes[0]["value"] == pytest.approx(4.3996875)


def test_records_arrays_and_anchor_functions_agree():
    rows = steps()
    base = StateGraph.from_steps(rows).advantages()["A"]
    columns = {name: np.array([row[name] for row in rows]) for name in ("task_id", "attempt_id", "step", "anchor", "reward")}
    assert (StateGraph.from_arrays(**columns).advantages()["A"] == base).all()
    noisy = [row | {"anchor": f"step {row['step']} of 50: {row['anchor']}"} for row in rows]
    assert (StateGraph.from_steps(noisy, keys=scrub("numbers")).advantages()["A"] == base).all()
    assert (StateGraph.from_steps(noisy, anchor=lambda row: row["anchor"][-1]).advantages()["A"] == base).all()


def test_warnings_are_loud():
    unique = [row | {"anchor": f"{row['attempt_id']}/{row['step']}"} for row in steps()]
    with pytest.warns(UserWarning, match="no state repetition .*only the episode term is informative"):
        StateGraph.from_steps(unique).advantages()
    with pytest.warns(UserWarning, match="1 of 1 tasks have one attempt"):
        StateGraph.from_steps(steps([(1, "ABAB", 1.0)])).advantages()
    with pytest.warns(UserWarning, match="nothing to credit"):
        StateGraph.from_steps(steps([(1, "AB", 1.0), (2, "AB", 1.0)])).advantages()


def test_dropped_and_constant_steps_say_so():
    rows = steps()
    rows[-1]["truncated"] = True
    graph = StateGraph.from_steps(rows)
    graph.advantages(truncation="drop")
    assert "dropped" in graph.why("t", 4, 1).note
    assert graph.report().dropped_steps == 2
    same = StateGraph.from_steps(steps([(1, "AB", 1.0), (2, "AB", 1.0)]))
    with pytest.warns(UserWarning, match="nothing to credit"):
        same.advantages()
    assert "same reward" in same.why("t", 1, 0).note


def policy(messages, key):
    text = messages[-1].text
    return "go " + text.split("exits ")[1].split(".")[0].split()[key % 2 - 1] if "exits " in text else "wait"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run with two tasks of four attempts, one of them branched once."""
    with Run.create(tmp_path / "run", {}) as run:
        model = ScriptedModel(policy)
        template = TagTemplate(model.tokenizer)
        agent = Agent(model, template, Sampling(max_tokens=20, stop_tokens=template.stop_tokens))
        made = Episodes(agent, HouseholdEnvironment(), run, seed=3, group="g")
        tasks = list(HouseholdEnvironment().task_set("eval", 2))

        async def play() -> None:
            for task in tasks:
                attempts = [await made.attempt(f"tree/{task.id}", task, i) for i in range(4)]
                fork = next((turn for turn in attempts[0].turns if turn.forkable), None)
                if fork is not None:
                    await made.branch(f"tree/{task.id}", task, fork.answer.id, 7)

        asyncio.run(play())
    return tmp_path / "run"


def test_why_says_of_a_dropped_step_that_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = steps()
    rows[-1]["truncated"] = True
    write_rows(tmp_path / "cut.jsonl", rows)
    at = ["--task", "t", "--attempt", "4", "--step", "1", "--truncation", "drop"]
    assert main(["graph-credit", "why", str(tmp_path / "cut.jsonl"), *at]) == 0
    text = capsys.readouterr().out
    assert "the attempt was truncated and dropped: no credit" in text
    assert "chance" not in text


def test_the_page_of_a_run_shows_the_report(stored: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["graph-credit", "report", str(stored), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with Run.open(stored) as run:
        (kept,) = run.results("graph-credit report")
        assert kept.result == found
        page = report_html(run)
    assert "<h2>graph-credit report</h2>" in page
    assert found["verdict"] in page


def test_credit_from_a_stored_run_and_back(stored: Path, capsys: pytest.CaptureFixture[str]):
    with Run.open(stored, write=True) as run:
        columns = run_columns(run, "g")
        verdicts = {verdict.node: verdict for verdict in run.scores(scorer="env")}
        rewards: dict[str, float] = {}
        for attempt, reward in zip(columns["attempt_id"], columns["reward"], strict=True):
            rewards[attempt] = rewards.get(attempt, 0.0) + reward
        assert rewards == pytest.approx({node: verdict.value for node, verdict in verdicts.items()})
        assert len(set(columns["node"])) < len(columns["node"])  # the branch shares its prefix
        first = columns["attempt_id"].index(columns["attempt_id"][0])
        path = run.path(columns["attempt_id"][0])
        said = [message.text for message in path.messages() if message.role == "assistant"]
        assert said == [
            a for a, i in zip(columns["action"], columns["attempt_id"], strict=True) if i == columns["attempt_id"][first]
        ]
        # whether these few attempts are all alike is not the point
        credit_group(run, GraphCredit(CreditConfig(zero_if_constant=False)), CreditGroup.of(run, "g"))
        node = columns["node"][0]
    assert main(["graph-credit", "why", str(stored), node[:12], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["node"] == node
    assert set(shown) >= {
        "A", "A_ep", "A_nc", "A_ec", "V", "V_next", "delta", "group", "group_size", "next_group", "task", "attempts", "reward",
    }  # fmt: skip
    with Run.open(stored) as run:
        (token_values,) = run.token_values(node=node, name="credit", maker=MAKER)
        sampled = run.node(node).sampled
        assert token_values.values[sampled] == pytest.approx(shown["A"])
        assert not token_values.values[~sampled].any()
        observation = run.path(columns["attempt_id"][0]).segments[0][0].id
    assert main(["graph-credit", "why", str(stored), observation]) == 2
    assert "carries no credit" in capsys.readouterr().err


def test_credit_is_stored_in_a_run_and_replaced(stored: Path, capsys: pytest.CaptureFixture[str]):
    def marked(*flags: str) -> tuple[int, dict[str, float]]:
        assert main(["graph-credit", "mark", str(stored), "--json", "--zero-if-constant=false", *flags]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        with Run.open(stored) as run:
            return steps, {mark.node: mark.value["A"] for mark in run.annotations(name="why", maker=MAKER)}

    steps, first = marked()
    assert steps == len(first) > 0
    assert marked() == (steps, first)
    again = marked("--w", "0", "--group", "g")
    assert again[0] == steps
    assert again[1].keys() == first.keys()
    assert again[1] != first  # the rule's other weight replaced the marks, it did not add to them
    assert main(["graph-credit", "mark", str(stored), "--group", "other"]) == 2
    assert "holds no trees of the group 'other'" in capsys.readouterr().err
    assert main(["graph-credit", "mark", str(stored), "--task", "t"]) == 2
    assert "leave --task out" in capsys.readouterr().err


def test_unscored_attempts_are_left_out(tmp_path: Path):
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "a"})
        root = make_node("t", None, 0, "user", "start")
        replies = [make_node("t", root.id, 1, "assistant", "go", index=i, provenance=None) for i in range(3)]
        run.add(root, *replies)
        for reply, value in zip(replies, (1.0, None, 0.0), strict=True):
            run.add(Score(reply.id, "env", value))
        columns = run_columns(run)
        assert dict(zip(columns["attempt_id"], columns["reward"], strict=True)) == {replies[0].id: 1.0, replies[2].id: 0.0}
        assert columns["anchor"] == ["start", "start"]
        with pytest.raises(UserError, match="no scored attempt"):
            run_columns(run, "other")


def test_verbs(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["graph-credit", "why", str(file), "--task", "t", "--attempt", "2", "--step", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["A"] == pytest.approx(0.4774, abs=1e-4)
    for out in ("adv.parquet", "adv.jsonl"):
        assert main(["graph-credit", "advantages", str(file), "--out", str(tmp_path / out), "--rule", "grpo"]) == 0
        rows = read_steps(tmp_path / out)
        assert [row["A"] for row in rows[:3]] == pytest.approx([0.866025, 0.866025, -0.866025], abs=1e-5)
    assert main(["graph-credit", "report", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["states"] == 3
    for out in ("g.json", "g.dot", "g.graphml"):
        assert main(["graph-credit", "show", str(file), "--out", str(tmp_path / out), "--task", "t"]) == 0
        assert (tmp_path / out).stat().st_size > 100
    assert main(["graph-credit", "show", str(file), "--task", "t"]) == 0
    assert "leave A" in capsys.readouterr().out
    assert main(["graph-credit", "show", str(file), "--task", "t", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "g.json").read_text())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["report", "FILE", "--rul", "g2po"], "unknown option --rul (did you mean '--rule'?)"),
        (["report", "FILE", "--gamma", "2"], "--gamma"),
        (["report", "FILE", "--anchor", "ancor"], "did you mean 'anchor'?"),
        (["report", "FILE", "--scrub", "number"], "did you mean 'numbers'?"),
        (["report", "missing.jsonl"], "cannot read missing.jsonl"),
        (["why", "FILE", "--task", "t"], "--task, --attempt and --step"),
        (["why", "FILE", "--task", "t", "--attempt", "9", "--step", "0"], "there is no step t/9/0"),
        (["show", "FILE", "--task", "u"], "no task 'u'"),
        (["show", "FILE", "--format", "png"], "--format: must be one of dot, json, not 'png'"),
        (["show", "FILE", "--format", "dot", "--out", "x.dot"], "takes no --format"),
        (["advantages", "FILE", "--out", "/nowhere/x.jsonl"], "cannot write /nowhere/x.jsonl"),
    ],
)
def test_bad_usage_is_one_sentence(args, sentence, file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["graph-credit", *(str(file) if arg == "FILE" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("verb", ["advantages", "show"])
def test_a_full_disk_is_no_mistake_of_the_user(verb, file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["graph-credit", verb, str(file), "--out", "/dev/full"]) == 1
    assert capsys.readouterr().err == "ramify: cannot write /dev/full: No space left on device\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no step"),
        ("{", ":1: not JSON"),
        ("[1]\n", ":1: a line must hold one JSON object"),
        ('{"task_id": 1, "attempt_id": 1, "step": 0, "rewrd": 1, "anchor": 1}', "did you mean 'rewrd'?"),
        ('{"task_id": 1, "attempt_id": 1, "step": 0.5, "reward": 1, "anchor": 1}', "'step' is 0.5, not an integer"),
        ('{"task_id": 1, "attempt_id": 1, "step": 0, "reward": NaN, "anchor": 1}', "'reward' is nan, not a finite number"),
        ('{"task_id": 1, "attempt_id": 1, "step": 0, "reward": 1, "anchor": 1}\n' * 2, "has step 0 twice"),
    ],
)
def test_bad_files(text, sentence, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    assert main(["graph-credit", "report", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ramify: {path}")
    assert sentence in error


def test_bad_columns():
    with pytest.raises(UserError, match="the column 'reward' is missing"):
        StateGraph.from_arrays(task_id=[1], attempt_id=[1], step=[0], anchor=[1])
    with pytest.raises(UserError, match="did you mean 'valid'"):
        StateGraph.from_arrays(task_id=[1], attempt_id=[1], step=[0], anchor=[1], reward=[0.0], vald=[True])
    with pytest.raises(UserError, match="unknown key 'rul'"):
        StateGraph.from_steps(steps()).advantages(rul="g2po")
