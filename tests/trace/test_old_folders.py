"""What commit 77a47dd wrote opens today: each kind of run by every verb, each method's files by its own readers.

``tests/fixtures/77a47dd`` holds the folders, how they were made, and the map of their fields. The tables below say what today's
commands do with each. Continuing from an old run is allowed while samples are sampled by the same keys;
a change of the keys refuses it, in one sentence.
"""

from __future__ import annotations

import json
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ramify.base.conformance import check
from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.cliffs import read_scan
from ramify.methods.cliffs.record import import_scan
from ramify.methods.crosscoder.old import import_study as import_steering
from ramify.methods.crosscoder.record import read_study as read_steering
from ramify.methods.early_decision.old import import_study
from ramify.methods.early_decision.record import CONTINUED, CUT, STANCES, Study
from ramify.methods.early_decision.report import build
from ramify.methods.forensics.case import load_case
from ramify.methods.forensics.old import import_case
from ramify.methods.forensics.record import report
from ramify.methods.governance.record import read_rows
from ramify.methods.implicit_advantage.old import import_scores
from ramify.methods.implicit_advantage.verbs import read_scores
from ramify.methods.tree_rollouts.old import import_trees
from ramify.methods.tree_rollouts.record import GrownTree, read_trees
from ramify.methods.tree_rollouts.run import report as summed
from ramify.trace.db import Run
from ramify.trace.formats import readers
from ramify.trace.lines import read_lines
from ramify.trace.node import JournalEntry, Node

FIXTURE = Path(__file__).parents[1] / "fixtures" / "77a47dd"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FIXTURE / "expected.json").read_text())

