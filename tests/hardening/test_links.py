"""Links inside a run folder that somebody else made: nothing beyond the folder is read or written over."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from ramify.base.errors import UserError
from ramify.cli.main import main
from ramify.trace.db import Run

FILES = ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "run.sqlite-journal", "run.lock", "blobs")
VERBS = (
    ["show", "theirs"],
    ["export", "theirs", "out.jsonl"],
    ["resume", "theirs"],
    ["check", "run", "theirs"],
    ["fork", "theirs", "0" * 12],
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in the current folder, beside a file of the user's own."""
    monkeypatch.chdir(tmp_path)
    chat = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    assert main(["import", "chat.jsonl", "--run", "theirs"]) == 0
    (tmp_path / "mine").write_text("precious\n")
    return tmp_path / "theirs"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verb", VERBS, ids=lambda words: words[0])
def test_a_file_of_a_run_that_is_a_link(theirs: Path, name: str, verb: list[str], capsys: pytest.CaptureFixture) -> None:
    (theirs / name).unlink(missing_ok=True)
    (theirs / name).symlink_to(theirs.parent / "mine")
    before = {path: path.read_bytes() for path in theirs.parent.rglob("*") if path.is_file()}
    assert main(verb) == 2
    assert "is a link" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in theirs.parent.rglob("*") if path.is_file()} == before


def test_a_link_to_a_run_of_the_users_own(theirs: Path) -> None:
    shutil.copytree(theirs, "own")
    (theirs / "run.sqlite").unlink()
    (theirs / "run.sqlite").symlink_to(Path("own/run.sqlite").absolute())
    with pytest.raises(UserError, match="is a link"):
        Run.open(theirs, write=True)


def test_the_folder_itself_may_be_a_link(theirs: Path) -> None:
    Path("here").symlink_to(theirs)
    assert main(["show", "here"]) == 0


def test_a_new_run_over_somebodys_links(theirs: Path) -> None:
    made = Path("made")
    made.mkdir()
    (made / "run.sqlite-wal").symlink_to(Path("mine").absolute())
    assert main(["import", "chat.jsonl", "--run", "made"]) == 2
    assert Path("mine").read_text() == "precious\n"


def test_blobs_that_are_links_or_devices(theirs: Path) -> None:
    with Run.open(theirs, write=True) as run:
        name = run.blobs.put(b"a snapshot")
    path = theirs / "blobs" / name[:2] / name[2:]
    assert stat.S_ISREG(path.lstat().st_mode)
    for target in ("/dev/zero", "/etc/hostname"):
        path.unlink()
        path.symlink_to(target)
        with Run.open(theirs) as run, pytest.raises(UserError, match="not a plain file"):
            run.blobs.get(name)
    path.unlink()
    os.mkfifo(path)
    with Run.open(theirs) as run, pytest.raises(UserError, match="not a plain file"):
        run.blobs.get(name)
    shutil.rmtree(path.parent)
    Path("elsewhere").mkdir()
    path.parent.symlink_to(Path("elsewhere").absolute())
    with Run.open(theirs, write=True) as run, pytest.raises(UserError, match="is a link"):
        run.blobs.put(b"a snapshot")
    assert list(Path("elsewhere").iterdir()) == []
