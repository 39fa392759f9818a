"""The verbs as a user calls them, with simulated people, people's files, agents and a proposer behind an endpoint."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import said
from terminals import Terminal

from ramify.base.codec import to_json
from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.methods.theory_loop.canonical import CANONICAL
from ramify.methods.theory_loop.domain import Design, hilbig, random_design, read_design
from ramify.methods.theory_loop.loop import pool_of
from ramify.methods.theory_loop.people import PAGE_COLUMNS, read_people, read_study
from ramify.model.scripted import ScriptedModel
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.node import make_node
from tests.model.model_server import NAME, ModelServer, serving

SMALL = ("--rounds", 1, "--iterations", 2, "--people", 6, "--runs", 10, "--searched", 4)


def loop(*words: object) -> int:
    return main(["theory-loop", *map(str, words)])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A loop of one round on simulated tallying."""
    folder = tmp_path_factory.mktemp("loop") / "run"
    assert loop("run", "--out", folder, *SMALL, "--json") == 0
    return folder


def test_a_run_read_every_way(done: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert loop("show", done, "--json") == 0
    status = said(capsys)
    assert (status["rounds"], status["of"], len(status["experiments"]), len(status["survivors"])) == (1, 1, 2, 2)
    assert loop("show", done, "leaderboard", "--json") == 0
    rows = said(capsys)["leaderboard"]
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert loop("show", done, "leaderboard", "--theory", "pi_1") == 0
    (tmp_path / "own.py").write_text(capsys.readouterr().out)
    assert loop("check", tmp_path / "own.py", "--json") == 0
    assert said(capsys)["ok"]
    assert loop("check", done, "--json") == 0
    again = said(capsys)
    assert again["differences"] == []
    assert again["compared"] == 2 * 4
    assert loop("check", done, "--against", "tallying", "--json") == 0
    errors = {row["theory"]: row["mse_pb"] for row in said(capsys)["rows"]}
    assert errors["pi_1"] > 0.05  # take the best is far from tallying
    assert main(["show", str(done), "--json"]) == 0
    results = said(capsys)["results"]
    assert set(results) >= {
        "theory-loop run",
        "theory-loop check replay",
        "theory-loop check against",
    }  # what its verbs found is kept
    sections = results["theory-loop run"]
    shown = {one["title"]: next(part["rows"] for part in one["parts"] if isinstance(part, dict)) for one in sections}
    assert [row[0] for row in shown["Theories"]] == [row["label"] for row in rows]
    assert [row[0] for row in shown["Experiments and their gate"]] == ["1.1", "1.2"]
    assert [row[:1] + row[3:4] for row in shown["What was decided"]] == [[1, 2]]
    assert main(["show", str(done), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "program of pi_1" in page
    assert "def take_the_best" in page
    assert "100.0 %" not in page  # a theory's score is not a success of an agent


def test_a_run_that_has_only_begun_and_one_of_no_method_show_what_they_have(tmp_path: Path) -> None:
    from ramify.render.sections import sections_of
    from ramify.web.pages import report_html

    hostile = replace(CANONICAL["ttb"], description="<script>alert(1)</script>")
    for name, kind in (("begun", "theory-loop run"), ("other", "theory-loop data"), ("nobody", "no-such run")):
        with Run.begin(tmp_path / name, kind, {"seeds": ["ttb", "wadd"]}, {}) as run:
            assert sections_of(run) == {}
            if name != "begun":
                continue
            run.add_tree("theories", {"id": "theories"})
            above = root(run, "theories")
            node = make_node("theories", above.id, len(above), "user", "x", data={"theory": to_json(hostile), "label": "pi_1"})
            run.add(node)
            run.log("seed theory", "pi_1", {"label": "pi_1", "node": node.id})
            assert [one.title for one in sections_of(run)["theory-loop run"]] == ["Theories"]
            page = report_html(run)
            assert "<script>alert(1)" not in page
            assert "&lt;script&gt;alert(1)" in page


@pytest.mark.slow
def test_replay_sees_a_number_that_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    folder = tmp_path / "run"
    assert loop("run", "--out", folder, *SMALL, "--json") == 0
    with sqlite3.connect(folder / "run.sqlite") as db:
        (payload,) = db.execute("SELECT payload FROM journal WHERE kind = 'prediction' AND key = 'pi_1@1.1'").fetchone()
        text = payload.decode() if isinstance(payload, bytes) else payload
        changed = re.sub(r'"value":-?[0-9.e-]+', '"value":9.5', text)
        assert changed != text
        db.execute(
            "UPDATE journal SET payload = ? WHERE kind = 'prediction' AND key = 'pi_1@1.1'",
            (changed.encode() if isinstance(payload, bytes) else changed,),
        )
    db.close()
    capsys.readouterr()
    assert loop("check", folder, "--json") == 1
    assert [one["what"] for one in said(capsys)["differences"]] == ["experiment 1.1, predicted by pi_1"]
    with sqlite3.connect(folder / "run.sqlite") as db:
        (payload,) = db.execute("SELECT payload FROM journal WHERE kind = 'proposal' AND key = '1.1'").fetchone()
        text = payload.decode() if isinstance(payload, bytes) else payload
        changed = text.replace('"validities":[', '"validities":[7,')
        db.execute(
            "UPDATE journal SET payload = ? WHERE kind = 'proposal' AND key = '1.1'",
            (changed.encode() if isinstance(payload, bytes) else changed,),
        )
    db.close()
    for words in (("show", folder), ("theory-loop", "show", folder)):
        assert main(list(map(str, words))) == 2
        assert "experiment 1.1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_claim_is_fixed_before_its_data(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper = tmp_path / "claim.json"
    assert loop("confirm", done, paper, "--register", "--people", 20, "--rival", "pi_1", "--rival", "coin", "--json") == 0
    assert said(capsys)["people"] == 20
    assert loop("confirm", done, paper, "--register", "--people", 21, "--rival", "pi_1", "--rival", "coin") == 2
    assert "a registration is not overwritten" in capsys.readouterr().err
    assert json.loads(paper.read_text())["people"] == 20
    changed = {**json.loads(paper.read_text()), "alpha": 0.5}
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    assert loop("confirm", done, tmp_path / "changed.json") == 2
    assert "changed after it was made" in capsys.readouterr().err
    assert loop("confirm", done, paper, "--json") == 0
    first = said(capsys)
    assert {row["rival"] for row in first["rivals"]} == {"pi_1", "coin"}
    assert loop("confirm", done, paper, "--json") == 0
    assert said(capsys) == first
    with Run.open(done) as run:
        assert [one.name for one in run.findings(maker="theory-loop confirm")] == ["winner" if first["winner"] else "no winner"]


TESTS: dict[str, tuple[object, ...]] = {"concave-match": (), "steep-flat": (), "level-shift": ("--people", 300)}


@pytest.mark.slow
def test_choices_that_diminishing_returns_predict_are_registered_and_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: people whose returns diminish. Nothing: people who add ratings up.
    Both claims of one run stay among its findings."""
    told = {}
    for truth in ("dr-wadd", "wadd"):
        run = tmp_path / truth
        words = ("--participants", f"simulated:{truth}", "--ratings", "cardinal", "--rounds", 1, "--iterations", 1)
        assert loop("run", "--out", run, "--people", 4, "--runs", 10, "--searched", 2, *words, "--json") == 0
        for test, people in TESTS.items():
            paper = tmp_path / f"{truth} {test}.json"
            capsys.readouterr()
            claim = (paper, "--register", "--theory", "dr-wadd", "--test", test, *people)
            assert loop("confirm", run, *claim, "--json") == 0
            made = said(capsys)
            assert made["expected"]["dr-wadd"] > 2 * max(value for one, value in made["expected"].items() if one != "dr-wadd")
            assert loop("confirm", run, paper, "--json") == 0
            told[truth, test] = said(capsys)
            assert loop("confirm", run, paper, "--strict") == (0 if told[truth, test]["holds"] else 1)
        with Run.open(run) as opened:
            assert len(list(opened.findings(maker="theory-loop confirm"))) == 3
    assert [told["dr-wadd", test]["holds"] for test in TESTS] == [True] * 3
    assert [told["wadd", test]["holds"] for test in TESTS] == [False] * 3
    rows = told["wadd", "concave-match"]["contrasts"]
    assert [row["opposes"] for row in rows] == ["validity-wadd", "tallying", "ttb"]
    assert told["wadd", "concave-match"]["p"] == max(row["holm"] for row in rows)


@pytest.mark.slow
def test_a_claim_is_not_tested_on_people_of_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People by hand: the registration's experiment is exported as a page, and whoever took part before is refused."""
    run, paper = tmp_path / "run", tmp_path / "claim.json"
    words = ("--rounds", 1, "--iterations", 1, "--people", 2, "--runs", 10, "--searched", 2, "--participants", "web")
    assert loop("run", "--out", run, *words) == 0
    assert loop("data", "export", run, "--out", tmp_path / "first.json") == 0
    design = read_design(json.loads((tmp_path / "first.json").read_text()))
    first = as_csv(tmp_path / "first.csv", person(design, "ann", 1), person(design, "ben", 2))
    assert loop("data", "import", run, first) == 0
    claim = (paper, "--register", "--theory", "dr-wadd", "--test", "steep-flat", "--people", 5)
    assert loop("confirm", run, *claim, "--design", tmp_path / "first.json") == 2
    assert "has an experiment of its own" in capsys.readouterr().err
    assert loop("confirm", run, *claim) == 0
    assert loop("confirm", run, paper) == 2
    assert "name their fresh choices with --data" in capsys.readouterr().err
    assert loop("data", "export", "--design", paper, "--out", tmp_path / "task.html") == 0
    wanted = read_design(json.loads(paper.read_text())["design"])
    assert wanted.hash in (tmp_path / "task.html").read_text()
    same = as_csv(tmp_path / "same.csv", person(wanted, "cleo", 3), person(wanted, "ann", 4))
    assert loop("confirm", run, paper, "--data", same) == 2
    assert "'ann' took part in experiment 1.1" in capsys.readouterr().err
    fresh = as_csv(tmp_path / "fresh.csv", person(wanted, "cleo", 3), person(wanted, "dan", 4))
    assert loop("confirm", run, paper, "--data", fresh, "--json") == 0
    found = said(capsys)
    assert (found["people"], found["registered"]) == (2, 5)


def person(
    design: Any,
    name: str,
    seed: int = 0,
    keys: str = "",
    rt: float = 2000.0,
    off: float = 0.0,
    bot: int = 0,
    trials: int | None = None,
) -> list[list[Any]]:
    """A person's rows, as the page writes them."""
    rng, rows = np.random.default_rng(seed), []
    for t, pair in enumerate(design.orders(1, seed)[0].tolist()[:trials]):
        left = "ab"[int(rng.integers(2))]
        key = keys[t % len(keys)] if keys else "fj"[int(rng.integers(2))]
        response = int((key == "f") != (left == "a"))
        rows.append(
            [
                name,
                design.hash,
                t,
                json.dumps(design.a[pair]),
                json.dumps(design.b[pair]),
                left,
                key,
                response,
                rt,
                off,
                bot,
                "2026-01-01T00:00:00Z",
            ]
        )
    return rows


def as_csv(path: Path, *people: list[list[Any]]) -> Path:
    import csv

    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(PAGE_COLUMNS)
        for rows in people:
            writer.writerows(rows)
    return path


@pytest.mark.slow
def test_people_come_by_hand_and_the_loop_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, words = (
        tmp_path / "run",
        ("--rounds", 1, "--iterations", 1, "--people", 3, "--runs", 10, "--searched", 4, "--participants", "web"),
    )
    assert loop("run", "--out", folder, *words, "--json") == 0
    assert said(capsys)["waiting"] == "1.1"
    assert loop("data", "export", folder, "--out", tmp_path / "design.json", "--json") == 0
    design = read_design(json.loads((tmp_path / "design.json").read_text()))
    assert said(capsys)["design"] == design.hash
    bad = [
        person(design, "one-key", 1, keys="f"), person(design, "alternates", 2, keys="fj"), person(design, "hasty", 3, rt=600),
        person(design, "away", 4, off=61_000), person(design, "program", 5, bot=1), person(design, "stopped", 6, trials=40),
    ]  # fmt: skip
    first = as_csv(tmp_path / "first.csv", *bad, person(design, "ann", 7))
    assert loop("data", "import", folder, first, "--dry-run", "--json") == 0
    assert loop("data", "import", folder, first, "--json") == 0
    capsys.readouterr()
    assert loop("data", "import", folder, first, "--json") == 0  # the same file twice is the same people
    found = said(capsys)
    assert (found["kept"], found["dropped"], found["complete"]) == (1, 6, False)
    reasons = {one["subject"]: one["dropped"] for one in found["people"]}
    for name, what in (
        ("one-key", "same key"),
        ("alternates", "alternated"),
        ("hasty", "600 ms"),
        ("away", "61 s"),
        ("program", "program"),
        ("stopped", "40 of 96"),
    ):
        assert what in reasons[name]
    assert loop("run", "--out", folder, *words, "--json") == 0
    assert said(capsys)["waiting"] == "1.1"
    more = [as_csv(tmp_path / f"{name}.csv", person(design, name, 20 + i)) for i, name in enumerate(("ben", "cleo", "dan"))]
    assert loop("data", "import", folder, *more, "--json") == 0
    assert said(capsys)["complete"]
    with Run.open(folder) as run:
        (payload,) = [one.payload for one in run.journal("data")]
        assert payload["people"] == 3
        assert {one["subject"] for one in payload["extra"]["dropped"]} == set(reasons) - {"ann"}
        assert all(one["response"] for one in payload["extra"]["dropped"])  # their data is kept
    assert loop("run", "--out", folder, *words, "--json") == 0
    found = said(capsys)
    assert found["waiting"] == "1.2"
    assert [row["score"] for row in found["leaderboard"]] == [1, 1]  # nothing is predicted yet, so nobody is the worst
    assert [one["people"] for one in found["experiments"]] == [3, None]
    assert loop("data", "import", folder, more[0]) == 2
    assert "is of another experiment" in capsys.readouterr().err
    assert loop("data", "export", folder, "--out", tmp_path / "second.json") == 0
    other = read_design(json.loads((tmp_path / "second.json").read_text()))
    two = as_csv(tmp_path / "two.csv", person(other, "eve", 30), person(other, "fay", 31))
    assert loop("data", "import", folder, two, "--fewer", "--json") == 0
    capsys.readouterr()
    assert loop("run", "--out", folder, *words, "--json") == 0
    found = said(capsys)
    assert found["rounds"] == 1
    assert found["problems"]["too few participants"] == 1
    assert found["gate"]["of"] == 2


def header(*cells: str) -> str:
    return ",".join(("subject_id", "option_a_ratings", "option_b_ratings", "response", *cells)) + "\n"


BAD_FILES: dict[str, tuple[str, str]] = {
    "no column": ("subject_id,response\na,1\n", "'option_a_ratings' is missing"),
    "no rows": (header(), "holds no trial"),
    "nobody": (header() + ',"[0,0,0,0]","[1,0,1,1]",1\n', ":2: subject_id is empty"),
    "no list": (header() + 'a,0000,"[1,0,1,1]",1\n', ":2: option_a_ratings is '0000'"),
    "negative": (header() + 'a,"[-9,9,9,9]","[1,0,1,1]",1\n', "ratings are whole numbers"),
    "lengths": (header() + 'a,"[1,0]","[1,0,1,1]",1\n', "does not have 2 ratings"),
    "json": ('{"subject_id": 1,\n', ":1 is not JSON"),
    "json column": ('{"subject_id": 1, "response": 0}\n', ":1: the column 'option_a_ratings' is missing"),
    "json list": ('{"subject_id": 1}\n[1]\n', "is missing"),
    "no choice": (header() + 'a,"[0,0,0,0]","[1,0,1,1]",2\n', ":2: response is '2'"),
    "no time": (header("rt_ms") + 'a,"[0,0,0,0]","[1,0,1,1]",1,soon\n', ":2: rt_ms is 'soon'"),
    "empty": ("", "is missing"),
    "deep": (header() + f'a,"{"[" * 20000}","[1,0,1,1]",1\n', ":2: option_a_ratings"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_of_people_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, wanted = BAD_FILES[name]
    (tmp_path / "people.csv").write_text(text)
    assert loop("check", "ttb", "--against", tmp_path / "people.csv") == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert "Traceback" not in error


def choices(path: Path, design: Design, people: int, seed: int, rule: Callable[[int], int] | None = None) -> Path:
    """Choices as others keep them: JSON lines without keys, times or a design."""
    orders, rng = design.orders(people, seed), np.random.default_rng(seed)
    with path.open("w") as out:
        for subject, order in enumerate(orders.tolist()):
            for pair in order:
                picked = int(rng.integers(2)) if rule is None else rule(pair)
                row = {"subject_id": subject, "option_a_ratings": list(design.a[pair]), "option_b_ratings": list(design.b[pair])}
                out.write(json.dumps({**row, "response": picked}) + "\n")
    return path


def test_experiments_that_people_took_part_in_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in range(4):
        choices(tmp_path / f"study-{file}.jsonl", random_design(np.random.default_rng(file), pairs=6), 8, file)
    (tmp_path / "notes.txt").write_text("not a study")
    words = ("run", "--participants", f"people:{tmp_path}/study-*", *SMALL, "--out", tmp_path / "run")
    assert loop(*words, "--rounds", 3) == 2
    assert "6 experiments, and 4 are given: --rounds 2 at most" in capsys.readouterr().err
    assert loop(*words, "--rounds", 2, "--json") == 0
    report = said(capsys)
    assert [(one["key"], one["people"]) for one in report["experiments"]] == [("1.1", 8), ("1.2", 8), ("2.1", 8), ("2.2", 8)]
    with Run.open(tmp_path / "run") as run:
        seen = [one.design.a for one in pool_of(run).observations]
    assert seen == [read_study(tmp_path / f"study-{file}.jsonl")[0].a for file in range(4)]
    choices(tmp_path / "study-3.jsonl", random_design(np.random.default_rng(3), pairs=6), 8, 99)
    assert loop(*words, "--rounds", 2) == 2  # other people than those that the run holds
    assert "participants" in capsys.readouterr().err
    assert loop("confirm", tmp_path / "run", tmp_path / "claim.json", "--register", "--people", 5, "--two-sided") == 0
    assert "two-sided" in (tmp_path / "claim.json").read_text()
    assert loop("confirm", tmp_path / "run", tmp_path / "claim.json") == 2  # nobody of them is fresh
    assert "name their fresh choices with --data" in capsys.readouterr().err


def test_whoever_saw_other_pairs_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, other = (random_design(np.random.default_rng(seed), pairs=6) for seed in (1, 2))
    path = choices(tmp_path / "study.jsonl", first, 5, 0)
    more = choices(tmp_path / "other.jsonl", other, 2, 1).read_text().replace('"subject_id": ', '"subject_id": 9')
    path.write_text(path.read_text() + more)
    assert loop("check", "ttb", "--against", path, "--count", 10) == 0
    assert "2 of 7 people are left out: 90: saw 6 pairs that most others did not" in capsys.readouterr().err


def test_a_pair_of_another_experiment_is_refused_where_one_is_named(tmp_path: Path) -> None:
    first, other = (random_design(np.random.default_rng(seed), pairs=6) for seed in (1, 2))
    with pytest.raises(UserError, match="is not in the experiment"):
        read_people(choices(tmp_path / "other.jsonl", other, 1, 0), first)


def test_who_always_follows_a_theory_is_not_dropped_for_one_key(tmp_path: Path) -> None:
    """Without keys nothing says which key it was: a person may choose A throughout, as where A is always better."""
    design = random_design(np.random.default_rng(1), pairs=6)
    people = read_people(choices(tmp_path / "all-a.jsonl", design, 3, 0, lambda pair: 0), design)
    assert [person.dropped for person in people] == ["", "", ""]
    assert {person.report.same_key for person in people} == {None}


PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "autocog"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published choices are not here")
def test_choices_that_the_authors_published() -> None:
    """All 20 files are read; six hold people of two designs. Nobody is dropped for a key that the files do not tell."""
    studies = [read_study(path) for path in sorted(PUBLISHED.glob("*.jsonl"))]
    binary, graded = studies[:10], studies[10:]
    assert [sum(not person.dropped for person in people) for _, people in binary] == [25] * 7 + [24, 25, 23]
    assert sum(len(people) for _, people in binary) == 247
    mixed = [sum(bool(person.dropped) for person in people) for _, people in graded]
    assert sum(map(bool, mixed)) == 6
    assert all(person.dropped in ("",) or "pairs that most" in person.dropped for _, people in studies for person in people)


def test_what_does_not_fit_is_one_sentence(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("import os\n\nPARAMETERS = {}\n\n\ndef predict(p, s, h):\n    return [0.5, 0.5]\n")
    (tmp_path / "bad.json").write_text('{"validities": [0.9], "trial_a_ratings": [[0, 1]], "trial_b_ratings": [[1]]}')
    for words, wanted in (
        (("run", "--out", tmp_path / "x", "--theory", "tbb", "--theory", "wadd"), "ttb"),
        (("run", "--out", tmp_path / "x", "--theory", "ttb"), "two theories"),
        (("run", "--out", tmp_path / "x", "--participants", "martians"), "simulated:THEORY"),
        (("run", "--out", tmp_path / "x", "--participants", "csv:a.csv"), "`data import` reads from CSV"),
        (("check", "ttb", "--limit", "beta"), "as in gamma=0:tallying"),
        (("check", "ttb", "--limit", "beta=1:tallyng"), "no theory 'tallyng'"),
        (("run", "--out", tmp_path / "x", "--participants", "web", "--noise", "0.5"), "noise is for simulated participants"),
        (("run", "--out", tmp_path / "x", "--proposer", "nobody:x"), "unknown model 'nobody'"),
        (("check", tmp_path / "bad.py"), "imports 'os'"),
        (("check", "ttb", "--design", tmp_path / "bad.json"), "trial_a_ratings[0] does not have 1 ratings"),
        (("check", tmp_path / "none.py"), "cannot read the theory"),
        (("show", done, "leaderboard", "--theory", "pi_9"), "no theory 'pi_9'"),
        (("show", done, "--theory", "pi_1"), "show status takes no --theory"),
        (("data", "export", done, "--experiment", "7.1"), "no experiment '7.1'"),
        (("data", "export", done, "--out", "x.txt"), "ends in .html"),
        (("data", "export"), "name a run or --design"),
        (("check", done, "--round", "5"), "no data of round 5"),
        (("data", "import", done, tmp_path / "none.csv"), "has its data already"),
        (("data", "import", done), "needs what people saved"),
        (("data", "import", done, "a.csv", "--title", "x"), "data import takes no --title"),
        (("data", "simulate", "ttb"), "needs --out"),
        (("data", "simulate", "--out", "x.csv"), "needs a theory"),
        (("data", "simulate", "ttb", "--out", "x.csv", "--fewer"), "data simulate takes no --fewer"),
        (("data", "export", done, "a.csv"), "data export takes no CSV"),
        (("data", "export", done, "--seed", 0), "data export takes no --seed"),
        (("check", "ttb", "--round", 1), "takes no --round"),
        (("check", "ttb", "--against", "wadd", "--limit", "beta=1:ttb"), "check --against takes no --limit"),
        (("check", done, "--count", 20), "check of a run without --against takes no --count"),
        (("confirm", done, "claim.json", "--people", 20), "confirm without --register takes no --people"),
        (("confirm", done, "claim.json", "--register", "--strict"), "confirm --register takes no --strict"),
        (("confirm", done, tmp_path / "bad.json"), "not a registration"),
        (("show", tmp_path), "not a run"),
    ):
        assert loop(*words) == 2, words
        assert wanted in capsys.readouterr().err, words
    assert not (tmp_path / "x").exists() or not list((tmp_path / "x").glob("run.sqlite"))


def test_check_names_the_fault_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text('"""Wrong."""\n\nPARAMETERS = {}\n\n\ndef predict(p, s, h):\n    return [0.5, 0.6]\n')
    assert loop("check", tmp_path / "own.py", "--json") == 1
    assert said(capsys)["problem"] == "probabilities"


def test_check_tests_the_limits_that_a_theory_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(CANONICAL["rank-decay"].file().replace("'equal-weight'", "'tallying'"))
    assert loop("check", tmp_path / "own.py", "--json") == 0  # of ratings of 0 and 1 it is true
    assert said(capsys)["limits"] == [{"limit": "decay=1", "theory": "tallying", "alike": 24}]
    assert loop("check", tmp_path / "own.py", "--limit", "decay=0.1:tallying") == 1
    assert "with decay=0.1 it chooses as tallying does on 12 of 24 pairs" in " ".join(capsys.readouterr().out.split())


def test_simulated_choices_are_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loop("data", "simulate", "ttb", "--out", tmp_path / "ttb.csv", "--count", 30, "--json") == 0
    capsys.readouterr()
    assert loop("check", "ttb", "--against", tmp_path / "ttb.csv", "--json") == 0
    own, coin, people = said(capsys)["rows"]
    assert own["mse_pb"] < 0.01 < coin["mse_pb"]
    assert own["log_likelihood"] > coin["log_likelihood"] == pytest.approx(np.log(0.5))
    assert abs(own["switch_rate"] - people["switch_rate"]) < 0.05  # simulated on the people's own trials, in their order


@pytest.mark.slow
def test_evaluation_tells_repeating_from_alternating_and_from_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Proportions alone do not: both are flat."""
    words = ("--against", "perseveration", "--count", 20, "--json")
    assert loop("check", "perseveration", *words) == 0
    same = said(capsys)["rows"][0]
    assert loop("check", "alternating", *words) == 0
    other, coin, _ = said(capsys)["rows"]
    assert same["sequence_jsd"] < 0.1 < 0.2 < other["sequence_jsd"]
    assert other["log_likelihood"] < coin["log_likelihood"] < same["log_likelihood"]


@pytest.mark.slow
def test_a_theory_that_reads_history_can_claim(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (tmp_path / "claim.json", "--register", "--theory", "perseveration", "--rival", "coin", "--people", 20, "--json")
    assert loop("confirm", done, *words) == 0
    assert said(capsys)["power"] == {"coin": 1.0}
    assert loop("confirm", done, tmp_path / "claim.json", "--json") == 0
    assert said(capsys)["winner"] is None  # people who tally do not repeat themselves


REPLY = {
    "design": {
        "rationale": "dispute",
        "validities": [0.9, 0.8, 0.7, 0.6],
        "trial_a_ratings": [[0, 1, 1, 1], [0, 1, 1, 0]],
        "trial_b_ratings": [[1, 0, 0, 1], [1, 0, 0, 0]],
        "rating_max": 1,
    },
    "metric": {"rationale": "mean", "metric": "def metric(data):\n    return float(data['response'].mean())\n"},
    "verdict": {"interpretation": "slot 1 is further off", "verdict": "new_theory", "target": 1, "recommendation": "add up"},
    "theory": {
        "description": "Adds ratings up.",
        "parameters": {"b": "[2, 9]"},
        "rationale": "as told",
        "predict": "def predict(parameters, state, history):\n    d = sum(state['option_b_ratings']) - "
        "sum(state['option_a_ratings'])\n    p = 1 / (1 + math.exp(-parameters['b'] * d))\n    return [1 - p, "
        "p]\n",
        "policy": "",
    },
    "critique": {"decision": "continue", "diagnosis": "fine"},
}
ROLE = {
    "design": "Design an experiment that it should win",
    "metric": "write a metric",
    "verdict": "You are the arbiter",
    "theory": "You write the theory",
    "critique": "You are the critic",
}


def shown(messages: Any) -> list[str]:
    """What it was sent, message by message."""
    return [one.text for one in messages if one.role == "user"]


def scripted(spoil: Callable[[str, int], str | None] = lambda role, count: None) -> tuple[ScriptedModel, list[tuple[str, str]]]:
    """A model that answers each role's prompt, and what it was asked."""
    asked: list[tuple[str, str]] = []

    def reply(messages: Any, key: int) -> str:
        text = shown(messages)[-1]
        if text.startswith("Name a colour"):  # how a chat endpoint is asked whether its seeds repeat
            return "blue"
        (role,) = (role for role, mark in ROLE.items() if mark in text)
        asked.append((role, text))
        spoiled = spoil(role, sum(one == role for one, _ in asked))
        return spoiled if spoiled is not None else f"Here you are.\n```json\n{json.dumps(REPLY[role])}\n```"

    return ScriptedModel(reply, tokens=False, name=NAME), asked


@pytest.mark.slow
def test_a_model_behind_an_endpoint_in_every_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replies that are no JSON, or of the wrong form, are recorded and asked for again;
    a loop that is done runs again without the model."""

    def spoil(role: str, count: int) -> str | None:
        if count > 1:
            return None
        return {
            "design": '{"validities": [0.9]}',
            "metric": "no idea",
            "verdict": '{"verdict": "draw"}',
            "theory": '{"description": "x", "predict": "import os"}',
            "critique": "...",
        }[role]

    model, asked = scripted(spoil)
    words = ("--rounds", 1, "--iterations", 3, "--people", 8, "--runs", 20, "--participants", "simulated:cue-parity", "--json")
    with serving(ModelServer(chat=model).app) as url:
        assert loop("run", "--out", tmp_path / "run", "--proposer", f"chat:{NAME}@{url}", *words) == 0
        found = said(capsys)
        calls = len(asked)
        assert loop("run", "--out", tmp_path / "run", "--proposer", f"chat:{NAME}@{url}", *words) == 0
        assert said(capsys) == found
        assert len(asked) == calls
    assert {role for role, _ in asked} == set(REPLY)
    assert found["problems"]["reply"] >= 3
    assert found["problems"]["design"] == 1
    assert found["problems"]["code"] == 1
    assert found["survivors"] == ["pi_3", "pi_2"]
    with Run.open(tmp_path / "run") as run:
        assert len(list(run.journal("reply"))) == calls
    hidden = CANONICAL["cue-parity"]
    for _, text in asked:  # the truth of the simulated participants stands in no prompt
        assert hidden.description not in text
        assert "cue-parity" not in text
        assert hidden.code not in text


@pytest.mark.slow
def test_a_prompt_that_holds_the_hidden_theory_ends_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard itself must be able to fail: a reviser that already knows the truth by heart."""
    monkeypatch.setattr("ramify.methods.theory_loop.loop.METRICS", 1)
    monkeypatch.setattr("ramify.methods.theory_loop.loop.DESIGNS", 1)
    told = {**REPLY["verdict"], "recommendation": CANONICAL["cue-parity"].description}
    model, _ = scripted(lambda role, count: json.dumps(told) if role == "verdict" else None)
    with serving(ModelServer(chat=model).app) as url:
        words = "--rounds 1 --iterations 1 --people 8 --runs 20 --participants simulated:cue-parity".split()
        assert loop("run", "--out", tmp_path / "run", "--proposer", f"chat:{NAME}@{url}", *words) == 2
    assert "hidden theory" in capsys.readouterr().err


@pytest.mark.slow
def test_agents_take_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that tallies is the participant; one that does not answer with a letter is left out, and said to be."""

    def tally(messages: Any, key: int) -> str:
        if "Ratings" not in shown(messages)[-1]:  # how a chat endpoint is asked whether its seeds repeat
            return "blue"
        a, b = (sum(json.loads(found)) for found in re.findall(r"Ratings of [AB]: (\[[^]]*\])", shown(messages)[-1]))
        return "I decline." if key % 7 == 0 and len(shown(messages)) == 1 else "A" if a > b else "B" if b > a else "AB"[key % 2]

    with serving(ModelServer(chat=ScriptedModel(tally, tokens=False, name=NAME)).app) as url:
        words = ("--rounds", 1, "--iterations", 2, "--people", 2, "--runs", 10, "--searched", 3, "--json")
        assert loop("run", "--out", tmp_path / "run", "--participants", f"agent:{NAME}", *words) == 2
        assert loop("run", "--out", tmp_path / "run", "--participants", f"agent:chat:{NAME}@{url}", *words) == 0
    assert said(capsys)["rounds"] == 1
    with Run.open(tmp_path / "run") as run:
        assert len(list(run.journal("subject"))) == 4
    gc.collect()  # a connection that is left open would be told here, as an error


@pytest.mark.slow
def test_it_says_where_it_is_in_a_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramify", "theory-loop", "run", "--out", "run", *map(str, SMALL)]
    with Terminal(columns=100) as terminal:
        terminal.execute(command, tmp_path, {**os.environ, "OMP_NUM_THREADS": "1"})
        assert terminal.wait() == 0
        assert any("round 1" in line for line in terminal.live)
        assert "survives" in terminal.text
        assert terminal.screen.wrapped == []


def test_the_battery_is_that_of_the_paper() -> None:
    design = hilbig()
    assert (design.pairs, design.repeats, design.validities) == (24, 4, (0.9, 0.8, 0.7, 0.6))
    assert {(b, a) for a, b in zip(design.a, design.b, strict=True)} == set(zip(design.a, design.b, strict=True))
