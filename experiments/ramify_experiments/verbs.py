"""What ``ramify repro`` and ``ramify check method`` do.

``repro`` runs a method's reproduction (or the main job's comparison) and prints its table of checks. ``check method`` runs a
method's verbs where nothing is to be found and where something is, and counts what they say.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ramify
from ramify.base import registry
from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.base.seeds import derive_key
from ramify.cli import experiments
from ramify.render import terminal
from ramify_experiments.cases import KnownCase, Repetition, verdict
from ramify_experiments.lab import MADE, Reproduce, ResultCache, cache

TOGETHER = 5
"""Repetitions of one resumable cell, of a case that has many."""

# -- ramify repro --------------------------------------------------------------------------------------------------------------


def repro(slug: str, size: str, seed: int, fresh: bool, backend: str, out: Path | None, as_json: bool) -> bool:
    """Reproduce ``slug`` or ``all``, print the tables, and return whether every check held.

    Of ``all``, those are left out that need a package which is not installed. Raises UserError for a name that no distribution
    brings, for an ``out`` that cannot be written and for an unknown back end.
    """
    names = experiments.chosen("reproductions", slug)
    check_writable(out)
    reports = []
    with cells_on(backend) as runner:
        for name in names:
            try:
                report = _reproduce(name, experiments.load("reproductions", name), size, seed, fresh, as_json, runner)
            except NeedsError as error:
                if slug != "all":
                    raise
                terminal.say(f"{name} is left out: {error}")
                continue
            reports.append(report)
            _print_checks(report, as_json)
    _write_figures(out, {"size": size}, reports[0] if slug != "all" else {"reports": reports})
    if slug == "all":
        _print_summary(reports, as_json)
    return all(report["passed"] for report in reports)


def _reproduce(slug: str, reproduce: Reproduce, size: str, seed: int, fresh: bool, as_json: bool, runner: Any) -> dict[str, Any]:
    """Run one reproduction and return the report that ``--json`` prints."""
    folder = _folder("repro", f"{slug}-{size}", seed)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with _kept_in(folder, f"{slug} ({size})", as_json) as bar:
        cells = ResultCache(folder, progress=bar, runner=runner)
        checks = reproduce(size, cells, **({"first": seed} if seed else {}))
    return {
        "slug": slug,
        "passed": all(check.status != "miss" for check in checks),
        "checks": [check.to_json() for check in checks],
        "seconds": round(cells.seconds, 1),
        "commit": commit(),
    }


def _print_checks(report: dict[str, Any], as_json: bool) -> None:
    rows = []
    for check in report["checks"]:
        low_high = "" if check["interval"] is None else "[{:.4g}, {:.4g}]".format(*(_number(end) for end in check["interval"]))
        wanted = "" if check["op"] == "report" else f"{check['op']} {check['threshold']:g}"
        rows.append((check["name"], check["value"], low_high, check["n"], len(check["seeds"]), wanted, check["status"]))
    text = terminal.table(["check", "value", "95 % interval", "n", "seeds", "wanted", "status"], rows)
    _print_report(report, report["slug"], text, report["checks"], as_json)


def _print_report(report: dict[str, Any], slug: str, text: str, judged: Sequence[dict[str, Any]], as_json: bool) -> None:
    """A table of what was judged, why misses were expected, and the verdict."""
    reasons = [f"  {one['name']}: {one['known_failure']}" for one in judged if one["status"] == "known_failure"]
    text += "\n\nKnown misses:\n" + "\n".join(reasons) if reasons else ""
    verdict = "passed" if report["passed"] else "MISSED"
    terminal.emit(report, as_json, f"\n{slug}\n{text}\n\n{slug}: {verdict} in {report['seconds']} s")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _print_summary(reports: list[dict[str, Any]], as_json: bool) -> None:
    rows = []
    for report in reports:
        statuses = [check["status"] for check in report["checks"]]
        counts = [statuses.count(status) for status in ("pass", "reported", "known_failure", "miss")]
        rows.append((report["slug"], *counts, report["seconds"], "passed" if report["passed"] else "MISSED"))
    text = terminal.table(["reproduction", "pass", "reported", "known failure", "miss", "seconds", ""], rows)
    passed = all(report["passed"] for report in reports)
    summary = {"slug": "all", "passed": passed, "reports": [{k: r[k] for k in ("slug", "passed", "seconds")} for r in reports]}
    terminal.emit(summary, as_json, "\n" + text)


# -- ramify check method ---------------------------------------------------------------------------------------------------------


def check_methods(name: str, quick: bool, seed: int, out: Path | None, as_json: bool) -> bool:
    """Run the cases of the method ``name``, or of ``all``, print them, and return whether none missed.

    ``out`` keeps what it holds of other methods. Raises UserError for an unknown method, for one that brings no cases, and for an
    ``out`` that holds something else, or the counts of another seed.
    """
    methods = registry.names("method")
    slugs = [slug for slug in methods if name in ("all", slug)]
    if not slugs:
        raise UserError(f"unknown method '{name}' ({nearest(name, ['all', *methods])})")
    check_writable(out)
    others = _other_counts(out, slugs, seed)
    cases = {slug: cases_of(slug) for slug in slugs}
    reports = []
    for slug, own in cases.items():
        reports.append(_check(slug, own, quick, seed, as_json))
        _print_cases(reports[-1], as_json)
    passed = all(report["passed"] for report in reports)
    _write_figures(out, {"seed": seed}, {"methods": sorted([*others, *reports], key=lambda report: str(report["method"]))})
    if name == "all":
        _print_all(reports, passed, as_json)
    return passed


def _other_counts(out: Path | None, slugs: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """What ``out`` holds of methods that are not in ``slugs``. Raises UserError."""
    if out is None or not out.exists():
        return []
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
        others = [report for report in found["methods"] if report["method"] not in slugs]
        earlier = found["seed"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{out} does not hold counts of methods, so none are added to it: name another file") from error
    if others and earlier != seed:
        raise UserError(f"{out} holds counts of seed {earlier}, so none of seed {seed} are added to it: name another file")
    return others


def cases_of(slug: str) -> tuple[KnownCase, ...]:
    """The cases of a method. Raises UserError where it brings none, where two share a name,
    or where a null or a planted case is missing."""
    if slug not in experiments.found("cases"):
        raise UserError(
            f"the method '{slug}' brings no null and no planted case: its distribution names them under "
            '[project.entry-points."ramify.cases"]'
        )
    found: tuple[KnownCase, ...] = tuple(experiments.load("cases", slug))
    names = [case.name for case in found]
    if len(set(names)) < len(names) or {case.truth for case in found} != {"nothing", "planted"}:
        raise UserError(f"the cases of '{slug}' must hold a null and a planted case at least, each under a name of its own")
    return found


def _check(slug: str, cases: Sequence[KnownCase], quick: bool, seed: int, as_json: bool) -> dict[str, Any]:
    folder = _folder("nulls", slug, seed)
    plan: dict[str, dict[str, Any]] = {}
    for case in cases:
        count = case.quick if quick else case.full
        together = TOGETHER if case.full >= 10 * TOGETHER else 1
        for start in range(0, count, together):
            samples = list(range(start, min(start + together, count)))
            plan[f"{case.name}, {samples[0]} to {samples[-1]}"] = {
                "slug": slug,
                "name": case.name,
                "seed": seed,
                "samples": samples,
            }
    with _kept_in(folder, f"check {slug}", as_json) as bar:
        cells = ResultCache(folder, progress=bar, uses=_used(slug, cases))
        done = cells.map(repetitions, plan)
    found: dict[str, list[bool]] = {case.name: [] for case in cases}
    for key, call in plan.items():
        found[call["name"]] += done[key]
    rows = [verdict(case, found[case.name]) for case in cases]
    first = {truth: next(row for row in rows if row["truth"] == truth) for truth in ("nothing", "planted")}
    return {
        "method": slug,
        "null": {key: first["nothing"][key] for key in ("n", "false", "rate", "interval", "level")},
        "planted": {key: first["planted"][key] for key in ("n", "found", "rate", "interval")},
        "passed": all(row["status"] != "miss" for row in rows),
        "seconds": round(cells.seconds, 1),
        "commit": commit(),
        "cases": rows,
    }


def _used(slug: str, cases: Sequence[KnownCase]) -> tuple[str, ...]:
    """Modules that a method's cases reach in other ways than by imports: their own, and what the command line loads by name."""
    method = registry.get("method", slug) if slug in registry.builtin_methods() else None
    packages = [importlib.import_module("ramify.cli"), *([method] if method else [])]
    loaded = [f"{one.__name__}.{file.stem}" for one in packages for file in sorted(Path(one.__path__[0]).glob("*.py"))]
    return (*dict.fromkeys(case.run.__module__ for case in cases), *loaded)


