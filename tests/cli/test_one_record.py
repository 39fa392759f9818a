"""One run, whoever made it: every grader and audit on it, a fork at what they found,
one page that shows all of it, and out again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.env.protocol import Task
from ramify.methods.implicit_advantage.verbs import EXIT_PARTIAL
from ramify.model.chat import assistant_node_parts
from ramify.model.laid import Layout
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.components import find_model
from ramify.trace.db import Run
from ramify.trace.integrity import check_run
from ramify.trace.message import Message
from ramify.trace.node import Annotation, Finding, Node, Score, TokenValues
from ramify.web.exchange import Exchange
from ramify.web.recording import Recorder
from tests.pair import save_pair

TASKS = list(HouseholdEnvironment().task_set("train", 2, 3))
#: What the agent is told on its second turn, and not on its last: a harness that compacts its history dropped it.
RULE = "Never open the red-door."


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair of checkpoints with the built-in agent's tokenizer."""
    folder = tmp_path_factory.mktemp("inputs")
    save_pair(folder / "models")
    return folder


class Recorded:
    """The household of the task whose first observation was recorded: what a caller's own environment is."""

    name = "recorded"

    def __init__(self) -> None:
        self.inner = HouseholdEnvironment()
        self.max_turns = self.inner.max_turns

    def make(self) -> Any:
        episode = self.inner.make()
        reset = episode.reset

        def of_recorded(task: Task, seed: int) -> Any:
            return next(start for known in TASKS if (start := reset(known, seed)).text == task.data["asked"])

        episode.reset = of_recorded
        return episode

    def task_set(self, split: str, n: int, seed: int = 0) -> Any:
        return self.inner.task_set(split, n, seed)


def record(folder: Path) -> None:
    """What `ramify serve builtin --record` keeps of an agent that plays two tasks four times each;
    then what the caller's environment paid."""
    model, template = find_model("builtin")
    assert template is not None
    recorder = Recorder(folder, {"model": "builtin"}, template)

    async def play(task: Task, attempt: int) -> None:
        env, messages = HouseholdEnvironment().make(), [Message("system", RULE)]
        messages.append(Message("user", env.reset(task, 0).text))
        for turn in range(5):
            summary = [Message("system", "Summary: a house."), *messages[-3:]]  # the rule is gone
            shown = messages if turn < 4 or attempt else summary
            prefix, key = Prefix(messages=tuple(shown)), 1000 * TASKS.index(task) + 10 * attempt + turn
            completions = await Layout(model, template).sample(prefix, 1, Sampling(max_tokens=16), [key])
            name = f"chatcmpl-{key}"
            await recorder(
                Exchange(name, "chat", model.identity, (prefix,), Sampling(max_tokens=16), ((key,),), (tuple(completions),))
            )
            text = str(assistant_node_parts(template, completions[0])["text"])
            seen = env.step(text)
            if seen.terminated:
                return
            messages += [Message("assistant", text), Message("user", seen.text)]

    async def every() -> None:
        for task in TASKS:
            for attempt in range(4):
                await play(task, attempt)

    try:
        asyncio.run(every())
    finally:
        recorder.close()
    with Run.open(folder, write=True) as run:  # what the caller knows and the server does not
        for leaf in run.ends():
            messages = [message for message in run.path(leaf).messages() if message.role != "system"]
            env = HouseholdEnvironment().make()
            task = next(task for task in TASKS if env.reset(task, 0).text == messages[0].text)
            env.reset(task, 0)
            outcome = any(bool(env.step(one.text).outcome) for one in messages if one.role == "assistant")
            (record,) = run.attempts(leaf=leaf)
            run.add(replace(record, outcome=outcome, reward=float(outcome)))
            run.add(Score(leaf, "env", float(outcome), judges={"env": "household"}))


def found(run: Path, maker: str) -> list[Finding]:
    with Run.open(run) as opened:
        return opened.findings(maker=maker)


