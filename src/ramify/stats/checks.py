"""Checks (a value against a threshold) and cells (the resumable units of an experiment).

A cell is one call of a function with named arguments whose JSON result is kept under a key. Cells live in a folder, one file each,
written whole or not at all, so an interrupted experiment goes on where it stopped; without a folder they live in memory.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ramify.base.errors import RamifyError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.progress import SILENT, Progress
from ramify.stats.intervals import mean_t, wilson

_OPS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One measured value against one threshold.

    Raises ValueError on an unknown operator, or when the operator compares and there is no threshold.
    """

    name: str
    value: float
    interval: tuple[float, float] | None
    """Lower and upper end in the unit of ``value``, or None where the value is exact."""
    n: int
    """Number of independent observations behind the value."""
    seeds: tuple[int, ...]
    op: str
    """One of ``>= <= > < ==``, or ``report``: shown, never judged."""
    threshold: float | None = None
    known_miss: str = ""
    """Reason why a miss is expected, with the page that discusses it; empty where none is."""

    def __post_init__(self) -> None:
        if self.op != "report" and self.op not in _OPS:
            raise ValueError(f"check {self.name!r}: unknown operator {self.op!r}")
        if self.op != "report" and self.threshold is None:
            raise ValueError(f"check {self.name!r}: {self.op} needs a threshold")

    @classmethod
    def mean(
        cls,
        name: str,
        values: Sequence[float] | np.ndarray,
        seeds: Sequence[int],
        op: str = "report",
        threshold: float | None = None,
        known_miss: str = "",
    ) -> Self:
        """The mean of independent values, (n,), with Student's interval where there are several; nan of none."""
        interval = mean_t(values) if len(values) > 1 else None
        value = float(np.mean(values)) if len(values) else math.nan
        return cls(name, value, interval, len(values), tuple(seeds), op, threshold, known_miss)

    @classmethod
    def share(cls, name: str, k: int, n: int, seeds: Sequence[int], op: str = "report", threshold: float | None = None) -> Self:
        """``k`` of ``n``, with Wilson's interval."""
        return cls(name, k / n, wilson(k, n), n, tuple(seeds), op, threshold)

    @property
    def status(self) -> str:
        """``reported`` without a threshold, else ``pass``, ``miss`` or ``known_miss``. A value that is not a number misses; a known miss
        that holds is a pass."""
        if self.op == "report" or self.threshold is None:
            return "reported"
        if _OPS[self.op](self.value, self.threshold):
            return "pass"
        return "known_miss" if self.known_miss else "miss"

    def to_json(self) -> dict[str, Any]:
        """The contract's form. Numbers that JSON cannot hold (NaN, infinity) become null."""
        out: dict[str, Any] = {
            "name": self.name,
            "value": _finite(self.value),
            "interval": None if self.interval is None else [_finite(end) for end in self.interval],
            "n": int(self.n),
            "seeds": [int(seed) for seed in self.seeds],
            "op": self.op,
            "threshold": None if self.threshold is None else _finite(self.threshold),
            "status": self.status,
        }
        return out | ({"known_miss": self.known_miss} if self.known_miss else {})


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


class CellError(RamifyError):
    """A cell's function raised; the message names the cell's key. Cells that were done are kept."""


