"""Runs the commands that only read twice, and looks whether the first call added to a run at most what it found, and the second
left every file as it was: started by test_kills.py. Prints how many.

Usage: readers.py FOLDER.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from fault_jobs import content
from kill_table import READERS

BESIDE = ("run.sqlite-wal", "run.sqlite-shm", "run.lock")


def files(folder: Path) -> dict[str, bytes]:
    """What every file holds, but for those that SQLite needs to read."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in BESIDE
    }


def records(folder: Path) -> dict[Path, list[Any]]:
    """What every run holds but for the results of verbs."""
    runs = {path.parent for path in folder.rglob("run.sqlite")}
    return {run: [line for line in content(run) if line["kind"] != "result"] for run in sorted(runs)}


def main(root: Path) -> None:
    for number, reader in enumerate(READERS):
        folder = root / str(number)
        folder.mkdir(parents=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            reader.prepare(folder)
            before, held = files(folder), records(folder)
            reader.act(folder)
            added = [name for name, what in files(folder).items() if before.get(name) != what]
            assert all(name.endswith("run.sqlite") for name in added), f"{reader.words}: {added}"
            assert records(folder) == held, reader.words
            before = files(folder)
            code = reader.act(folder)
        assert code in (0, 1, 4), (
            reader.words,
            code,
            said.getvalue(),
        )  # 1 and 4: that nothing stands out, or nothing could be judged
        after = files(folder)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        assert not changed, f"{reader.words}: {changed}"
    print(json.dumps(len(READERS)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
