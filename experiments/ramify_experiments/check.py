"""What ``ramify check method`` does: run a method's verbs where nothing is to be found and where something is, and count what they say."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ramify.base import registry
from ramify.base.errors import UserError, nearest
from ramify.base.files import write_whole
from ramify.base.seeds import place_key
from ramify.cli import experiments
from ramify.render import terminal
from ramify_experiments import lab
from ramify_experiments.cases import Case, Repetition, verdict
from ramify_experiments.lab import Cells

TOGETHER = 5
"""Repetitions of one resumable cell, of a case that has many."""


def check_methods(name: str, quick: bool, seed: int, out: Path | None, as_json: bool) -> bool:
    """Run the cases of the method ``name``, or of ``all``, print them, and return whether none missed.

    Raises UserError for an unknown method, and for one that brings no cases.
    """
    methods = registry.names("method")
    slugs = [slug for slug in methods if name in ("all", slug)]
    if not slugs:
        raise UserError(f"unknown method '{name}' ({nearest(name, ['all', *methods])})")
    lab.check_writable(out)
    cases = {slug: cases_of(slug) for slug in slugs}
    reports = []
    for slug, own in cases.items():
        reports.append(_check(slug, own, quick, seed, as_json))
        _print(reports[-1], as_json)
    passed = all(report["passed"] for report in reports)
    if out is not None:
        body = {
            "seed": seed,
            "commit": lab.commit(),
            "versions": lab.versions(),
            "machine": lab.machine(),
            "methods": reports,
        }
        write_whole(out, json.dumps(body, indent=1, allow_nan=False) + "\n")
    if name == "all":
        _print_all(reports, passed, as_json)
    return passed


def cases_of(slug: str) -> tuple[Case, ...]:
    """The cases of a method. Raises UserError where it brings none, where two share a name, or where a null or a planted case is missing."""
    if slug not in experiments.found("cases"):
        raise UserError(
            f"the method '{slug}' brings no null and no planted case: its distribution names them under [project.entry-points.\"ramify.cases\"]"
        )
    found: tuple[Case, ...] = tuple(experiments.load("cases", slug))
    names = [case.name for case in found]
    if len(set(names)) < len(names) or {case.truth for case in found} != {"nothing", "planted"}:
        raise UserError(f"the cases of '{slug}' must hold a null and a planted case at least, each under a name of its own")
    return found


def _check(slug: str, cases: Sequence[Case], quick: bool, seed: int, as_json: bool) -> dict[str, Any]:
    folder = lab.folder("nulls", slug, seed)
    plan: dict[str, dict[str, Any]] = {}
    for case in cases:
        count = case.quick if quick else case.full
        together = TOGETHER if case.full >= 10 * TOGETHER else 1
        for start in range(0, count, together):
            draws = list(range(start, min(start + together, count)))
            plan[f"{case.name}, {draws[0]} to {draws[-1]}"] = {"slug": slug, "name": case.name, "seed": seed, "draws": draws}
    with lab.kept_in(folder, f"check {slug}", as_json) as bar:
        done = Cells(folder, progress=bar).map(repetitions, plan)
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
        "seconds": round(lab.seconds_of(folder), 1),
        "cases": rows,
    }


def repetitions(slug: str, name: str, seed: int, draws: Sequence[int]) -> list[bool]:
    """Whether the verb reported a finding in each of ``draws`` of the case ``name``: one cell."""
    case = next(case for case in cases_of(slug) if case.name == name)
    place, found = f"ramify.methods.{slug.replace('-', '_')}.nulls", []  # samples are those of committed results
    for draw in draws:
        with tempfile.TemporaryDirectory(prefix="ramify-null-") as folder:
            found.append(bool(case.run(Repetition(place_key(seed, "null", place, name, draw) % 2**31, Path(folder), call_verb))))
    return found


def call_verb(*words: object) -> dict[str, Any]:
    """What ``ramify WORDS --json`` prints last. Raises what the verb raises, and ValueError where it prints no JSON."""
    from ramify.cli.main import app

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        args = [*(str(word) for word in words), "--json"]
        typer.main.get_group(app).main(args=args, prog_name="ramify", standalone_mode=False)
    lines = said.getvalue().splitlines()
    if not lines:
        raise ValueError(f"`ramify {' '.join(args)}` printed nothing")
    last: dict[str, Any] = json.loads(lines[-1])
    return last


def _print(report: dict[str, Any], as_json: bool) -> None:
    rows = []
    for case in report["cases"]:
        planted = case["truth"] == "planted"
        low, high = case["interval"]
        wanted = f">= {case['wanted']:g}" if planted else f"<= {case['level']:g}"
        share = f"{case['found' if planted else 'false']} of {case['n']}"
        rows.append((case["truth"], case["name"], share, f"[{low:.3f}, {high:.3f}]", wanted, case["status"]))
    text = terminal.table(["truth", "case", "found", "95 % interval", "wanted", "status"], rows)
    reasons = [f"  {case['name']}: {case['known_miss']}" for case in report["cases"] if case["status"] == "known_miss"]
    text += "\n\nKnown misses:\n" + "\n".join(reasons) if reasons else ""
    verdict = "passed" if report["passed"] else "MISSED"
    terminal.emit(report, as_json, f"\n{report['method']}\n{text}\n\n{report['method']}: {verdict} in {report['seconds']} s")


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
