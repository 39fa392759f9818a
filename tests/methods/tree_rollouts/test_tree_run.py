"""Rows, report and verbs, on trees grown by the real rollout layer in the household environment (section 8, items 4 and 10;
3.8)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify import kit
from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import generator
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment, next_action
from ramify.methods.tree_rollouts.algorithm import TreeConfig, grpo, tree_grpo
from ramify.methods.tree_rollouts.allocator import BudgetAllocator
from ramify.methods.tree_rollouts.record import GrownTree, keep_trees
from ramify.methods.tree_rollouts.run import report, to_rows
from ramify.methods.tree_rollouts.sampler import TreeSampler
from ramify.methods.tree_rollouts.verbs import app
from ramify.model.chat import TagTemplate
from ramify.model.protocol import Sampling
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Node
from tree_rollouts.growers import TASK, Words, check_accounting

ENVIRONMENT = HouseholdEnvironment(max_turns=14)
TASK_SET = {task.id: task for task in ENVIRONMENT.task_set("train", 3)}
CONFIG = TreeConfig(worst_attempt=14, parallel=3)


class Walker:
    """Follows the shortest way, and strays at random: where it stands, it reads off an environment of its own."""

    def __init__(self, stray: float) -> None:
        self.stray = stray
        self.__qualname__ = f"walker {stray}"

    def __call__(self, messages: tuple[Message, ...], key: int) -> str:
        env, task = (
            ENVIRONMENT.make(),
            next(t for t in TASK_SET.values() if t.data["thing"] in messages[0].text and _starts(t, messages[0].text)),
        )
        env.reset(task, 0)
        for message in messages:
            if message.role == "assistant" and message.text:
                env.step(message.text)
        if generator(key, "stray").random() < self.stray:
            return "wait"
        return next_action(task, env.snapshot()) or "wait"


def _starts(task: object, text: str) -> bool:
    env = ENVIRONMENT.make()
    return env.reset(task, 0).text in text  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[GrownTree], Run]]:
    model = ScriptedModel(Walker(0.35))
    template = TagTemplate(model.tokenizer)
    agent = Agent(model, template, Sampling(max_tokens=40, stop_tokens=template.stop_tokens))
    with Run.create(tmp_path_factory.mktemp("run") / "r", {}) as run:
        episodes = Episodes(agent, ENVIRONMENT, run, seed=4)
        allocator = BudgetAllocator(TreeSampler(episodes, CONFIG, 4), 60.0 * len(TASK_SET))
        trees = asyncio.run(allocator.run(list(TASK_SET.values())))
        run.commit()
        yield trees, run


def test_real_rollouts_keep_the_books(grown: tuple[list[GrownTree], Run]) -> None:
    trees, run = grown
    for tree in trees:
        check_accounting(tree, CONFIG)
        stored = run.tree(tree.tree)
        assert tree.cost == sum(node.role == "assistant" for node in stored.nodes.values())
        for leaf in tree.leaves:
            sampled = [node for node, _ in run.path(leaf.stored).segments if node.role == "assistant"]
            places = tree.path(leaf.node)[-2::-1]
            assert [node.tokens.tolist() for node in sampled if node.tokens is not None] == [
                place.turn_tokens for place in places
            ]
    assert any(tree.mixed for tree in trees)


def test_a_fork_has_the_state_it_left_and_shares_nothing(grown: tuple[list[GrownTree], Run]) -> None:
    # every stored observation is what the environment answers when the actions before it are played from the start
    trees, run = grown
    for tree in trees:
        for leaf in tree.leaves:
            env = ENVIRONMENT.make()
            env.reset(TASK_SET[tree.prompt_id], 0)
            seen = None
            for node, _ in run.path(leaf.stored).segments:
                if node.role == "assistant":
                    seen = env.step(node.text)
                elif seen is not None:
                    assert seen.text in node.text
                    assert env.key() == node.state_key


def test_leaf_rows(grown: tuple[list[GrownTree], Run]) -> None:
    trees, run = grown
    rows = to_rows(trees, lambda tree, leaf: run.path(leaf))
    mixed = [tree for tree in trees if tree.mixed]
    assert len(rows) == sum(len(tree.group) for tree in mixed)
    for tree in mixed:
        mine = [row for row in rows if row["tree"] == tree.tree]
        values = grpo([leaf.reward for leaf in tree.group])
        for row, leaf, value in zip(mine, tree.group, values.tolist(), strict=True):
            path = run.path(leaf.stored)
            assert row["prompt_ids"] + row["completion_ids"] == path.tokens.tolist()
            lengths = {len(row[name]) for name in ("completion_ids", "logprobs", "mask", "advantages", "weights")}
            assert len(lengths) == 1
            assert [m for m in row["mask"] if m] == [True] * int(path.sampled.sum())
            assert {a for a, m in zip(row["advantages"], row["mask"], strict=True) if m} == {value}
            assert row["leaves"] == tree.root.n


def test_node_rows_train_each_edge_once(grown: tuple[list[GrownTree], Run]) -> None:
    trees, run = grown
    rows = to_rows(trees, lambda tree, leaf: run.path(leaf), advantage="node")
    for tree in (t for t in trees if t.mixed):
        mine = [row for row in rows if row["tree"] == tree.tree]
        sampled = {place.id: sum(1 for _ in place.turn_tokens or ()) for place in tree.places.values() if place.n}
        header = 1  # the role tag opens the message and is not sampled
        assert sum(sum(row["mask"]) for row in mine) == sum(size - header for name, size in sampled.items() if name != "root")
    leaf_values = {t.tree: grpo([leaf.reward for leaf in t.group]) for t in trees if t.mixed}
    tree = next(t for t in trees if t.mixed)
    first = next(row for row in rows if row["tree"] == tree.tree)
    edges = [place.id for place in tree.path(tree.group[0].node)[-2::-1]]
    below = [
        v for leaf, v in zip(tree.group, leaf_values[tree.tree], strict=True) if edges[0] in [p.id for p in tree.path(leaf.node)]
    ]
    start = first["mask"].index(True)
    assert first["advantages"][start] == pytest.approx(np.mean(below) * math.sqrt(len(below)))


def test_unique_weights_give_every_sampled_token_weight_1(grown: tuple[list[GrownTree], Run]) -> None:
    trees, run = grown
    once = to_rows(trees, lambda tree, leaf: run.path(leaf), advantage="node")
    weighed = to_rows(trees, lambda tree, leaf: run.path(leaf), prefix_weight="unique")
    assert sum(sum(row["weights"]) for row in weighed) == pytest.approx(sum(sum(row["mask"]) for row in once))


def test_tree_grpo_rows_group_leaves_by_their_root_attempt(grown: tuple[list[GrownTree], Run]) -> None:
    trees, run = grown
    tree = next(t for t in trees if t.mixed)
    rows = to_rows([tree], lambda _, leaf: run.path(leaf), advantage="tree_grpo")
    values = tree_grpo([leaf.reward for leaf in tree.group], [leaf.origin for leaf in tree.group])
    assert [row["advantages"][row["mask"].index(True)] for row in rows] == pytest.approx(values.tolist())
    assert {leaf.origin for leaf in tree.group} <= {leaf.index for leaf in tree.leaves}


def test_uniform_groups_give_no_rows_and_shaped_rewards_do_not_fool_it() -> None:
    tree = asyncio.run(TreeSampler(Words(1, p=0.0), TreeConfig()).run(TASK, 30))
    shaped = [
        type(leaf)(**{**{n: getattr(leaf, n) for n in leaf.__slots__}, "reward": float(i)}) for i, leaf in enumerate(tree.leaves)
    ]
    tree.leaves = shaped
    assert to_rows([tree], lambda *_: pytest.fail("no path is needed")) == []
    found = report([tree])
    assert (found.mixed, found.l1_mass, found.all_failure) == (0, 0, 1)


def test_a_path_of_text_only_is_refused(grown: tuple[list[GrownTree], Run], tmp_path: Path) -> None:
    model = ScriptedModel(Walker(0.35), tokens=False)
    with Run.create(tmp_path / "r", {}) as run:
        tree = asyncio.run(TreeSampler(Episodes(Agent(model), ENVIRONMENT, run), CONFIG).run(next(iter(TASK_SET.values())), 80))
        assert any("no log-probs" in note for note in tree.notes)
        assert tree.mixed
        with pytest.raises(NeedsError, match="text only"):
            to_rows([tree], lambda _, leaf: run.path(leaf))


def test_the_report_adds_up(grown: tuple[list[GrownTree], Run]) -> None:
    trees, _ = grown
    found = report(trees)
    assert found.tasks == len(trees) == found.mixed * len(trees) + found.all_success + found.all_failure
    assert found.cost == sum(tree.cost for tree in trees) <= 60 * len(trees) * 1.05
    assert found.trained_per_unique >= 1
    assert found.mixed_interval[0] <= found.mixed <= found.mixed_interval[1]
    with pytest.raises(UserError, match="no tree"):
        report([])


def test_report_verb(grown: tuple[list[GrownTree], Run], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def call(*words: str) -> str:
        assert kit.call(app, words) == 0
        return capsys.readouterr().out

    with Run.create(tmp_path / "run", {}) as run:
        keep_trees(run, grown[0])
    assert (
        json.loads(call("report", str(tmp_path / "run"), "--json"))
        == replace(report(grown[0]), run=str(tmp_path / "run")).to_json()
    )
    with Run.open(tmp_path / "run") as run:
        assert [kept.maker for kept in run.results()] == ["tree-rollouts report"]
    assert "mixed" in call("report", str(tmp_path / "run"))
    with pytest.raises(UserError):
        kit.call(app, ["report", str(tmp_path / "none")])


def ramify(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    return (code, *capsys.readouterr())


def done(capsys: pytest.CaptureFixture, *words: object) -> dict[str, Any]:
    code, out, err = ramify(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


MINE = """
from ramify.base.seeds import generator
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment

