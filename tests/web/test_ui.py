"""The pages of all runs: states, what was left off, what comes next, and what must not be reached."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from raw_client import serving
from test_server import get
from web_sample import make_run

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.jobs.summary import summarise
from ramify.trace import convert, formats
from ramify.trace.connect import FILE
from ramify.trace.db import Run
from ramify.web import shelf as shelves
from ramify.web.pages import report_html
from ramify.web.place import needs, runs_html
from ramify.web.server import ServedRuns, guarded_pages
from ramify.web.shelf import ListedRun, Shelf
from ramify.web.way import STATIONS, LeftOff, advice, answers, key_of, left_off, name_of, nav_of

HALL = ["--model", "factory:tests.halls:agent", "--env", "factory:tests.halls:Halls"]
LOGS = ("tau-bench", "claude-code", "verifiers", "who-and-when", "chats", "atif")


class Text(HTMLParser):
    """The words of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words = ""
        self.feed(page)

    def handle_data(self, data: str) -> None:
        if self.lasttag not in ("script", "style"):
            self.words += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What may lie in a folder: a rollout that was asked about, logs, runs that train, a damaged and an empty one."""
    folder = tmp_path_factory.mktemp("runs") / "runs"
    assert main(["rollout", "--count", "2", "--attempts", "3", *HALL, "--out", str(folder / "played"), "--json"]) == 0
    assert main(["why", str(folder / "played"), "--n", "4", "--json"]) in (0, 3)
    for form in LOGS:
        log = folder.parent / f"{form}.log"
        log.write_text(str(formats.readers()[form].example))
        convert.read_run(log, folder / "logs" / form)
    make_run(folder / "trained")
    make_run(folder / "training", finished=False)
    with Run.open(folder / "training", write=True) as run:
        run._write("INSERT OR REPLACE INTO meta VALUES ('verb', '\"improve\"')")
    shutil.copytree(folder / "played", folder / "damaged")
    (folder / "damaged" / FILE).write_bytes(b"SQLite format 3\0" + b"x" * 9000)
    (folder / "empty").mkdir()
    (folder / "empty" / FILE).touch()
    (folder / "nothing").mkdir()
    (folder.parent / "secret").mkdir()
    make_run(folder.parent / "secret" / "run", updates=1, tasks=1)
    return folder


def rows_of(folder: Path) -> dict[str, ListedRun]:
    return {row.name: row for row in Shelf(folder).runs(60)}


def test_every_run_is_listed_with_its_state(runs: Path) -> None:
    rows = rows_of(runs)
    logs = {f"logs/{form}" for form in LOGS}
    assert rows.keys() == {"played", "trained", "training", "damaged", "empty", *logs}
    assert {rows[name].state for name in ("played", "trained", *logs)} == {"finished"}
    assert {rows[name].state for name in ("damaged", "empty")} == {"damaged"}
    assert rows["training"].state == "stopped"
    assert [one.command for one in rows["training"].left] == [f"ramify resume {shlex.quote(str(runs / 'training'))}"]
    assert "empty" in rows["empty"].trouble
    assert rows["logs/tau-bench"].env == "log: tau-bench"
    assert rows["played"].env == "factory:tests.halls:Halls"


def test_a_row_says_what_show_says(runs: Path) -> None:
    compared = 0
    for name, row in rows_of(runs).items():
        if row.state == "damaged":
            continue
        with Run.open(row.folder) as run:
            said = summarise(run)
        if said.evals:
            last = list(said.evals.values())[-1]
            assert (row.success, row.interval, row.attempts) == (last.success, last.interval, last.n), name
        elif said.attempts is None:
            assert row.success is None, name
        else:
            share = said.attempts.successes / said.attempts.n
            assert (row.success, row.interval, row.attempts) == (share, said.attempts.interval, said.attempts.n), name
        compared += 1
    assert compared == 9


@pytest.mark.skipif(not shelves.LOCKS.exists(), reason="NOT CHECKED: the kernel does not list its locks")
def test_a_run_that_is_written_to_is_running(runs: Path) -> None:
    with Run.open(runs / "played", write=True):
        assert rows_of(runs)["played"].state == "running"
        assert {row.state for row in rows_of(runs).values() if row.name != "played"} == {"finished", "stopped", "damaged"}
    assert rows_of(runs)["played"].state == "finished"


@pytest.mark.skipif(not shelves.LOCKS.exists(), reason="NOT CHECKED: the kernel does not list its locks")
def test_what_still_runs_was_not_left_off(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs / "played", copy)
    with Run.open(copy, write=True) as run:
        step = run.findings(maker="why")[0].node
        run.log("fix", "0", {"node": step})  # as a `ramify fix` does that has not ended
        run.commit()
        assert "left off" not in report_html(run, nav_of(run, "run", "record"))
    with Run.open(copy) as run:
        assert "<code>ramify fix</code> was left off; the same command continues it." in report_html(
            run, nav_of(run, "run", "record")
        )


def test_what_was_left_off_is_said_with_what_continues_it(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs / "played", copy)
    with Run.open(copy) as run:
        assert list(left_off(run)) == []
    with sqlite3.connect(copy / FILE) as db:  # as a kill leaves it: continuations and no answer
        db.execute("DELETE FROM findings")
        db.execute("DELETE FROM results")
    with Run.open(copy) as run:
        (left,) = left_off(run)
    assert left.what == "ramify why"
    assert main([*shlex.split(left.command)[1:], "--n", "4", "--json"]) in (0, 3)
    with Run.open(copy) as run:
        assert list(left_off(run)) == []
    with sqlite3.connect(copy / FILE) as db:
        db.execute("DELETE FROM journal WHERE seq = (SELECT max(seq) FROM journal WHERE kind = 'attempt')")
    with Run.open(copy) as run:
        (left,) = left_off(run)
    assert main(shlex.split(left.command)[1:]) == 0
    with Run.open(copy) as run:
        assert list(left_off(run)) == []


def test_a_fork_that_was_interrupted_was_left_off(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs / "played", copy)
    with Run.open(copy) as run:
        node = next(one.id for one in run.nodes(run.trees()[0].name) if one.role == "assistant")
    assert main(["fork", str(copy), node, "--n", "2"]) == 0
    with Run.open(copy) as run:
        assert list(left_off(run)) == []
    with sqlite3.connect(copy / FILE) as db:  # as a kill leaves it: a start and no end
        db.execute("DELETE FROM journal WHERE kind = 'forked'")
    with Run.open(copy) as run:
        assert list(left_off(run)) == [LeftOff("ramify fork", "")]
        assert "<code>ramify fork</code> was left off; the same command continues it." in report_html(
            run, nav_of(run, "run", "record")
        )


def test_a_station_shows_what_is_stored_and_says_what_comes_next(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.open(runs / "played") as run:
        (why,) = answers(run, "why")
        nav = nav_of(run, "played", "why")
        commands = {station: advice(run, station) for station in ("why", "cause", "fix", "test")}
    assert [count for _, _, count in nav.way] == ["", "1", "", "", ""]
    assert why.headline
    assert commands["fix"][1].endswith(" --rule TEXT")
    for station, (_, command) in commands.items():
        assert main([*shlex.split(command)[1:], *([] if station == "test" else ["--dry-run"])]) in (0, 3), command
    capsys.readouterr()


def test_commands_about_a_log_lead_on(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs / "logs" / "claude-code", copy)
    with Run.open(copy) as run:
        says, command = advice(run, "why")
        task = run.trees()[0].name
    assert command.endswith("--outcomes FILE")
    outcomes = tmp_path / "outcomes.json"
    outcomes.write_text(says.split("`")[1])
    assert main([*shlex.split(command)[1:-1], str(outcomes)]) == 0
    with Run.open(copy) as run:
        assert advice(run, "why") == ("", f"ramify why {copy}")
        says, command = advice(run, "cause")
        assert command == f"ramify why {copy}", task
    assert main(shlex.split(command)[1:]) == 0
    monkeypatch.setenv("RAMIFY_ENDPOINTS", "http://127.0.0.1:1/v1")
    with Run.open(copy) as run:
        says, command = advice(run, "fix")
    assert "does not name who plays" in says
    assert command.endswith(" --rule TEXT --model chat:claude-x@http://127.0.0.1:1/v1 --env ENV")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../secret/run", "/etc", "played/", "played/../trained", ".hidden", "a/b/c/d", "nothing", "x\0y", "link/run"],
)
def test_no_other_folder_is_reached(runs: Path, name: str) -> None:
    link = runs / "link"
    if not link.is_symlink():
        link.symlink_to(runs.parent / "secret")
    with pytest.raises(UserError, match="there is no run"):
        Shelf(runs).find(name)
    assert not any(row.name.startswith("link") for row in Shelf(runs).runs(60))
    link.unlink()


def test_a_name_is_one_part_of_an_address() -> None:
    for name in ("a", "a/b", "a~1b", "a~0/~1", "ü ?#%2F&<x>", "~", "/"):
        key = key_of(name)
        assert "/" not in key
        assert name_of(unquote(key)) == name


def test_pages_answer_and_say_what_is_not_there(runs: Path) -> None:
    with serving(guarded_pages(ServedRuns(runs))) as port:
        at = f"127.0.0.1:{port}"
        for path, words in (
            ("/", "What was left off"),
            ("/runs", "11 runs"),
            ("/runs?state=damaged&sort=run", "2 of 11 runs"),
            ("/words", "beyond chance"),
            ("/run/played/", "succeeded"),
            ("/run/logs~1tau-bench/", "Run tau-bench"),
            *((f"/run/played/{station}", "What the words mean") for station in STATIONS),
        ):
            status, _, body = get(at, path)
            assert (status, words in Text(body).words) == (200, True), path
            assert '<a class="skip" href="#content">' in body
        for path, status in (
            ("/run/damaged/", 404),
            ("/run/nothing/", 404),
            ("/run/..~1secret~1run/", 404),
            ("/run/%2e%2e%2fsecret%2frun/", 404),
            ("/run/..%2f..%2fetc/passwd", 404),
            ("/run/played/why/none", 404),
            ("/run/played/nowhere", 404),
            ("/run/played/changed", 200),
            ("/run/none/changed", 404),
        ):
            got, _, body = get(at, path)
            assert got == status, path
            assert "Traceback" not in body
            assert "+37.5" not in body


def test_one_run_alone_serves_no_other(runs: Path) -> None:
    with serving(guarded_pages(ServedRuns.of(runs / "played", alone=True))) as port:
        at = f"127.0.0.1:{port}"
        assert get(at, "/run/played/")[0] == 200
        assert get(at, "/run/trained/")[0] == 404
        assert "trained" not in Text(get(at, "/runs")[2]).words


def test_two_people_read_while_a_run_grows_and_another_goes(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make_run(folder / "grows", updates=1, tasks=1)
    make_run(folder / "goes", updates=1, tasks=1)
    stop = threading.Event()

    def grow() -> None:
        with Run.open(folder / "grows", write=True) as run:
            at = 0
            while not stop.wait(0.01):
                run.log("noise", str(at), {"at": at})
                run.commit()
                at += 1

    writer = threading.Thread(target=grow)
    writer.start()
    paths = ["/", "/runs", "/run/grows/", "/run/grows/why", "/run/goes/", "/run/goes/trees", "/run/goes/changed"] * 2
    try:
        with serving(guarded_pages(ServedRuns(folder))) as port, ThreadPoolExecutor(2) as people:
            seen = list(people.map(lambda path: get(f"127.0.0.1:{port}", path)[0], paths))
            assert set(seen) == {200}
            shutil.rmtree(folder / "goes")
            seen = list(people.map(lambda path: get(f"127.0.0.1:{port}", path)[0], paths))
            assert seen == [404 if "goes" in path else 200 for path in paths]
    finally:
        stop.set()
        writer.join()


def test_a_list_reads_a_run_again_only_where_it_changed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = shelves.read_row

    def counting(folder: Path, name: str, running: bool, changed: float) -> ListedRun:
        read.append(name)
        return real(folder, name, running, changed)

    monkeypatch.setattr(shelves, "read_row", counting)
    shelf = Shelf(runs)
    assert len(shelf.runs(60)) == len(read) == 11
    shelf.runs(60)
    assert len(read) == 11
    with Run.open(runs / "trained", write=True) as run:
        run.log("noise", str(os.getpid()))
    shelf.runs(60)
    assert read[11:] == ["trained"]


def test_what_is_not_read_in_time_is_said_and_read_meanwhile(runs: Path) -> None:
    shelf = Shelf(runs)
    assert {row.state for row in shelf.runs(0)} == {"unread"}
    for thread in threading.enumerate():
        if thread.name == "ramify-shelf":
            thread.join(60)
    assert "unread" not in {row.state for row in shelf.runs(0)}


def test_a_thousand_runs_are_sorted_filtered_and_paged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = [
        ListedRun(f"r{i:04d}", tmp_path / f"r{i}", float(i), "finished" if i % 3 else "stopped", "rollout", success=i / 1000)
        for i in range(1000)
    ]
    monkeypatch.setattr(Shelf, "runs", lambda self, seconds=1.0: made[::-1])
    shelf = Shelf(tmp_path)

    def names(**asked: Any) -> list[str]:
        words = runs_html(shelf, asked)
        return [part[:5] for part in words.split('/">')[1:] if part[0] == "r"]

    assert names()[:2] == ["r0999", "r0998"]
    assert names(sort="success", page="5")[-1] == "r0999"
    assert names(sort="success", back="1")[0] == "r0999"
    assert names(state="stopped", sort="run")[:2] == ["r0000", "r0003"]
    assert len(names()) == 200
    assert names(page="99", sort="nothing")[-1] == "r0000"


def test_the_checklist_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RAMIFY_ENDPOINTS", "http://127.0.0.1:9/v1")
    found = needs([])
    assert [need.says for need in found[:1] + found[3:]] == [""] * 4
    assert found[3].command == "ramify rollout --attempts 12"
    (tmp_path / "claude").touch(0o755)
    (tmp_path / ".git").mkdir()
    again = needs([ListedRun("a", tmp_path / "a", 0.0, success=0.5, answers=("why",))])
    assert [need.says for need in again[1:]] == ["claude", str(tmp_path), "1 run", "1 run", "1 run"]
