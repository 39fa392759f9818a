"""show, import, export, resume and fork on stored runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ramify.base.errors import UserError
from ramify.trace.db import Run
from ramify.trace.node import Node

VERBS_ON_RUNS = [["show"], ["resume"], ["export", "OUT"], ["fork", "abc"]]


def there(folder: Path) -> list[Path]:
    """All files and folders, without those a reader of a database makes and removes."""
    return sorted(path for path in folder.rglob("*") if not path.name.endswith(("-wal", "-shm")))


@pytest.mark.parametrize("words", VERBS_ON_RUNS, ids=lambda words: words[0])
def test_what_is_no_run_is_a_sentence(verb: Any, chats: Path, words: list[str]) -> None:
    name, *rest = words
    folder = chats.parent.parent
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    (folder / "torn").mkdir()
    (folder / "torn" / "run.sqlite").write_bytes(b"")
    (folder / "foreign").mkdir()
    (folder / "foreign" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    before = there(folder)
    rest = [str(folder / "out.jsonl") if word == "OUT" else word for word in rest]
    assert verb.refused(name, "chatz", *rest) == "no run 'chatz' (did you mean 'chats'?)"
    assert "is not a run: it holds no run.sqlite" in verb.refused(name, "empty", *rest)
    assert verb.refused(name, "", *rest) == "a run is named by its folder, and the name given is empty"
    assert "is a file; a run is a folder" in verb.refused(name, "file", *rest)
    assert "torn" in verb.refused(name, "torn", *rest)
    assert "foreign" in verb.refused(name, "foreign", *rest)
    assert there(folder) == before


def test_a_run_is_found_by_path_and_by_name(verb: Any, chats: Path) -> None:
    assert verb("show", "chats", "--json").json["trees"] == verb("show", chats, "--json").json["trees"]


def test_show_of_an_imported_run(verb: Any, chats: Path) -> None:
    shown = verb("show", "chats")
    assert shown.code == 0
    assert "2 trees" in shown.out
    record = verb("show", "chats", "--json").json
    assert (record["nodes"], record["evals"], record["done"], record["gain"]) == (6, {}, False, None)


def test_show_of_an_improved_run(verb: Any, improved: Path) -> None:
    shown = verb("show", improved).out
    for words in ("Success changed by", "before", "after", "last 1 of 1 updates", "where the budget went"):
        assert words in shown
    record = verb("show", improved, "--json").json
    assert record["done"]
    assert record["evals"]["before"]["n"] == 4


def test_show_html_is_whole_or_not_at_all(verb: Any, improved: Path, here: Path) -> None:
    assert verb("show", improved, "--html", "report.html").code == 0
    assert (here / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")
    assert "there is no folder" in verb.refused("show", improved, "--html", "no/report.html")
    assert "it is a folder" in verb.refused("show", improved, "--html", ".")
    assert verb.refused("show", improved, "--html", "x.html", "--web") == "choose one of --web and --html"
    for words in (["--port", "1"], ["--host", "0.0.0.0"], ["--token", "--html", "x.html"]):
        assert verb.refused("show", improved, *words) == "--host, --port and --token go with --web"
    assert [path.name for path in here.iterdir()] == ["report.html"]


def test_export_and_import_come_back(verb: Any, chats: Path) -> None:
    assert verb("export", "chats", "all.jsonl").code == 0
    back = verb("import", "all.jsonl", "--run", "back", "--json").json
    assert (back["form"], back["trees"], back["nodes"]) == ("run", 2, 6)
    verb("export", "back", "again.jsonl")
    assert Path("again.jsonl").read_bytes() == Path("all.jsonl").read_bytes()


def test_export_formats(verb: Any, chats: Path) -> None:
    with Run.open(chats) as run:
        tree = run.trees()[0].name
    assert verb("export", "chats", "tree.dot", "--tree", tree).code == 0
    assert Path("tree.dot").read_text().startswith("digraph")
    assert verb("export", "chats", "page", "--to", "html").code == 0
    assert verb("export", "chats", "trees", "--to", "parquet", "--records", "trees", "--json").json["format"] == "parquet"
    assert verb("export", "chats", "nodes.parquet").code == 0
    assert (pq.read_table("trees").num_rows, pq.read_table("nodes.parquet").num_rows) == (2, 6)


def test_export_refuses(verb: Any, chats: Path) -> None:
    Path("there").mkdir()
    assert "cannot determine the format of out.xyz: name one with --to" in verb.refused("export", "chats", "out.xyz")
    assert "unknown format 'parket' (did you mean 'parquet'?)" in verb.refused("export", "chats", "out", "--to", "parket")
    assert "runs/chats has 2 trees: choose one with --tree" in verb.refused("export", "chats", "out.dot")
    assert "a run has no 'node' to export" in verb.refused("export", "chats", "out.parquet", "--records", "node")
    assert "--records goes with --to parquet" in verb.refused("export", "chats", "out.jsonl", "--records", "trees")
    assert "no tree 'nosuch'" in verb.refused("export", "chats", "out.dot", "--tree", "nosuch")
    assert "--tree goes with --to dot" in verb.refused("export", "chats", "out.jsonl", "--tree", "x")
    assert "there is no folder no" in verb.refused("export", "chats", "no/out.jsonl")
    assert "it is a folder" in verb.refused("export", "chats", "there", "--to", "jsonl")
    assert sorted(path.name for path in Path().iterdir()) == ["chats.jsonl", "runs", "there"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "holds no record"), (b"\n\n", "holds no record"), (b"{", ":1: "), (b"[]", "holds no record"),
     (b'{"a": 1}', ":1: an object with the keys 'a', which is of no format"),
     (b'{"messages": 3}', ":1"), (b"\xff\xfe", "holds no record"), (b'{"messages": []}\n{"messages": [{"role": "user"}]}', ":")],
)  # fmt: skip
def test_import_refuses_what_it_cannot_read(verb: Any, here: Path, content: bytes, words: str) -> None:
    (here / "in.jsonl").write_bytes(content)
    sentence = verb.refused("import", "in.jsonl", "--run", "new")
    assert sentence.startswith("in.jsonl")
    assert words in sentence
    assert sorted(path.name for path in here.iterdir()) == ["in.jsonl"]


@pytest.mark.parametrize("form", [[], ["--from", "chats"]])
def test_import_refuses_a_pipe(verb: Any, here: Path, form: list[str]) -> None:
    os.mkfifo(here / "pipe")  # nobody writes into it: reading it would wait for ever
    assert "is a pipe" in verb.refused("import", "pipe", "--run", "new", *form)


def test_import_refuses_places(verb: Any, chats: Path) -> None:
    assert "cannot read" in verb.refused("import", "nosuch.jsonl", "--run", "new")
    assert "cannot read" in verb.refused("import", "runs", "--run", "new")
    Path("there").mkdir()
    Path("there/notes.txt").write_text("mine")
    assert "there exists already" in verb.refused("import", "chats.jsonl", "--run", "there")
    assert "--run is missing" in verb.refused("import", "chats.jsonl")


def test_resume_refuses_an_imported_run_and_repeats_a_finished_result(verb: Any, chats: Path, improved: Path) -> None:
    assert "was not made by `ramify improve`" in verb.refused("resume", "chats")
    result = verb("resume", improved, "--json").json
    assert {"success", "interval"} <= set(result["before"])
    assert {"before", "after", "tokens", "seconds", "run"} <= set(result)
    assert "outcomes" not in result["after"]


def first_reply(folder: Path) -> str:
    with Run.open(folder) as run:
        return next(node.id for node in run.nodes(run.trees()[0].name) if node.role == "assistant")


def test_fork_shows_what_an_edit_changed(verb: Any, improved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(improved, copy)
    edit = tmp_path / "edit.json"
    edit.write_text('{"append": "go"}')
    record = verb("fork", copy, first_reply(copy)[:10], "--edit", edit, "--n", "3", "--json").json
    assert record["fork"]["n"] + record["fork"]["failed"] == record["control"]["n"] + record["control"]["failed"] == 3
    assert len(record["difference"]["interval"]) == 2
    text = verb("fork", copy, first_reply(copy), "--edit", edit, "--n", "2").out
    assert re.search(r"unedited .*\n.*edited ", text)
    assert "The edit changed success by" in text


@pytest.mark.slow
def test_fork_compares_several_edits_with_one_control(verb: Any, improved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(improved, copy)
    rule, note = tmp_path / "rule.json", tmp_path / "note.json"
    rule.write_text('{"rule": {"add": "Be quick."}}')
    note.write_text('{"insert": {"role": "user", "text": "Look around."}}')
    words = ("fork", copy, first_reply(copy), "--edit", rule, "--edit", note)
    found = verb(*words, "--n", "2", "--json").json
    assert [row["intervention"] for row in found["evidence"]] == ["rule.json", "note.json"]
    text = verb(*words, "--n", "2").out
    assert "unedited" in text
    assert "+Look around." in text
    assert "--after keep goes with one --edit" in verb.refused(*words, "--after", "keep")


def test_fork_refuses(verb: Any, improved: Path, chats: Path) -> None:
    node = first_reply(improved)
    edit = Path("edit.json")
    for content, words in [
        (b"", "edit.json:1: not JSON"), (b"{\n,", "edit.json:2: not JSON"), (b"\xff", "not UTF-8"),
        (b"[]", "an edit is one JSON object"),
        (b'{"apend": "x"}', "unknown edit 'apend' (did you mean 'append'?)"), (b'{"append": 3}', "edit 'append' takes"),
        (b'{"append": "a", "ban": ["b"]}', "an edit is one JSON object"), (b'{"ban_tokens": ["a"]}', "edit 'ban_tokens' takes"),
    ]:  # fmt: skip
        edit.write_bytes(content)
        assert words in verb.refused("fork", improved, node, "--edit", edit)
    assert "cannot read the edit no.json" in verb.refused("fork", improved, node, "--edit", "no.json")
    assert "has no node 'ffffffffffff'" in verb.refused("fork", improved, "ffffffffffff")
    assert "is not NODE or NODE:OFFSET" in verb.refused("fork", improved, "zzz")
    assert "is not NODE or NODE:OFFSET" in verb.refused("fork", improved, f"{node}:x")
    assert "offset 100000 is outside" in verb.refused("fork", improved, f"{node}:100000")
    assert "--after: must be one of resample, replay, keep" in verb.refused("fork", improved, node, "--after", "later")
    assert "--n" in verb.refused("fork", improved, node, "--n", "0")
    assert "--n" in verb.refused("fork", improved, node, "--n", "x")
    assert "was not made by `ramify improve` or `ramify rollout`" in verb.refused("fork", "chats", "abc")


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done_and_says_how_to_continue(here: Path) -> None:
    command = [sys.executable, "-m", "ramify.cli.main", "improve", "--tokens", "10000000", "--out", "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 100
    nodes = 0
    while nodes < 200 and time.monotonic() < deadline:
        time.sleep(0.2)
        # until the file is there and whole, there is no run to open
        with contextlib.suppress(UserError), Run.open(here / "run") as run:
            nodes = len(run)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "ramify: interrupted; finished work is kept: continue with `ramify resume run`"
    with Run.open(here / "run") as run:
        assert len(run) >= nodes > 0
        assert json.dumps(run.meta["config"])


WALKER = """
import os, signal
from ramify.env.protocol import Observation, environment_of
from ramify.model.scripted import ScriptedModel

