"""The verbs, from the command line, on a checkpoint of one's own; what is refused, in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ramify.cli.main import main
from ramify.engine.named import find_sampled
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.cliffs import read_scan
from ramify.model.tokenizer import HfTokenizer
from ramify.rollout.token_traces import TokenTrace
from ramify.trace.db import Run
from ramify.web.pages import report_html, tree_html

WORDS = ["low", "mid", "high", "top", "<end>"]
END = 4


def make_verifier() -> Any:
    """Right where the first word is low or mid: everything is decided at the first token."""
    return starts_low


def starts_low(text: str, trace: TokenTrace) -> bool:
    return text.startswith(("low", "mid"))  # pieces of a reply of this tokenizer join without a space


VERIFIER = f"factory:{__name__}:make_verifier"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    for name, seed in (("one", 3), ("other", 7)):
        module = TinyLM(TinyConfig(5, 16, 1, 2, 1, 8, 16, 32, eos=(END,)), seed=seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
        raw.pre_tokenizer = pre_tokenizers.Whitespace()
        module.save(folder / name, HfTokenizer(raw))
    return folder


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    file.write_text(json.dumps({"id": "p", "prompt_ids": [1, 2], "answer": "low"}) + "\n")
    return file


def run(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, str, str]:
    code = main(["cliffs", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def base(checkpoint: Path, name: str = "one") -> list[str]:
    return ["--model", f"hf:{checkpoint / name}", "--verifier", VERIFIER, "--truncated", "graded"]


def test_scan_ablate_pairs_and_show(checkpoint: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan = tmp_path / "scan"
    completion = ["--problems", problems, "--samples", 5, "--max-tokens", 6]
    code, out, _ = run(capsys, "scan", *base(checkpoint), *completion, "--out", scan, "--dry-run", "--json")
    planned = json.loads(out)["cost_estimate"]
    assert code == 0
    assert not scan.exists()
    assert planned["forks at the first look"] == 16 * planned["positions"] > 0
    assert planned["forks at most"] <= planned["forks of every position"]
    code, out, err = run(capsys, "scan", *base(checkpoint), *completion, "--out", scan, "--budget-rollouts", 500, "--json")
    first = json.loads(out)
    assert code == 3
    assert "traces not scanned" in err
    assert 0 < first["traces"] < 5
    code, out, _ = run(capsys, "scan", *base(checkpoint), *completion, "--out", scan, "--json")
    whole = json.loads(out)
    assert code == 0
    assert whole["traces"] == 5
    assert whole["wrong"]["cliffs_per_trace"] == 1
    assert whole["right"]["with_cliff"] == 0
    assert whole["gap"] < 1e-3
    assert whole["spent"]["forward_tokens"] > 0
    assert sum(row["confirmed"] for row in whole["classes"]) == whole["wrong"]["traces"] > 0

    code, out, _ = run(capsys, "scan", *base(checkpoint), *completion, "--out", scan)
    assert code == 0
    assert "with a cliff" in out

    assert run(capsys, "ablate", scan, *base(checkpoint), "--k", 1, "--n", 4)[0] == 0
    code, out, _ = run(capsys, "ablate", scan, *base(checkpoint), "--k", "1,8", "--n", 16, "--json")
    ablation = json.loads(out)
    arms = {row["arm"]: row for row in ablation["arms"]}
    assert code == 0
    assert arms["keep"]["passes"]["8"] == 0
    assert arms["del"]["passes"]["1"] > 0
    assert ablation["gap"] == pytest.approx(arms["del"]["passes"]["1"])
    assert ablation["gap_interval"][0] > 0

    pairs = tmp_path / "pairs.jsonl"
    every = ["--classes", "deterministic,uncertain,sampled_off,other", "--candidates", 5, "--n", 32]
    compare = ["--compare", f"hf:{checkpoint / 'other'}"]
    code, out, _ = run(capsys, "pairs", scan, *base(checkpoint), *every, *compare, "--out", pairs, "--json")
    report = json.loads(out)
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert code == 0
    assert report["pairs"] == len(rows) > 0
    assert {row["chosen_id"] for row in rows} <= {0, 1}
    assert {row["rejected_id"] for row in rows} <= {2, 3, 4}
    assert all(row["prompt_ids"] == [1, 2] for row in rows)
    assert len(report["masses"]) == report["cliffs"]
    texts = tmp_path / "texts.jsonl"
    code, out, err = run(capsys, "pairs", scan, *base(checkpoint), *every, "--texts", "--out", texts, "--json")
    told = [json.loads(line) for line in texts.read_text().splitlines()]
    assert (code, json.loads(out)["pairs"], json.loads(out)["no_text"]) == (0, len(told), len(rows) - len(told))
    tokenizer = find_sampled(base(checkpoint)[1])[1]
    for record in told:
        assert record["prompt"] + record["chosen"] == tokenizer.decode([1, 2, record["metadata"]["chosen_id"]])
        assert record["chosen"] != record["rejected"]

    listed = json.loads(run(capsys, "show", scan, "--json")[1])["traces"]
    wrong = next(row["trace"] for row in listed if not row["right"])
    svg = tmp_path / "trace.svg"
    code, out, _ = run(capsys, "show", scan, wrong, "--svg", svg)
    assert code == 0
    assert "confirmed" in out
    assert any(word in out for word in WORDS)
    assert "before the first token: " in out
    assert "<svg" in svg.read_text()
    with Run.open(scan) as stored:
        page = tree_html(stored, wrong)
        findings = stored.findings(maker="cliffs scan")
        cliffs = [one for one in findings if one.name == "cliff"]
        cut = stored.node(cliffs[0].node or "")
        kept = {one.maker: one.result for one in stored.results()}
        whole_page = report_html(stored)
    assert findings[0].node is None
    assert findings[0].why == whole["verdict"]
    assert len(cliffs) == whole["cliffs"] > 0
    assert cliffs[0].evidence["cliff"]["token_id"] == cut.tokens[cliffs[0].offset]  # a fork at its offset samples the token anew
    assert kept["cliffs scan"]["verdict"] == whole["verdict"]
    assert kept["cliffs ablate"] == {name: value for name, value in ablation.items() if name != "spent"}
    assert "<h2>cliffs ablate</h2>" in whole_page
    assert whole["verdict"] in whole_page
    assert page.count("Potential over the reply") == 1
    assert "0 of 1 attempts succeed" in page
    assert run(capsys, "show", scan)[0] == run(capsys, "show", scan, wrong)[0] == 0


def test_a_scan_is_forked_where_it_found_a_cliff(
    checkpoint: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reply is an episode, and the scan's verifier ends it; what the scan had found stays."""
    scan = tmp_path / "scan"
    completion = ["--problems", problems, "--samples", 3, "--max-tokens", 6, "--n", 16, "--first", 8]
    assert run(capsys, "scan", *base(checkpoint), *completion, "--out", scan)[0] == 0
    with Run.open(scan) as opened:
        cliff = next(finding for finding in opened.findings() if finding.name == "cliff")
        before = opened.findings()
    found = {}
    for offset in (cliff.offset, cliff.offset + 1):
        assert main(["fork", str(scan), f"{cliff.node}:{offset}", "--n", "16", "--json"]) == 0
        found[offset] = json.loads(capsys.readouterr().out)["fork"]
    assert all((one["n"], one["failed"]) == (16, 0) for one in found.values())
    assert found[cliff.offset]["successes"] > 0 == found[cliff.offset + 1]["successes"]
    edit = tmp_path / "edit.json"
    edit.write_text('{"append_tokens": [0]}')  # low: right from its first word
    assert main(["fork", str(scan), f"{cliff.node}:0", "--edit", str(edit), "--n", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fork"]["successes"] == 4
    monkeypatch.setenv("RAMIFY_DTYPE", "int8")  # the scan sampled in float32, and so does what continues it
    assert main(["fork", str(scan), f"{cliff.node}:0", "--n", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caveats"] == []
    monkeypatch.delenv("RAMIFY_DTYPE")
    with Run.open(scan) as opened:
        assert opened.findings() == before
    assert main(["export", str(scan), str(tmp_path / "scan.jsonl")]) == 0
    assert main(["import", str(tmp_path / "scan.jsonl"), "--run", str(tmp_path / "theirs")]) == 0
    head, *rows = (tmp_path / "scan.jsonl").read_text().splitlines()
    older = json.loads(head)
    del older["config"]["judge"]
    (tmp_path / "older.jsonl").write_text("\n".join([json.dumps(older), *rows]) + "\n")
    assert main(["import", str(tmp_path / "older.jsonl"), "--run", str(tmp_path / "older")]) == 0
    capsys.readouterr()
    assert main(["fork", str(tmp_path / "theirs"), str(cliff.node)]) == 2
    err = capsys.readouterr().err
    assert "was imported or made elsewhere" in err
    assert f"judge {VERIFIER!r}" in err
    assert main(["fork", str(tmp_path / "theirs"), str(cliff.node), "--n", "2", "--trust"]) == 0
    assert main(["fork", str(tmp_path / "older"), str(cliff.node), "--trust"]) == 2
    assert "the same `ramify cliffs scan` again notes it" in capsys.readouterr().err


def test_traces_of_text_are_read_only_when_asked(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, scan = tmp_path / "traces.jsonl", tmp_path / "scan"
    file.write_text(
        json.dumps({"id": "a", "prompt": "mid", "response": "high low", "sampler": {"max_tokens": 6}, "correct": False})
    )
    code, _, err = run(capsys, "scan", *base(checkpoint), "--traces", file, "--out", scan)
    assert code == 2
    assert "traces.jsonl:1: a trace of text only" in err
    code, out, err = run(capsys, "scan", *base(checkpoint), "--traces", file, "--out", scan, "--retokenise", "--faithful")
    assert code == 0
    assert "encoded anew" in err
    assert "3 of 2 tokens" not in out


def test_a_prompt_of_text_is_laid_out_as_that_of_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the model's chat template, or every fork answers another question."""
    problems, traces = tmp_path / "problems.jsonl", tmp_path / "traces.jsonl"
    problems.write_text(json.dumps({"id": "p", "prompt": "You are in the hall.", "answer": "go"}) + "\n")
    model = ["--model", "builtin", "--verifier", f"python:{__name__}:never", "--anyway", "--n", 16, "--max-tokens", 12]
    assert run(capsys, "scan", *model, "--problems", problems, "--out", tmp_path / "one")[0] == 0
    (sampled,) = read_scan(tmp_path / "one")[2]
    traces.write_text(json.dumps({"id": "p#0", "prompt": "You are in the hall.", "response": "go hall", "sampler": {}}))
    code, out, err = run(capsys, "scan", *model[:7], "--traces", traces, "--retokenise", "--out", tmp_path / "two", "--json")
    assert code == 0
    assert read_scan(tmp_path / "two")[2][0].trace.prompt_ids == sampled.trace.prompt_ids
    assert json.loads(out)["solved"] == {"none": 1, "all": 0}
    assert "warning: V_0 is 0 for 1 of 1 traces, no fork of the bare prompt ends right: check that the prompt is rendered" in err


def test_a_verifier_that_never_varies_is_noticed_before_the_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "You are in the hall."}) + "\n" for i in range(3)))
    small = ["--model", "builtin", "--problems", problems, "--n", 4, "--confirm", 0]
    never = ["--verifier", f"python:{__name__}:never"]
    code, _, err = run(capsys, "scan", *small, *never, "--max-tokens", 6, "--out", tmp_path / "never")
    assert code == 2
    assert "nothing was scanned: V_0 is 0, no fork of the bare prompt ends right" in err
    assert "--anyway" in err
    code, _, err = run(capsys, "scan", *small, *never, "--max-tokens", 2, "--out", tmp_path / "cut", "--anyway")
    assert code == 0
    assert "3 of 3 traces were cut by their limit of tokens" in err
    code, _, err = run(
        capsys, "scan", *small, "--max-tokens", 6, "--verifier", f"python:{__name__}:odd", "--out", tmp_path / "often"
    )
    assert (code, "V_0 is" in err and "nothing was scanned" in err) == (0, False), err


def odd(text: str, trace: TokenTrace) -> bool:
    return trace.problem_id == "p1"


def never(text: str, trace: TokenTrace) -> bool:
    return False


@pytest.mark.slow
def test_an_interrupted_scan_is_decided_as_a_whole_one(
    checkpoint: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """False discoveries are bounded over all traces, so what the first call wrote is not the last word."""
    completion = [*base(checkpoint), "--problems", problems, "--samples", 6, "--max-tokens", 6]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(capsys, "scan", *completion, "--out", whole)[0] == 0
    assert run(capsys, "scan", *completion, "--out", parts, "--budget-rollouts", 500)[0] == 3
    assert 0 < len(read_scan(parts)[2]) < 6
    assert run(capsys, "scan", *completion, "--out", parts)[0] == 0
    found = read_scan(whole)[2]
    assert read_scan(parts)[2] == found
    cliffs = [cliff for one in found for cliff in one.cliffs]
    assert {cliff.status for cliff in cliffs} == {"confirmed"}
    for folder in (whole, parts):
        with Run.open(folder) as stored:
            confirmed = [one.evidence["cliff"] for one in stored.findings() if one.name == "cliff"]
        assert [(one["p"], one["p_fdr"]) for one in confirmed] == [(cliff.p, cliff.p_fdr) for cliff in cliffs]
    assert len(cliffs) > 1
    assert max(cliff.p_fdr for cliff in cliffs) == max(cliff.p for cliff in cliffs)  # the largest of all stays as it is


def test_one_sentence_each(checkpoint: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan, torn = tmp_path / "scan", tmp_path / "torn.jsonl"
    model, completion = base(checkpoint), ["--problems", problems, "--max-tokens", 6]
    assert run(capsys, "scan", *model, *completion, "--out", scan)[0] == 0
    torn.write_text('{"id": "a"}\n')
    alien = tmp_path / "alien"
    Run.create(alien, {}, kind="rollout").close()
    bad, other = tmp_path / "bad.jsonl", tmp_path / "new.jsonl"
    bad.write_text('{"id": "a", "promt": "x"}\n')
    chat = ["--model", "chat:x@http://127.0.0.1:1/v1", "--verifier", "exact"]
    cases: list[tuple[list[Any], int, str]] = [
        (["scan", *chat, *completion, "--out", other], 4, "a chat endpoint cannot continue inside a reply"),
        (["scan", *model, "--out", other], 2, "either --traces or --problems"),
        (
            ["scan", *model, *completion, "--out", scan, "--n", 32],
            2,
            "cannot continue, it began with other settings: n was 64, is 32",
        ),
        (["scan", *model, *completion, "--out", torn], 2, "cannot make a run in"),
        (["scan", *model, *completion, "--out", alien], 2, "alien was not made by `ramify cliffs scan`: choose another folder"),
        (["show", torn], 2, "torn.jsonl:1: the reply: 'response_ids' must be a list"),
        (["ablate", torn, *model], 2, "torn.jsonl is not a run"),
        (["show", alien], 2, "alien was not made by `ramify cliffs scan`"),
        (["scan", *model, "--problems", bad, "--out", other], 2, "bad.jsonl:1: unknown field 'promt' (did you mean 'prompt'?)"),
        (["scan", *model, "--problems", torn, "--out", other], 2, "torn.jsonl:1: 'prompt' must be text, and it is missing"),
        (["scan", *model, *completion, "--out", other, "--delta0", "2"], 2, "delta0"),
        (["scan", *model[:2], "--verifier", "boxd", *completion, "--out", other], 2, "did you mean 'boxed'"),
        (["scan", "--model", "hf:nowhere", *model[2:], "--traces", bad, "--out", other], 2, "bad.jsonl:1: unknown field 'promt'"),
        (["ablate", scan, *model, "--k", "1,100"], 2, "--k takes numbers from 1 to --n (64)"),
        (["ablate", scan, *model, "--controls", "randm"], 2, "controls"),
        (["ablate", tmp_path / "none", *model], 2, "none is not a run"),
        (["pairs", scan, *model, "--out", other, "--classes", "vague"], 2, "classes"),
        (["show", scan, "p"], 2, "has no trace 'p'"),
    ]
    for argv, code, sentence in cases:
        found, _, err = run(capsys, *argv)
        assert (found, sentence in err) == (code, True), (argv, found, err)
        assert len(err.strip().splitlines()) == 1, err
    assert not other.exists()


@pytest.mark.slow
def test_a_kill_loses_no_trace(checkpoint: Path, problems: Path, tmp_path: Path) -> None:
    """Killed in the middle, again and again, until it ends by itself: what is there then is what the undisturbed scan finds."""
    words = [*base(checkpoint), "--problems", str(problems), "--samples", "5", "--max-tokens", "6"]
    assert main(["cliffs", "scan", *words, "--out", str(tmp_path / "whole")]) == 0
    there = [0]
    for most in range(1, 8):
        code = subprocess.run(
            [sys.executable, "-c", DIES, str(most), "cliffs", "scan", *words, "--out", str(tmp_path / "scan")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])},
            capture_output=True,
            check=False,
        ).returncode
        there.append(len(read_scan(tmp_path / "scan")[2]))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert there[-1] == there[-2] + 2  # each call kept two and died in the third
    assert there == [0, 2, 4, 5]
    assert read_scan(tmp_path / "scan") == read_scan(tmp_path / "whole")


DIES = """
import os, signal, sys
from ramify.cli.main import main
from ramify.engine.named import find_sampled
from ramify.methods.cliffs import record
store, left = record.store_trace, [3]
def dying(*words):
    left[0] -= 1
    kept = store(*words)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept
record.store_trace = dying
sys.argv = ["ramify", *sys.argv[2:]]
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_scan_continues_with_the_same_forks_only(
    checkpoint: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = tmp_path / "scan"
    completion = ["--problems", problems, "--max-tokens", 6, "--out", scan]
    assert run(capsys, "scan", *base(checkpoint), *completion)[0] == 0
    before = read_scan(scan)
    model, verifier = base(checkpoint)[:2], ["--verifier", VERIFIER]
    for argv, other in (
        ([*base(checkpoint), *completion, "--seed", 1], "seed was 0, is 1"),
        ([*base(checkpoint), *completion, "--temperature", 0.5], "sampling.temperature was 1.0, is 0.5"),
        ([*base(checkpoint, "other"), *completion], "model_name was 'one', is 'other'; weights was "),
        ([*model, *verifier, *completion], "truncated was 'graded', is 'apart'"),
        ([*model, "--verifier", "exact", "--truncated", "graded", *completion], "verifier was 'starts_low', is 'exact'"),
    ):
        code, _, err = run(capsys, "scan", *argv)
        assert (code, other in err) == (2, True), (argv, err)
    assert read_scan(scan) == before
    for verb in (["ablate", scan], ["pairs", scan, "--out", tmp_path / "pairs.jsonl"]):
        assert "another weights" in run(capsys, *verb, *base(checkpoint, "other"), "--n", 64)[2]
        assert "warning" not in run(capsys, *verb, *base(checkpoint), "--n", 64)[2]


def test_traces_of_ones_own(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Judged where they were not; refused where other replies are in the file; exit code 1 where nothing could be scanned."""
    file, scan = tmp_path / "traces.jsonl", tmp_path / "scan"

    def wrote(*replies: list[int], limit: int = 6) -> list[Any]:
        made = [
            {"id": str(i), "prompt_ids": [1, 2], "response_ids": r, "sampler": {"max_tokens": limit}}
            for i, r in enumerate(replies)
        ]
        file.write_text("".join(json.dumps(trace) + "\n" for trace in made))
        return ["scan", *base(checkpoint), "--traces", file, "--out", scan, "--json"]

    code, out, _ = run(capsys, *wrote([2, END], [1, END]))
    report = json.loads(out)
    assert code == 0
    assert (report["wrong"]["traces"], report["right"]["traces"], report["unjudged"]) == (1, 1, 0)
    code, _, err = run(capsys, *wrote([3, END], [1, END]))
    assert (code, "another reply '0'" in err) == (2, True), err
    shutil.rmtree(scan)
    code, _, err = run(capsys, *wrote([2] * 40, limit=50))
    assert (code, "do not fit the context" in err, "no trace was scanned" in err) == (1, True, True), err
    assert "holds no scanned trace" in run(capsys, "show", scan)[2]
    assert "the reply has 3 tokens and 'sampler' allows 2" in run(capsys, *wrote([2, 2, END], limit=2))[2]
