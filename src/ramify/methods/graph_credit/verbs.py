"""The verbs of ``ramify graph-credit``. SOURCE is a file of step records or the folder of a run."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from ramify.base.command import Json, takes
from ramify.base.config import load
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.methods.graph_credit.algorithm import CreditConfig
from ramify.methods.graph_credit.run import MAKER, StateGraph, credit_group
from ramify.render.terminal import emit, say, table
from ramify.score.steps import read_steps, write_rows
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.keys import Canonicaliser, canonical, exact, scrub, with_history


class Options(CreditConfig):
    """What the verbs take beside the source: how states are told apart, and the rule."""

    anchor: str = "anchor"
    """Field of a step that tells its state apart."""
    scrub: tuple[str, ...] = ()
    """Taken out of anchors: numbers, timestamps, whitespace."""
    history: int = Field(0, ge=0)
    """How many earlier anchors each key includes."""
    group: str | None = None
    """Trees of this group of a run only."""
    task: str | None = None
    """One task only (build, show, why)."""


app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Merge attempts by state and credit each step by its progress."
)
Source = Annotated[Path, typer.Argument(help="Step records (.jsonl or .parquet) or the folder of a run.")]
Out = Annotated[Path | None, typer.Option(help="File to write.")]


def _keys(options: Options) -> Canonicaliser | None:
    if not (options.scrub or options.history):
        return None
    return with_history(options.history, scrub(*options.scrub) if options.scrub else exact)


def _graph(source: Path, flags: list[str]) -> tuple[StateGraph, Options]:
    options = load(Options, flags=flags)
    keys = _keys(options)
    if source.is_dir():
        with Run.open(source) as run:
            graph = StateGraph.from_run(run, options.group, keys)
    else:
        rows = read_steps(source)
        try:
            graph = StateGraph.from_steps(rows, options.anchor, keys)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.advantages(options)
    for warning in caught:
        say(f"warning: {warning.message}")
    return graph, options


@app.command(**takes(Options))
def build(ctx: typer.Context, source: Source, out: Out = None, as_json: Json = False) -> None:
    """Merge states; --out writes the graph as .json (node-link), .graphml or .dot."""
    graph, options = _graph(source, ctx.args)
    if out is not None and out.suffix == ".graphml":
        graph.graph.write_graphml(out, options.task, {"value": [0.0 if v is None else v for v in graph.state_values()]})
    elif out is not None:
        write_whole(out, _drawing(graph, options.task, "dot" if out.suffix == ".dot" else "json"))
    report = graph.report()
    shown = {name: report[name] for name in ("tasks", "attempts", "steps", "states", "singleton_share")}
    emit(shown | {"out": None if out is None else str(out)}, as_json, table(list(shown), [list(shown.values())]))


@app.command(**takes(Options))
def advantages(
    ctx: typer.Context,
    source: Source,
    out: Annotated[Path, typer.Option(help=".parquet or .jsonl to write.")],
    positive: Annotated[bool, typer.Option("--positive", help="Only steps that made progress (delta > 0), for SFT.")] = False,
    as_json: Json = False,
) -> None:
    """Write every step with its credit."""
    rows = _graph(source, ctx.args)[0].rows(positive)
    write_rows(out, rows)
    emit({"out": str(out), "steps": len(rows)}, as_json, f"{len(rows)} steps with their credit are in {out}")


@app.command(**takes(Options))
def report(ctx: typer.Context, source: Source, as_json: Json = False) -> None:
    """How much states repeat and where the credit comes from."""
    found = _graph(source, ctx.args)[0].report()
    text = table(["number", "value"], [[k, v] for k, v in found.items() if isinstance(v, (int, float))])
    for title in ("top_gains", "top_losses"):
        moves = [[short(e["task"]), *_apart(e["from"], e["to"], short(e["action"])), e["delta"]] for e in found[title]]
        text += "\n\n" + table(["task", "from", "action", "to", "delta"], moves, title.replace("_", " ")) if moves else ""
    emit(found, as_json, text)


@app.command(**takes(Options))
def show(
    ctx: typer.Context,
    source: Source,
    form: Annotated[Literal["dot", "json"], typer.Option("--format", help="dot or json.")] = "dot",
) -> None:
    """Print the merged graph."""
    graph, options = _graph(source, ctx.args)
    emit(graph.to_json(options.task), form == "json", _drawing(graph, options.task, form))


@app.command(**takes(Options))
def mark(
    ctx: typer.Context,
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: Json = False,
) -> None:
    """Store each step's credit, and the numbers behind it, in a run: `ramify show --web` then colours the steps by it."""
    options = load(Options, flags=ctx.args)
    if options.task is not None:
        raise UserError("credit is stored for all tasks of a run, or of one --group: leave --task out")
    with Run.open(run, write=True) as stored:
        present = dict.fromkeys(info.group for info in stored.trees(options.group))
        if not present:
            raise UserError(f"{run} holds no trees" + (f" of the group '{options.group}'" if options.group is not None else ""))
        steps = 0
        for group in present:  # groups apart: attempts of one task under different weights are not compared
            credit, warned = credit_group(stored, group, config=options, keys=_keys(options))
            steps += len(credit)
            for warning in warned:
                say(f"warning: {warning}")
        stored.commit()
    emit(
        {"run": str(run), "steps": steps},
        as_json,
        f"{steps} steps of {run} carry credit: see them with `ramify show {run} --web`",
    )


