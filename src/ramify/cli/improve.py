"""``ramify improve``: the main job, its dry run, and how its result is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.progress import Progress
from ramify.base.words import plural
from ramify.cli.show import write_report
from ramify.kit import Json, Verbs, option
from ramify.render.terminal import emit, progress, short, table

if TYPE_CHECKING:
    from ramify.jobs.settings import ImproveConfig

REPORT = "report.html"

app = Verbs("improve")


def _settings() -> type[ImproveConfig]:
    from ramify.jobs.settings import ImproveConfig

    return ImproveConfig


@app.itself(settings=_settings)
def improve(
    settings: ImproveConfig,
    out: Annotated[
        Path | None, option(metavar="RUN", help="Folder of the run to make; default: the next free runs/improve-N.")
    ] = None,
    dry_run: Annotated[
        bool,
        option(
            "--dry-run",
            help="Print settings and cost estimate after a trial of a few episodes and one training step; keep nothing.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an agent better: attempts, credit per step, training, a before/after report.

    Without settings it runs on the built-in agent and environment, offline, in minutes.
    """
    from ramify.jobs import improve as job
    from ramify.trace.connect import holds_run

    folder = out or next_run("improve")
    if holds_run(folder):
        raise UserError(f"{folder} holds a run already: continue with `ramify resume {folder}`, or choose another --out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot make a run in {folder}: it is a file")
    if dry_run:
        with progress("dry run", unit="episodes", as_json=as_json) as bar:
            cost_estimate = job.plan(settings, folder, bar)
        trial, warnings = cost_estimate.pop("trial"), cost_estimate.pop("warnings")
        settings = job.resolved(settings)
        record = {"config": settings.to_json(), "bill": cost_estimate, "trial": trial, "warnings": warnings}
        text = (
            table(["setting", "value"], [(name, str(value)) for name, value in _leaves(settings.to_json())])
            + "\n\n"
            + table(["cost estimate", "at most"], list(_leaves(cost_estimate)))
            + f"\n\n{tried(trial)}"
            + "".join(f"\nWarning: {warning}." for warning in warnings)
        )
        emit(record, as_json, text)
        return
    finish(folder, as_json, lambda bar: job.improve(settings, folder, bar))


def tried(trial: dict[str, Any]) -> str:
    """The results of the trial's episodes and of its training step, in a sentence each."""
    low, high = trial["interval"]
    successes = round(trial["success"] * trial["n"])
    sizes = [f"{name} {trial[name] / 2**20:.1f} MiB" for name in ("checkpoint", "weights", "agent")]
    return (
        f"Trial: {successes} of {trial['n']} episodes succeeded ({trial['success']:.1%}, 95 % interval {low:.1%} to "
        f"{high:.1%}).\n"
        f"One training step on {plural(trial['training rows'], 'row')} was made and saved: {', '.join(sizes)}."
    )


def finish(folder: Path, as_json: bool, work: Callable[[Progress], dict[str, Any]]) -> None:
    """Do ``work(bar)`` on the run in ``folder`` under a progress bar, write its report, print its result.

    Ctrl-C says how to continue.
    """
    with progress(folder.name, as_json=as_json, kept=lambda: kept(folder)) as bar:
        bar.begin(0, phase="load")
        result = work(bar)
    write_report(folder, folder / REPORT)
    result = {name: _slim(value) for name, value in result.items()}
    emit(result, as_json, summary(result))


def kept(folder: Path) -> str:
    """What is kept in the run ``folder`` after Ctrl-C, and how to continue."""
    from ramify.trace.connect import FILE

    if not (folder / FILE).exists():
        return "nothing was done yet"
    return f"finished work is kept: continue with `ramify resume {folder}`"


def summary(result: dict[str, Any]) -> str:
    """The before/after table and where to look next."""
    rows = []
    for name in ("before", "after"):
        low, high = result[name]["interval"]
        rows.append((name, f"{result[name]['success']:.1%}", f"[{low:.1%}, {high:.1%}]"))
    text = table(["", "success", "95 % interval"], rows)
    if "gain" in result:
        low, high = result["gain"]["interval"]
        text += f"\n\nGain: {100 * result['gain']['success']:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}."
    text += f"\nCost: {cost(result)}."
    if "caution" in result:
        text += f"\n\nNote: {result['caution']}."
    lines = [f"\n- {one['text']}" for one in result["changes"]["states"]]
    text += f"\n\n{result['changes']['why']}{''.join(lines)}"
    if "compare" in result:
        text += f"\n\n{compared(result['compare'])}"
    run = result["run"]
    return f"\n{text}\n\nReport: {run}/{REPORT}, or `ramify show {run} --web`. The improved agent: {run}/agent."


def compared(arms: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of the arms: success over tokens, and the gain."""
    last = max((tokens for arm in arms.values() for tokens, _, _ in arm["curve"]), default=0)
    edges = [0.0, *(last * part / 3 for part in (1, 2, 3))]
    rows = []
    for name, arm in arms.items():
        first, *rest, end = arm["curve"]
        cells = [f"{first[1] / first[2]:.1%}"]
        for low, high in pairwise(edges):
            there = [(k, n) for tokens, k, n in rest if low < tokens <= high]
            cells.append(f"{sum(k for k, _ in there) / sum(n for _, n in there):.1%}" if there else "-")
        low, high = arm["gain"]["interval"]
        rows.append(
            (
                name,
                *cells,
                f"{end[1] / end[2]:.1%}",
                f"{100 * arm['gain']['success']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
            )
        )
    columns = [
        "success of arm",
        "held out, before",
        *(f"to {short(edge)} tokens" for edge in edges[1:]),
        "held out, after",
        "gain, points",
    ]
    return table(columns, rows)


def cost(result: dict[str, Any]) -> str:
    """What the training of a result took."""
    spent = f"{short(result['tokens'])} tokens, {result['seconds']:.0f} s"
    counts = plural(result["attempts"], "attempt"), plural(result["forks"], "fork"), plural(result["updates"], "update")
    return f"{', '.join(counts)}, {spent}"


def next_run(name: str) -> Path:
    """The next free ``runs/NAME-N``."""
    from ramify.trace.sources import RUNS

    taken = [int(found[1]) for path in RUNS.glob(f"{name}-*") if (found := re.fullmatch(rf"{name}-(\d+)", path.name))]
    return RUNS / f"{name}-{max(taken, default=0) + 1}"


def _slim(value: Any) -> Any:
    """An evaluation without its list of single outcomes: those are in the run."""
    return {k: v for k, v in value.items() if k != "outcomes"} if isinstance(value, dict) else value


def _leaves(nested: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
