"""check, promote, erase, rescore and show, as a user calls them, on anchors of a file and of a run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from printed import said

from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.node import Provenance, Score, make_node


def run(*words: object) -> int:
    return main(["judge-evolution", *map(str, words)])


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    """100 items: the judge regex:old is right on 60, regex:new on 85, regex:same on 60 others."""
    rng, rows = random.Random(0), []
    for i in range(100):
        label = i % 2 == 0
        marks = [name for name, right in (("old", i < 60), ("new", i < 85), ("same", i >= 40)) if (label if right else not label)]
        group = "machine" if i % 4 < 2 else "human"
        rows.append(
            {"id": i, "artefact": f"essay {i} {' '.join(marks)} {'x' * rng.randrange(50)}", "label": label, "group": group}
        )
    path = tmp_path / "anchor.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A run of ten replies; ``old`` and an independent scorer have scored all of them."""
    from ramify.score.judge import find_judge

    old = find_judge("regex:old").identity
    folder = tmp_path / "scored"
    with Run.create(folder, {}, kind="rollout") as opened:
        opened.add_tree("t", {"id": "t"})
        author = Provenance("chat:qwen3-8b@http://localhost/v1", "w", {}, 0)
        root = make_node("t", None, 0, "root", "")
        replies = [
            make_node("t", root.id, 0, "assistant", f"{'old' * (i % 2)} {'new' * (i % 3 == 0)}", index=i, provenance=author.hash)
            for i in range(10)
        ]
        opened.add(author, root, *replies)
        for i, node in enumerate(replies):
            opened.add(Score(node.id, "reviewer", float(i % 2), judges={"reviewer": old}))
            opened.add(Score(node.id, "env", float(i < 5)))
    return folder