@app.command(**takes(Options))
def why(
    ctx: typer.Context,
    source: Source,
    node: Annotated[str, typer.Argument(help="Node of a run: its id or the start of it.")] = "",
    attempt: str | None = None,
    step: int | None = None,
    as_json: Json = False,
) -> None:
    """The numbers behind one step's credit: of a node of a run, or of --task, --attempt and --step of a file."""
    if source.is_dir():
        if not node or node.startswith("-"):
            raise UserError(f"name a node of the run {source}")
        with Run.open(source) as run:
            name = run.find(node)
            marks = run.marks(name="why", maker=MAKER, node=name)
        if not marks:
            raise UserError(f"node {name} of {source} carries no credit: `ramify graph-credit mark {source}` stores it")
        found: dict[str, Any] = {"node": name} | dict(marks[0].value)
    else:
        graph, options = _graph(source, [node, *ctx.args] if node else ctx.args)
        if options.task is None or attempt is None or step is None:
            raise UserError("a step of a file is named by --task, --attempt and --step")
        found = graph.why(options.task, attempt, step)
    rows = [
        [k, f"{v:.6g}" if isinstance(v, float) else "-" if v is None else short(v)] for k, v in found.items() if k != "visits"
    ]
    text = table(["number", "value"], rows)
    if visits := found.get("visits"):
        moves = [[short(v["attempt"]), v["step"], short(v["action"]), v["V_next"]] for v in visits]
        text += "\n\n" + table(["attempt", "step", "action", "V_next"], moves, "all visits to this state")
    emit(found, as_json, text)


def _apart(source: Any, target: Any, action: str, width: int = 40) -> list[str]:
    """Two states with the action between; long ones from shortly before the first character in which they differ."""
    keys = [state["key"] if isinstance(state, dict) and state.keys() == {"key"} else state for state in (source, target)]
    old, new = (key if isinstance(key, str) else canonical(key) for key in keys)
    alike = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    cut = max(0, alike - width // 3) if max(len(old), len(new)) > width else 0
    before, after = (short("…" * (cut > 0) + text[cut:], width) for text in (old, new))
    return [before, action, after]


def _drawing(graph: StateGraph, task: str | None, form: str) -> str:
    if form == "json":
        return json.dumps(graph.to_json(task), ensure_ascii=False) + "\n"
    return graph.graph.to_dot(task, {"value": ["-" if v is None else f"{v:.4g}" for v in graph.state_values()]})