def walk(messages, key):
    with open("calls", "a") as calls:
        calls.write(".")
    if os.path.getsize("calls") == int(os.environ.get("KILLED_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return "stop" if key % 5 == 0 else f"step {key % 3}"

def make():
    return ScriptedModel(walk, tokens=False)

class Walk:
    system, max_turns = "Walk.", 20

    def reset(self, task, seed):
        self.at = 0
        return Observation("at 0")

    def step(self, action):
        self.at += 1
        return Observation(f"at {self.at}", terminated=action == "stop", outcome=self.at % 2 == 0)

    def snapshot(self):
        return self.at

    def restore(self, snapshot):
        self.at = snapshot

    def key(self):
        return str(self.at)

def env():
    return environment_of(Walk)
"""


@pytest.mark.slow
@pytest.mark.parametrize("changed", [None, '{"insert": {"role": "user", "text": "Hurry."}}', '{"rule": {"add": "Hurry."}}'])
def test_a_killed_fork_continues(verb: Any, here: Path, monkeypatch: pytest.MonkeyPatch, changed: str | None) -> None:
    (here / "walker.py").write_text(WALKER)
    monkeypatch.setenv("PYTHONPATH", str(here))
    monkeypatch.syspath_prepend(here)
    (here / "tasks.jsonl").write_text('{"id": "walk"}\n')
    parts = ("--model", "factory:walker:make", "--env", "factory:walker:env", "--tasks", "tasks.jsonl")
    assert verb("rollout", *parts, "--out", "whole").code == 0
    node = first_reply(here / "whole")
    shutil.copytree(here / "whole", here / "cut")
    edit = [] if changed is None else ["--edit", "edit.json"]
    (here / "edit.json").write_text(changed or "")

    def calls() -> int:
        count = (here / "calls").stat().st_size
        (here / "calls").unlink()
        return count

    calls()
    whole = verb("fork", "whole", node, *edit, "--n", "6", "--json").json
    every = calls()
    command = [sys.executable, "-m", "ramify.cli.main", "fork", "cut", node, *edit, "--n", "6", "--json"]
    killed = subprocess.run(command, env=os.environ | {"KILLED_AT": str(every - 1)}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    calls()
    kept = stored_nodes(here / "cut")
    assert verb("fork", "cut", node, *edit, "--n", "6", "--json").json == whole
    assert 0 < calls() < every, "what was committed is loaded"
    assert kept < stored_nodes(here / "cut") == stored_nodes(here / "whole")
    # one that ended is another: it samples anew
    verb("fork", "cut", node, *edit, "--n", "6", "--json")
    assert stored_nodes(here / "cut") > stored_nodes(here / "whole")


def stored_nodes(folder: Path) -> set[str]:
    with Run.open(folder) as run:
        return {node.id for node in run.each(Node)}