def repetitions(slug: str, name: str, seed: int, samples: Sequence[int]) -> list[bool]:
    """Whether the verb reported a finding in each of ``draws`` of the case ``name``: one cell."""
    case = next(case for case in cases_of(slug) if case.name == name)
    place, found = f"ramify.methods.{slug.replace('-', '_')}.nulls", []  # samples are those of committed results
    for completion in samples:
        with tempfile.TemporaryDirectory(prefix="ramify-null-") as folder:
            found.append(
                bool(case.run(Repetition(derive_key(seed, "null", place, name, completion) % 2**31, Path(folder), call_verb)))
            )
    return found


def call_verb(*words: object) -> dict[str, Any]:
    """What ``ramify WORDS --json`` prints last. Raises what the verb raises, and ValueError where it prints no JSON."""
    from ramify.cli.main import run

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        args = [*(str(word) for word in words), "--json"]
        run(args)
    lines = printed.getvalue().splitlines()
    if not lines:
        raise ValueError(f"`ramify {' '.join(args)}` printed nothing")
    last: dict[str, Any] = json.loads(lines[-1])
    return last


def _print_cases(report: dict[str, Any], as_json: bool) -> None:
    rows = []
    for case in report["cases"]:
        planted = case["truth"] == "planted"
        low, high = case["interval"]
        wanted = f">= {case['wanted']:g}" if planted else f"<= {case['level']:g}"
        share = f"{case['found' if planted else 'false']} of {case['n']}"
        rows.append((case["truth"], case["name"], share, f"[{low:.3f}, {high:.3f}]", wanted, case["status"]))
    text = terminal.table(["truth", "case", "found", "95 % interval", "wanted", "status"], rows)
    _print_report(report, report["method"], text, report["cases"], as_json)


