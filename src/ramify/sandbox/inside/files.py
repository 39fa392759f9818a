"""Inside a container: ``files.py put`` writes the files that come on standard input,
``files.py get MOST PATTERN...`` sends files back.

Input of ``put``: u64 length (little-endian), JSON ``[[path, size, executable], ...]``, then the bytes one after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys


def main(verb: str, *words: str) -> None:
    """Run one verb in the current folder."""
    if verb == "get":
        sys.path.insert(0, "/ramify-child")
        import collect  # type: ignore[import-not-found]

        collect.collect(list(words[1:]), os.getcwd(), 1, int(words[0]))
        return
    source = sys.stdin.buffer
    for path, size, executable in json.loads(source.read(struct.unpack("<Q", source.read(8))[0])):
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if executable else 0o644)
        with open(handle, "wb") as file:
            file.write(source.read(size))


if __name__ == "__main__":
    main(*sys.argv[1:])