TRUST = "was imported or made elsewhere"  # an old run says not whose it is, and this one's settings load code
NO_AGENT = "was not made by `ramify improve` or `ramify rollout`"
#: What `ramify fork` and `ramify resume` do with each run: "" continues, a text is the sentence with which it is refused
#: (exit code 2; where it is TRUST, it continues with --trust), 3 is the budget that had ended it.
RUNS: dict[str, tuple[str, str | int]] = {
    "cliffs": (NO_AGENT, NO_AGENT),
    "credited": ("", ""),
    "forked": ("", NO_AGENT),
    "forked-killed": (TRUST, NO_AGENT),
    "graded": (TRUST, TRUST),
    "imported-calls": (NO_AGENT, NO_AGENT),
    "imported-chats": (NO_AGENT, NO_AGENT),
    "imported-inspect": (NO_AGENT, NO_AGENT),
    "imported-inspect-calls": (NO_AGENT, NO_AGENT),
    "imported-run": ("", NO_AGENT),
    "imported-steps": (NO_AGENT, NO_AGENT),
    "imported-trl": (NO_AGENT, NO_AGENT),
    "imported-verifiers": (NO_AGENT, NO_AGENT),
    "imported-verl": (NO_AGENT, NO_AGENT),
    "improved": (TRUST, TRUST),
    "improved-compared": (TRUST, TRUST),
    "improved-killed": (TRUST, TRUST),
    "played": ("", NO_AGENT),
    "played-objects": (NO_AGENT, NO_AGENT),
    "rollout": ("", ""),
    "rollout-budget": ("", 3),
    "rollout-compacted": ("", ""),
    "rollout-killed": (TRUST, TRUST),
    "rollout-own": (TRUST, TRUST),
    "rollout-text": (TRUST, TRUST),
    "served": (NO_AGENT, NO_AGENT),
    "served-gateway": (NO_AGENT, NO_AGENT),
    "steps": (NO_AGENT, NO_AGENT),
    "trees": (NO_AGENT, NO_AGENT),
}
BASE = "hf:models/base"
VERIFIED = f"--model {BASE} --verifier factory:fixture_parts:verifier --truncated graded"
SCAN = f"cliffs scan --problems inputs/problems.jsonl {VERIFIED} --max-tokens 5 --samples 2"
THEN = "--n 8 --first 4 --confirm 8 --delta0 0.05 --alpha 0.4 --fdr 0.9"
STEER = (
    "crosscoder steer studies/crosscoder/dictionary studies/crosscoder/states --prompts inputs/tool.jsonl --score "
    "factory:fixture_parts:verifier"
    " --budgets 2,4 --randoms 2 --top 2 --gains 4 --partition all"
)
THOUGHT = (
    f"early-decision run --model {BASE} --label factory:fixture_parts:voter --prompts inputs/prompts.jsonl --temperature 1 "
    "--top-p 1 --k 8"
    " --think-tokens 14 --answer-tokens 3"
)
GRID = "--tasks email,language --reps 1 --turns 4"
DRAFTED = "--sequences 8 --length 12 --rows 4 --anchors 4 --layers 1 --block 3 --rank 2 --steps 12"
#: Archive of a method -> (command line, exit code, part of what it says): what each reader of today does with the files of then.
STUDIES: dict[str, list[tuple[str, int, str]]] = {
    "cliffs": [
        ("cliffs show studies/cliffs/scan.jsonl --json", 0, '"p2#1"'),
        (f"cliffs show studies/cliffs/faithful.jsonl p1#0 --tokenizer {BASE}", 0, "token"),
        (f"cliffs show studies/cliffs/scan.jsonl --run shown --tokenizer {BASE}", 0, "p0#0"),
        (f"cliffs ablate studies/cliffs/scan.jsonl {VERIFIED} --n 4 --k 1", 0, "cliff"),
        (f"cliffs pairs studies/cliffs/scan.jsonl {VERIFIED} --candidates 3 --n 4 --out again.jsonl", 0, "pairs of"),
        (f"cliffs show studies/cliffs/budget.jsonl --run budget --tokenizer {BASE}", 0, "p0#0"),
        (f"{SCAN} {THEN} --out studies/cliffs/scan.jsonl", 2, "`ramify import studies/cliffs/scan.jsonl --run DIR`"),
        ("import studies/cliffs/scan.jsonl --run scan", 0, "cliffs"),
        ("import studies/cliffs/killed.jsonl --run killed", 0, "cliffs"),
        ("import studies/cliffs/faithful.jsonl --run faithful", 0, "cliffs"),
        ("cliffs show faithful p1#0", 0, "token"),
        (f"{SCAN} {THEN} --out scan", 2, "other settings: candidate was 0.4, is 0.2; miss was 0.01, is 0.1"),
        (f"{SCAN} {THEN} --candidate 0.4 --miss 0.01 --out scan", 0, "traces"),
        (f"{SCAN} {THEN} --candidate 0.4 --miss 0.01 --out killed", 0, "traces"),
        (f"{SCAN} {THEN} --candidate 0.4 --miss 0.01 --seed 1 --out scan", 2, "seed was 0, is 1"),
        ("show killed", 0, "cliffs scan"),
        ("resume killed", 2, "the same `ramify cliffs scan` again continues it"),
    ],
    "crosscoder": [
        ("crosscoder rank studies/crosscoder/dictionary studies/crosscoder/states --partition all", 0, "feature"),
        ("crosscoder report studies/crosscoder/study", 2, "`ramify import studies/crosscoder/study --run DIR`"),
        (f"{STEER} --out studies/crosscoder/study-killed", 2, "`ramify import studies/crosscoder/study-killed --run DIR`"),
        ("import studies/crosscoder/study --run study", 0, "not converted: replies were not kept"),
        ("import studies/crosscoder/study-killed/scores.jsonl --run study-killed", 0, "(crosscoder)"),
        (
            "import studies/crosscoder/states --run states",
            2,
            "which `ramify crosscoder train` reads as it is: there is nothing to import",
        ),
        ("import studies/crosscoder/dictionary --run dictionary", 2, "which `ramify crosscoder steer` reads as it is"),
        ("crosscoder report study", 0, "scale 4 of"),
        ("crosscoder report study-killed", 2, "holds no study that came to its end"),
        (f"{STEER} --out study", 0, "scale 4 of"),
        (f"{STEER} --out study-killed", 0, "scale 4 of"),
        ("show study", 0, "steering"),
        ("check run study", 0, "undamaged"),
        ("crosscoder export studies/crosscoder/dictionary studies/crosscoder/states --features 0 --out again", 0, "wrote again"),
    ],
    "dspark": [
        (f"dspark calibrate {BASE} studies/dspark/drafter --prompts inputs/problems.jsonl --n 8 --tokens 12", 0, "position"),
        (f"dspark train {BASE} --prompts inputs/problems.jsonl {DRAFTED} --out studies/dspark/interrupted", 0, "mask_token"),
        (
            f"dspark train {BASE} --prompts inputs/problems.jsonl {DRAFTED} --lr 0.1 --out studies/dspark/interrupted",
            2,
            "the state of another training",
        ),
    ],
    "early-decision": [
        ("early-decision report studies/early-decision/study", 2, "`ramify import studies/early-decision/study --run DIR`"),
        ("import studies/early-decision/study --run early", 0, "(early-decision)"),
        ("import studies/early-decision/killed/study.json --run killed-early", 0, "(early-decision)"),
        ("import studies/early-decision/elsewhere --run elsewhere-early", 0, "(early-decision)"),
        ("import studies/early-decision/defended --run defended-early", 0, "(early-decision)"),
        ("early-decision report early", 0, "report.html"),
        ("early-decision report defended-early --against early", 0, "the defence"),
        ("early-decision report elsewhere-early", 0, "report.html"),
        ("early-decision continue early --m 1 --n 3 --shares 0,0.5,1", 2, "give --trust"),
        ("early-decision continue early --m 1 --n 3 --shares 0,0.5,1 --trust", 0, "closed"),
        (f"{THOUGHT} --open take --close garden --out killed-early", 0, "labelled"),
        (f"{THOUGHT} --out early", 2, "other settings: open was 'take', is ''; close was 'garden', is ''"),
        (f"{THOUGHT} --out studies/early-decision/study", 2, "`ramify import studies/early-decision/study --run DIR`"),
        ("show elsewhere-early", 0, "trees"),
        ("check run early", 0, "undamaged"),
    ],
    "forensics": [
        ("forensics plan studies/forensics/begun", 0, "power"),
        ("import studies/forensics/begun --run begun", 2, "`ramify forensics run studies/forensics/begun` plays it"),
        ("forensics report studies/forensics/case", 2, "`ramify import studies/forensics/case --run DIR`"),
        ("import studies/forensics/case --run case", 0, "not converted: what each fork at a sentence came to"),
        ("import studies/forensics/killed/case.toml --run killed", 0, "(forensics)"),
        ("import studies/forensics/honest --run honest", 0, "(forensics)"),
        ("forensics read case", 0, "did it"),
        ("forensics run case", 0, "Baseline"),
        ("forensics run killed", 0, "Baseline"),
        ("forensics run studies/forensics/killed", 0, "Baseline"),
        ("forensics run honest", 0, "Baseline"),
        ("forensics counterfactual case", 0, "hinted"),
        ("forensics ach case", 0, "hinted"),
        ("forensics report case", 0, "## Questions"),
        ("show case", 0, "forensics control"),
        ("check run case", 0, "undamaged"),
        ("show studies/forensics/case/run", 0, "trees"),
        ("resume studies/forensics/case/run", 2, NO_AGENT),
    ],
    "governance": [
        ("governance report studies/governance/rows.jsonl", 0, "condition"),
        ("governance report studies/governance/attack.jsonl", 0, "condition"),
        (
            f"governance bench {GRID} --out studies/governance/rows.jsonl",
            2,
            "`ramify import studies/governance/rows.jsonl --run DIR`",
        ),
        ("import studies/governance/killed.jsonl --run killed", 0, "governance"),
        (f"governance bench {GRID} --out killed", 0, "condition"),
        ("show killed", 0, "trees"),
    ],
    "graph-credit": [("graph-credit report studies/graph-credit/credit.jsonl", 0, "states")],
    "implicit-advantage": [
        ("implicit-advantage report --scores studies/implicit-advantage/scores.jsonl", 0, "AUROC".lower()),
        ("implicit-advantage report --scores studies/implicit-advantage/confidence.jsonl", 0, "deepconf"),
        ("implicit-advantage select --scores studies/implicit-advantage/scores.jsonl --best-of 3", 0, "chosen"),
        ("implicit-advantage blame --scores studies/implicit-advantage/scores.jsonl", 0, "stand"),
        (
            "import studies/implicit-advantage/scores.jsonl --run scores",
            0,
            "not converted: what the agent was shown and the grades of single",
        ),
        ("import studies/implicit-advantage/confidence.jsonl --run confidence", 0, "(implicit-advantage)"),
        ("implicit-advantage report --scores scores", 0, "AUROC".lower()),
        ("implicit-advantage report --scores confidence", 0, "deepconf"),
        ("implicit-advantage blame --scores scores", 0, "stand"),
        ("show scores", 0, "implicit-advantage blame"),
        ("check run scores", 0, "undamaged"),
    ],
    "maze-recovery": [],
    "tree-rollouts": [
        ("tree-rollouts report studies/tree-rollouts/turns.jsonl", 0, "mixed"),
        ("tree-rollouts report studies/tree-rollouts/tokens.jsonl", 0, "mixed"),
        ("tree-rollouts report studies/tree-rollouts/of-run.jsonl", 0, "mixed"),
        ("import studies/tree-rollouts/turns.jsonl --run turns", 0, "not converted: what the agent was shown was not kept"),
        ("import studies/tree-rollouts/of-run.jsonl --run of-run", 0, "(trees)"),
        ("tree-rollouts report turns", 0, "mixed"),
        ("show turns", 0, "tree-rollouts report turns"),
        ("check run turns", 0, "undamaged"),
    ],
    "cells": [],
}