HOUSE = HouseholdEnvironment(max_turns=6)


def agent(messages, key):
    if len(messages) > 5 and key % 7 == 0:
        raise RuntimeError("gone")
    return ["go hall", "look", "wait"][int(generator(key).integers(3))]


def broken(messages):
    raise RuntimeError("gone")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_a_tree_of_the_builtin_agent(here: Path, capsys: pytest.CaptureFixture) -> None:
    trees = done(capsys, "rollout", "--tree", "--count", "1", "--tree-budget", "12", "--max-reply", "24")["trees"]
    assert (trees["tasks"], trees["unit"]) == (1, "turns")
    assert trees["cost"] <= 12 * 1.05
    assert done(capsys, "tree-rollouts", "report", "rollout-1") == trees | {"run": "rollout-1"}


OWN = ["--env", "mine.py:HOUSE", "--model", "mine.py:agent"]


def test_trees_are_resumed_shown_and_forked(here: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["rollout", "--tree", *OWN, "--count", "2", "--tree-budget", "24", "--max-reply", "24"]
    grown = done(capsys, *words, "--out", "b")
    assert grown["trees"]["cost"] == grown["turns"] <= 2 * 24 * 1.05
    assert grown["trees"]["leaves"] + grown["failed"] >= 4
    again = done(capsys, "resume", "b")
    assert {**again, "seconds": 0} == {**grown, "seconds": 0}
    _, shown, _ = ramify(capsys, "show", "b")
    assert "A selector chose where they start, so this is not a success rate" in shown
    node = next(leaf for leaf in _nodes("b", "user"))
    arm = done(capsys, "fork", "b", node, "--n", "4")["fork"]
    assert arm["n"] + arm["failed"] == 4  # this agent fails now and then


def _nodes(run: str, role: str) -> list[str]:
    with Run.open(run) as opened:
        return [node.id for node in opened.each(Node) if node.role == role and not node.stop]


def test_an_interrupted_run_of_trees_ends_as_the_undisturbed_one(here: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["rollout", "--tree", *OWN, "--count", "2", "--tree-budget", "24"]
    whole = done(capsys, *words, "--out", "whole")
    code, out, err = ramify(capsys, *words, "--out", "part", "--budget.calls", "14", "--concurrency", "1", "--json")
    assert (code, json.loads(out)["trees"], json.loads(out)["spent"]) == (3, None, "calls")
    assert "no tree was sampled: raise --budget.calls" in err
    assert "holds no grown trees" in ramify(capsys, "tree-rollouts", "report", "part")[2]
    mended = done(capsys, *words, "--out", "part", "--budget.calls", "1000")
    assert mended["trees"] == whole["trees"]
    with Run.open("whole") as one, Run.open("part") as other:
        assert {node.id for node in one.each(Node)} == {node.id for node in other.each(Node)}


@pytest.mark.slow
def test_trees_grow_on_workers_alike(here: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["rollout", "--tree", "--env", "chain", "--count", "2", "--tree-budget", "4"]
    here_ = done(capsys, *words, "--out", "a")
    there = done(capsys, *words, "--out", "b", "--backend", "processes:2")
    assert there["trees"] == here_["trees"]


def test_trees_of_which_every_attempt_failed_are_tried_again(here: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["rollout", "--tree", "--model", "mine.py:broken", "--count", "1", "--out", "run", "--json"]
    for command in (words, words, ["resume", "run", "--json"]):
        code, out, err = ramify(capsys, *command)
        assert (code, list(json.loads(out)["failures"])) == (1, ["engine: mine.py:broken raised RuntimeError: gone"])
        assert "every attempt failed" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rollout", "--tree", "--tree.unit", "hours"], "--tree.unit"),
        (["rollout", "--tree", "--tree.rule", "best"], "--tree.rule"),
        (["rollout", "--tree", "--env", "househld"], "household"),
        (["rollout", "--tree", "--env", "nowhere.py:X"], "there is no file nowhere.py"),
        (["rollout", "--tree", "--model", "gpt"], "unknown model 'gpt'"),
        (["rollout", "--tree", "--tree-budget", "3"], "a budget of 3 turns is below one attempt from the root: at least 12"),
        (["rollout", "--tree", "--tree-budget", "nan"], "--tree-budget: must be a finite number"),
        (["rollout", "--tree", "--tasks", "none.jsonl"], "cannot read"),
        (["rollout", "--tree", "--attempts", "2"], "--attempts is for rollouts without --tree"),
        (["rollout", "--tree-budget", "20"], "--tree-budget is a setting of trees: give --tree, too"),
        (["rollout", "--tree.rule", "flat"], "--tree is a setting of trees"),
        (["rollout", "--tree", "--tree.rul", "flat"], "did you mean '--tree.rule'?"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture, words: list[str], message: str
) -> None:
    code, out, err = ramify(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in here.iterdir()] == ["mine.py"]


def test_flat_runs_and_trees_are_not_mixed(here: Path, capsys: pytest.CaptureFixture) -> None:
    done(capsys, "rollout", *OWN, "--count", "4", "--out", "flat")
    code, _, err = ramify(capsys, "rollout", "--tree", *OWN, "--count", "4", "--out", "flat")
    assert (code, err) == (2, "ramify: flat was not made by `ramify rollout --tree`: choose another folder\n")
