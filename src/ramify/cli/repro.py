"""``ramify repro``: run a method's reproduction (or the main job's comparison) and print its table of checks."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.base import registry
from ramify.base.command import Json
from ramify.base.errors import EXIT_FAILED, UserError, nearest
from ramify.base.files import write_whole
from ramify.cli import cells

if TYPE_CHECKING:
    from ramify.stats.checks import Check

app = typer.Typer(add_completion=False)

JOBS = {"improve": "ramify.jobs.improve_repro"}


@app.command()
def repro(
    slug: Annotated[str, typer.Argument(metavar="METHOD", help="A method, 'improve', or 'all'.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="The size for two CPU cores.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="The size for one GPU.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, at most a minute, looser thresholds. The default for 'all'.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="The first seed; the others follow it.")] = 0,
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
    if gpu and (cpu or quick):
        raise UserError("choose --gpu or --cpu, and with --cpu --quick where it should take at most a minute")
    size = "gpu" if gpu else "quick" if quick or (slug == "all" and not cpu) else "cpu"
    known = {name: module for name, module in _reproductions().items() if slug in ("all", name)}
    if not known:
        raise UserError(f"no reproduction '{slug}' ({nearest(slug, ['all', *_reproductions()])})")
    cells.check_writable(out)
    reports = []
    with cells.cells_on(backend) as runner:
        for name, module in known.items():
            report = _reproduce(name, module, size, seed, fresh, as_json, runner)
            reports.append(report)
            _print(report, as_json)
    if out is not None:
        figures = {"size": size, "versions": cells.versions(), "machine": cells.machine()}
        body = figures | (reports[0] if slug != "all" else {"reports": reports})
        write_whole(out, json.dumps(body, indent=1, allow_nan=False) + "\n")
    if slug == "all":
        _print_summary(reports, as_json)
    if not all(report["passed"] for report in reports):
        raise typer.Exit(EXIT_FAILED)


def _reproductions() -> dict[str, str]:
    """Slug -> module of everything that can be reproduced."""
    return {slug: f"{registry.get('method', slug).__name__}.repro" for slug in registry.names("method")} | JOBS


def _reproduce(slug: str, module: str, size: str, seed: int, fresh: bool, as_json: bool, runner: Any) -> dict[str, Any]:
    """Run one reproduction and return the report that ``--json`` prints."""
    from ramify.stats.checks import Cells

    folder = cells.folder("repro", f"{slug}-{size}", seed)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with cells.kept_in(folder, f"{slug} ({size})", as_json) as bar:
        kept = Cells(folder, progress=bar, runner=runner)
        checks: Sequence[Check] = importlib.import_module(module).reproduce(size, kept, **({"first": seed} if seed else {}))
    seconds = cells.seconds_of(folder)
    return {
        "slug": slug,
        "passed": all(check.status != "miss" for check in checks),
        "checks": [check.to_json() for check in checks],
        "seconds": round(seconds, 1),
        "commit": cells.commit(),
    }


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
        counts = [statuses.count(status) for status in ("pass", "reported", "known_miss", "miss")]
        rows.append((report["slug"], *counts, report["seconds"], "passed" if report["passed"] else "MISSED"))
    text = terminal.table(["reproduction", "pass", "reported", "known miss", "miss", "seconds", ""], rows)
    passed = all(report["passed"] for report in reports)
    summary = {"slug": "all", "passed": passed, "reports": [{k: r[k] for k in ("slug", "passed", "seconds")} for r in reports]}
    terminal.emit(summary, as_json, "\n" + text)
