"""Where the cells of reproductions and checks are kept, how long they took, and on which machine and code."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ramify
from ramify.base import registry
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.base.sources import sources_hash

SECONDS = "seconds.json"
"""Beside the cells: how long they took to make, over all calls."""
MADE = "RAMIFY_MADE"
"""Environment variable: where :func:`ramify.train.recipes.place` keeps what was made."""


def folder(kind: str, name: str, seed: int) -> Path:
    """Where the cells of ``name`` are kept: ``$RAMIFY_CACHE``, else ``$XDG_CACHE_HOME/ramify``, else ``~/.cache/ramify``, by the code that makes them."""
    own = os.environ.get("RAMIFY_CACHE")
    cache = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramify"
    return cache / kind / f"{name}{f'-seed-{seed}' if seed else ''}-{sources_hash()[:12]}"


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
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit of the checkout, with ``+`` when the package differs from it; the version of an installed package."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return f"v{ramify.__version__}"
    return head + ("+" if _git("status", "--porcelain", "--", "src") else "")


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
