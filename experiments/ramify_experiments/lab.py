"""The shared lab: sizes, cells (the resumable units of an experiment), arms by seeds, and each arm's own best learning rate.

A cell is one call of a function with named arguments whose JSON result is kept under a key. ResultCache live in a folder, one
file each, written whole or not at all, so an interrupted experiment continues where it stopped; without a folder they live in
memory. A cell that other code made is made again: see :mod:`ramify_experiments.code`.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.errors import CellError, RamifyError, UserError
from ramify.base.extras import needed
from ramify.base.files import cache_folder, write_whole
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.progress import SILENT, Progress
from ramify.stats.checks import Check
from ramify.stats.intervals import Interval, clopper_pearson, mean_t, paired_t, wilson
from ramify_experiments.code import code_of

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

MADE = "RAMIFY_MADE"
"""Environment variable: where :func:`ramify_experiments.models.place` keeps what was made."""

Values = Sequence[Any] | np.ndarray
"""One number an observation; None where there is none."""
Wanted = tuple[str, float] | tuple[()]
"""Operator and threshold of a check; nothing of a report."""
Reproduce = Callable[..., Sequence[Check]]
"""``reproduce(size, cells, first=0)``: the checks of one size (quick, cpu, gpu), ``first`` the first seed."""
ReproduceReal = Callable[..., Sequence[Check]]
"""``real(model, cells, first=0)``: the checks on the pretrained model of that name."""


def cache() -> Path:
    """Where results and what they make are kept: see :func:`ramify.base.files.cache_folder`."""
    return cache_folder()


def call_verb(*words: object) -> dict[str, Any]:
    """What ``ramify WORDS --json`` prints last. Raises what the verb raises, and ValueError where it prints no JSON."""
    from ramify.cli.main import run

    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        args = [*(str(word) for word in words), "--json"]
        run(args)
    lines = printed.getvalue().splitlines()
    if not lines:
        raise ValueError(f"`ramify {' '.join(args)}` printed nothing")
    last: dict[str, Any] = json.loads(lines[-1])
    return last


def sized(name: str, **seeds: int) -> Callable[[Callable[[str, ResultCache, Sequence[int]], Sequence[Check]]], Reproduce]:
    """Decorate ``experiment(size, cells, seeds)`` with the sizes it has and how many seeds each has; another size is refused
    before anything runs."""

    def wrap(experiment: Callable[[str, ResultCache, Sequence[int]], Sequence[Check]]) -> Reproduce:
        def reproduce(size: str, cells: ResultCache, first: int = 0) -> Sequence[Check]:
            if size not in seeds:
                raise UserError(f"the reproduction of {name} has no size '{size}': there are {' and '.join(seeds)}")
            return experiment(size, cells, tuple(range(first, first + seeds[size])))

        reproduce.__doc__ = experiment.__doc__
        return reproduce

    return wrap


def columns(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """What each of ``runs`` has under each name of the first."""
    return {name: [run[name] for run in runs] for name in runs[0]}


class Checks(list[Check]):
    """Checks of what the same seeds gave. ``known``: name of a check -> why a failure is expected,
    with the page that explains it.

    A check is judged where it has an operator and a threshold, else reported; see :class:`ramify.stats.checks.Check`.
    """

    def __init__(self, seeds: Sequence[int], known: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.seeds, self.known = tuple(seeds), known or {}

    def value(
        self,
        name: str,
        value: float,
        n: int,
        op: str = "report",
        threshold: float | None = None,
        interval: Interval | None = None,
    ) -> None:
        """A result of ``n`` observations."""
        self._add(Check(name, float(value), interval, n, self.seeds, op, threshold))

    def mean(self, name: str, values: Values, op: str = "report", threshold: float | None = None) -> None:
        """The mean of independent values, (n,), with Student's interval where there are several finite ones; nan of none.

        A report leaves out a value that is None, and its seed; a check misses by it.
        """
        counts = [op != "report" or value is not None for value in values]
        known = [math.nan if value is None else value for value, one in zip(values, counts, strict=True) if one]
        seeds = self.seeds
        if len(seeds) == len(counts):
            seeds = tuple(seed for seed, one in zip(seeds, counts, strict=True) if one)
        interval = mean_t(known) if len(known) > 1 and all(map(math.isfinite, known)) else None
        self._add(Check(name, float(np.mean(known)) if known else math.nan, interval, len(known), seeds, op, threshold))

    def paired(self, name: str, a: Values, b: Values, op: str = "report", threshold: float | None = None) -> None:
        """Mean difference of two arms on the same tasks, (n,) each, with Student's interval of the differences."""
        self.value(name, float(np.mean(np.subtract(a, b))), len(a), op, threshold, paired_t(a, b))

    def worst(self, name: str, values: Values, op: str, threshold: float | None, n: int | None = None) -> None:
        """The one of ``values`` that is furthest on the wrong side of ``op``:
        the least where more is wanted, else the largest."""
        value = (min if op in (">=", ">") else max)(values)
        self.value(name, value, len(values) if n is None else n, op, threshold)

    def share(
        self, name: str, k: int, n: int, op: str = "report", threshold: float | None = None, *, exact: bool = False
    ) -> None:
        """``k`` of ``n``, 0 of none, with Wilson's interval, or ``exact``, that of Clopper and Pearson."""
        self.value(name, k / n if n else 0.0, n, op, threshold, (clopper_pearson if exact else wilson)(k, n))

    def _add(self, check: Check) -> None:
        self.append(replace(check, known_failure=self.known.get(check.name, "")))


