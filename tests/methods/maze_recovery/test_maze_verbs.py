"""The verbs on files and runs, as they are typed; what is wrong with them in one sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from maze_cases import DETOUR, base_walks, trace, way

import ramify
from ramify.base.errors import InfrastructureError, NeedsError
from ramify.cli.main import main
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.methods.maze_recovery import audit_traces
from ramify.methods.maze_recovery.attempts import Traces, from_records, load
from ramify.methods.maze_recovery.run import audit_replies
from ramify.methods.maze_recovery.traces import as_judgement
from ramify.score.judge import Item, Judgement
from ramify.trace.db import Run


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    file = tmp_path / "walks.jsonl"
    file.write_text("".join(json.dumps(walk) + "\n" for walk in base_walks(9)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempts of the built-in agent at tasks of the built-in environment."""
    folder = tmp_path_factory.mktemp("played") / "run"
    ramify.play("builtin", "household", HouseholdEnvironment().task_set("eval", 3), attempts=4, out=folder)
    return folder


def verb(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["maze-recovery", *map(str, args), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: object, code: int = 2) -> str:
    capsys.readouterr()
    assert main(["maze-recovery", *map(str, args)]) == code
    return capsys.readouterr().err


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_audit_of_a_file(walks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = verb(capsys, "audit", walks, "--state-field", "state", "--out", tmp_path / "rows.jsonl")
    assert found["recoveries"] == audit_traces(base_walks(9)).recoveries
    assert lines(tmp_path / "rows.jsonl") == found["per_trace"]
    assert main(["maze-recovery", "audit", str(walks)]) == 0
    shown = capsys.readouterr().out
    assert "recovery_coverage" in shown
    assert "dead ends" in shown


def test_build_from_a_file(walks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "set.jsonl"
    found = verb(capsys, "build", walks, "--out", out, "--mode", "recovery_mix", "--rho", "0.5", "--token-budget", "3000")
    rows = lines(out)
    assert found["rows"] == len(rows) == found["examples"]
    assert sum(row["recovery"] for row in rows) == found["with_recovery"]
    assert all(len(row["messages"]) == len(row["loss"]) for row in rows)
    pairs = verb(capsys, "build", walks, "--out", out, "--mode", "success_loop_erased", "--form", "prompt-completion")
    assert pairs["rows"] == sum(len(way(0)) - 1 for _ in range(9))
    assert lines(out)[0]["completion"][0]["role"] == "assistant"
    verb(capsys, "build", walks, "--out", tmp_path / "set.parquet", "--mode", "success_raw")
    assert (tmp_path / "set.parquet").stat().st_size > 0


def test_a_stored_run(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = verb(capsys, "audit", stored)
    assert found["traces"] == len(found["per_trace"])
    assert found["ambiguity"]["k"] == 0  # the environment's own keys are whole states of a deterministic environment
    with Run.open(stored) as run:
        assert found["success_share"]["k"] == sum(v.value == 1 for v in run.scores(scorer="env"))
        assert all(run.node(d["node"]).role == "assistant" for d in found["dead_end_list"])
        [kept] = run.results()
        assert (kept.maker, kept.result) == ("maze-recovery audit", found)
    out = tmp_path / "rows.jsonl"
    made = verb(capsys, "build", stored, "--out", out, "--mode", "success_raw", "--form", "tokens", "--mask-mistakes")
    rows = lines(out)
    assert made["counted_by"] == "tokens"
    assert made["tokens"] == sum(label >= 0 for row in rows for label in row["labels"])
    with Run.open(stored) as run:  # the tree's own tokens
        paths = {
            tuple(run.tree(run.node(leaf).tree).path(leaf).tokens.tolist()) for leaf in (t["attempt"] for t in found["per_trace"])
        }
    assert all(any(path[: len(row["input_ids"])] == tuple(row["input_ids"]) for path in paths) for row in rows)
    key = verb(capsys, "audit", stored, "--detector", "lexicon")
    assert key["agreement_with"] == "state keys"
    assert key["agreement"]["recall"]["k"] == 0  # its replies are commands: they say nothing of going back
    text = load(stored, None)
    assert audit_traces(text).steps == found["steps"]
    assert verb(capsys, "audit", stored, "--history", "1")["states"] > 0


def test_chats_are_read_by_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chats = tmp_path / "chats.jsonl"
    said = ["7*8 is 54. Wait, that's wrong: 7*8 is 56. So 61.", "7*8 is 56. So 61."]
    chats.write_text(
        "".join(
            json.dumps(
                {
                    "task": "sum",
                    "reward": 1,
                    "messages": [{"role": "user", "content": "7*8+5?"}, {"role": "assistant", "content": s}],
                }
            )
            + "\n"
            for s in said
        )
    )
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"text": "No, that is wrong.", "kind": "retract"}\n{"text": "So 3.", "kind": "advance"}\n')
    found = verb(capsys, "audit", chats, "--detector", "lexicon", "--labels", labels)
    assert (found["states_from"], found["recoveries"], found["loop_free"]["k"]) == ("detector lexicon", 1, 1)
    assert (found["agreement_with"], found["agreement"]["agreement"]["value"]) == ("labels", 1)
    assert verb(capsys, "audit", chats)["caveats"] == [
        "what the detector saw was measured against nothing: give --labels, or traces with states"
    ]
    made = verb(capsys, "build", chats, "--out", tmp_path / "set.jsonl", "--mode", "recovery_only_suffix")
    [row] = lines(tmp_path / "set.jsonl")
    assert made["examples"] == 1
    assert said[0][slice(*row["loss"][1][0])] == "Wait, that's wrong: 7*8 is 56. So 61."
    checkpoint = Path(ramify.__file__).parent / "assets" / "household"
    verb(
        capsys,
        "build",
        chats,
        "--out",
        tmp_path / "set.jsonl",
        "--mode",
        "recovery_only_suffix",
        "--form",
        "tokens",
        "--checkpoint",
        checkpoint,
    )
    [row] = lines(tmp_path / "set.jsonl")
    assert 0 < sum(label >= 0 for label in row["labels"]) < len(row["labels"])


SLIP = "7*8 = 54. Hmm, actually 7*8 = 56. Wait, let me check: 56. So 61."


def chats(path: Path, *said: str) -> Path:
    """A file of chats, one reply each."""
    asked = {"role": "user", "content": "7*8+5?"}
    records = [{"task": n, "reward": 1, "messages": [asked, {"role": "assistant", "content": s}]} for n, s in enumerate(said)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def labelled_steps(path: Path, n: int, right: int, targets: bool = True) -> Path:
    """``n`` traces of a step and a phrase that takes it back, of which ``right`` do."""
    rows: list[dict[str, Any]] = []
    for at in range(n):
        back: dict[str, Any] = {"kind": "advance"} if at >= right else {"kind": "retract"} | ({"target": 0} if targets else {})
        rows += [{"text": "It is 4.", "kind": "advance", "trace": at}, {"text": "Wait, it is 5.", "trace": at} | back]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_mistakes_in_texts_are_masked_where_that_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = chats(tmp_path / "chats.jsonl", SLIP), tmp_path / "set.jsonl"
    build = ("build", source, "--out", out, "--mode", "success_raw")
    masked = (*build, "--mask-mistakes", "--detector", "lexicon")
    assert "is not measured: give --labels" in refused(capsys, *build, "--mask-mistakes")
    assert "give --labels" in refused(capsys, *masked, "--labels", labelled_steps(tmp_path / "a.jsonl", 40, 40, targets=False))
    few = refused(capsys, *masked, "--labels", labelled_steps(tmp_path / "b.jsonl", 3, 3))
    assert "of 3 labelled steps that the detector would hide 3 are taken back, a share that may be as low as 0.44" in few
    wrong = labelled_steps(tmp_path / "c.jsonl", 40, 20)
    assert "40 labelled steps that the detector would hide 20 are taken back" in refused(capsys, *masked, "--labels", wrong)
    assert not out.exists()
    made = verb(capsys, *masked, "--labels", labelled_steps(tmp_path / "d.jsonl", 40, 40))
    [row] = lines(out)
    assert [SLIP[a:b] for a, b in row["loss"][1]] == ["Hmm, actually 7*8 = 56. Wait, let me check: 56. So 61."]
    assert not made["caveats"]
    assert verb(capsys, *masked, "--labels", wrong, "--mask-precision", "0.2")["rows"] == 1
    assert "measured against nothing" in verb(capsys, *build)["caveats"][0]


def test_marks_stand_out_from_false_ones_or_they_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    straight, back = "So 3. Then 4.", "So 3. Wait, it is 4."
    none = verb(capsys, "audit", chats(tmp_path / "none.jsonl", *[straight] * 20))
    assert (none["found"], none["verdict"]) == (False, "nothing stands out: the detector sees no step that takes anything back")
    source = chats(tmp_path / "chats.jsonl", *[back] * 10, *[straight] * 10)
    assert verb(capsys, "audit", source)["verdict"].startswith("nothing is known: 10 of 40 steps look as if")
    audit = ("audit", source, "--detector", "lexicon", "--labels")
    found = verb(capsys, *audit, labelled_steps(tmp_path / "right.jsonl", 40, 40))
    assert (found["found"], found["agreement"]["false_marks"]["k"], found["agreement"]["masks"]["k"]) == (True, 0, 40)
    found = verb(capsys, *audit, labelled_steps(tmp_path / "wrong.jsonl", 40, 20))
    assert not found["found"]
    assert "which false marks (0.333, at most" in found["verdict"]
    assert main(["maze-recovery", *map(str, audit), str(tmp_path / "wrong.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("nothing stands out: 10 of 40 steps")


def test_intervals_are_over_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The attempts at one task are alike: ten of each at six tasks, and only which task it was decides, are six observations."""
    file = tmp_path / "walks.jsonl"
    records = [trace([*"aab"] if n < 3 else [*"acb"], f"task {n}", at, n < 3) for n in range(6) for at in range(10)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = verb(capsys, "audit", file)
    assert found["intervals_over"] == "tasks"
    for name, value in (("success_share", 0.5), ("loop_free", 0.5), ("stalled_steps", 0.25)):
        low, high = found[name]["interval"]
        assert (found[name]["value"], found[name]["clusters"]) == (value, 6)
        assert low < 0.2 < 0.4 < high
    file.write_text("".join(json.dumps(record | {"task_id": "one"}) + "\n" for record in records))
    assert verb(capsys, "audit", file)["intervals_over"] == "attempts"
    file.write_text(json.dumps(records[0]) + "\n")
    assert verb(capsys, "audit", file)["success_share"]["interval"] is None
    assert main(["maze-recovery", "audit", str(file)]) == 0


def test_returns_by_a_key_that_hides_the_state_do_not_stand_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "walks.jsonl"
    walks = base_walks(20)
    file.write_text("".join(json.dumps(walk) + "\n" for walk in walks))
    found = verb(capsys, "audit", file)
    assert found["found"]
    assert found["verdict"].startswith(f"{found['recovery_traces']['k']} of 20 traces get out of a wrong turn")
    rng = np.random.default_rng(0)
    for walk in walks:  # a way through rooms that are never entered twice, of which the key shows one of five looks
        walk["steps"] = [{"state": look, "action": f"turn {turn}"} for look, turn in rng.integers(0, [5, 2], (12, 2)).tolist()]
    file.write_text("".join(json.dumps(walk) + "\n" for walk in walks))
    found = verb(capsys, "audit", file)
    assert not found["found"]
    assert "returns seen, but the same move led elsewhere" in found["verdict"]
    file.write_text(json.dumps(trace(way(0), "b0 leaf")) + "\n")
    assert main(["maze-recovery", "audit", str(file)]) == 0
    assert capsys.readouterr().out.startswith("nothing stands out: no trace gets out of a wrong turn")


def test_a_share_that_is_not_the_asked_one_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "walks.jsonl"
    file.write_text("".join(json.dumps(trace(way(0), "b0 leaf", n)) + "\n" for n in range(9)))
    build = ("build", file, "--out", tmp_path / "set.jsonl")
    made = verb(capsys, *build, "--rho", "0.3")
    assert made["caveats"] == [
        "a share of 0 of the 1 examples shows a recovery, not 0.3 as asked (ended: no more traces with a recovery)"
    ]
    assert main(["maze-recovery", *map(str, build), "--rho", "0.3"]) == 0
    assert "warning: a share of 0 of the 1 examples" in capsys.readouterr().err
    assert not verb(capsys, *build, "--rho", "0")["caveats"]
    assert not verb(capsys, *build, "--mode", "success_raw")["caveats"]


def test_a_call_without_text_is_marked_as_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    call = {"id": "c", "type": "function", "function": {"name": "go", "arguments": "{}"}}
    talk = [
        {"role": "user", "content": "hall"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "cellar"},
        {"role": "assistant", "content": "done"},
    ]
    file, out = tmp_path / "calls.jsonl", tmp_path / "set.jsonl"
    file.write_text(json.dumps({"task": "lamp", "reward": 1, "messages": talk}) + "\n")
    verb(capsys, "build", file, "--out", out, "--mode", "success_raw")
    [row] = lines(out)
    assert row["loss_calls"] == [False, True, False, False]
    assert row["loss"] == [[], [[0, 0]], [], [[0, 4]]]
    verb(capsys, "build", file, "--out", tmp_path / "set.parquet", "--mode", "success_raw")


def test_logs_of_other_tools_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Seen from the content, or by the name of the reader; the file's own first record decides nothing then."""
    said = [["up", "down", "east"], ["east"]]
    seen = ["hall", "attic", "hall"]
    chats = tmp_path / "chats.jsonl"
    with chats.open("w", encoding="utf-8") as file:
        for replies in said:
            pairs = zip(seen, replies, strict=False)
            messages = [m for s, a in pairs for m in ({"role": "user", "content": s}, {"role": "assistant", "content": a})]
            file.write(json.dumps({"task": "lamp", "reward": 1, "messages": messages, "steps": len(replies)}) + "\n")
    found = verb(capsys, "audit", chats, "--from", "chats")
    assert (found["traces"], found["recoveries"], found["dead_end_list"][0]["state"]) == (2, 1, "attic")
    out = tmp_path / "set.jsonl"
    made = verb(capsys, "build", chats, "--from", "chats", "--out", out, "--mode", "success_raw", "--mask-mistakes")
    assert (made["rows"], made["with_recovery"]) == (2, 1)
    assert verb(capsys, "audit", chats) == found  # what has messages is not a list of steps, whatever else it has
    log = Path(__file__).parents[2] / "fixtures" / "verifiers-traces.jsonl"
    named = verb(capsys, "audit", log, "--from", "verifiers", "--scorer", "correct")
    assert named == verb(capsys, "audit", log, "--scorer", "correct")
    assert named["success_share"]["k"] > 0
    assert "unknown format 'verifier' (did you mean 'verifiers'" in refused(capsys, "audit", log, "--from", "verifier")
    assert str(log) in refused(capsys, "audit", log, "--from", "steps")


class Failing:
    """A detector that can read short texts only, as a judge whose reply is cut."""

    name = identity = "failing"

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    async def judge(self, items: Sequence[Item]) -> list[Judgement]:
        self.asked.append(len(items))
        if len(items) > self.most:
            raise InfrastructureError("scorer", "too many steps")
        return [as_judgement("advance", None)] * len(items)


def test_labels_are_measured_first_trace_by_trace(tmp_path: Path):
    labels = tmp_path / "labels.jsonl"
    lines = [{"text": f"Step {n}.", "kind": "advance", "trace": n // 4} for n in range(400)]
    labels.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *({**line, "trace": "long"} for line in lines)]))
    detector = Failing(most=150)
    traces = Traces(from_records(base_walks(2)))
    found = audit_replies(traces, detector, labels)
    assert found.agreement is not None
    assert (found.agreement.steps, found.agreement_with) == (400, "labels")
    assert "1 labelled trace left out, could not be marked" in found.caveats[0]
    nothing = Failing(most=0)
    with pytest.raises(NeedsError, match="marked none of the labelled steps"):
        audit_replies(traces, nothing, labels)
    assert len(nothing.asked) == 101  # no reply was read for nothing


def test_what_is_refused(walks: Path, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "set.jsonl"
    assert "has no field 'sate'" in refused(capsys, "audit", walks, "--state-field", "sate")
    assert "is a run" in refused(capsys, "audit", stored, "--state-field", "obs")
    assert "--from does not apply" in refused(capsys, "build", stored, "--out", out, "--from", "chats")
    assert "did you mean '--mode'" in refused(capsys, "build", walks, "--out", out, "--mod", "golden")
    assert "--rho" in refused(capsys, "build", walks, "--out", out, "--rho", "2")
    assert "--min-examples" in refused(capsys, "audit", walks, "--min-examples", "0")
    assert "name one with --detector" in refused(capsys, "audit", walks, "--labels", walks)
    assert "unknown model 'magic'" in refused(capsys, "audit", walks, "--detector", "magic")
    assert "ends in .jsonl" in refused(capsys, "build", walks, "--out", tmp_path / "a.parquet", "--form", "prompt-completion")
    assert "text only" in refused(capsys, "build", walks, "--out", out, "--form", "tokens", code=4)
    assert "no tokenizer" in refused(capsys, "build", walks, "--out", out, "--checkpoint", tmp_path)
    assert "cannot read" in refused(capsys, "audit", tmp_path / "nothing.jsonl")
    assert "cannot scrub 'vowels'" in refused(capsys, "audit", walks, "--scrub", "vowels")
    lost = tmp_path / "lost.jsonl"
    lost.write_text(json.dumps(trace(DETOUR, "b0 leaf", success=False)) + "\n")
    assert "no trace is known to have succeeded" in refused(capsys, "build", lost, "--out", out)
    assert not out.exists()
    half = tmp_path / "half.jsonl"
    half.write_text(json.dumps(trace(["a\ud800", "b"], "t")) + "\n")
    assert "a text holds half a character ('\\ud800')" in refused(capsys, "build", half, "--out", out)
    assert "half a character" in refused(capsys, "build", half, "--out", tmp_path / "set.parquet")
    assert "it is a folder" in refused(capsys, "build", walks, "--out", tmp_path)
    assert not out.exists()


@pytest.mark.slow
def test_a_log_of_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("inspect_ai")
    import subprocess
    import sys

    code = Path(__file__).parents[2] / "integrations" / "inspect_eval.py"
    subprocess.run([sys.executable, str(code), str(tmp_path)], check=True, capture_output=True, timeout=300)
    log = next((tmp_path / "eval").iterdir())
    assert "several scorers: choose one with --scorer" in refused(capsys, "audit", log)
    found = verb(capsys, "audit", log, "--scorer", "includes")
    assert (found["traces"], found["success_share"]["k"]) == (4, 2)
    made = verb(capsys, "build", log, "--scorer", "includes", "--mode", "success_raw", "--out", tmp_path / "set.jsonl")
    assert made["rows"] == 2
    messages = lines(tmp_path / "set.jsonl")[0]["messages"]
    assert messages[2]["tool_calls"][0]["id"] == messages[3]["tool_call_id"]