def unpack(folder: Path, *names: str) -> None:
    for name in names:
        with tarfile.open(FIXTURE / f"{name}.tar.gz") as tar:
            tar.extractall(folder, filter="data")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which everything was made, with its models and inputs, as the current one."""
    unpack(tmp_path, "models", "inputs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FIXTURE))
    return tmp_path


def say(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(shlex.split(line))
    return code, *capsys.readouterr()


def record(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_every_archive_is_in_a_table() -> None:
    assert {file.name.split(".")[0] for file in FIXTURE.glob("*.tar.gz")} == {
        "models",
        "inputs",
        *(f"runs-{name}" for name in RUNS),
        *(f"studies-{name}" for name in STUDIES),
    }
    assert EXPECTED.keys() == RUNS.keys()
    assert sum(file.stat().st_size for file in FIXTURE.iterdir() if file.is_file()) < 1_500_000


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_shown_checked_and_exported(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(place, f"runs-{name}")
    then = EXPECTED[name]
    code, out, err = say(capsys, f"show runs/{name} --json")
    assert (code, err) == (0, "")
    shown = record(out)
    assert (len(shown["trees"]), shown["nodes"]) == (then["trees"], then["nodes"])
    if then["attempts"] is not None:
        assert shown["attempts"] == then["attempts"]
    assert say(capsys, f"show runs/{name}")[0] == 0
    code, out, err = say(capsys, f"check run runs/{name}")
    assert code == 0, out + err
    code, out, _ = say(capsys, f"export runs/{name} out.jsonl --json")
    blobs = 6 * (name == "improved-compared")  # a checkpoint an arm, left out of the archive
    assert (code, record(out)["rows"]) == (0, then["lines"] - blobs)
    code, out, _ = say(capsys, f"export runs/{name} out.parquet --json")
    assert (code, record(out)["rows"]) == (0, then["nodes"])
    assert say(capsys, "import out.jsonl --run again")[0] == 0
    assert say(capsys, "export again again.jsonl")[0] == 0
    (first, *rest), (head, *others) = (Path(file).read_text().splitlines() for file in ("out.jsonl", "again.jsonl"))
    assert others == rest
    assert json.loads(head)["config"] == json.loads(first)["config"]  # the schema is today's


@pytest.mark.parametrize("name", ["rollout", "improved", "served-gateway", "imported-inspect", "cliffs", "credited", "steps"])
def test_a_run_has_its_page(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(place, f"runs-{name}")
    assert say(capsys, f"show runs/{name} --html page.html")[0] == 0
    assert "</html>" in Path("page.html").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_forked_or_refused_in_a_sentence(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(place, f"runs-{name}")
    with Run.open(f"runs/{name}") as run:
        nodes = (node for info in run.trees() for node in run.nodes(info.name))
        first = next(node.id for node in nodes if node.role == "assistant" and node.opens)
    line = f"fork runs/{name} {first} --n 2 --json"
    code, out, err = say(capsys, line)
    if refused := RUNS[name][0]:
        assert (code, err.count("\n")) == (2, 1)
        assert refused in err
        if refused != TRUST:
            return
        code, out, err = say(capsys, f"{line} --trust")
    assert code == 0, err
    fork = record(out)["fork"]
    assert fork["n"] + fork["failed"] == 2


@pytest.mark.parametrize("name", RUNS)
def test_a_run_continues_or_is_refused_in_a_sentence(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(place, f"runs-{name}")
    expects = RUNS[name][1]
    code, out, err = say(capsys, f"resume runs/{name} --json")
    if expects == 3:
        assert (code, record(out)["spent"]) == (3, "turns")
        return
    if isinstance(expects, str) and expects:
        assert (code, err.count("\n")) == (2, 1)
        assert expects in err
        if expects != TRUST:
            return
        code, out, err = say(capsys, f"resume runs/{name} --trust --json")
    assert code == 0, err
    result = record(out)
    if name.startswith("improved"):
        assert result["gain"]["n"] == 4
        assert record(say(capsys, f"resume runs/{name} --trust --json")[1]) == result
    else:
        assert (result["n"] + result["failed"], result["missing"]) == (6, 0)


@pytest.mark.parametrize(
    "name", ["cliffs", "crosscoder", "early-decision", "forensics", "governance", "implicit-advantage", "trees"]
)
def test_a_reader_of_old_files_conforms(name: str) -> None:
    assert check("reader", readers()[name]) == []


@pytest.mark.parametrize(
    ("file", "was", "becomes", "why"),
    [
        ("forensics/case/results/hinted.json", '"detail"', '"details"', "the field 'detail' is missing"),
        ("forensics/case/traces/e8cae0f31234-0.json", '"turn": 0', '"turn": 9', "has replies 0 to"),
        ("crosscoder/study/study.json", '"confirmed"', '"confirm"', "the field 'confirmed' is missing"),
        ("crosscoder/study/scores.jsonl", "[[", '[["x", ', ":1: 'scores' must hold a list of numbers for each prompt"),
        (
            "governance/rows.jsonl",
            '"condition": "floor"',
            '"condition": "flor"',
            ":1: unknown condition 'flor' (did you mean 'floor'?",
        ),
        ("implicit-advantage/scores.jsonl", '"A_sum": ', '"A_sum": 1e999, "B": ', ":1: step 0: 'A_sum' is no finite number"),
        ("early-decision/study/prompts.json", '"data": {', '"data": {"x": NaN, ', "prompts.json: Out of range float values"),
        ("tree-rollouts/turns.jsonl", '"cost":', '"cost":"x","was":', ":1: not a grown tree"),
        (
            "tree-rollouts/tokens.jsonl",
            '"logprobs":[',
            '"logprobs":[-1e300,',
            ":1: a number of a token is beyond what is stored for one",
        ),
    ],
)
def test_an_old_file_that_is_damaged_is_refused_whole(
    file: str, was: str, becomes: str, why: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack(place, f"studies-{file.split('/')[0]}")
    damaged = Path("studies", file)
    damaged.write_text(damaged.read_text().replace(was, becomes, 1))
    source = damaged if damaged.suffix == ".jsonl" else next(up for up in damaged.parents if up.parent.parent.name == "studies")
    code, out, err = say(capsys, f"import {source} --run made")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(damaged) in err
    assert why in err
    assert not Path("made").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_the_readers_of_a_method_open_its_files(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(place, f"studies-{name}")
    for line, expects, part in STUDIES[name]:
        code, out, err = say(capsys, line)
        assert code == expects, f"{line}\n{out}{err}"
        assert part in (out if expects == 0 else err), f"{line}\n{out}{err}"
        if expects == 2:
            assert err.count("\n") == 1


def graded(record: dict[str, Any]) -> dict[str, Any]:
    """A score record, but for the nodes of its run."""
    steps = [{name: value for name, value in step.items() if name != "node"} for step in record["steps"]]
    return {name: value for name, value in record.items() if name != "end"} | {"steps": steps}


def test_nothing_is_lost_on_the_way(place: Path) -> None:
    """What the readers of today find in the files, counted."""
    unpack(place, *(f"studies-{name}" for name in STUDIES))
    config, source, scanned = read_scan(Path("studies/cliffs/scan.jsonl"))
    assert (len(scanned), config.candidate, config.confirm, source["verifier"]) == (6, config.alpha, 8, "right")
    assert sum(len(one.cliffs) for one in scanned) > 0
    assert all(one.trace.potentials for one in scanned)
    assert import_scan(Path("studies/cliffs/scan.jsonl"), Path("scan")) == 6
    assert read_scan(Path("scan")) == (config, source, scanned)
    assert 0 < import_scan(Path("studies/cliffs/killed.jsonl"), Path("killed")) < 6
    assert import_study(Path("studies/early-decision/study"), Path("early")) == 256
    assert 0 < import_study(Path("studies/early-decision/killed"), Path("early-killed")) < 256
    with Study.open(Path("early")) as study:
        assert (len(study.prompts), len(study.traces)) == (16, 256)
        assert all(study.rows(kind).rows for kind in (CONTINUED, STANCES, CUT))
        found = build(study)
    then = json.loads(Path("studies/early-decision/study/report.json").read_text())
    same = ("source", "prompts", "traces", "forced", "probe", "valley")
    assert {name: found[name] for name in same} == {name: then[name] for name in same}
    assert import_steering(Path("studies/crosscoder/study-killed"), Path("steering-killed")) == 3
    assert import_steering(Path("studies/crosscoder/study"), Path("steering")) == 12
    with Run.open("steering") as run:
        kept = [{"key": entry.key, **entry.payload} for entry in run.journal("scores")]
        assert [one.name for one in run.findings()] == ["steering"]
    assert kept == [row for _, row in read_lines(Path("studies/crosscoder/study/scores.jsonl"))]
    assert read_steering(Path("steering")) == json.loads(Path("studies/crosscoder/study/study.json").read_text())
    rows = read_rows(Path("studies/governance/rows.jsonl"))
    assert len(rows) > len(read_rows(Path("studies/governance/killed.jsonl"))) == 3
    assert any(row["compactions"] for row in rows)
    records = read_scores(Path("studies/implicit-advantage/scores.jsonl"))
    assert len(records) == 6
    assert all(step["node"] for one in records for step in one["steps"])
    assert import_scores(Path("studies/implicit-advantage/scores.jsonl"), Path("scores")) == 6
    again = read_scores(Path("scores"))
    assert [graded(one) for one in again] == [graded(one) for one in records]
    with Run.open("scores") as run:
        for one in again:
            ends = [run.node(step["node"]) for step in one["steps"]]
            assert [node.text for node in ends] == [step["action"] for step in one["steps"]]
            assert run.node(one["end"]).parent == ends[-1].id
    assert import_case(Path("studies/forensics/case"), Path("case")) == 10
    with Run.open("studies/forensics/case/run") as run, Run.open("case") as made:
        assert {entry.kind for entry in run.journal()} == {"cell", "played"}
        assert (list(made.each(JournalEntry)), len(made), made.parts) == (list(run.each(JournalEntry)), len(run), run.parts)
        found = report(made, load_case(Path("case")))
    for folder, told in (("traces", found["traces"]), ("probes", found["probes"])):
        kept = [json.loads(file.read_text()) for file in sorted(Path("studies/forensics/case", folder).glob("*.json"))]
        assert [{name: one[name] for name in then} for then, one in zip(kept, told, strict=True)] == kept
    assert found["baseline"] == json.loads(Path("studies/forensics/case/baseline.json").read_text())
    assert sorted(json.loads(Path("studies/forensics/case/controls.json").read_text())) == ["doors", "hinted"]
    assert {one["name"] for one in found["tests"] if one["control"]} == {"doors", "hinted"}
    assert len(found["tests"]) == len(list(Path("studies/forensics/case/results").glob("*.json"))) == 5
    for name in ("turns", "tokens", "of-run"):
        file = Path(f"studies/tree-rollouts/{name}.jsonl")
        old = [GrownTree.from_json(record) for _, record in read_lines(file)]
        assert import_trees(file, Path(name)) == len(old)
        assert summed(read_trees(Path(name))) == summed(old)
        with Run.open(name) as run:
            said = [node for node in run.each(Node) if node.role == "assistant"]
            assert len(said) == sum(len(tree.places) - 1 for tree in old)
    lab = pytest.importorskip("ramify_experiments.lab")

    def doubled(x: int) -> int:
        raise AssertionError("a cell that is there is not run")

    doubled.__module__, doubled.__qualname__ = "fixture_parts", "doubled"
    with pytest.raises(UserError, match="is not a readable cell"):  # cells say which code made them now; these do not
        lab.ResultCache(Path("studies/cells")).get("x=1", doubled, x=1)
