"""What ``ramify repro`` does: run a method's reproduction (or the main job's comparison) and print its table of checks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ramify.base.files import write_whole
from ramify.cli import experiments
from ramify.render import terminal
from ramify.stats.checks import Check
from ramify_experiments import lab
from ramify_experiments.lab import Cells

Reproduce = Callable[..., Sequence[Check]]
"""``reproduce(size, cells, first=0)``: the checks of one size (quick, cpu, gpu), ``first`` the first seed."""


def repro(slug: str, size: str, seed: int, fresh: bool, backend: str, out: Path | None, as_json: bool) -> bool:
    """Reproduce ``slug`` or ``all``, print the tables, and return whether every check held.

    Raises UserError for a name that no distribution brings, for an ``out`` that cannot be written and for an unknown back end.
    """
    names = experiments.chosen("reproductions", slug)
    lab.check_writable(out)
    reports = []
    with lab.cells_on(backend) as runner:
        for name in names:
            report = _reproduce(name, experiments.load("reproductions", name), size, seed, fresh, as_json, runner)
            reports.append(report)
            _print(report, as_json)
    if out is not None:
        figures = {"size": size, "versions": lab.versions(), "machine": lab.machine()}
        body = figures | (reports[0] if slug != "all" else {"reports": reports})
        write_whole(out, json.dumps(body, indent=1, allow_nan=False) + "\n")
    if slug == "all":
        _print_summary(reports, as_json)
    return all(report["passed"] for report in reports)


def _reproduce(slug: str, reproduce: Reproduce, size: str, seed: int, fresh: bool, as_json: bool, runner: Any) -> dict[str, Any]:
    """Run one reproduction and return the report that ``--json`` prints."""
    folder = lab.folder("repro", f"{slug}-{size}", seed)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with lab.kept_in(folder, f"{slug} ({size})", as_json) as bar:
        kept = Cells(folder, progress=bar, runner=runner)
        checks = reproduce(size, kept, **({"first": seed} if seed else {}))
    seconds = lab.seconds_of(folder)
    return {
        "slug": slug,
        "passed": all(check.status != "miss" for check in checks),
        "checks": [check.to_json() for check in checks],
        "seconds": round(seconds, 1),
        "commit": lab.commit(),
    }


def _print(report: dict[str, Any], as_json: bool) -> None:
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
    rows = []
    for report in reports:
        statuses = [check["status"] for check in report["checks"]]
        counts = [statuses.count(status) for status in ("pass", "reported", "known_miss", "miss")]
        rows.append((report["slug"], *counts, report["seconds"], "passed" if report["passed"] else "MISSED"))
    text = terminal.table(["reproduction", "pass", "reported", "known miss", "miss", "seconds", ""], rows)
    passed = all(report["passed"] for report in reports)
    summary = {"slug": "all", "passed": passed, "reports": [{k: r[k] for k in ("slug", "passed", "seconds")} for r in reports]}
    terminal.emit(summary, as_json, "\n" + text)
