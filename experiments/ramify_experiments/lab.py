"""The shared lab: cells (the resumable units of an experiment), where they are kept, how long they took, on which machine and code.

A cell is one call of a function with named arguments whose JSON result is kept under a key. Cells live in a folder, one file each,
written whole or not at all, so an interrupted experiment continues where it stopped; without a folder they live in memory.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ramify
from ramify.base import registry
from ramify.base.errors import CellError, UserError
from ramify.base.files import write_whole
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.progress import SILENT, Progress

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

SECONDS = "seconds.json"
"""Beside the cells: how long they took to make, over all calls."""
MADE = "RAMIFY_MADE"
"""Environment variable: where :func:`ramify_experiments.recipes.place` keeps what was made."""


@cache
def sources_hash() -> str:
    """Hash of the source of both distributions as it is on disk, by path and content: what one version made is never taken for another's."""
    packages = Path(ramify.__file__).parent, Path(__file__).parent
    files = [(package, file) for package in packages for file in sorted(package.rglob("*.py"))]
    return stable_hash(*(part for package, file in files for part in (str(file.relative_to(package.parent)), file.read_bytes())))


def folder(kind: str, name: str, seed: int) -> Path:
    """Where the cells of ``name`` are kept: ``$RAMIFY_CACHE``, else ``$XDG_CACHE_HOME/ramify``, else ``~/.cache/ramify``, by the code that makes them."""
    own = os.environ.get("RAMIFY_CACHE")
    root = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramify"
    return root / kind / f"{name}{f'-seed-{seed}' if seed else ''}-{sources_hash()[:12]}"


@contextmanager
def kept_in(folder: Path, title: str, as_json: bool) -> Iterator[Progress]:
    """Show the progress of cells that ``folder`` keeps, and add up what they took. What they make beside their results (weights, texts)
    goes with them: it is of the same code, and forgotten with them."""
    from ramify.render import terminal

    kept = f"finished cells are kept, so the same command goes on ({folder})"
    earlier = os.environ.get(MADE)
    before, start = _made(folder), time.perf_counter()
    os.environ[MADE] = str(folder / "made")
    try:
        with terminal.progress(title, unit="cells", as_json=as_json, kept=kept) as bar:
            yield bar
    finally:
        if earlier is None:
            del os.environ[MADE]
        else:
            os.environ[MADE] = earlier
        if _made(folder) != before or not (folder / SECONDS).is_file():  # cells that are only read were paid for
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / SECONDS, json.dumps(seconds_of(folder) + time.perf_counter() - start))


def _made(folder: Path) -> set[tuple[Path, int]]:
    return {(file, file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file() and file.name != SECONDS}


def seconds_of(folder: Path) -> float:
    """Seconds of all calls that made what the folder holds."""
    file = folder / SECONDS
    return float(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else 0.0


def check_writable(out: Path | None) -> None:
    """Raise UserError where the figures cannot be written to ``out``, before anything runs."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")


@contextmanager
def cells_on(spec: str) -> Iterator[Any]:
    """What runs cells on the back end ``spec``; None for this machine."""
    if spec == "local":
        yield None
        return
    from ramify.rollout.backends import parse

    name, workers = parse(spec)
    cells = getattr(registry.get("backend", name), "cells", None)
    if cells is None:
        raise UserError(f"the back end '{name}' runs no reproductions: leave --backend out, or choose ray")
    run, finish = cells(workers)
    try:
        yield run
    finally:
        finish()


def _git(*args: str) -> str:
    """Output of a git command about the folder that holds this package, "" outside a checkout of ramify."""
    root = Path(ramify.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit of the checkout, with ``+`` when the code differs from it; the version of an installed package."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return f"v{ramify.__version__}"
    return head + ("+" if _git("status", "--porcelain", "--", "src", "experiments") else "")


def versions() -> dict[str, str]:
    """Of this package, Python and the numeric libraries."""
    from importlib.metadata import version

    return {"ramify": ramify.__version__, "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "transformers", "numpy", "scipy")
    }


def machine() -> dict[str, Any]:
    """Processor, cores and kernels, and the GPU where torch sees one; nothing that identifies a person or a host."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: the platform module's answer stands
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kernels = importlib.import_module("ramify.engine.devices").kernels()
    found = {"system": platform.system(), "cpu": cpu, "cores": cores, "kernels": kernels}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return found


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
