"""Gives broken files to every reader, and broken runs to the verbs that read one: started by test_fuzz.py and full.py.

Usage: fuzz.py FOLDER COUNT SEED [FORMAT ...]. COUNT files in all, FORMATs in turn (``sqlite`` and ``values`` are runs whose file,
or whose stored values, are broken; ``world`` is the folder of a simulated environment, which is played). Each must be read, or
refused with an error of ours, within 5 seconds of processor time and 4 times the file's size of memory plus a constant. Prints
one line of JSON; a fault ends the process with the file's name.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import random
import shutil
import signal
import sqlite3
import sys
import warnings
from pathlib import Path
from typing import Any

from fuzz_seeds import write_seeds, write_world
from mutations import mutant

from ramify.base.errors import RamifyError
from ramify.cli.main import main as ramify
from ramify.methods.world_model.environment import simulated
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader, readers

SECONDS = 5
CONSTANT = 64 << 20
RUNS = ("sqlite", "values")
WORLD = "world"
ODD_VALUES = (
    None,
    0,
    -1,
    2**62,
    1e300,
    "",
    "x",
    "[",
    "{}",
    "[1]",
    "null",
    "NaN",
    '{"a":1e999}',
    '{"a":1}',
    "[" * 3000,
    b"",
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00" * 7,
    "\x00",
    "blob:zz",
    "9" * 5000,
)


class Watch:
    """Ends the process with a traceback where a file takes too long, and tells the peak of memory since it was set."""

    def __init__(self, seconds: int = SECONDS) -> None:
        self.seconds = seconds
        faulthandler.register(signal.SIGPROF, chain=True)

    def start(self) -> None:
        """From now on."""
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        Path("/proc/self/clear_refs").write_text("5")
        self.before = self._status("VmRSS")

    def stop(self) -> int:
        """Bytes at the peak beyond what there was before."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        return self._status("VmHWM") - self.before

    def _status(self, name: str) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) << 10


def read(form: str, file: Path, folder: Path, rng: random.Random) -> bool:
    """Read a file as ``ramify import`` does, by name or by what it looks like; whether it was accepted."""
    reader = readers()[form] if rng.random() < 0.8 else pick_reader(file)
    reader.read(file, folder)
    with Run.open(folder) as run:  # what is accepted is a run like any other
        assert next(run._rows("PRAGMA integrity_check")) == ("ok",)
        for tree in run.trees():
            run.tree(tree.name)
    return True


def play(folder: Path) -> bool:
    """Play a simulated environment whose folder is broken; whether it answered."""
    environment = simulated(str(folder))
    for task in environment.tasks:
        env = environment.make()
        env.reset(task, 0)
        for of in ("tea", "salt", "gold"):
            env.step(f'<tool_call>{{"name": "price", "arguments": {{"of": "{of}"}}}}</tool_call>')
            env.restore(env.snapshot())
        env.step("3 euro")
    return True


def verbs(folder: Path) -> list[list[Any]]:
    """Every verb that reads a run."""
    out = folder.parent / "out"
    return [
        ["show", folder, "--json"],
        ["show", folder],
        ["show", folder, "--html", f"{out}.html"],
        ["export", folder, f"{out}.jsonl"],
        *(["export", folder, f"{out}.parquet", "--records", kind] for kind in ("nodes", "journal")),
        ["export", folder, f"{out}.dot", "--tree", "chat"],
        ["resume", folder],
        ["fork", folder, "ab12"],
    ]


