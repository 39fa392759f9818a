"""Logs that inspect wrote, in; logs that inspect reads, out; and back. With inspect itself on both sides."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.jsonl import write_lines
from ramify.trace.message import plain
from ramify.trace.node import AttemptRecord, Node, Provenance, Score, make_node

log_module = pytest.importorskip("inspect_ai.log", reason="inspect_ai is not installed: THE inspect DOOR IS NOT TESTED")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

from ramify.integrations.inspect import logs as inspect_logs  # noqa: E402

EVIL = "</script><script>alert(1)</script>\x1b]0;title\x07"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real evaluations with inspect's mock model and a tool: one that went well, in both formats, and one that failed."""
    folder = tmp_path_factory.mktemp("logs")
    code = Path(__file__).with_name("inspect_eval.py")
    subprocess.run([sys.executable, str(code), str(folder)], check=True, capture_output=True, timeout=300)
    return {name: next(folder.joinpath(name).iterdir()) for name in ("eval", "json", "failed", "some")}


def read(path: Path) -> dict[tuple[Any, int], Any]:
    log = log_module.read_eval_log(str(path), resolve_attachments="full")
    return {(sample.id, sample.epoch): sample for sample in log.samples or []}


def content(sample: Any) -> Any:
    """Everything a sample says, but for the ids of messages that its epochs share, and what is not read."""
    kept = {
        "id", "epoch", "input", "target", "choices", "scores", "metadata", "uuid", "model_usage", "limit", "error",
        "turn_count",
    }  # fmt: skip
    record = sample.model_dump(include=kept)
    record["scores"] = dict(sorted(record["scores"].items()))
    record["messages"] = [message.model_dump(exclude={"id"}) for message in sample.messages]
    record["stop"] = sample.output.stop_reason
    record["input"] = (
        record["input"] if isinstance(record["input"], str) else [m.model_dump(exclude={"id"}) for m in sample.input]
    )
    return repr(record)  # NaN is not equal to itself


@pytest.mark.parametrize("form", ["eval", "json"])
@pytest.mark.parametrize("back", ["log.eval", "log.json"])
def test_round_trip(logs: dict[str, Path], tmp_path: Path, form: str, back: str) -> None:
    assert inspect_logs.read_log(logs[form], tmp_path / "run") == 4
    with Run.open(tmp_path / "run") as run:
        assert inspect_logs.write_log(run, tmp_path / back) == 4
    before, after = read(logs[form]), read(tmp_path / back)
    assert before.keys() == after.keys() == {(i, e) for i in ("a", 7) for e in (1, 2)}
    for key in before:
        assert content(after[key]) == content(before[key])
    first, second = (log_module.read_eval_log(str(path), header_only=True) for path in (logs[form], tmp_path / back))
    assert (second.eval.task, second.eval.model, second.status) == (first.eval.task, first.eval.model, "success")
    inspect_logs.read_log(tmp_path / back, tmp_path / "again")
    with Run.open(tmp_path / "run") as run, Run.open(tmp_path / "again") as again:
        assert {t.name: run.tree(t.name).hash for t in run.trees()} == {t.name: again.tree(t.name).hash for t in again.trees()}


def test_what_becomes_of_a_log(logs: dict[str, Path], tmp_path: Path) -> None:
    inspect_logs.read_log(logs["eval"], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        tree = run.tree("a")
        assert len(tree) == 9  # a root, two shared messages, and two epochs of a call, its result and a reply
        one, two = tree.leaves()
        assert [(m.role, m.text) for m in tree.path(one.id).messages()] == [
            ("system", "Be brief"), ("user", "1+2?"), ("assistant", "tool call for tool add"), ("tool", "3"),
            ("assistant", "The sum is 3")]  # fmt: skip
        call = tree.path(one.id).segments[3][0].data["tool_calls"][0]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"x": 1, "y": 2})
        answer = tree.path(one.id).segments[4][0].data
        assert (answer["tool_call_id"], answer["name"]) == (call["id"], "add")
        assert (one.stop, one.data["sample"]["epoch"], two.data["sample"]["epoch"]) == ("stop", 1, 2)
        assert one.data["sample"]["model_usage"]["mockllm/model"]["total_tokens"] == 10
        values = {(v.scorer, v.unit): v.value for v in run.scores(node=one.id)}
        assert values == {
            ("includes", "score"): 1.0, ("broken", "score"): None, ("pair", "score"): None, ("pair", "score.a"): 1.0,
            ("pair", "score.b"): 0.5}  # fmt: skip
        (provenance,) = run.each(Provenance)
        assert (provenance.model, provenance.settings["temperature"], provenance.seed) == ("mockllm/model", 0.5, 11)
        image = next(node for node in run.nodes("7") if node.role == "user")
        assert (image.text, image.data["content"][1]["type"]) == ("hi", "image")
        assert run.trees()[0].task["data"]["target"] == "3"
        assert any(
            EVIL in json.dumps(v.evidence, ensure_ascii=False).replace("\\u001b", "\x1b").replace("\\u0007", "\x07")
            for v in run.scores()
        )