def audited(run: Path, inputs: Path, rule: str, capsys: pytest.CaptureFixture[str], *scorer: str) -> None:
    """The four methods, one after the other, on one run; nothing is converted in between."""
    (inputs / "rules.txt").write_text(rule + "\n")
    pair = ["--policy", f"hf:{inputs / 'models/tuned'}", "--reference", f"hf:{inputs / 'models/base'}"]
    for words in (
        ["implicit-advantage", "score", "--trajectories", run, *pair, *scorer],
        ["implicit-advantage", "blame", "--scores", run, "--level", "1", "--every"],
        ["maze-recovery", "audit", run, *scorer],
        ["governance", "audit", run, "--rules", inputs / "rules.txt"],
        ["graph-credit", "mark", run, "--level", "0.99", *scorer],
    ):
        code = main([*map(str, words), "--json"])
        assert code == 0 or (words[1] == "score" and code == EXIT_PARTIAL), (
            words
        )  # what was shown otherwise than its path has no grade
    with Run.open(run) as opened:
        makers = {finding.maker for finding in opened.findings()}
        assert {"implicit-advantage blame", "maze-recovery audit", "governance audit"} <= makers
        assert opened.scores(scorer="implicit-advantage")
        assert {mark.maker for mark in opened.each(Annotation)} >= {"implicit-advantage", "graph-credit"}
        assert {stream.maker for stream in opened.each(TokenValues)} >= {"implicit-advantage", "graph-credit"}
    assert check_run(run) == []
    capsys.readouterr()


def shown(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One page with everything, the summary, and the run as another one."""
    assert main(["show", str(run), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for maker in ("implicit-advantage blame", "maze-recovery audit", "governance audit", "graded by implicit-advantage", "A_ep"):
        assert maker in page, maker
    capsys.readouterr()
    assert main(["show", str(run), "--json"]) == 0
    with Run.open(run) as opened:
        assert len(json.loads(capsys.readouterr().out)["findings"]) == len(opened.findings())
    assert main(["show", str(run)]) == 0
    assert "found by" in capsys.readouterr().out
    assert main(["export", str(run), str(tmp_path / "run.jsonl")]) == 0
    assert main(["export", str(run), str(tmp_path / "found.parquet"), "--records", "findings"]) == 0
    assert main(["import", str(tmp_path / "run.jsonl"), "--run", str(tmp_path / "again")]) == 0
    with Run.open(run) as before, Run.open(tmp_path / "again") as after:
        assert after.findings() == before.findings()
        assert [node.id for node in after.each(Node)] == [node.id for node in before.each(Node)]
        assert list(after.each(Score)) == list(before.each(Score))
        assert after.foreign


def test_a_recorded_run(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    record(run)
    audited(run, inputs, RULE, capsys)
    (lost, *_) = [finding for finding in found(run, "governance audit") if finding.name == "rule lost"]
    assert lost.node is not None
    assert lost.evidence["rule"] == RULE
    (blamed, *_) = [finding for finding in found(run, "implicit-advantage blame") if finding.name == "step to blame"]
    named = [finding.node for finding in (blamed, *found(run, "maze-recovery audit")) if finding.node is not None]
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with Run.open(run) as opened:
        before, kind = len(opened), opened.kind
    assert kind == "serve --record"
    for node in named[:2]:
        parts = ["--model", "builtin", "--env", "factory:test_one_record:Recorded"]
        assert main(["fork", str(run), node, "--n", "2", *parts, "--json"]) == 0
        record_ = json.loads(capsys.readouterr().out)
        assert record_["fork"]["n"] == 2, record_
    with Run.open(run) as opened:
        assert len(opened) > before
        assert opened.findings()
    shown(run, tmp_path, capsys)
    with Run.open(run, write=True) as opened:  # one judge goes, and nothing else
        findings, others = opened.findings(), opened.scores(scorer="env")
        (judge,) = {score.judges["policy"] for score in opened.scores(scorer="implicit-advantage")}
        assert opened.erase_judge(judge)
        assert opened.scores(scorer="implicit-advantage") == []
        assert (opened.findings(), opened.scores(scorer="env")) == (findings, others)


@pytest.mark.slow
def test_an_imported_run(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed: THE inspect DOOR IS NOT TESTED")
    run = tmp_path / "run"
    script = Path(__file__).parents[1] / "integrations" / "inspect_eval.py"  # a log that inspect itself made, with its mock model
    subprocess.run([sys.executable, str(script), str(tmp_path / "logs")], check=True, capture_output=True, timeout=300)
    (log,) = (tmp_path / "logs" / "eval").glob("*.eval")
    assert main(["import", str(log), "--run", str(run)]) == 0
    audited(run, inputs, "Be brief", capsys, "--scorer", "includes")
    shown(run, tmp_path, capsys)
