"""The verbs, from the command line, on a checkpoint of one's own: every stage resumes, what cannot be measured is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from printed import said

from ramify.cli.main import main
from ramify.engine.local import LocalModel
from ramify.engine.tiny import TinyConfig, TinyLM
from ramify.methods.early_decision.record import PrefixCounts, StanceRatings, Study, StudyTrace, TurnCounts
from ramify.methods.early_decision.report import build, slices
from ramify.methods.early_decision.run import ContinueConfig, OscillateConfig, continuations, oscillations, rollout
from ramify.methods.early_decision.verbs import _opened
from ramify.model.tokenizer import HfTokenizer
from ramify.render.escape import escape
from ramify.score.judge import FunctionJudge, Judge, Jury
from ramify.trace.db import Run

WORDS = ["<unk>", "<think>", "</think>", "gladly", "never", "perhaps", "so.", "then.", "hmm.", "well", "sorry", "sure"]
WORDS += [f"word{i}" + "." * (i in (8, 9, 10)) for i in range(14)]


def make_judge() -> Any:
    def judge(prompt: str, chunks: Sequence[str]) -> list[int]:
        return [np.sign(c.count("word13") - c.count("word11")).item() for c in chunks]

    return judge


def make_short_judge() -> Any:
    return lambda prompt, chunks: [0] * (len(chunks) - 1)


JUDGES = f'["factory:{__name__}:make_judge", "factory:{__name__}:make_judge", "factory:{__name__}:make_short_judge"]'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    module = TinyLM(TinyConfig(len(WORDS), 24, 2, 2, 1, 12, 24, 96), seed=3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():  # the rarest token ends a turn, so that traces grow long
        rows = torch.randint(len(WORDS), (64, 12), generator=torch.Generator().manual_seed(2))
        rare = module(rows).softmax(-1).mean((0, 1)).argsort().tolist()
    words = [WORDS[0], *WORDS[3:8], *WORDS[1:3], *WORDS[8:]]
    raw = Tokenizer(models.WordLevel(dict(zip(words, rare, strict=True)), unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    module.save(folder, HfTokenizer(raw))
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    rows = [
        {
            "id": f"p{i}",
            "prompt_ids": [3 + i % 9, 3 + i // 9, 9],
            "prompt": f"{WORDS[3 + i % 9]} {i}",
            "pool": ["harmful", "benign"][i % 2],
        }
        for i in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def few(prompts: Path, tmp_path: Path) -> Path:
    file = tmp_path / "few.jsonl"
    file.write_text("".join(prompts.read_text().splitlines(keepends=True)[:6]))
    return file


def arguments(checkpoint: Path, prompts: Path, out: Path, *more: str) -> list[str]:
    sampling = ["--k", "4", "--temperature", "1", "--top-p", "1", "--think-tokens", "24", "--answer-tokens", "3"]
    named = ["--model", f"hf:{checkpoint}", "--label", "regex:word13|sorry", "--prompts", str(prompts), "--out", str(out)]
    return ["early-decision", "run", *named, *sampling, *more]


@pytest.fixture(scope="module")
def study(checkpoint: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "x"
    assert main(arguments(checkpoint, prompts, out)) == 0
    return out


def continued_in(folder: Path) -> dict[str, PrefixCounts]:
    with Study.open(folder) as study:
        return study.continued


def rated_in(folder: Path) -> tuple[dict[str, StanceRatings], dict[str, TurnCounts]]:
    with Study.open(folder) as study:
        return study.stances, study.cuts


def traces_of(folder: Path) -> dict[str, StudyTrace]:
    with Study.open(folder) as study:
        return study.traces


def without(study: Path, folder: Path, sql: str) -> Path:
    """A copy of a run, of which ``sql`` has taken something away."""
    shutil.copytree(study, folder)
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite", isolation_level=None)) as db:
        db.executescript(sql)
    return folder


STAGES = "DELETE FROM journal WHERE kind <> 'trace'; DELETE FROM annotations; DELETE FROM findings;"


def test_rows_are_labelled_from_the_answer_alone(study: Path) -> None:
    rows = traces_of(study)
    assert len(rows) == 24 * 2 * 4
    kinds = {(row.mode, row.closed) for row in rows.values()}
    assert {("thinking", "own"), ("thinking", "forced"), ("none", "forced")} <= kinds
    for row in rows.values():
        if row.closed == "never":  # the turn ended inside the thinking
            assert (row.status, row.outcome, row.answer) == ("ended", None, None)  # no limit cut it
            continue
        assert row.status == "labelled"
        assert row.outcome is any(word in str(row.answer) for word in ("sorry", "word13"))


def test_thinking_that_is_left_open_is_truncated(checkpoint: Path, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert main(arguments(checkpoint, few, out, "--modes", "thinking", "--no-force")) == 0
    rows = traces_of(out).values()
    assert {"labelled", "truncated"} <= {row.status for row in rows} <= {"labelled", "truncated", "ended"}
    for row in rows:
        if row.closed == "never":
            assert (row.outcome, row.answer) == (None, None)
            assert row.status == ("truncated" if len(row.thinking) == 24 else "ended")  # --think-tokens


@pytest.mark.slow
def test_no_room_for_an_answer_is_said(checkpoint: Path, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert main(arguments(checkpoint, few, out, "--answer-tokens", "80")) == 0
    rows = traces_of(out).values()
    assert {row.status for row in rows} >= {"labelled", "no_room"}
    assert all(row.status == "labelled" for row in rows if row.mode == "none")


def test_code_that_a_study_of_somebody_else_names_is_not_loaded(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text("import pathlib\npathlib.Path('loaded').touch()\ndef refuses(prompt, answer): return True\n")
    for owner, code in (("", 0), ("UPDATE meta SET value = '\"somebody\"' WHERE key = 'owner';", 2)):
        folder = "theirs" if owner else "mine"
        label = (
            "UPDATE meta SET value = json_replace(value, '$.label[0]', 'jury:regex:word13,theirs.py:refuses') WHERE key = "
            "'config';"
        )
        without(study, Path(folder), STAGES + label + owner)
        words = ["early-decision", "continue", folder, "--shares", "0", "--json"]
        Path("loaded").unlink(missing_ok=True)
        capsys.readouterr()
        assert main(words) == code
        assert Path("loaded").exists() is (code == 0)
    assert "label 'jury:regex:word13,theirs.py:refuses'; where that is what you want, give --trust" in capsys.readouterr().err
    assert main([*words, "--trust"]) == 0


def test_a_run_continues_where_a_kill_left_it(study: Path, checkpoint: Path, prompts: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "again"
    assert main(arguments(checkpoint, prompts, out, "--dry-run", "--seed", "9")) == 0
    assert not out.exists()  # a bill fixes no settings
    whole = traces_of(study)
    without(study, out, "DELETE FROM journal WHERE seq % 3 = 0; DELETE FROM annotations; DELETE FROM scores WHERE node % 2;")
    left = len(traces_of(out))
    assert 0 < left < len(whole)
    capsys.readouterr()
    assert main(arguments(checkpoint, prompts, out, "--dry-run", "--json")) == 0
    assert said(capsys)["cost_estimate"]["missing"] == len(whole) - left
    assert main(arguments(checkpoint, prompts, out)) == 0
    assert traces_of(out) == whole


@pytest.mark.slow
def test_a_killed_process_loses_no_committed_trace(checkpoint: Path, few: Path, tmp_path: Path) -> None:
    """The process ends in the middle of its fifth trace, as by a kill: nothing is closed, nothing is committed."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    code = (
        "import os, sys\nfrom ramify.cli.main import main\nfrom ramify.methods.early_decision.record import Study\nadd = "
        "Study.add\n"
        "def dying(self, *given):\n    if len(self.traces) == 4:\n        os._exit(9)\n    add(self, *given)\n"
        "Study.add = dying\nsys.exit(main(sys.argv[1:]))\n"
    )
    found = subprocess.run([sys.executable, "-c", code, *arguments(checkpoint, few, out)], capture_output=True, check=False)
    assert found.returncode == 9, found.stderr
    assert len(traces_of(out)) == 4
    for folder in (out, whole):
        assert main(arguments(checkpoint, few, folder)) == 0
    assert traces_of(out) == traces_of(whole)


