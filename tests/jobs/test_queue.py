"""The queue: one job at a time, budgets, stop and continue, kills of the job and of who had asked for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from queue_runs import halls_run, steps_of_a
from waiting import until

from ramify.base.errors import RamifyError, UserError
from ramify.jobs.acts import Act, ActLimits, act_of
from ramify.jobs.queue import Queue
from ramify.render.result import to_text

SERVER = """
import sys, time
from pathlib import Path
from ramify.jobs.acts import ActLimits, act_of
from ramify.jobs.queue import Queue
folder, node, n = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
queue = Queue(folder)
for _ in range(2):
    queue.submit(act_of("fork", folder / "halls", {"node": node, "n": n}), ActLimits())
time.sleep(600)
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    made = Queue(tmp_path)
    yield made
    made.close()


def ended(queue: Queue, number: int) -> str:
    assert until(lambda: queue.state(number).over)
    return queue.state(number).state


def plain(*words: str) -> Act:
    return Act("fork", Path("run"), "nothing", words, 1)


def test_a_job_that_fails_says_why(queue: Queue) -> None:
    number = queue.submit(plain("fork", "--", "nowhere", "ab"), ActLimits()).number
    assert ended(queue, number) == "failed"
    assert queue.state(number).note.startswith("no run 'nowhere'")
    with pytest.raises(UserError, match="there is no job 9"):
        queue.state(9)


def test_jobs_of_others_are_shown_and_not_continued(queue: Queue, tmp_path: Path) -> None:
    number = queue.submit(plain("fork", "--", "nowhere", "ab"), ActLimits()).number
    ended(queue, number)
    file = tmp_path / ".jobs" / str(number) / "job.json"
    job = json.loads(file.read_text())
    for change in (
        {"words": ["record", "--", "touch", "x"]},
        {"seal": ""},
        {"seal": "0" * 64},
    ):  # a forged one, whoever had one of ours
        file.write_text(json.dumps(job | change))
        with pytest.raises(UserError, match="made elsewhere"):
            queue.resume(number)
    wrong = [job | {name: value} for name in job for value in (None, {"a": 1})]
    wrong += [job | {"asked": 1e300}, job | {"number": 9}]
    for content in ("", "[]", "{}", '{"number": 1}', "\0", *map(json.dumps, wrong)):
        file.write_text(content)
        with pytest.raises(UserError):
            queue.state(number)