def test_a_failed_evaluation(logs: dict[str, Path], tmp_path: Path) -> None:
    inspect_logs.read_log(logs["failed"], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        assert run.meta["config"]["imported"]["status"] == "error"
        leaf = run.tree("a").leaves()[0]
        assert leaf.stop == "failed"
        assert "went away" in leaf.data["sample"]["error"]["message"]
        inspect_logs.write_log(run, tmp_path / "out.eval")
    log = log_module.read_eval_log(str(tmp_path / "out.eval"))
    assert log.status == "error"
    assert "went away" in log.samples[0].error.message


def test_inspects_own_command_opens_what_is_written(logs: dict[str, Path], tmp_path: Path) -> None:
    inspect_logs.read_log(logs["eval"], tmp_path / "run")
    (tmp_path / "logs").mkdir()
    with Run.open(tmp_path / "run") as run:
        inspect_logs.write_log(run, tmp_path / "logs" / "x.eval", task="renamed")
    command = [sys.executable, "-m", "inspect_ai", "log"]
    listed = subprocess.run(
        [*command, "list", "--json", "--log-dir", str(tmp_path / "logs")], capture_output=True, text=True, check=True
    )
    assert [entry["task"] for entry in json.loads(listed.stdout)] == ["renamed"]
    dumped = subprocess.run([*command, "dump", str(tmp_path / "logs" / "x.eval")], capture_output=True, text=True, check=True)
    assert len(json.loads(dumped.stdout)["samples"]) == 4


def test_a_run_of_ramify_as_a_log(tmp_path: Path) -> None:
    """Forks, tokens, rewards, verdicts without a value: every attempt is a sample, and the same run gives the same ids."""
    with Run.create(tmp_path / "run", {}) as run:
        run.add_tree("t", {"id": "task", "data": {"goal": "x"}}, "g")
        run.add(Provenance("tiny", "w", {}, 1))
        maker = Provenance("tiny", "w", {}, 1).hash
        top = root(run, "t")
        ask = make_node("t", top.id, 0, "user", "go", tokens=[1, 2], ends=[1, 2])
        replies = [
            make_node(
                "t", ask.id, 2, "assistant", "left", tokens=[5, 6], sampled=[True] * 2, ends=[2, 4], provenance=maker, index=i
            )
            for i in (0, 1)
        ]
        fork = make_node(
            "t", replies[0].id, 1, "assistant", "ap", tokens=[9], sampled=[True], ends=[2], opens=False, provenance=maker, index=0
        )
        end = make_node(
            "t", replies[1].id, 2, "user", "you won", tokens=[7], ends=[7], reward=1.0, stop="terminated", data={EVIL: EVIL}
        )
        cut = make_node("t", fork.id, 1, "user", "time is up", tokens=[8], ends=[10], reward=0.0, stop="truncated")
        run.add(ask, *replies, fork, end, cut)
        run.add(
            AttemptRecord(end.id, "t", index=1, outcome=True, reward=1.0),
            Score(end.id, "env", 1.0),
            Score(cut.id, "judge", None, "points", judges={"a": "j"}),
        )
        for name in ("one.eval", "two.eval"):
            assert inspect_logs.write_log(run, tmp_path / name) == 2
    one, two = read(tmp_path / "one.eval"), read(tmp_path / "two.eval")
    assert {key: sample.model_dump_json() for key, sample in one.items()} == {
        key: sample.model_dump_json() for key, sample in two.items()
    }
    won, lost = one["task", 1], one["task", 2]
    assert [(m.role, m.text, m.id) for m in won.messages] == [
        ("user", "go", ask.id), ("assistant", "left", replies[1].id), ("user", "you won", end.id)]  # fmt: skip
    assert [(m.role, m.text, m.id) for m in lost.messages][1] == ("assistant", "leap", replies[0].id)
    assert won.messages[2].metadata == {"ramify": {EVIL: EVIL}}
    assert (won.scores["env"].value, won.scores["reward"].value, won.uuid) == (1.0, 1.0, end.id)
    assert str(lost.scores["judge"].value) == "nan"
    assert (lost.limit.type, lost.limit.reason, lost.output.model) == ("custom", "truncated", "tiny")
    header = log_module.read_eval_log(str(tmp_path / "one.eval"), header_only=True)
    assert {score.name: score.metrics["mean"].value for score in header.results.scores} == {"env": 1.0, "reward": 0.5}
    inspect_logs.read_log(tmp_path / "one.eval", tmp_path / "back")
    with Run.open(tmp_path / "back") as run:
        assert sorted(v.scorer for v in run.scores()) == ["env", "judge", "reward", "reward"]


def edit(path: Path, out: Path, member: str, change: Any) -> Path:
    """A copy of an ``.eval`` file with one member changed; a member that is changed to None is left out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            raw = old.read(name)
            raw = change(raw) if name == member else raw
            if raw is not None:
                new.writestr(name, raw)
    return out


def altered(**fields: Any) -> Any:
    return lambda raw: json.dumps(json.loads(raw) | fields).encode()


@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        ("header.json", altered(version=3), "'version' is 3; the installed inspect_ai reads logs of version 1 to 2"),
        ("header.json", altered(version="2"), "'version' is '2'"),
        ("header.json", altered(eval=3), "header: 'eval'"),
        ("header.json", lambda raw: b"[]", "header.json holds no object"),
        ("header.json", lambda raw: b"{", "header.json is not JSON"),
        ("samples/a_epoch_1.json", lambda raw: b"\xff", "samples/a_epoch_1.json is not JSON"),
        ("samples/a_epoch_1.json", lambda raw: b"[" * 100_000, "samples/a_epoch_1.json is not JSON"),
        ("samples/a_epoch_1.json", altered(messages=[{"role": "user"}]), "sample 'a', epoch 1: 'messages.0"),
        ("samples/a_epoch_1.json", altered(messages=3), "sample 'a', epoch 1: 'messages'"),
        ("samples/a_epoch_1.json", altered(epoch=None), "sample 'a', epoch None: 'epoch'"),
        ("samples/a_epoch_1.json", altered(epoch=2), "sample 'a', epoch 2 is there twice"),
        ("samples/a_epoch_1.json", altered(id=7), "sample 7, epoch 1 is there twice"),
        ("samples/a_epoch_1.json", altered(id="7", epoch=3), "two samples are called '7', one as text and one as a number"),
        ("samples/a_epoch_1.json", lambda raw: b'{"a":"' + b"x" * (1 << 25) + b'"}', "more than is allowed"),
    ],
)  # fmt: skip
def test_bad_members(logs: dict[str, Path], tmp_path: Path, member: str, change: Any, message: str) -> None:
    file = edit(logs["eval"], tmp_path / "bad.eval", member, change)
    with pytest.raises(UserError) as caught:
        inspect_logs.read_log(file, tmp_path / "run")
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.eval"]


def test_bad_files(logs: dict[str, Path], tmp_path: Path) -> None:
    whole, document = logs["eval"].read_bytes(), logs["json"].read_bytes()
    liar = bytearray(
        edit(logs["eval"], tmp_path / "liar.eval", "samples/a_epoch_1.json", lambda raw: b" " * (1 << 28)).read_bytes()
    )
    with zipfile.ZipFile(tmp_path / "liar.eval") as archive:
        start = archive.start_dir
    at = liar.index((1 << 28).to_bytes(4, "little"), start)
    liar[at : at + 4] = (100).to_bytes(4, "little")  # 256 MiB that say they are 100 bytes
    (tmp_path / "liar.eval").unlink()
    with zipfile.ZipFile(logs["eval"]) as archive:
        inside = archive.getinfo("samples/a_epoch_1.json").header_offset + 200
    for name, raw, message in (
        ("cut.eval", whole[: len(whole) // 2], "not a readable zip"),
        ("empty.eval", b"", "not a readable zip"),
        ("text.eval", b"hello", "not a readable zip"),
        ("liar.eval", bytes(liar), "samples/a_epoch_1.json is damaged"),
        ("flip.eval", whole[:inside] + bytes(64) + whole[inside + 64 :], "samples/a_epoch_1.json is damaged"),
        ("cut.json", document[: len(document) // 2], "is not JSON"),
        ("latin.json", document.replace(b"Be brief", b"Be \xff\xfe"), "is not JSON"),
        ("list.json", b"[]", "holds no JSON object"),
        ("empty.json", b'{"version": 2, "status": "started", "eval": {}}', "header: 'eval.created'"),
        ("new.json", document.replace(b'"version": 2', b'"version": 99', 1), "'version' is 99"),
        ("none.json", None, "cannot read"),
        ("none.eval", None, "cannot read"),
    ):  # fmt: skip
        if raw is not None:
            (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=message) as caught:
            inspect_logs.read_log(tmp_path / name, tmp_path / "run")
        assert str(tmp_path / name) in str(caught.value)
        (tmp_path / name).unlink(missing_ok=True)
        assert list(tmp_path.iterdir()) == []


def test_logs_that_hold_less(logs: dict[str, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(logs["failed"]) as old, zipfile.ZipFile(tmp_path / "none.eval", "w") as new:
        new.writestr("header.json", old.read("header.json"))
    with pytest.raises(UserError, match=r"holds no sample: the evaluation's status is 'error' .*went away"):
        inspect_logs.read_log(tmp_path / "none.eval", tmp_path / "run")
    with zipfile.ZipFile(tmp_path / "nothing.eval", "w") as new:
        new.writestr("x", "y")
    with pytest.raises(UserError, match="holds neither header"):
        inspect_logs.read_log(tmp_path / "nothing.eval", tmp_path / "run")
    # cut off before its end: no header, and the samples so far
    assert (
        inspect_logs.read_log(edit(logs["eval"], tmp_path / "started.eval", "header.json", lambda raw: None), tmp_path / "run")
        == 4
    )
    empty = edit(logs["eval"], tmp_path / "empty.eval", "samples/a_epoch_1.json", altered(messages=[], scores={}))
    inspect_logs.read_log(empty, tmp_path / "run2")
    with Run.open(tmp_path / "run2") as run:
        assert [leaf.text for leaf in run.tree("a").leaves()] == ["", "The sum is 3"]
        inspect_logs.write_log(run, tmp_path / "out.eval")
    assert read(tmp_path / "out.eval")["a", 1].messages == []


def test_memory_holds_one_sample(logs: dict[str, Path], tmp_path: Path) -> None:
    """Logs of 100 MB, in a zip and as JSON: read in a fraction of that, on top of what inspect itself takes."""
    sample = json.loads(logs["json"].read_bytes())["samples"][0]
    sample.pop("events_data", None)
    sample["scores"] = {"includes": {"value": "C"}}
    head = json.loads(logs["json"].read_bytes())
    head["results"] = head["reductions"] = None
    del head["samples"]
    sample["messages"][-1]["content"] = "word " * 100_000
    with zipfile.ZipFile(tmp_path / "big.eval", "w", zipfile.ZIP_STORED) as new, (tmp_path / "big.json").open("w") as file:
        new.writestr("header.json", json.dumps(head))
        file.write(json.dumps(head)[:-1] + ', "samples": [\n')
        for epoch in range(1, 201):
            text = json.dumps(sample | {"epoch": epoch})
            new.writestr(f"samples/a_epoch_{epoch}.json", text)
            file.write(("" if epoch == 1 else ",\n") + text)
        file.write("]}")
    code = (
        "import sys; from pathlib import Path; import ijson; import inspect_ai.log; "
        "from ramify.integrations.inspect import logs as door\n"
        "peak = lambda: next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "before = peak(); assert door.read_log(Path(sys.argv[1]), Path(sys.argv[2])) == 200; print(peak() - before)"
    )
    for name in ("big.eval", "big.json"):
        assert (tmp_path / name).stat().st_size > 100_000_000
        command = [sys.executable, "-c", code, str(tmp_path / name), str(tmp_path / "run")]
        grown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert int(grown) < 60_000  # KiB
        shutil.rmtree(tmp_path / "run")


def test_stored_text_is_exported_again(logs: dict[str, Path], tmp_path: Path) -> None:
    """An imported log is a run like another: it goes through JSON lines and back."""
    from ramify.trace.convert import read_run

    inspect_logs.read_log(logs["json"], tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        write_lines(run, tmp_path / "run.jsonl")
        count = sum(1 for _ in run.each(Node))
    assert read_run(logs["eval"], tmp_path / "seen") == "inspect"
    assert read_run(logs["json"], tmp_path / "seen2") == "inspect"
    read_run(tmp_path / "run.jsonl", tmp_path / "back")
    with Run.open(tmp_path / "back") as run:
        assert sum(1 for _ in run.each(Node)) == count


def test_numbers_that_json_lacks_are_named_wherever_pieces_are_cut() -> None:
    rng = random.Random(0)

    def value(depth: int = 0) -> Any:
        match rng.randrange(8 if depth < 3 else 6):
            case 0:
                return rng.choice([float("nan"), float("inf"), float("-inf")])
            case 1:
                return rng.choice([1, -2.5, None, True, False])
            case 6:
                return [value(depth + 1) for _ in range(rng.randrange(4))]
            case 7:
                return {f'k"\\{i}NaN': value(depth + 1) for i in range(rng.randrange(4))}
        return "".join(
            rng.choice(['"', "\\", "NaN", "-Infinity", "a", "\u20ac", "\n", "Inf", " "]) for _ in range(rng.randrange(8))
        )

    class Pieces:
        def __init__(self, raw: bytes) -> None:
            self.file = io.BytesIO(raw)

        def read(self, _: int) -> bytes:
            return self.file.read(rng.randrange(1, 7))

    for _ in range(2000):
        values = [value() for _ in range(3)]
        reader = inspect_logs.NamedNumbers(Pieces(json.dumps(values, ensure_ascii=rng.random() < 0.5).encode()))
        named = b"".join(iter(lambda reader=reader: reader.read(rng.randrange(1, 9)), b""))
        assert json.loads(named) == plain(values)


def test_odd_chats_become_logs(tmp_path: Path) -> None:
    """Text that is not a Unicode, fields of the wrong kind, and a message that says of itself what only inspect's samples say."""
    odd = "\ud800\x00" + EVIL
    messages = [
        {"role": "user", "content": odd, odd: odd},
        {"role": "assistant", "content": odd, "tool_calls": [{"id": 3, "function": {"name": 4, "arguments": odd}}, {"x": 1}]},
        {"role": "tool", "content": odd, "tool_call_id": 5, "sample": {"epoch": -1, "messages": 0, "uuid": 7}},
    ]
    (tmp_path / "c.jsonl").write_text(json.dumps({"task": "t", "messages": messages, "reward": 0.5, odd: [odd]}) + "\n")
    from ramify.trace.convert import read_run

    read_run(tmp_path / "c.jsonl", tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        for name in ("out.eval", "out.json"):
            assert inspect_logs.write_log(run, tmp_path / name) == 1
            sample = read(tmp_path / name)["t", 1]
            assert [message.text for message in sample.messages] == [odd.replace("\ud800", "?")] * 3
            assert sample.messages[1].tool_calls[0].parse_error == "the arguments are not JSON"
            assert sample.messages[2].metadata["ramify"]["tool_call_id"] == 5
            assert sample.scores["imported"].value == 0.5


def test_which_step_went_wrong_in_a_log(logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several scorers judged the samples, one of them in parts, one with no number: the user says whose score counts."""

    def verb(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else printed.err

    run = tmp_path / "run"
    assert "scores by includes, pair.a, pair.b" in verb("import", logs["eval"], "--run", run)
    sentence = verb("graph-credit", "report", run, code=2)
    assert "choose one with --scorer (includes, pair.a, pair.b)" in sentence
    rewards = {"includes": {1.0, 0.0}, "pair.a": {1.0}, "pair.b": {0.5}}
    for scorer, values in rewards.items():
        rows = tmp_path / f"{scorer}.jsonl"
        verb("graph-credit", "advantages", run, "--scorer", scorer, "--out", rows)
        steps = [json.loads(line) for line in rows.read_text().splitlines()]
        assert {step["reward"] for step in steps if step["done"]} == values
        assert any(step["action"].endswith('add({"x":1,"y":2})') for step in steps)
    found = json.loads(verb("show", run, "--scorer", "includes", "--json"))["attempts"]
    assert (found["successes"], found["n"]) == (2, 4)
    assert "no score of scorer 'pair.c' (did you mean 'pair." in verb("graph-credit", "report", run, "--scorer", "pair.c", code=2)
    assert "--task-field does not apply" in verb("import", logs["json"], "--run", tmp_path / "b", "--task-field", "id", code=2)
    assert "no attempt with a reward" in verb("import", logs["failed"], "--run", tmp_path / "failed")
    assert "holds no scored attempt" in verb("graph-credit", "report", tmp_path / "failed", code=2)
    (tmp_path / "rules").write_text("Be brief\n")
    for form in ("inspect", "inspect-calls"):
        audit = ("governance", "audit", logs["eval"], "--from", form, "--rules", tmp_path / "rules", "--strict", "--json")
        found = json.loads(verb(*audit))
        assert (found["sessions"], found["compactions"], found["rules"][0]["stated_in"]) == (4, [], 4)


def test_errored_samples_are_named_with_their_error(
    logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.cli.main import main

    def run_cli(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    why = "RuntimeError('the tool server is gone')"
    code, out, _ = run_cli("import", logs["some"], "--run", "runs/some")
    assert code == 0
    assert f"1 of 3 attempts failed: 1 x {why}" in out
    assert f"1 of 3 attempts failed: 1 x {why}" in run_cli("show", "some")[1]
    assert json.loads(run_cli("show", "some", "--json")[1])["failed"]["reasons"] == {why: 1}
    assert run_cli("show", "some", "--html", "some.html")[0] == 0
    assert "the tool server is gone" in (tmp_path / "some.html").read_text("utf-8")
    for source in ("some", logs["some"]):
        found = json.loads(run_cli("forensics", "report", source, "log", "--behavior", "regex:sum", "--by", "hard", "--json")[1])
        assert (found["rate"]["k"], found["rate"]["n"], found["invalid"], found["why"]) == (2, 2, 1, {why: 1})
        found = json.loads(
            run_cli("forensics", "report", source, "log", "--behavior", "outcome", "--scorer", "includes", "--json")[1]
        )
        assert (found["rate"]["k"], found["rate"]["n"]) == (1, 2)
    (tmp_path / "rules.txt").write_text("Be brief\n")
    gone = "went away"
    for words in (
        ("forensics", "report", logs["failed"], "log", "--behavior", "regex:x"),
        ("cliffs", "scan", "--model", "builtin", "--verifier", "exact", "--out", "s", "--retokenise", "--traces", logs["failed"]),
        ("governance", "audit", logs["failed"], "--rules", "rules.txt"),
    ):
        code, out, err = run_cli(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "attempts failed" in err or "the only attempt failed" in err
        assert gone in err


def test_a_scan_of_a_log_samples_on_as_the_log_says(
    logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramify.cli.main import main
    from ramify.methods.cliffs import read_scan

    monkeypatch.chdir(tmp_path)
    words = ["cliffs", "scan", "--model", "builtin", "--verifier", "number", "--traces", str(logs["some"]), "--out", "scan"]
    assert main([*words, "--n", "4", "--first", "2", "--confirm", "0", "--retokenise", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["wrong"]["traces"] + json.loads(out)["right"]["traces"] == 2
    assert "1 of 3 attempts are left out: the attempt failed: RuntimeError('the tool server is gone')" in err
    traces = [one.trace for one in read_scan(tmp_path / "scan")[2]]
    assert {(trace.sampler.temperature, trace.sampler.max_tokens) for trace in traces} == {(0.5, 40)}
    assert {str(trace.data["answer"]) for trace in traces} == {"3", "5"}