def _print_all(reports: Sequence[dict[str, Any]], passed: bool, as_json: bool) -> None:
    rows = []
    for report in reports:
        null, planted = report["null"], report["planted"]
        verdict = "passed" if report["passed"] else "MISSED"
        shares = (f"{null['false']} of {null['n']}", f"{null['level']:g}", f"{planted['found']} of {planted['n']}")
        rows.append((report["method"], *shares, report["seconds"], verdict))
    text = terminal.table(["method", "false findings", "level", "planted found", "seconds", ""], rows)
    summary = {
        "method": "all",
        "passed": passed,
        "methods": [{k: r[k] for k in ("method", "passed", "seconds")} for r in reports],
    }
    terminal.emit(summary, as_json, "\n" + text)


# -- where cells are kept, on which machine and code ---------------------------------------------------------------------------


def _folder(kind: str, name: str, seed: int) -> Path:
    """Where the cells of ``name`` are kept, in :func:`ramify_experiments.lab.cache`."""
    return cache() / kind / f"{name}{f'-seed-{seed}' if seed else ''}"


@contextmanager
def _kept_in(folder: Path, title: str, as_json: bool) -> Iterator[Progress]:
    """Show the progress of cells that ``folder`` keeps. What they make beside their results (weights, texts) is kept with
    them."""
    kept = f"finished cells are kept, so the same command continues ({folder})"
    earlier = os.environ.get(MADE)
    os.environ[MADE] = str(folder / "made")
    try:
        with terminal.progress(title, unit="cells", as_json=as_json, kept=kept) as bar:
            yield bar
    finally:
        if earlier is None:
            del os.environ[MADE]
        else:
            os.environ[MADE] = earlier


def check_writable(out: Path | None) -> None:
    """Raise UserError where the figures cannot be written to ``out``, before anything runs."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise UserError(f"cannot write {out}: it is a folder")


def _write_figures(out: Path | None, request: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what was asked for and found to ``out``, with versions and machine."""
    if out is not None:
        body = request | {"versions": versions(), "machine": machine()} | found
        write_whole(out, json.dumps(body, indent=1, allow_nan=False) + "\n")


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
