"""What ``ramify repro`` and ``ramify check method`` do.

``repro`` runs a method's reproduction (or the main job's comparison) and prints its table of checks. ``check method`` runs a
method's verbs where nothing is to be found and where something is, and counts what they say.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ramify
from ramify.base import codec, registry
from ramify.base.errors import EXIT_FAILED, NeedsError, UserError, nearest
from ramify.base.files import write_whole
from ramify.base.progress import Progress
from ramify.base.seeds import derive_key
from ramify.cli import experiments
from ramify.render import terminal
from ramify.render.numbers import interval
from ramify.render.result import Result, Section, table
from ramify.stats.checks import Check
from ramify.stats.intervals import Interval
from ramify_experiments.cases import CaseVerdict, KnownCase, Repetition, verdict
from ramify_experiments.lab import MADE, Reproduce, ReproduceReal, ResultCache, cache, call_verb
from ramify_experiments.real import pretrained_name

TOGETHER = 5
"""Repetitions of one resumable cell, of a case that has many."""

# -- ramify repro --------------------------------------------------------------------------------------------------------------


class _Judged(Result):
    """What passed or did not."""

    passed: bool

    @property
    def exit_code(self) -> int:
        """1 where a check or a case missed."""
        return super().exit_code if self.passed else EXIT_FAILED


@dataclass(frozen=True)
class ReproReport(_Judged):
    """The checks of one reproduction."""

    slug: str
    passed: bool
    checks: tuple[Check, ...]
    seconds: float
    commit: str
    model: str = ""
    """Of a reproduction on a pretrained model: its folder's name, which tells quantisation and hash of a GGUF file."""

    def sections(self) -> Iterable[Section]:
        """The table of checks, why misses were expected, and the verdict."""
        rows = []
        for one in self.checks:
            wanted = "" if one.threshold is None else f"{one.op} {one.threshold:g}"
            ends = "" if one.interval is None else interval(one.interval)
            rows.append((one.name, one.value, ends, one.n, len(one.seeds), wanted, one.status))
        head = ("check", "value", "95 % interval", "n", "seeds", "wanted", "status")
        known = [(one.name, one.known_failure) for one in self.checks if one.status == "known_failure"]
        title = f"{self.slug} on {self.model}" if self.model else self.slug
        yield Section.of(title, table(head, rows), *_verdict(self.slug, known, self.passed, self.seconds))


def _verdict(name: str, known: Sequence[tuple[str, str]], passed: bool, seconds: float) -> Iterator[str]:
    """Why misses were expected, and whether others were not."""
    yield "Known misses:\n" + "\n".join(f"  {one}: {why}" for one, why in known) if known else ""
    yield f"{name}: {'passed' if passed else 'MISSED'} in {seconds} s"


@dataclass(frozen=True)
class PassedRepro:
    """Whether one reproduction passed."""

    slug: str
    passed: bool
    seconds: float


@dataclass(frozen=True)
class ReproSummary(_Judged):
    """All reproductions."""

    slug: str
    passed: bool
    reports: tuple[PassedRepro, ...]
    each: tuple[ReproReport, ...] = field(metadata={"json": False})

    def sections(self) -> Iterable[Section]:
        """How many checks of each held."""
        rows = []
        for report in self.each:
            statuses = [check.status for check in report.checks]
            counts = [statuses.count(status) for status in ("pass", "reported", "known_failure", "miss")]
            rows.append((report.slug, *counts, report.seconds, "passed" if report.passed else "MISSED"))
        yield Section.of("", table(("reproduction", "pass", "reported", "known failure", "miss", "seconds", ""), rows))


def repro(
    slug: str, size: str, seed: int, fresh: bool, backend: str, out: Path | None, model: str = "smollm2"
) -> Iterator[Result]:
    """Reproduce ``slug`` or ``all``: a report each, of all a summary at last. ``model``: that of the size ``real``.

    Of ``all``, those are left out that need a package which is not installed. Raises UserError for a name that no distribution
    brings, for an ``out`` that cannot be written and for an unknown back end.
    """
    group = "real_reproductions" if size == "real" else "reproductions"
    names = experiments.chosen(group, slug)
    check_writable(out)
    reports: list[ReproReport] = []
    with cells_on(backend) as runner:
        for name in names:
            try:
                report = _reproduce(name, experiments.load(group, name), size, seed, fresh, runner, model)
            except NeedsError as error:
                if slug != "all":
                    raise
                terminal.say(f"{name} is left out: {error}")
                continue
            reports.append(report)
            yield report
    _write_figures(out, {"size": size}, reports[0].to_json() if slug != "all" else {"reports": codec.to_json(reports)})
    if slug == "all":
        told = tuple(PassedRepro(one.slug, one.passed, one.seconds) for one in reports)
        yield ReproSummary("all", all(one.passed for one in reports), told, tuple(reports))


def _reproduce(
    slug: str, reproduce: Reproduce | ReproduceReal, size: str, seed: int, fresh: bool, runner: Any, model: str
) -> ReproReport:
    """Run one reproduction."""
    named = pretrained_name(model) if size == "real" else ""
    folder = _folder("repro", f"{slug}-{size}{f'-{named}' if named else ''}", seed)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with _kept_in(folder, f"{slug} ({size})") as bar:
        cells = ResultCache(folder, progress=bar, runner=runner)
        checks = tuple(reproduce(model if named else size, cells, **({"first": seed} if seed else {})))
    passed = all(one.status != "miss" for one in checks)
    return ReproReport(slug, passed, checks, round(cells.seconds, 1), commit(), named)


