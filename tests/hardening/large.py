"""Gives files of 20 MB to every registered reader that has an example: started by test_fuzz.py.

Usage: large.py FOLDER [READER ...]. Each file is made of the example: many records, each with a long text, and one record with
one of its lists as long as that. Each must be read, or refused with an error of ours, within 4 times the file's size of memory.
Prints one line of JSON: reader -> what became of each file, and the most memory over its size.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuzz import Watch

from ramify.base.errors import RamifyError
from ramify.trace.formats import Reader, readers

SIZE = 20_000_000
TEXT = 100_000


def files(reader: Reader, folder: Path) -> Iterator[Path]:
    """The large files of a reader."""
    records = [json.loads(line) for line in reader.example.splitlines()]
    many, lists = folder / "many.jsonl", [*_lists(records[0])]
    with many.open("w") as out:
        for number in range(SIZE // (TEXT * len(records))):
            for record in records:
                out.write(json.dumps({**record, "note": f"{number} " + "x" * TEXT}) + "\n")
    yield many
    if lists:
        longest = max(lists, key=lambda values: len(json.dumps(values)))
        longest[:] = [{**item, "note": "x" * TEXT} for item in longest] * (1 + SIZE // (TEXT * len(longest)))
        whole = folder / "whole.json"
        whole.write_text(json.dumps(records[0], indent=1))
        yield whole


def _lists(value: Any) -> Iterator[list[Any]]:
    """The lists of objects in a record."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield value
    for inside in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _lists(inside)


def main(root: Path, names: list[str]) -> None:
    watch, figures = Watch(seconds=60), dict[str, Any]()
    for name, reader in readers().items():
        if not reader.example.startswith("{") or (names and name not in names):
            continue
        folder = root / name
        folder.mkdir(parents=True)
        ends: list[str] = []
        most = 0.0
        for file in files(reader, folder):
            watch.start()
            try:
                reader.read(file, folder / "run")
                ends.append("read")
            except RamifyError:
                assert not (folder / "run").exists(), f"{name}: {file.name}: it left a run"
                ends.append("refused")
            most = max(most, watch.stop() / file.stat().st_size)
            assert most <= 4, f"{name}: {file.name}: {most:.1f} times the file's size"
            shutil.rmtree(folder / "run", ignore_errors=True)
        figures[name] = {"ends": ends, "most": round(most, 2)}
        shutil.rmtree(folder)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
