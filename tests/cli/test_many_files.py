"""Attempts in many files, their outcomes in others, and files that are no plain UTF-8."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_logs import chat, rate, texts, write

from ramify.trace.db import Run


def trial(name: str, talk: Any, reward: str | None = None, **more: Any) -> None:
    """A folder of one attempt, as benchmarks leave them, with other files beside it."""
    folder = Path("trials") / name
    (folder / "agent").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"agent": "x", "model": "y"}))
    (folder / "agent" / "trajectory.json").write_text(json.dumps({"messages": chat(talk)["messages"], **more}, indent=1))
    if reward is not None:
        (folder / "verifier").mkdir()
        (folder / "verifier" / "reward.txt").write_text(reward + "\n")


# -- one attempt, one file


def test_a_folder_of_trials_with_their_rewards_beside_them(verb: Any, here: Path) -> None:
    for name, reward in (("a__1", "1"), ("b__1", "0.0"), ("c__1", "1"), ("d__1", None)):
        trial(name, name, reward)
    told = verb("import", "trials", "--run", "run", "--json").json
    assert (told["records"], told["trees"], told["judged"]) == (4, 4, 3)
    assert sorted(told["unknown"]) == [f"{name}__1/config.json" for name in "abcd"]
    assert rate(verb, "run") == (2, 3)
    with Run.open("run") as run:
        assert sorted(info.name for info in run.trees()) == [f"{name}__1/agent/trajectory" for name in "abcd"]
    assert verb("import", "trials", "--run", "run", "--json").json["already"] == [
        f"{name}__1/agent/trajectory.json" for name in "abcd"
    ]
    assert rate(verb, "run") == (2, 3)


def test_each_judge_is_named_with_the_attempts_that_it_judged(verb: Any, here: Path) -> None:
    for name, reward in (("a__1", "1"), ("b__1", "0"), ("c__1", None)):
        trial(name, name, reward)
    assert "2 attempts judged by the reward beside the file\n" in verb("import", "trials", "--run", "run").out
    ends = write("ends.jsonl", {"path": "c__1", "success": True}, {"path": "z__1", "success": True})
    told = verb("import", "trials", "--run", "more", "--outcomes", str(ends)).out
    assert "2 attempts judged by the reward beside the file\n" in told
    assert "1 attempt judged by ends.jsonl; of no attempt: z__1" in told
    asked = verb("import", "trials", "--run", "again", "--outcomes", str(ends), "--json").json
    assert (asked["judged"], asked["judged_by"]) == (1, {"the reward beside the file": 2, "ends.jsonl": 1})


def test_files_one_by_one_are_the_files_at_once(verb: Any, here: Path) -> None:
    parts = [
        [chat("q", "a", reward=1), chat("q", "b", reward=0)],
        [chat("q", "a", reward=1)],
        [chat("q", "a", reward=0, note="n")],
    ]
    files = [write(f"{i}.jsonl", *part) for i, part in enumerate(parts)]
    whole = write("whole.jsonl", *(one for part in parts for one in part))
    verb("import", whole, "--run", "whole")
    verb("import", *files, "--run", "once")
    for file in [*files, files[0], files[2]]:
        assert verb("import", file, "--run", "parts").code == 0
    for run in ("whole", "once", "parts"):
        assert texts(run) == [["q", "a"], ["q", "a"], ["q", "a"], ["q", "b"]], run
        assert rate(verb, run) == (2, 4), run
    with Run.open("once") as one, Run.open("parts") as other:
        assert [node.id for node in one.nodes("t")] == [node.id for node in other.nodes("t")]


def test_a_folder_is_read_file_by_file_in_the_format_that_is_named(verb: Any, here: Path) -> None:
    Path("logs").mkdir()
    for i in range(2):
        write(f"logs/{i}.jsonl", chat(f"q{i}", reward=i))
    assert verb("import", "logs", "--from", "chats", "--run", "run", "--json").json["records"] == 2
    assert rate(verb, "run") == (1, 2)
    assert "logs/0.jsonl" in verb.refused("import", "logs", "--from", "openhands", "--run", "other")


def test_tasks_without_names_stay_apart(verb: Any, here: Path) -> None:
    for i, question in enumerate(("one", "two")):
        write(f"{i}.jsonl", *({"messages": chat(f"{question} {n}")["messages"]} for n in range(2)))
    verb("import", "0.jsonl", "--run", "run")
    verb("import", "1.jsonl", "--run", "run")
    with Run.open("run") as run:
        assert [info.name for info in run.trees()] == [f"chat-{n:06d}" for n in (1, 2, 3, 4)]
    assert texts("run") == [["one 0", "a"], ["one 1", "a"], ["two 0", "a"], ["two 1", "a"]]


def test_a_bad_file_leaves_nothing_unless_it_is_skipped(verb: Any, here: Path) -> None:
    write("good.jsonl", chat("q", reward=1))
    Path("bad.jsonl").write_text('{"messages": [')
    for run in ("new", "new"):
        assert "bad.jsonl:1: not JSON" in verb.refused("import", "good.jsonl", "bad.jsonl", "--run", run)
    assert sorted(path.name for path in here.iterdir()) == ["bad.jsonl", "good.jsonl"]
    verb("import", "good.jsonl", "--run", "run")
    write("more.jsonl", chat("q", reward=0))
    assert "bad.jsonl:1: not JSON" in verb.refused("import", "more.jsonl", "bad.jsonl", "--run", "run")
    assert rate(verb, "run") == (1, 1)
    assert verb("import", "more.jsonl", "bad.jsonl", "--run", "run", "--skip-bad", "--json").json["bad"] == 1
    assert rate(verb, "run") == (1, 2)


def test_only_an_imported_run_takes_files(verb: Any, here: Path) -> None:
    write("log.jsonl", chat("q"))
    Run.create(here / "played", {}, kind="rollout").close()
    assert "exists already, and is a run of `ramify rollout`" in verb.refused("import", "log.jsonl", "--run", "played")
    assert "nothing to import" in verb.refused("import", "--run", "run")
    Path("empty").mkdir()
    assert "cannot read empty: it is a folder without a file" in verb.refused("import", "empty", "--run", "run")


# -- outcomes in other files

SWE = {"total_instances": 4, "resolved_ids": ["a"], "unresolved_ids": ["b"], "empty_patch_ids": ["c"], "error_ids": ["d"]}


@pytest.mark.parametrize(
    ("name", "content", "share"),
    [
        ("report.json", json.dumps(SWE), (1, 3)),
        ("map.json", json.dumps({"a": True, "b": False, "c": 0, "d": 1.0}), (2, 4)),
        ("each.json", json.dumps({key: {"resolved": key == "b", "tests_status": {}} for key in "abcd"}), (1, 4)),
        ("lines.jsonl", "\n".join(json.dumps({"instance_id": key, "resolved": key != "b"}) for key in "abcd"), (3, 4)),
        ("list.json", json.dumps([{"task": key, "reward": float(key == "a")} for key in "ab"]), (1, 2)),
        ("table.csv", "task,model,reward\na,m,1\nb,m,0\nc,m,0.5\n", (2, 3)),
        ("plain.csv", "a,pass\nb,fail\nc,fail\n", (1, 3)),
        ("table.tsv", "instance_id\tresolved\na\tTrue\nb\tFalse\n", (1, 2)),
        ("paths.json", json.dumps({"logs/a.traj": 1, "logs/b": 0, "c.traj": 0}), (1, 3)),
    ],
)
def test_outcomes_of_tasks_and_files(verb: Any, here: Path, name: str, content: str, share: tuple[int, int]) -> None:
    Path(name).write_text(content)
    Path("all/logs").mkdir(parents=True)
    for key in "abcd":
        named = {} if name == "paths.json" else {"instance_id": key}
        Path(f"all/logs/{key}.traj").write_text(json.dumps({"trajectory": [], "history": chat(key)["messages"], **named}))
    once = [["import", "all", "--run", "run", "--outcomes", name]]
    later = [["import", "all", "--run", "run"], ["import", "--run", "run", "--outcomes", name]]
    for words in once if name.endswith(".json") else later:
        assert verb(*words).code == 0
    assert rate(verb, "run") == share


def test_what_outcomes_do_not_fit_is_said(verb: Any, here: Path) -> None:
    write("log.jsonl", chat("q"), chat("q"), {**chat("r"), "task": "other"})
    verb("import", "log.jsonl", "--run", "run")
    with Run.open("run") as run:
        nodes = sorted(attempt.leaf[:12] for attempt in run.attempts("t"))
    for content, words in (
        ({"t": 1}, "'t' is the name of 2 attempts, and there is one outcome"),
        ({"t": 1}, f"or of their last nodes: {', '.join(nodes)}"),
        ({"othr": 1}, "none of its names is a task or file of the run: 'othr' (did you mean 'other'?)"),
        ({"other": "maybe"}, "'maybe' is not an outcome"),
        ({"other": {"score_text": "A"}}, "is not an outcome"),
    ):
        Path("map.json").write_text(json.dumps(content))
        assert words in verb.refused("import", "--run", "run", "--outcomes", "map.json")
    Path("map.json").write_text(json.dumps({"other": 1, "nobody": 0}))
    told = verb("import", "--run", "run", "--outcomes", "map.json", "--json").json
    assert (told["judged"], told["unmatched"]) == (1, ["nobody"])
    Path("map.json").write_text(json.dumps({nodes[0]: 0.5}))
    told = verb("import", "--run", "run", "--outcomes", "map.json")
    assert "1 attempt with a reward between 0 and 1, as 0.5: a reward above 0 counts as a success" in told.out


def test_a_folder_of_verifiers_rewards(verb: Any, here: Path) -> None:
    for name, reward in (("a__1", "1"), ("b__1", "0")):
        trial(name, name, reward)
        Path(f"logs-{name}.json").write_text(Path(f"trials/{name}/agent/trajectory.json").read_text())
    verb("import", "logs-a__1.json", "logs-b__1.json", "--run", "run")
    assert "none of its names" in verb.refused("import", "--run", "run", "--outcomes", "trials")
    for name in ("a__1", "b__1"):
        Path(f"logs-{name}.json").rename(f"{name}.json")
    verb("import", "a__1.json", "b__1.json", "--run", "named", "--outcomes", "trials")
    assert rate(verb, "named") == (1, 2)


def test_the_advice_of_why_can_be_followed_as_printed(verb: Any, here: Path) -> None:
    write("log.jsonl", *({**chat("q", answer), "task": f"t{i}"} for i, answer in enumerate("abc")))
    verb("import", "log.jsonl", "--run", "run")
    for words in (["why", "run"], ["graph-credit", "report", "run"]):
        refused = verb.refused(*words)
        advice, example = re.search(r"`ramify (import [^`]*)`", refused), re.search(r"e\.g\. (\{[^}]*\})", refused)
        assert advice is not None
        assert example is not None
        assert json.loads(example[1]) in [{f"t{i}": True} for i in range(3)]
        Path("FILE").write_text(json.dumps({"t0": 1, "t1": 0, "t2": 0}))
        assert verb(*shlex.split(advice[1])).code == 0
        assert rate(verb, "run") == (1, 3)
        assert "nobody" not in verb(*words).err
        verb("import", "log.jsonl", "--run", "again")
        Path("run").rename(f"done-{words[0]}")
        Path("again").rename("run")


# -- files that are no plain UTF-8


@pytest.mark.parametrize(
    ("encoding", "piped"),
    [
        ("utf-8", True),
        ("utf-8-sig", False),
        ("utf-16", True),
        ("utf-16-be", False),
        ("utf-32", False),
        ("gzip", True),
        ("utf-16+gzip", False),
    ],
)
def test_compressed_and_encoded_files_are_read(
    verb: Any, here: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, piped: bool
) -> None:
    text = "".join(json.dumps(chat(q, reward=r), ensure_ascii=False) + "\n" for q, r in (("größe", 1), ("zwei", 0)))
    codec = encoding.partition("+")[0]
    raw = (text if codec != "utf-16-be" else "\ufeff" + text).encode("utf-8" if codec == "gzip" else codec)
    Path("log.jsonl").write_bytes(gzip.compress(raw) if "gzip" in encoding else raw)
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("log.jsonl").read_bytes())))
    assert verb("import", "-" if piped else "log.jsonl", "--run", "run").code == 0
    assert texts("run") == [["größe", "a"], ["zwei", "a"]]
    assert rate(verb, "run") == (1, 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b'{"messages": 3}\n' * 99, mtime=0)[:40], "log.jsonl is a damaged gzip file"),
        ("\ufeff{}".encode("utf-16-le") + b"x", "log.jsonl begins as UTF-16 and is none"),
        ('{"messages": []}'.encode("utf-16-le"), "log.jsonl is UTF-16 without its mark"),
        (b"PK\x03\x04zip", "log.jsonl is a zip archive"),
        (b"\x28\xb5\x2f\xfdz", "log.jsonl is compressed with zstd"),
        (b"task,reward,text\na,1,x\n", "log.jsonl is a table with the columns 'task', 'reward', 'text' (CSV, not JSON)"),
        (b"Step 1: look\nStep 2: go\n", "log.jsonl is text that is not JSON at character 1: 'Step 1: look'"),
        (b'{"task_id": 1, "mesages": []}', "log.jsonl:1: an object with the keys 'task_id', 'mesages', which is of no format"),
        (b'{"mesages": [], "task": 1}', "the nearest formats are chats ('task', 'messages', 'reward')"),
        (b'{"mesages": [{"who": 1}], "task": 1}', "('mesages' is a list of 1 object with 'who')"),
        (b'{"mesages": [], "task": 1}', "and it lacks 'messages', 'reward' of chats"),
        (b'[{"x": 1}, {"x": {"y": 1}}]', "which is of no format known here (one of 2): no format is near"),
        (b'{"id": 1, "name": "x", "model": "m", "created_at": 3}', "which is of no format known here: no format is near"),
        (b'{"timestamp": 1, "type": "x", "paylod": {}}', "the nearest formats are codex ('timestamp', 'type', 'payload')"),
        (gzip.compress(b'{"x": 1}', mtime=0), "log.jsonl:1: an object with the keys 'x'"),
    ],
)
def test_what_a_file_looks_like_is_said(verb: Any, here: Path, content: bytes, words: str) -> None:
    Path("log.jsonl").write_bytes(content)
    sentence = verb.refused("import", "log.jsonl", "--run", "run")
    assert words in sentence
    assert len(sentence) < 400
    assert [path.name for path in here.iterdir()] == ["log.jsonl"]