def show(words: list[Any]) -> bool:
    """Give a broken run to a verb that reads; whether it was accepted. It may refuse in one sentence, and no other way."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = ramify([str(word) for word in words])
    assert code in (0, 1, 2), code
    assert code == 0 or said.getvalue().count("\n") == 1, said.getvalue()
    if code:
        raise RamifyError(said.getvalue())
    return True


def broken_values(folder: Path, rng: random.Random) -> None:
    """Put odd values into the columns of a run."""
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        ]
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = rng.choice(tables)
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            column = rng.choice(columns)
            chosen = f"WHERE rowid = {_one(db, table, 'rowid', rng)}" if table not in ("scores",) else ""
            with contextlib.suppress(sqlite3.Error):
                if rng.random() < 0.2:
                    db.execute(f"DELETE FROM {table} {chosen}")
                elif rng.random() < 0.2:
                    db.execute(f"UPDATE {table} SET {column} = {_one(db, table, column, rng)} {chosen}")
                else:
                    db.execute(f"UPDATE {table} SET {column} = ? {chosen}", (rng.choice(ODD_VALUES),))
        db.commit()


def _one(db: sqlite3.Connection, table: str, column: str, rng: random.Random) -> str:
    """A query of one value of a column, sampled from ``rng``: SQLite's own random() is another in each run."""
    (count,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
    return f"(SELECT {column} FROM {table} LIMIT 1 OFFSET {rng.randrange(max(1, count))})"


def break_file(seed: Path, work: Path, others: list[bytes], rng: random.Random) -> tuple[Path, int]:
    """A broken copy of a good file, or of one file of a good folder, in ``work``; returns it and the size of all of it."""
    if not seed.is_dir():
        file = work / f"broken{seed.suffix}"
        return file, file.write_bytes(mutant(seed.read_bytes(), others, rng))
    folder = Path(shutil.copytree(seed, work / "broken"))
    files = files_of(folder)
    file = rng.choice(files)
    file.write_bytes(mutant(file.read_bytes(), others, rng))
    return folder, sum(file.stat().st_size for file in files)


def files_of(seed: Path) -> list[Path]:
    """A file, or the files of a folder."""
    return sorted(file for file in seed.rglob("*") if file.is_file()) if seed.is_dir() else [seed]


def break_run(form: str, folder: Path, runs: list[Path], rng: random.Random) -> int:
    """A broken copy of a good run; returns the size of its file."""
    shutil.copytree(rng.choice(runs), folder)
    file = folder / "run.sqlite"
    if form == "values":
        broken_values(folder, rng)
    else:
        data = file.read_bytes()
        file.write_bytes(mutant(data, [data], rng))
        if rng.random() < 0.1:
            (folder / "run.sqlite-wal").write_bytes(data[: rng.randrange(9000)])
    return file.stat().st_size


def main(root: Path, count: int, seed: int, forms: list[str]) -> None:
    root.mkdir(parents=True)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    rng = random.Random(seed)
    written = write_seeds(root) | {WORLD: [write_world(root / WORLD)]}
    assert play(root / WORLD)
    seeds = {form: files for form, files in written.items() if not forms or form in forms}
    runs = [root / "every-record", root / "chats-run"]
    forms = forms or [*seeds, *RUNS]
    others = [file.read_bytes() for files in seeds.values() for seed in files for file in files_of(seed)]
    for folder in runs:  # what is imported on demand is not a file's memory
        for words in verbs(folder):
            with contextlib.suppress(RamifyError):
                show(words)
    figures: dict[str, Any] = {form: {"files": 0, "read": 0, "refused": 0} for form in forms}
    watch, most, work = Watch(), 0.0, root / "work"
    for number in range(count):
        form = forms[number % len(forms)]
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if form in RUNS:
            size = break_run(form, work / "run", runs, rng)
        else:
            file, size = break_file(rng.choice(seeds[form]), work, others, rng)
        watch.start()
        fault = None
        try:
            if form in RUNS:
                accepted = show(rng.choice(verbs(work / "run")))
            else:
                accepted = play(file) if form == WORLD else read(form, file, work / "run", rng)
        except RamifyError as error:
            accepted, fault = False, error
        except BaseException as error:
            shutil.copytree(work, root / "fault", dirs_exist_ok=True)
            raise AssertionError(f"file {number} of seed {seed} ({form}), kept in {root / 'fault'}") from error
        used = watch.stop()
        if fault is not None:
            where = f"file {number} of seed {seed} ({form}): refused ({fault})"
            assert str(fault).strip(), where
            assert form in RUNS or not (work / "run").exists(), f"{where}, yet it left a run"
        assert used <= 4 * size + CONSTANT, f"file {number} of seed {seed} ({form}): {used} bytes for a file of {size}"
        most = max(most, used)
        figures[form]["files"] += 1
        figures[form]["read" if accepted else "refused"] += 1
    print(json.dumps({"files": count, "seed": seed, "most memory, MiB": round(most / (1 << 20), 1), "formats": figures}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
