"""Potentials that others measured, as files: the forms, the paper's own cliffs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ramify.cli.main import main
from ramify.methods.cliffs.known import KnownReply, listed, read_known, scanned_of
from ramify.methods.cliffs.run import ScanConfig
from ramify.stats.drops import Counts

PAPER = ScanConfig(faithful=True)
PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "cliff-token"
SCORES = [60 / 64, 59 / 64, 20 / 64, 20 / 64]
TOKENS = ["a", "b", "c", "d", "e"]


def forms(folder: Path) -> dict[str, Path]:
    """The same potentials in each form."""
    ks = [None, *(round(score * 64) for score in SCORES), None]
    written = {
        "paper.json": json.dumps({"id": "r", "response_tokens": TOKENS, "all_position_scores": SCORES, "is_correct": False}),
        "counts.jsonl": json.dumps({"id": "r", "response_ids": [5, 6, 7, 8, 9], "k": ks, "n": 64, "correct": False}) + "\n",
        "paper.csv": "position,token,potential,is_cliff\n"
        + "".join(f"{at},{token},{score},0\n" for at, (token, score) in enumerate(zip(TOKENS, [*SCORES, ""], strict=True))),
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in written}


def test_every_form_says_the_same(tmp_path: Path) -> None:
    for path in forms(tmp_path).values():
        replies = read_known(path, 64)
        (one,) = scanned_of(replies, PAPER)
        assert [cliff.t for cliff in one.cliffs] == [3]
        result = listed([one], PAPER)
        assert (result.tests, result.replies[0].found, result.replies[0].corrected) == (3, 1, 1)


def test_a_file_is_listed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = forms(tmp_path)["paper.json"]
    assert main(["cliffs", "show", str(path)]) == 0
    assert "1 cliff found in 1 reply, none checked on fresh forks; 1 remain" in capsys.readouterr().out
    assert main(["cliffs", "show", str(path), "r", "--svg", str(tmp_path / "r.svg")]) == 0
    assert "59/64" in capsys.readouterr().out
    assert (tmp_path / "r.svg").read_text().startswith("<svg")


def test_noise_alone_rarely_survives_the_correction() -> None:
    """1,000 tokens of one potential: the plain test fires at some, corrected at none in nearly all of 60 files."""
    rng, found, left = np.random.default_rng(0), 0, 0
    for _ in range(60):
        ks = [int(k) for k in rng.binomial(64, 0.7, 1001)]
        reply = KnownReply("r", ("a",) * 1000, tuple(Counts(k, 64) for k in ks))
        result = listed(scanned_of([reply], PAPER), PAPER).replies[0]
        found, left = found + (result.found > 0), left + (result.corrected > 0)
    assert found > 45
    assert left <= 9  # 5 % and chance: P(Bin(60, .05) > 9) < .001


BROKEN = {
    "no.json": ("{", "cannot read"),
    "none.jsonl": ("", "holds no reply"),
    "share.json": (json.dumps({"response_tokens": ["a"], "all_position_scores": [0.37]}), "not a share of 64 forks: see --n"),
    "over.json": (json.dumps({"response_tokens": ["a"], "all_position_scores": [1.5]}), "not a share of 64 forks"),
    "short.json": (
        json.dumps({"response_tokens": ["a", "b", "c"], "all_position_scores": [0.5]}),
        "1 potentials after 3 tokens",
    ),
    "counts.jsonl": (json.dumps({"response_ids": [1, 2], "k": [1, 2], "n": 4}) + "\n", "'k' has 2 positions"),
    "neither.jsonl": (json.dumps({"response_ids": [1, 2]}) + "\n", "neither 'k' and 'n' nor"),
    "list.json": ("[1]", "a reply is an object"),
    "columns.csv": ("a,b\n1,2\n", "no rows with the columns"),
    "word.csv": ("token,potential\na,high\n", "row 2: potential is 'high'"),
    "more.jsonl": (json.dumps({"response_ids": [1], "k": [9, 2], "n": 4}) + "\n", "9 right of 4"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_potential_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, wanted = BROKEN[name]
    (tmp_path / name).write_text(text)
    assert main(["cliffs", "show", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert "Traceback" not in error


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published potentials are not here")
def test_the_published_cliffs_are_found_and_three_remain() -> None:
    files = sorted(PUBLISHED.glob("*.json"))
    replies = [reply for path in files for reply in read_known(path, 64)]
    scanned = scanned_of(replies, PAPER)
    printed = [{row["cliff_position"] for row in json.loads(path.read_text())["cliffs"]} for path in files]
    found = [{cliff.t for cliff in one.cliffs} for one in scanned]
    assert sum(map(len, printed)) == 7
    assert all(ours >= theirs for ours, theirs in zip(found, printed, strict=True))
    assert sum(map(len, found)) == 9
    assert sum(line.corrected for line in listed(scanned, PAPER).replies) == 3
    for path in PUBLISHED.glob("*per_token.csv"):
        (same,) = [one for one in scanned if one.trace.potentials == read_known(path, 64)[0].potentials]
        assert "".join(same.trace.tokens) == "".join(read_known(path, 64)[0].tokens)