class Cells:
    """JSON results of function calls by key, kept in ``folder`` (or in memory when it is None).

    ``progress`` is told of every cell of :meth:`map`; those that were done already do not count towards its rate. ``runner(function,
    missing)`` runs missing cells elsewhere (a cluster) and yields (key, result) as they finish; it raises CellError like :meth:`map`.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        progress: Progress = SILENT,
        runner: Callable[[Callable[..., Any], Mapping[str, Any]], Generator[tuple[str, Any], None, None]] | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.progress = progress
        self.runner = runner
        self._memory: dict[str, dict[str, Any]] = {}

    def get(self, key: str, function: Callable[..., Any], **kwargs: Any) -> Any:
        """The stored result under ``key``, or ``function(**kwargs)``, run once and stored.

        Raises CellError naming the key when the function fails or returns something other than JSON, and UserError when the stored
        cell was made by another function or other arguments.
        """
        call = _describe_call(function, kwargs)
        found, value = self._read(key, call)
        return value if found else self._write(key, call, _run(key, function, kwargs))

    def map(self, function: Callable[..., Any], cells: Mapping[str, Mapping[str, Any]], workers: int = 2) -> dict[str, Any]:
        """Results of ``function(**kwargs)`` for every ``{key: kwargs}``, in the order given; only the missing ones run.

        They run in spawned processes with one numeric thread each (``workers=1``: in this process), so function and arguments must be
        importable. After a failure or an interrupt no further cell starts and finished ones are kept; the failure is raised as
        CellError.
        """
        calls = {key: _describe_call(function, kwargs) for key, kwargs in cells.items()}
        results: dict[str, Any] = {}
        for key, call in calls.items():
            found, value = self._read(key, call)
            if found:
                results[key] = value
        self.progress.begin(len(cells), len(results), "", "cells")
        missing = {key: dict(kwargs) for key, kwargs in cells.items() if key not in results}
        fresh: Generator[tuple[str, Any], None, None]
        if self.runner is not None:
            fresh = self.runner(function, missing)
        elif workers <= 1 or len(missing) <= 1:
            fresh = ((key, _run(key, function, kwargs)) for key, kwargs in missing.items())
        else:
            fresh = _run_in_processes(function, missing, min(workers, len(missing)))
        with closing(fresh):  # at an interrupt, wherever it comes: else cells under way would be waited for, and others start
            for key, value in fresh:
                results[key] = self._write(key, calls[key], value)
                self.progress.at(len(results), key)
        return {key: results[key] for key in cells}

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', key)[:80].strip('.-')}-{stable_hash(key)[:8]}.json"

    def _read(self, key: str, call: str) -> tuple[bool, Any]:
        if self.folder is None:
            record = self._memory.get(key)
        else:
            record = _read_record(self._path(key))
        if record is None:
            return False, None
        if record["call"] != call:
            where = "" if self.folder is None else f" in {self._path(key)}"
            raise UserError(
                f"cell {key!r}{where} was made by {record['call']}, not by {call}: choose another folder or delete the cell"
            )
        return True, json.loads(canonical_json(record["value"]))

    def _write(self, key: str, call: str, value: Any) -> Any:
        try:
            text = canonical_json({"key": key, "call": call, "value": value})
        except (TypeError, ValueError) as error:
            raise CellError(f"cell {key!r} returned something that is not JSON: {error}") from error
        record = json.loads(text)
        if self.folder is None:
            self._memory[key] = record
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), text)
        return json.loads(text)["value"]


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"key", "call", "value"} <= record.keys():
            raise ValueError("fields are missing")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a readable cell ({error}): delete it to run the cell again") from error
    return record


def _describe_call(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> str:
    """A text that is equal for equal calls. Arguments that JSON cannot hold enter by name (functions) or by their repr."""

    def name(value: Any) -> str:
        return f"{value.__module__}.{value.__qualname__}" if callable(value) and hasattr(value, "__qualname__") else repr(value)

    return f"{name(function)}({json.dumps(dict(kwargs), sort_keys=True, ensure_ascii=False, default=name)})"


def _run(key: str, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(**kwargs)
    except Exception as error:
        raise CellError(f"cell {key!r} failed: {type(error).__name__}: {error}") from error


def _run_in_processes(
    function: Callable[..., Any], missing: Mapping[str, Mapping[str, Any]], workers: int
) -> Generator[tuple[str, Any], None, None]:
    """Yield (key, value) as cells finish. The first failure is raised after the cells under way have finished and been yielded."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    others = set(multiprocessing.active_children())
    failure: CellError | None = None
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        with _one_thread_each():
            futures = {pool.submit(function, **kwargs): key for key, kwargs in missing.items()}
        for future in as_completed(futures):
            if future.cancelled():
                continue
            error = future.exception()
            if error is None:
                yield futures[future], future.result()
            elif failure is None:
                failure = CellError(f"cell {futures[future]!r} failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                for other in futures:
                    other.cancel()
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if failure is not None:
        raise failure


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Set the thread-count variables that children inherit: numeric libraries read them once, when they are loaded."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start_worker() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when the parent is gone, however it went."""
    import multiprocessing
    import multiprocessing.connection
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