# -- ramify check method ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NullFound:
    """Findings in the first case where nothing is."""

    n: int
    false: int
    rate: float
    interval: Interval
    level: float


@dataclass(frozen=True)
class PlantedFound:
    """Findings in the first planted case."""

    n: int
    found: int
    rate: float
    interval: Interval


@dataclass(frozen=True)
class MethodReport(_Judged):
    """What a method says where the truth is known."""

    method: str
    null: NullFound
    planted: PlantedFound
    passed: bool
    seconds: float
    commit: str
    cases: tuple[CaseVerdict, ...]

    def sections(self) -> Iterable[Section]:
        """Every case, why misses were expected, and the verdict."""
        rows = []
        for case in self.cases:
            count, wanted = (case.false, f"<= {case.level:g}") if case.found is None else (case.found, f">= {case.wanted:g}")
            low, high = case.interval
            share = f"{count} of {case.n}"
            rows.append((case.truth, case.name, share, f"[{low:.3f}, {high:.3f}]", wanted, case.status))
        known = [(one.name, one.known_failure) for one in self.cases if one.status == "known_failure"]
        head = ("truth", "case", "found", "95 % interval", "wanted", "status")
        yield Section.of(self.method, table(head, rows), *_verdict(self.method, known, self.passed, self.seconds))


@dataclass(frozen=True)
class PassedMethod:
    """Whether the cases of one method passed."""

    method: str
    passed: bool
    seconds: float


@dataclass(frozen=True)
class MethodsSummary(_Judged):
    """The cases of all methods."""

    method: str
    passed: bool
    methods: tuple[PassedMethod, ...]
    each: tuple[MethodReport, ...] = field(metadata={"json": False})

    def sections(self) -> Iterable[Section]:
        """The first cases of each."""
        rows = []
        for one in self.each:
            null, planted = one.null, one.planted
            shares = (f"{null.false} of {null.n}", f"{null.level:g}", f"{planted.found} of {planted.n}")
            rows.append((one.method, *shares, one.seconds, "passed" if one.passed else "MISSED"))
        yield Section.of("", table(("method", "false findings", "level", "planted found", "seconds", ""), rows))


def check_methods(name: str, quick: bool, seed: int, out: Path | None) -> Iterator[Result]:
    """Run the cases of the method ``name``, or of ``all``: a report each, of all a summary at last.

    ``out`` keeps what it holds of other methods. Raises UserError for an unknown method, for one that brings no cases, and for an
    ``out`` that holds something else, or the counts of another seed.
    """
    methods = sorted({*registry.names("method"), *experiments.found("cases")})  # jobs such as `why` bring cases, too
    slugs = [slug for slug in methods if name in ("all", slug)]
    if not slugs:
        raise UserError(f"unknown method '{name}' ({nearest(name, ['all', *methods])})")
    check_writable(out)
    others = _other_counts(out, slugs, seed)
    cases = {slug: cases_of(slug) for slug in slugs}
    reports: list[MethodReport] = []
    for slug, own in cases.items():
        reports.append(_check(slug, own, quick, seed))
        yield reports[-1]
    kept = sorted([*others, *codec.to_json(reports)], key=lambda report: str(report["method"]))
    _write_figures(out, {"seed": seed}, {"methods": kept})
    if name == "all":
        told = tuple(PassedMethod(one.method, one.passed, one.seconds) for one in reports)
        yield MethodsSummary("all", all(one.passed for one in reports), told, tuple(reports))


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


def _check(slug: str, cases: Sequence[KnownCase], quick: bool, seed: int) -> MethodReport:
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
    with _kept_in(folder, f"check {slug}") as bar:
        cells = ResultCache(folder, progress=bar, uses=_used(slug, cases))
        done = cells.map(repetitions, plan)
    found: dict[str, list[bool]] = {case.name: [] for case in cases}
    for key, call in plan.items():
        found[call["name"]] += done[key]
    rows = tuple(verdict(case, found[case.name]) for case in cases)
    null, planted = (next(row for row in rows if row.truth == truth) for truth in ("nothing", "planted"))
    return MethodReport(
        method=slug,
        null=NullFound(null.n, null.false or 0, null.rate, null.interval, null.level or 0.0),
        planted=PlantedFound(planted.n, planted.found or 0, planted.rate, planted.interval),
        passed=all(row.status != "miss" for row in rows),
        seconds=round(cells.seconds, 1),
        commit=commit(),
        cases=rows,
    )


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


# -- where cells are kept, on which machine and code ---------------------------------------------------------------------------


def _folder(kind: str, name: str, seed: int) -> Path:
    """Where the cells of ``name`` are kept, in :func:`ramify_experiments.lab.cache`."""
    return cache() / kind / f"{name}{f'-seed-{seed}' if seed else ''}"


@contextmanager
def _kept_in(folder: Path, title: str) -> Iterator[Progress]:
    """Show the progress of cells that ``folder`` keeps. What they make beside their results (weights, texts) is kept with
    them."""
    kept = f"finished cells are kept, so the same command continues ({folder})"
    earlier = os.environ.get(MADE)
    os.environ[MADE] = str(folder / "made")
    try:
        with terminal.progress(title, unit="cells", kept=kept) as bar:
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