def test_a_check_says_what_a_judge_is_worth(anchor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", anchor, "--judge", "regex:new", "--json") == 0
    (found,) = said(capsys)["challengers"]
    assert (found["accuracy"]["k"], found["accuracy"]["n"], found["missing"]) == (85, 100, 0)
    assert (found["sensitivity"]["k"], found["specificity"]["n"]) == (43, 50)
    assert found["length"]["p"] > 0.01
    assert set(found["groups"]) == {"human", "machine"}
    assert found["parity"]["ratio"] == pytest.approx(1.0, abs=0.2)
    assert run("check", anchor, "--judge", "regex:new", "--against", "regex:old") == 0
    text = capsys.readouterr().out
    assert "may take over: it is better: right where the other is wrong on 25 items" in text
    assert run("check", anchor, "--judge", "regex:same", "--against", "regex:old", "--strict") == 1
    assert "the incumbent stays: it is not shown to be better" in capsys.readouterr().out


def test_a_look_at_the_anchor_counts_and_a_dry_run_changes_no_judge(
    anchor: Path, scored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("promote", scored, "reviewer", "--anchor", anchor, "--judge", "regex:new", "--against", "regex:old", "--json")
    assert run(*words, "--dry-run") == 0
    found = said(capsys)
    assert (found["promote"], found["promoted"], found["look"], found["stake"]) == (True, False, 1, {"erased": 10, "restored": 0})
    with Run.open(scored) as opened:
        assert len(opened.scores(scorer="reviewer")) == 10
    assert run(*words) == 0
    found = said(capsys)
    assert (found["promoted"], found["look"]) == (True, 2)
    with Run.open(scored) as opened:
        assert opened.scores(scorer="reviewer") == []
        assert len(opened.scores(scorer="env")) == 10
        assert len(opened.scores(counting=False)) == 10
        assert [one.unit for one in opened.findings(maker="judge-evolution promote")] == ["scores erased"] * 2
    assert run("rescore", scored, "reviewer", "--dry-run", "--json") == 0
    assert said(capsys)["cost_estimate"]["scores"] == 10
    assert run("rescore", scored, "reviewer", "--limit", 4, "--json") == 0
    assert (said(capsys)["scored"], run("rescore", scored, "reviewer", "--json"), said(capsys)["scored"]) == (4, 0, 6)
    with Run.open(scored) as opened:
        assert sorted(one.value for one in opened.scores(scorer="reviewer")) == [0.0] * 6 + [1.0] * 4
    assert run("show", scored, "--json") == 0
    slot = said(capsys)["slots"]["reviewer"]
    with Run.open(scored) as opened:
        assert [one.maker for one in opened.results()] == [f"judge-evolution {verb}" for verb in ("promote", "rescore", "show")]
    assert (slot["counting"], slot["erased"], slot["epoch"]) == (10, 10, 1)
    old = next(judge for judge in slot["judges"] if judge != slot["incumbent"])
    assert run("promote", scored, "reviewer", "--to", old[:10], "--json") == 0
    assert said(capsys)["restored"] == 10
    with Run.open(scored) as opened:
        assert {one.value for one in opened.scores(scorer="reviewer")} == {0.0, 1.0}
    assert run("promote", scored, "reviewer", "--to", "nobody", "--dry-run", "--json") == 0
    assert (said(capsys)["erased"], run("promote", scored, "reviewer", "--to", "nobody", "--json")) == (10, 0)
    assert said(capsys)["erased"] == 10
    with Run.open(scored) as opened:
        assert opened.scores(scorer="reviewer") == []
        assert {one.maker for one in opened.results()} >= {"judge-evolution promote", "judge-evolution promote to"}


def test_a_slot_without_scores_is_scored_to_the_end_by_the_same_command(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("rescore", scored, "fresh", "--judge", "regex:new", "--json")
    assert run(*words, "--limit", 4) == 0
    assert (said(capsys)["left"], run(*words)) == (6, 0)
    assert (said(capsys)["scored"], run(*words)) == (6, 0)
    assert said(capsys)["scored"] == 0
    assert run("promote", scored, "fresh", "--anchor", scored, "--truth", "env", "--judge", "regex:new") == 2
    assert "is the judge of slot 'fresh' already" in capsys.readouterr().err


def test_stored_scores_of_any_verb_are_checked_in_their_run(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", scored, "--truth", "env", "--judge", "stored:reviewer", "--json") == 0
    (found,) = said(capsys)["challengers"]
    assert (found["accuracy"]["k"], found["accuracy"]["n"]) == (4, 10)
    with Run.open(scored) as opened:
        assert [one.name for one in opened.findings(maker="judge-evolution check")] == ["judge checked"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("check", "{anchor}", "--judge", "regx:new"), "did you mean 'regex'"),
        (("check", "{anchor}", "--judge", "stored:x"), "stored:x names scores of a run"),
        (("check", "{scored}", "--judge", "stored:reviwer"), "did you mean 'reviewer'"),
        (("check", "{anchor}", "--judge", "regex:new", "--delta", "2"), "delta"),
        (("check", "{anchor}", "--judge", "regex:new", "--truth", "env"), "is not a run"),
        (("promote", "{scored}", "reviewer", "--anchor", "{anchor}", "--judge", "regex:new"), "has a judge: name it with "
                                                                                              "--against"),
        (("promote", "{scored}", "reviewer", "--anchor", "{anchor}", "--judge", "regex:new", "--against", "regex:older"),
         "is not the judge of slot"),
        (("promote", "{scored}", "reviewer", "--anchor", "{anchor}", "--judge", "regex:old", "--against", "regex:old"),
         "already"),
        (("rescore", "{scored}", "reviewer"), "name it with --judge"),
        (("promote", "{scored}", "reviewer"), "named by --judge and put to an --anchor"),
        (("promote", "{scored}", "reviwer", "--to", "nobody"), "did you mean 'reviewer'"),
        (("promote", "{scored}", "reviewer", "--to", "zz"), "has 0 judges"),
        (("promote", "{scored}", "reviewer", "--to", "nobody", "--anchor", "{anchor}"), "--to takes no --anchor"),
        (("promote", "{scored}", "reviewer", "--to", "nobody", "--delta", "0.1"), "--to takes no --delta"),
        (("show", "{scored}", "--git", "git"), "was not made by"),
        (("evolve", "{scored}", "--out", "run"), "evolve.toml"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], told: str, anchor: Path, scored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(word.format(anchor=anchor, scored=scored) for word in words)) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


def test_an_anchor_that_cannot_decide_is_refused(anchor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(anchor.read_text().splitlines(keepends=True)[:4]))
    assert run("check", few, "--judge", "regex:new", "--against", "regex:old") == 2
    assert "4 items to test on, and the paired test of 1 challengers at delta 0.05 needs 5" in capsys.readouterr().err


def test_a_silent_judge_is_missing_and_cannot_take_over(anchor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.py"
    own.write_text("def judge(text, data):\n    return None if '3 ' in text else 'new' in text\n")
    assert run("check", anchor, "--judge", f"{own}:judge", "--against", "regex:old", "--json") == 0
    found = said(capsys)
    assert found["challengers"][0]["missing"] == 10
    assert not found["promote"]
    assert "answered enough" in found["why"]
    own.write_text("def judge(text, data):\n    return float('nan')\n")
    assert run("check", anchor, "--judge", f"{own}:judge") == 2
    assert "returned 'nan'" in capsys.readouterr().err


def test_a_judge_of_the_authors_family_is_warned_of(scored: Path, anchor: Path) -> None:
    from ramify.methods.judge_evolution.ledger import family, judges_itself

    assert family("judge:chat:org/Qwen3-32B@http://x/v1#prompt.txt") == family("chat:qwen3-8b@http://localhost/v1") == "qwen"
    assert "judges favour their kin" in judges_itself("judge:chat:Qwen3@http://x", ["chat:qwen3-8b@http://localhost/v1"])
    assert judges_itself("judge:chat:llama@http://x", ["chat:qwen3-8b@http://localhost/v1"]) == ""
    assert judges_itself("regex:qwen", ["qwen"]) == ""


def test_a_corrupt_ledger_is_one_sentence(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.open(scored, write=True) as opened:
        opened.log("judge of a slot", "reviewer 1", {"slot": "reviewer"})
    assert run("show", scored) != 0
    assert "names no slot and judge" in capsys.readouterr().err