def tuned(
    cells: ResultCache,
    function: Callable[..., Any],
    arms: Mapping[str, Mapping[str, Any]],
    rates: Sequence[float],
    seeds: Sequence[int],
    score: Callable[[Any], float],
) -> dict[str, tuple[float, list[Any]]]:
    """Each arm's learning rate ``lr`` with the best mean ``score`` over ``seeds`` (the first of equals), and its results
    there."""
    each = {f"{arm}, lr {lr:g}": {**arguments, "lr": lr} for arm, arguments in arms.items() for lr in rates}
    done = cells.grid(function, each, seeds)
    found = {}
    for arm in arms:
        best = max(rates, key=lambda lr: float(np.mean([score(one) for one in done[f"{arm}, lr {lr:g}"]])))
        found[arm] = best, done[f"{arm}, lr {best:g}"]
    return found


@dataclass(frozen=True)
class MadeCell:
    """A cell as it is kept: its key, the call and the code that made it, the seconds that took, and its result, which is JSON."""

    key: str
    call: str
    code: str
    seconds: float
    value: Any


class ResultCache:
    """JSON results of function calls by key, kept in ``folder`` (or in memory when it is None). ``uses``: modules that cells
    reach in other ways than by imports. ``edition`` stands for the code where it is given: cells that take days, and are
    committed, outlive changes that their author says alter no result.

    ``progress`` is called after every cell of :meth:`map`; those that were done already do not count towards its rate.
    ``runner(function, missing)`` runs missing cells elsewhere (a cluster) and yields (key,
    result) as they finish; it raises CellError like :meth:`map`.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        progress: Progress = SILENT,
        runner: Callable[[Callable[..., Any], Mapping[str, Any]], Generator[tuple[str, Any], None, None]] | None = None,
        uses: Sequence[str] = (),
        edition: str = "",
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.uses, self.edition = tuple(uses), edition
        self.seconds = 0.0
        """Seconds it took to make the requested cells, now or in earlier calls."""
        self.progress = progress
        self.runner = runner
        self._memory: dict[str, MadeCell] = {}

    def get(self, key: str, function: Callable[..., Any], **kwargs: Any) -> Any:
        """The stored result under ``key``, or ``function(**kwargs)``, run once and stored.

        Raises CellError naming the key when the function fails or returns something other than JSON, and UserError when the
        stored cell was made by another function or other arguments.
        """
        call, code = _describe_call(function, kwargs), self._code(function)
        found, value = self._read(key, call, code)
        if found:
            return value
        began = time.perf_counter()
        return self._write(key, call, code, _run(key, function, kwargs), time.perf_counter() - began)

    def known(self, function: Callable[..., Any], cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The results of those ``cells`` (see :meth:`map`) that are there already."""
        code = self._code(function)
        read = {key: self._read(key, _describe_call(function, kwargs), code) for key, kwargs in cells.items()}
        return {key: value for key, (found, value) in read.items() if found}

    def grid(
        self, function: Callable[..., Any], arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], workers: int = 2
    ) -> dict[str, list[Any]]:
        """Results of ``function(seed=seed, **arguments)`` for every arm (name -> arguments) and seed:
        arm -> one result a seed, in order."""
        done = self.map(
            function, {f"{arm}, seed {s}": {**arguments, "seed": s} for arm, arguments in arms.items() for s in seeds}, workers
        )
        return {arm: [done[f"{arm}, seed {s}"] for s in seeds] for arm in arms}

    def map(self, function: Callable[..., Any], cells: Mapping[str, Mapping[str, Any]], workers: int = 2) -> dict[str, Any]:
        """Results of ``function(**kwargs)`` for every ``{key: kwargs}``, in the order given; only the missing ones run.

        They run in spawned processes with one numeric thread each (``workers=1``: in this process), so function and arguments
        must be importable. After a failure or an interrupt no further cell starts and finished ones are kept; the failure is
        raised as CellError.
        """
        calls, code = {key: _describe_call(function, kwargs) for key, kwargs in cells.items()}, self._code(function)
        results: dict[str, Any] = {}
        for key, call in calls.items():
            found, value = self._read(key, call, code)
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
            began = time.perf_counter()
            for key, value in fresh:
                now = time.perf_counter()  # a cell's share of the time is that since the one before it was done
                results[key] = self._write(key, calls[key], code, value, now - began)
                began = now
                self.progress.at(len(results), key)
        return {key: results[key] for key in cells}

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', key)[:80].strip('.-')}-{stable_hash(key)[:8]}.json"

    def _code(self, function: Callable[..., Any]) -> str:
        return self.edition or ("" if self.folder is None else code_of(function.__module__, *self.uses))

    def _read(self, key: str, call: str, code: str) -> tuple[bool, Any]:
        if self.folder is None:
            record = self._memory.get(key)
        else:
            record = _read_record(self._path(key))
        if record is None or record.code != code:
            return False, None
        if record.call != call:
            where = "" if self.folder is None else f" in {self._path(key)}"
            raise UserError(
                f"cell {key!r}{where} was made by {record.call}, not by {call}: choose another folder or delete the cell"
            )
        self.seconds += record.seconds
        return True, json.loads(canonical_json(record.value))

    def _write(self, key: str, call: str, code: str, value: Any, seconds: float) -> Any:
        self.seconds += seconds
        try:
            text = canonical_json(vars(MadeCell(key, call, code, seconds, value)))
        except (TypeError, ValueError) as error:
            raise CellError(f"cell {key!r} returned something that is not JSON: {error}") from error
        made = json.loads(text)["value"]
        if self.folder is None:
            self._memory[key] = MadeCell(key, call, code, seconds, made)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), text)
        return json.loads(text)["value"]


