"""``ramify show``: a run's summary in the terminal, as one HTML file, or as local web pages."""

from __future__ import annotations

import heapq
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.words import plural
from ramify.kit import Json, RunArgument, Verbs, find_run, option
from ramify.render.result import from_data, to_data, to_text
from ramify.render.sections import sections_of
from ramify.render.terminal import emit, short, table
from ramify.stats.intervals import wilson
from ramify.trace.outcome import NOBODY, settled, successes, undecided

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.node import Annotation

app = Verbs("show")

TOKEN = "RAMIFY_TOKEN"
HOST, PORT = "127.0.0.1", 8765
LAST = 5
"""How many updates (or names of trees) the terminal shows."""
MOST = 20
"""How many findings, and rows of what a method shows."""
WIDEST = 90
"""Characters of a cell of it."""
COLUMNS = 5
"""How many of the numbers that explain a step's credit."""


@app.itself()
def show(
    run: RunArgument,
    html: Annotated[Path | None, option(metavar="FILE", help="Write the report as one self-contained HTML file.")] = None,
    web: Annotated[bool, option("--web", help="Serve the report on this machine until Ctrl-C.")] = False,
    port: Annotated[int, option(help="Port of --web.", min=0, max=65535)] = PORT,
    host: Annotated[str, option(help="Address to bind --web to; beyond this machine a token is needed.")] = HOST,
    token: Annotated[
        bool,
        option(
            "--token", help="Require a token from visitors of --web: RAMIFY_TOKEN, or one that is generated and printed once."
        ),
    ] = False,
    scorer: Annotated[
        str | None,
        option(metavar="NAME", help="Scorer that decides which attempts succeeded; default: env, or the imported reward."),
    ] = None,
    beside: Annotated[
        str | None, option(metavar="RUN", help="Another run to compare with, on the pages of --web and --html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Summarise a run: how often its attempts succeeded; of an improve run before and after,
    the last updates, where the budget went."""
    folder = find_run(run)
    if web and html is not None:
        raise UserError("choose one of --web and --html")
    if not web and (token or (host, port) != (HOST, PORT)):
        raise UserError("--host, --port and --token go with --web")
    if beside is not None and not web and html is None:
        raise UserError("--beside goes with --web or --html")
    other = None if beside is None else find_run(beside)
    if web:
        from ramify.web.server import serve_run

        serve_run(folder, host, port, os.environ.get(TOKEN, "") if token else None, scorer, other)
        return
    if html is not None:
        write_report(folder, html, scorer, other)
        emit({"run": str(folder), "html": str(html)}, as_json, f"wrote {html}")
        return
    from ramify.trace.db import Run
    from ramify.trace.schema import stored

    with Run.open(folder) as opened:
        record = stored(summarise)(opened, scorer)
    stored(emit)(record, as_json, "" if as_json else stored(_text)(record))


def write_report(folder: Path, out: Path, scorer: str | None = None, beside: Path | None = None) -> None:
    """Write the run's report as one HTML file, whole or not at all; ``beside`` is a run to compare with."""
    from contextlib import nullcontext

    from ramify.trace.db import Run
    from ramify.trace.schema import stored
    from ramify.web.pages import report_html

    with Run.open(folder) as run, nullcontext() if beside is None else Run.open(beside) as other:
        write_whole(out, stored(report_html)(run, scorer=scorer, beside=other))


def summarise(run: Run, scorer: str | None = None) -> dict[str, Any]:
    """Everything the summary shows, as JSON. An imported run has no evaluations, updates or result.

    ``attempts`` is None in an improve run, which has evaluations instead, and where no attempt is scored. ``scorers`` are the
    candidates where several could decide. ``forks`` are those that were asked for (None without any): they are no attempts.
    Raises UserError where there is no ``scorer`` of that name."""
    from ramify.trace.failures import failures

    evals = {e.key: {k: v for k, v in e.payload.items() if k != "outcomes"} for e in run.journal("eval")}
    arm = run.config.get("arm")
    updates = [] if arm is None else [e.payload for e in run.journal("update") if e.payload.get("arm") == arm]
    result: dict[str, Any] = next((e.payload for e in run.journal("result")), {})
    deciding = settled(run, scorer)
    outcomes = [entry.payload["outcome"] for entry in run.journal("attempt")] if scorer is None else []
    scored = [outcome for outcome in outcomes if outcome is not None]
    if not outcomes and not evals and not updates:
        scored = [success for success in successes(run, deciding) if success is not None]
    forked = [success for success in successes(run, deciding, forks=True) if success is not None]
    failed = failures(run)
    chosen = next(iter(run.journal("tree")), None)  # the trees of a selector: their attempts are no independent samples
    return {
        "run": str(run.folder),
        "ramify": run.meta.get("ramify"),
        "kind": run.kind,
        "config": run.meta.get("config"),
        "attempts": {
            "successes": sum(scored),
            "n": len(scored),
            "interval": list(wilson(sum(scored), len(scored))) if chosen is None else None,
        }
        if scored
        else None,
        "forks": {"successes": sum(forked), "n": len(forked)} if forked else None,
        "scorers": undecided(run) if deciding is NOBODY else [],
        "failed": {"n": len(failed.reasons), "of": failed.attempts, "reasons": failed.counted, "sentence": failed.sentence()}
        if failed.reasons
        else None,
        "findings": [asdict(finding) for finding in run.findings()],
        "results": {maker: to_data(own) for maker, own in sections_of(run).items()},
        "credit": _credited(run),
        "trees": [tree.name for tree in run.trees()],
        "nodes": len(run),
        "done": bool(result),
        "gain": result.get("gain"),
        "evals": evals,
        "updates": updates,
        "spent": _spent(updates, evals),
    }


def _credited(run: Run) -> list[dict[str, Any]]:
    """For each credit rule: how many steps it credited, the strongest with the numbers that explain them, and what these mean."""
    found: dict[str, list[Annotation]] = {}
    for annotation in run.annotations(name="why"):
        if isinstance(annotation.value, Mapping) and isinstance(annotation.value.get("A"), int | float):
            found.setdefault(annotation.maker, []).append(annotation)
    if not found:
        return []
    from ramify.score.credit.protocol import meanings

    meaning = meanings(run)
    return [
        {
            "maker": maker,
            "steps": len(annotations),
            "credited": sum(annotation.value["A"] != 0 for annotation in annotations),
            "strongest": [
                {"node": annotation.node} | dict(annotation.value)
                for annotation in heapq.nlargest(LAST, annotations, lambda annotation: abs(annotation.value["A"]))
            ],
            "numbers": meaning.get(maker, {}),
        }
        for maker, annotations in found.items()
    ]


def _credit_text(credit: dict[str, Any]) -> str:
    """The strongest steps with the first numbers that explain their credit, and what those mean."""
    steps = credit["strongest"]
    names = [name for name in credit["numbers"] if type(steps[0].get(name)) in (int, float)][:COLUMNS]
    rows = [
        (one["node"][:12], *(f"{one[name]:.4g}" if type(one.get(name)) in (int, float) else "-" for name in names))
        for one in steps
    ]
    title = f"credit by {credit['maker']}: {credit['credited']} of {credit['steps']} steps, the strongest"
    return table(["step", *names], rows, title) + "".join(f"\n  {name}: {credit['numbers'][name]}" for name in names)


def _found(findings: list[dict[str, Any]]) -> str:
    """Findings of methods: maker, finding, node, reason, and what to do about it."""
    rows = [
        (
            one["maker"],
            one["name"],
            (one["node"] or "the run")[:12],
            "-" if one["value"] is None else f"{one['value']:.4g} {one['unit']}",
            one["why"],
        )
        for one in findings[:MOST]
    ]
    left = f" (the first {MOST}; --json has all {len(findings)})" if len(findings) > MOST else ""
    text = table(["found by", "what", "where", "value", "why"], rows, f"findings{left}")
    todo = dict.fromkeys(one["action"] for one in findings[:MOST] if one["action"])
    return text + "".join(f"\n  {action}" for action in todo)


def _spent(updates: list[Any], evals: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Tokens and seconds by purpose. An update's tokens are the total so far; its seconds are its own, by phase."""
    spent: dict[str, dict[str, float]] = {}
    for update in updates:
        for part, seconds in update["seconds"].items():
            row = spent.setdefault(part, {"tokens": 0, "seconds": 0.0})
            row["seconds"] += seconds
        spent.setdefault("sample", {"tokens": 0, "seconds": 0.0})["tokens"] = update["tokens"]
    for key, payload in evals.items():
        spent[f"evaluation {key}"] = {"tokens": payload["tokens"], "seconds": payload["seconds"]}
    return spent


def _text(record: dict[str, Any]) -> str:
    trees = record["trees"]
    parts = [
        f"{record['run']}: {plural(len(trees), 'tree')}, {plural(record['nodes'], 'node')}, made by ramify {record['ramify']}"
    ]
    if record["attempts"] and record["attempts"]["interval"] is None:
        played = record["attempts"]
        parts.append(
            f"{played['successes']} of {played['n']} attempts succeeded. A selector chose where they start, so this is not a "
            "success rate: "
            f"`ramify tree-rollouts report {record['run']}` evaluates the trees."
        )
    elif record["attempts"]:
        played, (low, high) = record["attempts"], record["attempts"]["interval"]
        rate = f"{played['successes'] / played['n']:.1%}"
        columns = ["success", "95 % interval", "successes", "attempts"]
        parts.append(table(columns, [(rate, f"[{low:.1%}, {high:.1%}]", played["successes"], played["n"])]))
    elif record["scorers"]:
        parts.append(f"Several scorers judged the attempts ({', '.join(record['scorers'])}): choose one with --scorer NAME.")
    if record["forks"]:
        forked = record["forks"]
        parts.append(
            f"{plural(forked['n'], 'fork')} {'is' if forked['n'] == 1 else 'are'} not counted with them; {forked['successes']} "
            "succeeded."
        )
    if record["failed"]:
        parts.append(f"{record['failed']['sentence']}. Failed attempts are not counted.")
    if record["findings"]:
        parts.append(_found(record["findings"]))
    for maker, data in record["results"].items():
        parts.append(to_text(from_data(data, maker), MOST, WIDEST))
    if record["gain"]:
        low, high = record["gain"]["interval"]
        gain = 100 * record["gain"]["success"]
        parts.append(f"Success changed by {gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}.")
    elif record["updates"]:
        parts.append(f"Not finished: continue with `ramify resume {record['run']}`.")
    if record["evals"]:
        rows = [
            (name, f"{e['success']:.1%}", f"[{e['interval'][0]:.1%}, {e['interval'][1]:.1%}]", e["n"])
            for name, e in record["evals"].items()
        ]
        parts.append(table(["evaluation", "success", "95 % interval", "episodes"], rows))
    if record["updates"]:
        updates = [
            (u["update"], f"{u['success']:.1%}", f"{u['mixed']:.1%}", u["groups"], u["leaves"], u["tokens"])
            for u in record["updates"][-LAST:]
        ]
        title = f"last {len(updates)} of {len(record['updates'])} updates"
        parts.append(
            table(["update", "success", "groups with mixed outcomes", "groups", "attempts", "tokens so far"], updates, title)
        )
    parts += [_credit_text(credit) for credit in record["credit"]]
    if record["spent"]:
        spent = [(name, short(row["tokens"]), f"{row['seconds']:.1f}") for name, row in record["spent"].items()]
        parts.append(table(["where the budget went", "tokens", "seconds"], spent))
    if trees and not record["evals"]:
        parts.append("trees: " + ", ".join(trees[:LAST]) + (f", and {len(trees) - LAST} more" if len(trees) > LAST else ""))
        parts.append(f"Every step and its id, for `ramify fork {record['run']} NODE`: `ramify show {record['run']} --web`.")
    return "\n\n".join(parts)