def test_a_study_is_a_run_like_any_other(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Study.open(study) as opened:
        rows, prompts = opened.traces, opened.prompts
        row = next(row for row in rows.values() if row.closed == "own" and row.mode == "thinking" and row.answer_ids)
        (end,) = [one for one in opened.run.nodes(row.prompt) if one.parent == row.thought and one.purpose == "rollout"]
        path, (score,) = opened.run.path(end.id), opened.run.scores(node=end.id)
        attempts, (attempt,) = opened.run.attempts(purpose="rollout"), opened.run.attempts(leaf=end.id)
    assert len(attempts) == len(rows)  # how each of them ended
    assert sum(one.truncated for one in attempts) >= sum(row.status == "truncated" for row in rows.values())
    assert (attempt.outcome, attempt.index, attempt.fork) == (row.outcome, row.sample, False)
    assert row.answer_ids is not None
    ids = path.tokens.tolist()
    length = len(prompts[row.prompt].prompt_ids)
    assert ids[:length] == list(prompts[row.prompt].prompt_ids)
    assert ids[length + row.start :][: len(row.thinking)] == list(row.thinking)
    assert ids[-len(row.answer_ids) :] == list(row.answer_ids)
    assert path.sampled.sum() == len(row.thinking) + 1 + len(row.answer_ids)  # the mark it closed by is its own
    assert (score.scorer, score.value) == ("label", float(row.outcome is True))
    assert main(["show", str(study), "--html", str(tmp_path / "page.html")]) == 0
    assert main(["check", "run", str(study)]) == 0
    assert main(["export", str(study), str(tmp_path / "out.jsonl")]) == 0
    assert main(["import", str(tmp_path / "out.jsonl"), "--run", str(tmp_path / "again")]) == 0
    assert traces_of(tmp_path / "again") == rows


def test_another_setting_or_other_prompts_are_refused(
    study: Path, checkpoint: Path, prompts: Path, tmp_path: Path, capsys: Any
) -> None:
    assert main(arguments(checkpoint, prompts, study, "--seed", "3")) == 2
    assert "it began with other settings: seed was 0, is 3" in capsys.readouterr().err
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_text(prompts.read_text().splitlines()[0] + "\n")
    assert main(arguments(checkpoint, fewer, study)) == 2
    assert "it began with other settings: prompts was" in capsys.readouterr().err


VALLEY = ["--points", "6", "--samples", "20"]
CONTINUE = ["--m", "2", "--n", "3", "--shares", "0,0.5,1,1.5"]


@pytest.mark.slow
def test_probe_and_valley(study: Path, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    assert main(["early-decision", "probe", str(study), "--layers", "0,-1", "--json"]) == 0
    record = said(capsys)
    found = record["probes"]
    ps = [pool["p_corrected"] for one in found for pool in one["pools"] if pool["auroc"] is not None]
    assert record["stands_out"] is (min(ps) <= 0.05)
    assert record["verdict"].startswith("nothing stands out" if min(ps) > 0.05 else "the outcome can be read at ")
    assert all(p >= pool["p"] for one in found for pool in one["pools"] if (p := pool["p_corrected"]) is not None)
    assert [(one["at"], one["layer"]) for one in found] == [("h0", 0), ("h0", -1), ("state_a", 0), ("state_a", -1)]
    pools = {pool["pool"]: pool for pool in found[0]["pools"]}
    assert set(pools) == {"all", "harmful", "benign"}
    assert 0.3 < pools["all"]["auroc"] < 1
    assert {"prompt_words", "first_token", "near_duplicate_prompts"} <= found[0]["controls"].keys()
    assert len(found[0]["shuffled"]) == 199
    assert found[0]["skipped"] >= 0
    before = (study / "states-h0.safetensors").stat().st_mtime_ns
    assert main(["early-decision", "probe", str(study), "--shuffles", "0", "--layers", "0,-1", "--at", "h0"]) == 0
    assert (study / "states-h0.safetensors").stat().st_mtime_ns == before  # read back, not collected again
    assert "nothing stands out: no probe was compared with shuffled labels" in capsys.readouterr().out
    assert main(["early-decision", "probe", str(study), "valley", *VALLEY, "--json"]) == 0
    record = said(capsys)
    assert record["stands_out"] is ((record["valley"]["depth_interval"] or [0])[0] > 0)
    assert len(record["valley"]["j"]) == len(record["probe"]["auroc"]) == 6
    a, b = record["valley"]["n"]
    assert all(0.25 * (1 / a + 1 / b) < f < 0.5 for f in record["valley"]["floor"])  # prompts are shuffled whole


def _origin(run: Run, start: str | None) -> str | None:
    """The node of the thinking that a fork continues: above an extension where there is one."""
    node = run.node(str(start))
    return node.parent if node.purpose.startswith("early-decision") else node.id


@pytest.mark.slow
def test_continuations_closed_and_open_stay_apart(study: Path, capsys: Any) -> None:
    command = ["early-decision", "continue", str(study), *CONTINUE]
    assert main([*command, "--dry-run", "--json"]) == 0
    planned = said(capsys)["cost_estimate"]
    assert main([*command, "--json"]) == 0
    found = said(capsys)["continuation"]
    rows = continued_in(study)
    assert len(rows) <= planned["prefixes"]
    assert {(row.way, row.share) for row in rows.values()} == {
        ("closed", 0.5),
        ("open", 0.5),
        ("closed", 1.0),
        ("closed", 1.5),
    }
    with Study.open(study) as opened:
        traces, prompts = opened.traces, opened.prompts
    for row in rows.values():
        length = len(traces[row.trace].thinking)
        assert row.tokens == {0.5: max(1, length // 2), 1.0: length, 1.5: length + max(1, round(0.5 * length))}[row.share]
        assert row.k <= row.n <= 3
    closed = {p["share"]: p for p in found["curves"]["all"]["closed"]}
    opened = {p["share"]: p for p in found["curves"]["all"]["open"]}
    assert set(closed) == {0.0, 0.5, 1.0, 1.5}
    assert set(opened) == {0.0, 0.5}
    assert next(iter(found["curves"])) == "ambiguous"
    assert set(found["slices"]) <= {"ambiguous", "settled"}
    assert found["mean_of_pools"]["closed"][1]["share"] == 0.5
    assert main([*command]) == 0
    assert continued_in(study) == rows
    with Run.open(study) as run:
        (finding,) = run.findings(maker="early-decision continue")
        marks = run.annotations(maker="early-decision continue")
        forks = [one for one in run.attempts() if one.fork and one.purpose.startswith("early-decision continue, ")]
        assert not {one.purpose for one in forks} & {
            node.purpose for node in map(run.node, (row.thought for row in traces.values()))
        }
        for row in rows.values():
            (trace, purpose) = traces[row.trace], f"early-decision continue, {row.way} at {row.share:g}"
            own = [one for one in forks if one.purpose == purpose and _origin(run, one.start) == trace.thought]
            assert len(own) == (3 if row.status == "done" else 0)
            assert sum(one.outcome is True for one in own) == row.k
            for one in own:
                path = run.path(one.leaf)
                ids = path.tokens.tolist()[len(prompts[row.prompt].prompt_ids) + trace.start :]
                assert ids[: min(row.tokens, len(trace.thinking))] == list(trace.thinking[: row.tokens])
    assert "the thinking" in finding.why
    assert {mark.name for mark in marks} == {"potential closed at 0.5", "potential closed at 1", "potential open at 0.5"}


def test_oscillations_are_cut_on_ids_and_judged(study: Path, capsys: Any) -> None:
    command = [
        "early-decision",
        "continue",
        str(study),
        "turns",
        "--judges",
        JUDGES,
        "--answers",
        "4",
        "--traces",
        "2",
        "--limit",
        "40",
        "--least",
        "5",
    ]
    assert main([*command, "--dry-run"]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = said(capsys)["oscillation"]
    rated, cuts = rated_in(study)
    assert found["one_chunk"] == sum(row.chunks < 2 for row in rated.values()) > 0
    assert found["traces"] == len(rated) - found["one_chunk"]  # no stance can turn in one chunk
    assert all(row.ratings[2] is None for row in rated.values())  # a list of another length
    assert found["panel"]["kappa"] is None  # no chunk was rated by all three
    assert found["cuts"] > 0
    traces = traces_of(study)
    for key, row in cuts.items():
        assert 0 < int(key.split("|")[1]) == row.tokens <= len(traces[row.trace].thinking)
    assert sum(found["table"].values()) == found["cuts"]
    assert found["smallest_significant"]
    assert main(command) == 0
    assert rated_in(study)[1] == cuts
    with Run.open(study) as run:
        whole, *turns = run.findings(maker="early-decision continue turns")
        assert {mark.name for mark in run.annotations(maker="early-decision continue turns")} == {"stance", "potential cut"}
        answers = run.attempts(purpose="early-decision continue turns")
    assert (whole.node, len(turns)) == (None, found["cuts"])
    assert len(answers) == sum(row.n + row.missing for row in cuts.values())
    capsys.readouterr()
    for other in (["--limit", "1000"], ["--before", "9"], ["--no-show-prompt"], ["--ties-refuse"]):
        assert main([*command, *other]) == 2  # stances are kept, and those of other settings would be cut at wrong places
        assert f"stances of other settings ({other[0].replace('--no-', '--')})" in capsys.readouterr().err


def test_lines_are_chunks_and_one_chunk_is_refused(prompts: Path, tmp_path: Path, capsys: Any) -> None:
    """Models think in lines without full stops too; where all is one chunk nothing can turn, and a rate would be a lie."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*WORDS, "\n"])}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_tokens([AddedToken("\n", normalized=False)])
    TinyLM(TinyConfig(len(WORDS) + 1, 24, 2, 2, 1, 12, 24, 96), seed=3).save(tmp_path / "model", HfTokenizer(raw))
    for name, between in (("lines", "\n"), ("whole", " ")):
        file = tmp_path / f"{name}.jsonl"
        row = {"thinking": "word11 word12 " * 4 + between + "word13 word12 " * 4, "response": "sure"}
        file.write_text("".join(json.dumps({"prompt_id": f"p{i}"} | row) + "\n" for i in range(3)))
        assert main(arguments(tmp_path / "model", prompts, tmp_path / name, "--traces", str(file), "--modes", "thinking")) == 0
    capsys.readouterr()
    settings = ["--judges", f"factory:{__name__}:make_judge", "--answers", "4", "--limit", "70", "--json"]
    assert main(["early-decision", "continue", str(tmp_path / "lines"), "turns", *settings]) == 0
    record = said(capsys)
    assert (record["oscillation"]["with_any"]["value"], record["oscillation"]["cuts"]) == (1.0, 3)
    assert record["stands_out"] is False  # four answers a cut show nothing
    assert record["verdict"].startswith("nothing stands out: no turn of stance is shown to move the answer")
    assert main(["early-decision", "continue", str(tmp_path / "whole"), "turns", *settings]) == 2
    assert "no stance can turn: each of 3 traces is one chunk or none" in capsys.readouterr().err
    with Study.open(tmp_path / "whole") as whole:
        assert not whole.rated  # so that the next call may take another --limit


def broken(*given: Any) -> Any:
    raise OSError("the endpoint is down")


def test_what_failed_has_no_row_and_is_tried_again(study: Path, tmp_path: Path, monkeypatch: Any) -> None:
    lines = traces_of(study)
    last = "DELETE FROM journal WHERE seq IN (SELECT seq FROM journal ORDER BY seq DESC LIMIT 3);"
    without(study, tmp_path / "x", STAGES + last)
    opened, parts = _opened(tmp_path / "x")
    sampler, thinking, jury = parts.sampler, parts.thinking, parts.jury
    down = Jury([FunctionJudge(broken, ("prompt", "answer"))])
    read = FunctionJudge(make_judge(), ("prompt", "chunks"))

    async def nothing(prefix: Any, n: int, *rest: Any, **more: Any) -> list[None]:
        return [None] * n

    def stages(jury: Jury, judge: Judge) -> list[int]:
        asyncio.run(rollout(opened, sampler, thinking, jury))
        asyncio.run(continuations(opened, sampler, thinking, jury, ContinueConfig(shares=(0.5,), m=1, n=2)))
        settings = OscillateConfig(limit=40, least=5, answers=2, traces=1)
        asyncio.run(oscillations(opened, sampler, thinking, jury, [judge], settings))
        return [len(opened.traces), len(opened.continued), len(opened.stances), len(opened.cuts)]

    unjudged = stages(down, FunctionJudge(broken, ("prompt", "chunks")))
    assert all(row.status != "unvoted" for row in opened.traces.values())
    assert unjudged[1:] == [0, unjudged[2], 0]
    short = sum(row.chunks < 2 for row in opened.stances.values())
    assert unjudged[2] == short  # in what is one chunk no stance can turn, so it needs no judge
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "sample", nothing)
        undrawn = stages(jury, read)
    assert (undrawn[1], undrawn[3]) == (0, 0)
    whole = stages(jury, read)
    assert whole[0] == len(lines)
    assert whole[1] > 0
    assert whole[2] > unjudged[2]
    assert whole[3] > 0


@pytest.mark.slow
def test_the_report_shows_both_curves_together(study: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    assert main(["early-decision", "probe", str(study), "valley", *VALLEY]) == 0
    assert main(["early-decision", "continue", str(study), *CONTINUE]) == 0
    capsys.readouterr()
    assert main(["early-decision", "report", str(study), "--locked", "both", "--json"]) == 0
    record = said(capsys)
    assert main(["show", str(study), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.index("ambiguous") < page.index("Continuations: all")
    assert "probe, AUROC" in page
    assert "J minus its floor" in page
    assert record["thinking"]["harmful"]["prompts"] == 12
    assert {"asr", "orr", "d", "c"} == record["pools"]["thinking"]["errors"].keys()
    assert {"valley", "continuation"} <= record["verdicts"].keys()
    assert all(escape(one["verdict"]) in page for one in record["verdicts"].values())
    with Run.open(study) as run:
        (kept,) = run.results("early-decision report")
    assert kept.result == record


@pytest.mark.slow
def test_a_defence_is_compared_with_the_run_without_it(checkpoint: Path, few: Path, tmp_path: Path, capsys: Any) -> None:
    base = ["--modes", "thinking", "--seed", "4"]
    assert main(arguments(checkpoint, few, tmp_path / "base", *base)) == 0
    for name, more in {
        "a": ["--guard", "self-check"],
        "b": ["--guard", "reminder", "--reminder", "sure so."],
        "c": ["--primer", "well"],
    }.items():
        assert main(arguments(checkpoint, few, tmp_path / name, *base, *more)) == 0
        capsys.readouterr()
        assert main(["early-decision", "report", str(tmp_path / name), "--against", str(tmp_path / "base"), "--json"]) == 0
        found = said(capsys)["defence"]
        assert found["verdict"] in ("improves", "worsens", "slides")
        assert 0 <= found["treated"]["asr"] <= 1
    with Study.open(tmp_path / "a") as guarded:
        assert guarded.source.model.endswith("+self-check")
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "q", "prompt_ids": [3], "pool": "harmful"}) + "\n")
    assert main(arguments(checkpoint, other, tmp_path / "d", *base)) == 0
    capsys.readouterr()
    for first, second, says in [("d", "base", "other prompts"), ("d", "d", "no labelled trace in a pool named 'benign'")]:
        assert main(["early-decision", "report", str(tmp_path / first), "--against", str(tmp_path / second)]) == 2
        assert says in capsys.readouterr().err


def test_a_report_of_rollouts_alone(checkpoint: Path, few: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    assert main(arguments(checkpoint, few, out, "--modes", "thinking")) == 0
    assert main(["early-decision", "report", str(out)]) == 0
    with Study.open(out) as opened:
        report, sliced = build(opened), slices(opened, 4)
    assert (report.continuation, report.oscillation, report.probe) == (None, None, None)
    assert report.verdicts == {}
    assert sliced == {}  # every rollout would be a prefix


@pytest.mark.slow
def test_a_model_behind_an_endpoint_continues_from_raw_prefixes(checkpoint: Path, few: Path, tmp_path: Path, capsys: Any) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "model"))
    from model_server import NAME, ModelServer, serving

    out = tmp_path / "x"
    with serving(ModelServer(tokens=LocalModel.load(checkpoint)).app) as url:
        command = arguments(checkpoint, few, out, "--k", "2")
        command[command.index(f"hf:{checkpoint}")] = f"completions:{NAME}@{url}?tokenizer={checkpoint}"
        assert main(command) == 0
        assert main(["early-decision", "continue", str(out), "--m", "1", "--n", "2", "--shares", "0.5"]) == 0
        capsys.readouterr()
        assert main(["early-decision", "probe", str(out)]) == 2
        assert "hidden states need a model in this process" in capsys.readouterr().err
    rows = traces_of(out).values()
    assert len(rows) == 6 * 2 * 2
    assert {row.status for row in rows} <= {"labelled", "truncated", "ended"}
    assert {row.way for row in continued_in(out).values()} == {"closed", "open"}


@pytest.mark.slow
def test_too_few_of_an_outcome_is_said(checkpoint: Path, few: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "x"
    command = arguments(checkpoint, few, out, "--modes", "thinking")
    command[command.index("regex:word13|sorry")] = "regex:no such word"
    assert main(command) == 0
    capsys.readouterr()
    assert main(["early-decision", "probe", str(out), "valley", "--points", "6"]) == 0
    assert "all outcomes are the same" in capsys.readouterr().out
    assert main(["early-decision", "probe", str(out), "--json"]) == 0
    assert said(capsys)["probes"][0]["pools"][0]["reason"] == "all outcomes are the same"


def test_traces_sampled_elsewhere(checkpoint: Path, prompts: Path, tmp_path: Path, capsys: Any) -> None:
    file, out = tmp_path / "traces.jsonl", tmp_path / "x"
    rows = [
        {"prompt_id": "p0", "thinking": "gladly so. sorry then. well", "response": "sure"},
        {"prompt_id": "p1", "thinking": "sorry never never"},  # cut off before the close: the scratchpad is not an answer
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(arguments(checkpoint, prompts, out, "--traces", str(file), "--json")) == 0
    assert said(capsys)["traces"] == {"labelled": 1, "truncated": 1}
    found = traces_of(out)
    assert found["p0/thinking/0"].outcome is False
    assert found["p1/thinking/1"].outcome is None
    with Run.open(out) as run:
        assert [(one.outcome, one.truncated) for one in run.attempts(purpose="import")] == [(False, False), (None, True)]
    command = arguments(checkpoint, prompts, out, "--traces", str(file))
    assert main(command) == 0
    file.write_text(json.dumps(rows[0] | {"response": "never"}) + "\n")
    capsys.readouterr()
    assert main(command) == 2
    assert "holds other traces: trace 1" in capsys.readouterr().err
    for row, says in [
        ({"prompt_id": "p99", "thinking": "x"}, "trace 1: 'prompt_id' names no prompt 'p99'"),
        ({"prompt_id": "p0"}, "trace 1: 'thinking' is missing"),
        ({}, ":1: 'prompt_id' is missing"),
    ]:
        file.write_text(json.dumps(row) + "\n")
        assert main(arguments(checkpoint, prompts, tmp_path / "y", "--traces", str(file))) == 2
        assert says in capsys.readouterr().err


def test_replies_with_their_marks_are_taken_apart(checkpoint: Path, prompts: Path, tmp_path: Path, capsys: Any) -> None:
    """The label is of the answer: in these the pattern stands in the thinking only, or in the answer only."""
    file, out = tmp_path / "traces.jsonl", tmp_path / "x"
    channel = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>"
    rows = [
        {"prompt_id": "p0", "response": channel.format("sorry never so.", "sure")},
        {"prompt_id": "p1", "response": channel.format("gladly so.", "sorry")},
        {"prompt_id": "p2", "response": "<|channel|>analysis<|message|>well sorry then."},
        {"prompt_id": "p3", "response": "<think>\nsorry never</think>sure"},
        {"prompt_id": "p4", "thinking": "gladly so.", "response": "<|channel|>final<|message|>sorry<|return|>"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(arguments(checkpoint, prompts, out, "--traces", str(file), "--json")) == 0
    assert said(capsys)["traces"] == {"labelled": 4, "truncated": 1}
    found = traces_of(out).values()
    assert [row.outcome for row in found] == [False, True, None, False, True]
    assert [row.answer for row in found] == ["sure", "sorry", None, "sure", "sorry"]
    assert [len(row.thinking) for row in found] == [3, 2, 3, 2, 2]
    file.write_text(json.dumps(rows[0] | {"thinking": "well"}) + "\n")
    assert main(arguments(checkpoint, prompts, tmp_path / "y", "--traces", str(file))) == 2
    assert "trace 1: 'response' holds thinking too" in capsys.readouterr().err


def test_what_cannot_work_is_refused_in_a_sentence(
    study: Path, checkpoint: Path, prompts: Path, tmp_path: Path, capsys: Any
) -> None:
    command = arguments(checkpoint, prompts, tmp_path / "x")
    command[command.index(f"hf:{checkpoint}")] = "chat:m@http://127.0.0.1:9/v1"
    for words, code, says in [
        (command, 4, "a chat endpoint cannot continue inside a reply"),
        (arguments(checkpoint, prompts, tmp_path / "x", "--label", "regx:a"), 2, "did you mean 'regex'"),
        (arguments(checkpoint, prompts, tmp_path / "x", "--close", " "), 2, "must not be empty"),
        (arguments(checkpoint, prompts, tmp_path / "x", "--thinktokens", "3"), 2, "did you mean '--think-tokens'"),
        (["early-decision", "probe", str(study), "--layers", "7"], 2, "layer 7 does not exist"),
        (["early-decision", "continue", str(study), "--shares", "-0.5"], 2, "--shares lie at 0 or above"),
        (["early-decision", "continue", str(study), "turns"], 2, "--judges names who rates stances"),
        (
            ["early-decision", "probe", str(study), "--shuffles", "20"],
            2,
            "--shuffles 20 is too few for a null: take at least 199",
        ),
        (["early-decision", "report", str(tmp_path / "none")], 2, "holds no study"),
        (["early-decision", "continue", str(study), "turns", "--m", "2"], 2, "takes no --m"),
        (["early-decision", "continue", str(study), "--ties-refuse"], 2, "takes no --ties-refuse"),
        (["early-decision", "probe", str(study), "valley", "--layers", "0"], 2, "takes no --layers"),
        (["early-decision", "probe", str(study), "--points", "9", "--dry-run"], 2, "takes no --points"),
    ]:
        assert main(words) == code, words
        assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
