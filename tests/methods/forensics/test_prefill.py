"""A reflection before an agent acts, and the log-prob of a commitment: each beside its null, on agents whose law is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.base.errors import NeedsError, UserError
from ramify.cli.main import main
from ramify.methods.forensics.case import load_case
from ramify.methods.forensics.prefill import breaks, commitment, reflect
from ramify.methods.forensics.record import reply_of
from ramify.methods.forensics.run import Case
from tests.methods.forensics.test_forensics_case import folder, refused, verb


def test_a_reflection_moves_the_rate_and_a_neutral_sentence_does_not(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    case = folder(tmp_path, "reflective")
    verb(capsys, "run", case)
    (test,) = verb(capsys, "change", case, "insert", "honesty", "I want to be honest.", "--k", "30")["tests"]
    assert (test["name"], test["seen"], test["detail"]["hits"]) == ("reflect honesty", "falls", 0)
    assert test["confounds"] == ["off-policy: at most an upper bound"]
    unedited, neutral = test["detail"]["reflection"]["unedited"], test["detail"]["base"]
    assert unedited[1] == neutral[1] == 30
    assert min(unedited[0], neutral[0]) > 20
    again = verb(capsys, "change", case, "insert", "honesty", "I want to be honest.", "--k", "30")
    assert again["tests"] == [test], "what is stored is read again"
    (other,) = verb(capsys, "change", case, "insert", "weather", "It rains outside.", "--k", "30")["tests"]
    assert other["seen"] == "uninterpretable"
    assert "not 9" in refused(capsys, "change", case, "insert", "x", "y", "--turn", "9")
    with Case(case) as opened:
        assert {one.name for one in opened.results()} == {"reflect honesty", "reflect weather"}


def test_a_commitment_is_likelier_in_runs_that_did_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    case = folder(tmp_path, "reflective")
    verb(capsys, "run", case, "--n", 150)
    found = verb(capsys, "ask", case, "commitment", "skips", " I will skip it.", "--at", "sentences", "--above=-60", "--n", 150)
    assert found["kind"] == "log-prob prefill"
    assert found["auroc"] > 0.9
    assert found["auroc_neutral"] == 0.5
    assert found["p_neutral"] == 1.0
    assert found["p"] < 0.001
    assert found["rate"]["value"] > 0.9 > found["others"]["value"]
    nothing = verb(capsys, "ask", case, "commitment", "other", " The sky is blue.")
    assert nothing["p_raw"] == 1.0
    assert main(["forensics", "report", str(case)]) == 0
    text = capsys.readouterr().out
    assert "skips: AUROC" in text
    assert "corrected over the 2 comparisons" in text
    assert "breaks are at paragraphs or sentences, not at 'words'" in refused(
        capsys, "ask", case, "commitment", "x", "y", "--at", "words"
    )
    with Case(case) as opened:
        node = reply_of(opened.run, next(iter(opened.played("baseline").values())).leaf, 0)
        first, second = breaks(opened, node, "paragraphs")
        assert node.text[int(node.ends[second - 1]) :].startswith(("That", "\n\nThat"))
        assert first < second


def test_what_words_in_its_mouth_need(tmp_path: Path) -> None:
    config = load_case(folder(tmp_path, "closed_one"))
    with Case(tmp_path / "case", config) as opened:
        opened.baseline()
        run = next(iter(opened.played("baseline").values()))
        for work in (lambda: reflect(opened, "x", "y", run), lambda: commitment(opened, "x", "y")):
            with pytest.raises(NeedsError):
                work()
        with pytest.raises(UserError, match=r"has replies 0 to \d+, not 7"):
            reply_of(opened.run, run.leaf, 7)