def _read_record(path: Path) -> MadeCell | None:
    try:
        return codec.from_json(MadeCell, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UserError) as error:
        raise UserError(f"{path} is not a readable cell ({error}): delete it to run the cell again") from error


def _describe_call(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> str:
    """A text that is equal for equal calls. Arguments that JSON cannot hold enter by name (functions) or by their repr."""

    def name(value: Any) -> str:
        return f"{value.__module__}.{value.__qualname__}" if callable(value) and hasattr(value, "__qualname__") else repr(value)

    return f"{name(function)}({json.dumps(dict(kwargs), sort_keys=True, ensure_ascii=False, default=name)})"


def _run(key: str, function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(**kwargs)
    except Exception as error:
        raise needed(error) or CellError(f"cell {key!r} failed: {type(error).__name__}: {error}") from error


def _run_in_processes(
    function: Callable[..., Any], missing: Mapping[str, Mapping[str, Any]], workers: int
) -> Generator[tuple[str, Any], None, None]:
    """Yield (key, value) as cells finish. The first failure is raised after the cells under way have finished and been
    yielded."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    others = set(multiprocessing.active_children())
    failure: RamifyError | None = None
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
                failure = needed(error) or CellError(f"cell {futures[future]!r} failed: {type(error).__name__}: {error}")
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
