"""Real disks: one that is full, one that is read-only, devices, names that are long or no text;
and a second process on one run."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify.base.errors import RamifyError
from ramify.base.files import write_whole
from ramify.cli.main import main
from ramify.trace.db import Run
from ramify.trace.node import make_node

CHAT = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "x" * 2000}]}

SMALL = ("--updates", "1", "--tokens", "300", "--eval-episodes", "2", "--train-tasks", "4", "--tasks-per-update", "2")


def ramify(*words: object, folder: Path | None = None, out: str = "") -> subprocess.CompletedProcess:
    """The real command in a process of its own; ``out``: a file for its standard output."""
    command = [sys.executable, "-m", "ramify.cli.main", *(word if isinstance(word, bytes) else str(word) for word in words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(out or os.devnull, "wb") as file:
        done = subprocess.run(
            command, stdout=file if out else subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=environment, timeout=100
        )
    done.stderr = done.stderr.decode("utf-8", "replace")
    return done


def inside(capsys: pytest.CaptureFixture[str], *words: object) -> subprocess.CompletedProcess:
    """The same command in this process: for many at once that are refused before they do anything."""
    code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, *capsys.readouterr())


def refused(done: subprocess.CompletedProcess, code: int, words: str = "") -> str:
    """The one sentence of a command that could not."""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("ramify: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    return str(done.stderr)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(CHAT) + "\n" for _ in range(200)))
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Run.create(tmp_path / "run", {}) as made:
        made.add_tree("t", {})
        root = make_node("t", None, 0, "root", "")
        made.add(root, make_node("t", root.id, 0, "user", "x" * 5000))
    return tmp_path / "run"


def mount(folder: Path, options: str) -> None:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("NOT CHECKED: not root, so NO SMALL DISK COULD BE MOUNTED")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"NOT CHECKED: NO SMALL DISK COULD BE MOUNTED ({done.stderr.strip()})")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "small"
    mount(folder, "size=256k")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_import_onto_a_full_disk(small: Path, chats: Path) -> None:
    refused(ramify("import", chats, "--run", small / "run"), 1, "full")
    assert not (small / "run").exists()
    assert [path.name for path in small.iterdir()] == []
    assert main(["import", str(chats), "--run", str(small.parent / "run")]) == 0


def fill(folder: Path) -> int:
    """Write to a new run until the disk refuses; how many nodes were committed."""
    committed = 0
    with contextlib.suppress(RamifyError), Run.create(folder, {}) as run:
        run.add_tree("t", {})
        root = make_node("t", None, 0, "root", "")
        run.add(root)
        for index in range(10_000):
            run.add(make_node("t", root.id, 0, "user", "x" * 900, index=index))
            run.commit()
            committed = index + 2
    return committed


def test_a_run_on_a_disk_that_fills_up(small: Path) -> None:
    committed = fill(small / "run")
    assert 3 < committed < 1000
    with Run.open(small / "run") as run:
        assert len(run) == committed
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
    with Run.open(small / "run", write=True) as run:
        run.add(make_node("t", run.tree("t").root.id, 0, "user", "late"))
        assert len(run) == committed + 1


@pytest.mark.slow
def test_exports_onto_a_full_disk(small: Path, run: Path) -> None:
    (small / "old.jsonl").write_text("old")
    (small / "fill").write_bytes(bytes(250 << 10))
    for name in ("old.jsonl", "new.jsonl", "new.parquet", "new.dot", "new.html"):
        refused(ramify("export", run, small / name), 1, "No space left on device")
    assert {path.name for path in small.iterdir()} == {"old.jsonl", "fill"}
    assert (small / "old.jsonl").read_text() == "old"


@pytest.mark.slow
def test_improve_onto_a_full_disk(small: Path) -> None:
    (small / "fill").write_bytes(bytes(250 << 10))
    refused(ramify("improve", *SMALL, "--out", small / "run"), 1)
    assert not (small / "run" / "run.sqlite").exists()


@pytest.mark.parametrize("form", ["jsonl", *(pytest.param(form, marks=pytest.mark.slow) for form in ("dot", "html", "parquet"))])
def test_devices(run: Path, form: str) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("NOT CHECKED: there is no /dev/full here")
    refused(ramify("export", run, "/dev/full", "--to", form), 1, "No space left on device")
    assert main(["export", str(run), "/dev/null", "--to", form]) == 0
    assert Path("/dev/full").is_char_device()  # root could have replaced it by a file
    assert Path("/dev/null").is_char_device()


@pytest.mark.slow
def test_standard_output_on_a_full_disk(run: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("NOT CHECKED: there is no /dev/full here")
    for words in (["show", run], ["show", run, "--json"], ["list", "env"]):
        assert refused(ramify(*words, out="/dev/full"), 1, "No space left on device").startswith(
            "ramify: cannot write the output"
        )


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


@pytest.mark.slow
def test_a_read_only_disk(tmp_path: Path, run: Path, chats: Path) -> None:
    place = tmp_path / "fixed"
    mount(place, "size=8m")
    try:
        subprocess.run(["cp", "-r", str(run), str(place / "run")], check=True)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert b"1 tree" in ramify("show", place / "run").stdout
        assert ramify("export", place / "run", tmp_path / "out.jsonl").returncode == 0
        refused(ramify("export", place / "run", place / "out.jsonl"), 2, "Read-only file system")
        refused(ramify("show", place / "run", "--html", place / "out.html"), 2, "Read-only file system")
        refused(ramify("import", chats, "--run", place / "other"), 2, "Read-only file system")
        refused(ramify("improve", "--out", place / "new"), 2, "Read-only file system")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("name", ["y" * 255, pytest.param("y" * 250, marks=pytest.mark.slow)])
def test_names_as_long_as_they_can_be(tmp_path: Path, chats: Path, run: Path, name: str) -> None:
    assert main(["import", str(chats), "--run", str(tmp_path / name)]) == 0
    assert main(["export", str(run), str(tmp_path / (name[:-6] + ".jsonl"))]) == 0


@pytest.mark.slow
def test_names_that_are_too_long(tmp_path: Path, chats: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for long in ("y" * 256, "y/" * 3000):  # one name, one path
        refused(inside(capsys, "import", chats, "--run", tmp_path / long), 2)
        refused(inside(capsys, "import", tmp_path / long, "--run", tmp_path / "new"), 2)
        refused(inside(capsys, "export", run, tmp_path / f"{long}.jsonl"), 2)
        refused(inside(capsys, "show", tmp_path / long), 2)
        refused(inside(capsys, "show", run, "--html", tmp_path / long), 2)
        refused(inside(capsys, "improve", "--out", tmp_path / long), 2)
        refused(inside(capsys, "improve", "--config", tmp_path / long), 2)
    assert {path.name for path in tmp_path.iterdir()} == {"chats.jsonl", "run"}


@pytest.mark.slow
def test_names_that_are_no_text(tmp_path: Path, chats: Path, run: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/r\xff\xfen"
    assert ramify("import", chats, "--run", odd).returncode == 0
    assert ramify("show", odd).returncode == 0
    assert ramify("show", odd, "--json").returncode == 0
    assert ramify("export", odd, odd + b".jsonl").returncode == 0
    assert ramify("show", odd, "--html", odd + b".html").returncode == 0
    assert os.path.exists(odd + b".html")
    refused(ramify("show", odd + b"x"), 2)
    refused(ramify("show", b"\xff", folder=tmp_path), 2)


@pytest.mark.slow
def test_every_verb_that_writes_refuses_a_run_that_is_written(tmp_path: Path, chats: Path) -> None:
    assert ramify("improve", *SMALL, "--out", tmp_path / "run").returncode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as db, db:
        db.execute("DELETE FROM journal WHERE kind = 'result'")  # a run that is done would tell its result and write nothing
    with Run.open(tmp_path / "run", write=True) as run:
        node = run.tree(run.trees()[0].name).leaves()[0].id
        (tmp_path / "part").mkdir()
        for words in (["resume", tmp_path / "run"], ["fork", tmp_path / "run", node, "--n", "1"]):
            refused(ramify(*words), 2, "is being written by another process")
        refused(ramify("improve", *SMALL, "--out", tmp_path / "run"), 2, "holds a run already")
        refused(ramify("import", chats, "--run", tmp_path / "run"), 2, "exists already")
        for words in (["show", tmp_path / "run"], ["export", tmp_path / "run", tmp_path / "out.jsonl"]):
            assert ramify(*words).returncode == 0  # readers may read meanwhile
    with Run.create(tmp_path / ".part-new", {}):
        refused(ramify("import", chats, "--run", tmp_path / "new"), 2, "is being written by another process")
    assert ramify("import", chats, "--run", tmp_path / "new").returncode == 0  # what a dead import left is cleared away
    assert not (tmp_path / ".part-new").exists()
