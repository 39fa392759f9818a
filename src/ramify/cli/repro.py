"""``ramify repro``: run a method's reproduction (or the main job's comparison) and print its table of checks."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ramify
from ramify.base import registry
from ramify.base.command import Json
from ramify.base.errors import EXIT_FAILED, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.sources import sources_hash

if TYPE_CHECKING:
    from ramify.stats.checks import Check

app = typer.Typer(add_completion=False)

SECONDS = "seconds.json"
"""Beside the cells: how long they took to make, over all calls."""
MADE = "RAMIFY_MADE"
"""Environment variable: where :func:`ramify.train.recipes.place` keeps what was made."""
JOBS = {"improve": "ramify.jobs.improve_repro"}


@app.command()
def repro(
    slug: Annotated[str, typer.Argument(metavar="METHOD", help="A method, 'improve', or 'all'.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="The size for two CPU cores.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The size for one GPU.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, at most a minute, looser thresholds. The default for 'all'.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier, interrupted call did.")] = False,
    backend: Annotated[
        str, typer.Option(help="Where cells run: local (processes on this machine), ray or ray:CELLS_AT_ONCE.")
    ] = "local",
    out: Annotated[Path | None, typer.Option(help="Also write the figures with commit, versions and machine as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a method's headline result. Exit code 1 when a check misses its threshold.

    Done cells are kept in a cache folder, so a call that was interrupted goes on where it stopped.
    """
    if cpu + gpu + quick > 1:
        raise UserError("choose one of --cpu, --gpu and --quick")
    size = "gpu" if gpu else "quick" if quick or (slug == "all" and not cpu) else "cpu"
    known = {name: module for name, module in _reproductions().items() if slug in ("all", name)}
    if not known:
        raise UserError(f"no reproduction '{slug}' ({nearest(slug, ['all', *_reproductions()])})")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")
    reports = []
    with _runner(backend) as runner:
        for name, module in known.items():
            report = _reproduce(name, module, size, fresh, as_json, runner)
            reports.append(report)
            _print(report, as_json)
    if out is not None:
        figures = {"size": size, "versions": _versions(), "machine": _machine()}
        body = figures | (reports[0] if slug != "all" else {"reports": reports})
        write_whole(out, json.dumps(body, indent=1, allow_nan=False) + "\n")
    if slug == "all":
        _print_summary(reports, as_json)
    if not all(report["passed"] for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _reproductions() -> dict[str, str]:
    """Slug -> module of everything that can be reproduced."""
    return {slug: f"{registry.get('method', slug).__name__}.repro" for slug in registry.names("method")} | JOBS


@contextmanager
def _runner(spec: str) -> Iterator[Any]:
    """What runs cells on the back end ``spec``; None for this machine."""
    if spec == "local":
        yield None
        return
    from ramify.rollout.backends import parse

    name, workers = parse(spec)
    cells = getattr(registry.get("backend", name), "cells", None)
    if cells is None:
        raise UserError(f"the back end '{name}' runs no reproductions: leave --backend out, or choose ray")
    runner, finish = cells(workers)
    try:
        yield runner
    finally:
        finish()


def _reproduce(slug: str, module: str, size: str, fresh: bool, as_json: bool, runner: Any) -> dict[str, Any]:
    """Run one reproduction and return the report that ``--json`` prints."""
    from ramify.render import terminal
    from ramify.stats.checks import Cells

    folder = cache_folder() / "repro" / f"{slug}-{size}-{sources_hash()[:12]}"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    kept = f"finished cells are kept, so the same command goes on ({folder})"
    title = f"{slug} ({size})"
    with _timed(folder), _making_in(folder), terminal.progress(title, unit="cells", as_json=as_json, kept=kept) as bar:
        cells = Cells(folder, progress=bar, runner=runner)
        checks: Sequence[Check] = importlib.import_module(module).reproduce(size, cells)
    seconds = _stretches(folder)
    return {
        "slug": slug,
        "passed": all(check.status != "miss" for check in checks),
        "checks": [check.to_json() for check in checks],
        "seconds": round(seconds, 1),
        "commit": _commit(),
    }


@contextmanager
def _timed(folder: Path) -> Iterator[None]:
    """Add the time of what is done inside to that of earlier calls, where anything was made: cells that are only read were paid for."""
    before, start = _made(folder), time.perf_counter()
    try:
        yield
    finally:
        if _made(folder) != before or not (folder / SECONDS).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / SECONDS, json.dumps(_stretches(folder) + time.perf_counter() - start))


def _made(folder: Path) -> set[tuple[Path, int]]:
    return {(file, file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file() and file.name != SECONDS}


def _stretches(folder: Path) -> float:
    """Seconds of all calls that made what the folder holds."""
    file = folder / SECONDS
    return float(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else 0.0


@contextmanager
def _making_in(folder: Path) -> Iterator[None]:
    """What cells make beside their results (weights, texts) goes with them: it is of the same code, and forgotten with them."""
    before = os.environ.get(MADE)
    os.environ[MADE] = str(folder / "made")
    try:
        yield
    finally:
        if before is None:
            del os.environ[MADE]
        else:
            os.environ[MADE] = before


def cache_folder() -> Path:
    """Where resumable cells live: ``$RAMIFY_CACHE``, else ``$XDG_CACHE_HOME/ramify``, else ``~/.cache/ramify``."""
    own = os.environ.get("RAMIFY_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramify"


def _print(report: dict[str, Any], as_json: bool) -> None:
    from ramify.render import terminal

    rows = []
    for check in report["checks"]:
        low_high = "" if check["interval"] is None else "[{:.4g}, {:.4g}]".format(*(_number(end) for end in check["interval"]))
        wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
        rows.append((check["name"], check["value"], low_high, check["n"], len(check["seeds"]), wanted, check["status"]))
    text = terminal.table(["check", "value", "95 % interval", "n", "seeds", "wanted", "status"], rows)
    reasons = [f"  {c['name']}: {c['known_miss']}" for c in report["checks"] if c["status"] == "known_miss"]
    if reasons:
        text += "\n\nKnown misses:\n" + "\n".join(reasons)
    verdict = "passed" if report["passed"] else "MISSED"
    terminal.emit(report, as_json, f"\n{report['slug']}\n{text}\n\n{report['slug']}: {verdict} in {report['seconds']} s")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _print_summary(reports: list[dict[str, Any]], as_json: bool) -> None:
    from ramify.render import terminal

    rows = []
    for report in reports:
        statuses = [check["status"] for check in report["checks"]]
        counts = [statuses.count(status) for status in ("pass", "known_miss", "miss")]
        rows.append((report["slug"], *counts, report["seconds"], "passed" if report["passed"] else "MISSED"))
    text = terminal.table(["reproduction", "pass", "known miss", "miss", "seconds", ""], rows)
    passed = all(report["passed"] for report in reports)
    summary = {"slug": "all", "passed": passed, "reports": [{k: r[k] for k in ("slug", "passed", "seconds")} for r in reports]}
    terminal.emit(summary, as_json, "\n" + text)


def _git(*args: str) -> str:
    """Output of a git command about the folder that holds this package, "" outside a checkout of ramify."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _commit() -> str:
    """The commit of the checkout, with ``+`` when the package differs from it; the version of an installed package."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return f"v{ramify.__version__}"
    return commit + ("+" if _git("status", "--porcelain", "--", "src") else "")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"ramify": ramify.__version__, "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "transformers", "numpy", "scipy")
    }


def _machine() -> dict[str, Any]:
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
    machine = {"system": platform.system(), "cpu": cpu, "cores": cores, "kernels": kernels}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        machine["gpu"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return machine
