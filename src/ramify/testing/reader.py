"""The conformance battery every reader of traces must pass: what ``ramify import`` relies on, each point one check."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base.errors import NeedsError, RamifyError
from ramify.base.problem import Problem
from ramify.testing.probe import run_checks
from ramify.trace.db import Run
from ramify.trace.formats import Reader, pick_reader
from ramify.trace.integrity import check_run
from ramify.trace.node import Node

_ODD: tuple[Any, ...] = (None, 3, "x", [], {}, [3], {"x": 1})


def check_reader(reader: Reader) -> list[Problem]:
    """Run every check in a folder of its own; no problem means the reader conforms.
    What needs a good file is checked where the reader has an ``example``.

    Raises NeedsError where what the reader needs is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = _Probe(reader, Path(folder))
        probe.refusal("absent", None)
        return run_checks(CHECKS, probe)


@dataclass(frozen=True)
class _Probe:
    reader: Reader
    folder: Path

    def write(self, name: str, content: bytes | None) -> Path:
        file = self.folder / name
        if content is not None:
            file.write_bytes(content)
        return file

    def refusal(self, name: str, content: bytes | None) -> str | None:
        """A fault in how the reader handles a file; None where it reads it, or refuses it properly."""
        file, run = self.write(f"{name}.jsonl", content), self.folder / f"{name}-run"
        try:
            self.reader.read(file, run)
        except NeedsError:
            raise
        except RamifyError as error:
            if "\n" in str(error) or str(self.folder) not in str(error):
                return f"it refuses {name} with a sentence that does not name the file: {str(error)[:200]!r}"
            return f"it leaves something behind when it refuses {name}" if run.exists() else None
        except Exception as error:
            return f"it answers {name} with {type(error).__name__} ({str(error)[:100]}), instead of a UserError of one sentence"
        return None if (run / "run.sqlite").is_file() else f"it reads {name} and makes no run"

    @property
    def example(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.reader.example.splitlines()]
        return [line for line in lines if isinstance(line, dict)]


def _says_what_it_reads(probe: _Probe) -> Iterator[str]:
    if not probe.reader.name or not probe.reader.help or "\n" in probe.reader.help:
        yield "a reader has a name, and one line of help"


def _matches_without_raising(probe: _Probe) -> Iterator[str]:
    odd: list[Mapping[str, Any] | None] = [None, {}]
    odd += [{name: value} for record in probe.example or [{"messages": 0}] for name in record for value in _ODD]
    for first in odd:
        try:
            fits = probe.reader.matches(probe.folder / "absent", first)
        except Exception as error:
            yield f"'matches' raises {type(error).__name__} on {json.dumps(first)[:80]}: it says True or False, of anything"
            continue
        if first in (None, {}) and fits:
            yield "'matches' accepts a file that does not exist"


def _refuses_what_is_none(probe: _Probe) -> Iterator[str]:
    broken = {
        "a file that is absent": None,
        "an empty file": b"",
        "bytes": b"\xff\xfe\x00",
        "cut": b'{"a": [1,',
        "a list": b"[]",
        "a number": b"3\n",
        "an object": b"{}\n",
    }
    for name, content in broken.items():
        fault = probe.refusal(name, content)
        if fault is None and (probe.folder / f"{name}-run").exists():
            fault = f"it reads {name} as if it were a trace"
        if fault:
            yield fault


def _reads_its_example(probe: _Probe) -> Iterator[str]:
    if not probe.reader.example:
        return
    file = probe.write("example.jsonl", probe.reader.example.encode())
    seen = pick_reader(file).name  # raises where it fits several
    if seen != probe.reader.name and probe.reader.matches(file, probe.example[0] if probe.example else None):
        yield f"its example is taken for '{seen}'"
    ids = []
    for name in ("first", "second"):
        count = probe.reader.read(file, probe.folder / name)
        if count < 1:
            yield f"it reports {count} records read"
        for problem in check_run(probe.folder / name):
            yield f"the run it makes is damaged: {problem.message}"
        with Run.open(probe.folder / name) as run:
            ids.append([node.id for node in run.each(Node)])
    if ids[0] != ids[1]:
        yield "the same file read twice gives other nodes"


def _breaks_in_one_sentence(probe: _Probe) -> Iterator[str]:
    for at, record in enumerate(probe.example):
        for name in record:
            for number, value in enumerate(_ODD):
                changed = json.dumps(record | {name: value}).encode() + b"\n"
                fault = probe.refusal(f"'{name}' of record {at} as odd value {number}".replace("/", "-"), changed)
                if fault:
                    yield fault
    whole = probe.reader.example.encode()
    for share in (1, 2, 3):
        fault = probe.refusal(f"the first {share} quarters", whole[: len(whole) * share // 4])
        if fault:
            yield fault


CHECKS = [_says_what_it_reads, _matches_without_raising, _refuses_what_is_none, _reads_its_example, _breaks_in_one_sentence]