def test_a_module_of_the_current_folder_is_not_ours(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("ramify", "json"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(here)
    assert ended(queue, queue.submit(plain("--version"), ActLimits()).number) == "done"
    assert not (tmp_path / "ran").exists()


def test_damaged_files_of_a_job_are_said(queue: Queue, tmp_path: Path) -> None:
    number = queue.submit(plain("--version"), ActLimits()).number
    assert ended(queue, number) == "done"
    folder = tmp_path / ".jobs" / str(number)
    for content in ('{"done": "x"}', '{"note": 5}', '{"tokens": null}', '{"took": [1]}', "[]", ""):
        (folder / "state.json").write_text(content)
        assert queue.state(number).state == "done"
        assert "state.json" in queue.state(number).note
    for content in ("[]", '{"sections": 5}', '{"caveats": 5}', '{"caveats": [1]}', '{"sections": [{"title": 3}]}'):
        (folder / "result.json").write_text(content)
        with pytest.raises(UserError, match="result"):
            queue.result(number)
    (folder / "log.txt").unlink()
    os.mkfifo(folder / "log.txt")
    assert queue.log(number) == ""


def test_to_look_at_jobs_writes_nothing(queue: Queue, tmp_path: Path) -> None:
    number = queue.submit(plain("--version"), ActLimits()).number
    ended(queue, number)
    for name in ("lock", "end.json"):
        (tmp_path / ".jobs" / str(number) / name).unlink()
    assert queue.state(number).state == "stopped"
    assert not (tmp_path / ".jobs" / str(number) / "lock").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".jobs").write_text("")
    with pytest.raises(RamifyError, match="cannot write"):
        Queue(tmp_path).submit(plain("--version"), ActLimits())


def test_what_waits_when_its_server_is_gone_is_stopped(queue: Queue, tmp_path: Path) -> None:
    ended(queue, queue.submit(plain("--version"), ActLimits()).number)
    folder = tmp_path / ".jobs" / "1"
    (folder / "end.json").unlink()  # as it is where the server was killed before it wrote one
    assert until(lambda: queue.state(1).state == "stopped")
    queue.resume(1)
    assert ended(queue, 1) == "done"
    with pytest.raises(UserError, match="is done"):
        queue.resume(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halls_run(tmp_path_factory.mktemp("queue") / "halls")


@pytest.mark.slow
def test_an_edit_is_compared_and_a_killed_job_continues(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, step = Queue(made.parent), steps_of_a(made, False)[1]
    monkeypatch.setenv("HALL_SECONDS", "0.1")
    job = queue.submit(act_of("edit", made, {"node": step, "text": "Go left.", "n": 20}), ActLimits())
    assert until(lambda: queue.state(job.number).done >= 4)
    assert queue.state(job.number).note.startswith("edited ")
    (child,) = _children()
    os.kill(child, signal.SIGKILL)
    assert ended(queue, job.number) == "stopped"
    monkeypatch.setenv("HALL_SECONDS", "0")
    before = _stored(made)
    assert before >= 3
    queue.resume(job.number)
    assert ended(queue, job.number) == "done"
    assert _stored(made) == 40
    sections, _ = queue.result(job.number)
    assert "20" in to_text(sections)
    queue.close()


@pytest.mark.slow
def test_stop_keeps_what_is_done_and_budgets_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = halls_run(tmp_path / "halls")
    queue, step = Queue(tmp_path), steps_of_a(made, False)[1]
    monkeypatch.setenv("HALL_SECONDS", "0.1")
    job = queue.submit(act_of("fork", made, {"node": step, "n": 100}), ActLimits())
    waits = queue.submit(act_of("fork", made, {"node": step, "n": 100}), ActLimits())
    assert until(lambda: queue.state(job.number).done >= 2)
    assert queue.state(waits.number).state == "waiting"
    queue.stop(waits.number)
    queue.stop(job.number)
    assert (ended(queue, job.number), ended(queue, waits.number)) == ("stopped", "stopped")
    assert queue.state(job.number).note == "it was stopped"
    assert 2 <= _stored(made) < 100
    tokens = queue.submit(act_of("fork", made, {"node": step, "n": 100}), ActLimits(tokens=300)).number
    seconds = queue.submit(act_of("fork", made, {"node": step, "n": 100}), ActLimits(seconds=3)).number
    assert (ended(queue, tokens), ended(queue, seconds)) == ("stopped", "stopped")
    assert "budget of tokens" in queue.state(tokens).note
    assert "budget of seconds" in queue.state(seconds).note
    queue.close()


@pytest.mark.slow
def test_a_killed_server_takes_its_job_with_it_and_both_jobs_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = halls_run(tmp_path / "halls")
    step = steps_of_a(made, False)[1]
    environment = {**os.environ, "HALL_SECONDS": "0.1"}
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path), step, "60"], env=environment)
    other = Queue(tmp_path)
    assert until(lambda: other.numbers() == [2, 1] and other.state(1).done >= 2)
    mine = other.submit(act_of("fork", made, {"node": step, "n": 1}), ActLimits()).number
    time.sleep(0.5)
    assert [other.state(number).state for number in (1, 2, mine)] == ["running", "waiting", "waiting"]  # one at a time
    server.kill()
    server.wait()
    assert (ended(other, 1), ended(other, 2), ended(other, mine)) == ("stopped", "stopped", "done")
    monkeypatch.setenv("HALL_SECONDS", "0")
    for number in (1, 2):
        other.resume(number)
    assert (ended(other, 1), ended(other, 2)) == ("done", "done")
    other.close()


def _children() -> list[int]:
    """Processes that this one started as jobs."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                words = (stat.parent / "cmdline").read_bytes().split(b"\0")
                pids += [int(stat.parent.name)] if b"ramify" in words else []
    return pids


def _stored(run: Path) -> int:
    from ramify.trace.db import Run

    with Run.open(run) as opened:
        return sum(record.fork for record in opened.attempts())
