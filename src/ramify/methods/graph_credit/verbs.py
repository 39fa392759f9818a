"""The verbs of ``ramify graph-credit``. SOURCE is a file of step records or the folder of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.words import plural
from ramify.kit import Json, Verbs, argument, option
from ramify.methods.graph_credit.algorithm import CreditConfig
from ramify.methods.graph_credit.decisive import LEVEL
from ramify.methods.graph_credit.rules import GraphCredit
from ramify.methods.graph_credit.run import MAKER, StateGraph
from ramify.render.terminal import emit, say, table
from ramify.score.credit.protocol import CreditGroup, credit_group, meanings
from ramify.score.steps import UnscoredError, read_steps, write_rows
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader
from ramify.trace.graph import short
from ramify.trace.keys import Canonicaliser, StatePattern, canonical, canonicaliser
from ramify.trace.node import Finding


class Options(CreditConfig):
    """Options of the verbs in addition to the source: how states are identified, and the rule."""

    BASIC = "rule anchor state_pattern group scorer task level"
    anchor: str = "anchor"
    """Field of a step that identifies its state."""
    state_pattern: str | None = None
    """Regular expression that takes the state out of an anchor (its groups, else the match);
    in a run, out of an observation's text."""
    scrub: tuple[str, ...] = ()
    """Taken out of anchors: numbers, timestamps, whitespace."""
    history: int = Field(0, ge=0)
    """How many earlier anchors each key includes."""
    group: str | None = None
    """Trees of this group of a run only."""
    scorer: str | None = None
    """Scorer whose score is an attempt's reward; by default env, the imported reward, or the only one there is."""
    task: str | None = None
    """One task only (build, show, why)."""
    level: float = Field(LEVEL, gt=0, lt=1)
    """Chance of calling any step decisive where none is (report, why, mark)."""


app = Verbs("graph-credit", help="Merge attempts by state and credit each step by its progress.")
Source = Annotated[Path, argument(help="Step records (.jsonl or .parquet) or the folder of a run.")]
Out = Annotated[Path | None, option(help="File to write.")]


@dataclass(frozen=True)
class _Keys:
    """How the options identify states."""

    pattern: StatePattern | None
    make: Canonicaliser | None

    @classmethod
    def of(cls, options: Options) -> _Keys:
        pattern = None if options.state_pattern is None else StatePattern(options.state_pattern)
        return cls(pattern, canonicaliser(pattern, options.scrub, options.history))

    def check(self) -> None:
        """Says where the pattern was not found. Raises UserError where it never was."""
        for doubt in [] if self.pattern is None else self.pattern.check():
            say(f"warning: {doubt}")


def _graph(source: Path, options: Options) -> StateGraph:
    keys = _Keys.of(options)
    if source.is_dir():
        if options.anchor != Options().anchor:
            raise UserError(f"{source} is a run, which stores its states, so --anchor does not apply")
        with Run.open(source) as run:
            graph = StateGraph.from_run(run, options.group, keys.make, options.scorer)
    else:
        for name in ("scorer", "group"):
            if getattr(options, name) is not None:
                raise UserError(f"{source} is no run but a file of steps, so --{name} does not apply")
        rows = _steps(source)
        try:
            graph = StateGraph.from_steps(rows, options.anchor, keys.make)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
    keys.check()
    graph.assign(options)
    for doubt in graph.doubts():
        say(f"warning: {doubt}")
    return graph


def _steps(source: Path) -> list[dict[str, Any]]:
    try:
        form = pick_reader(source).name
    except UserError:
        form = "steps"  # reading it says what is wrong
    if form != "steps":
        raise UserError(
            f"{source} holds no steps but '{form}': make a run of it with `ramify import {source} --run DIR`, and name that"
        )
    return read_steps(source)


@app.verb(settings=Options)
def build(options: Options, source: Source, out: Out = None, as_json: Json = False) -> None:
    """Merge states; --out writes the graph as .json (node-link), .graphml or .dot."""
    graph = _graph(source, options)
    if out is not None and out.suffix == ".graphml":
        graph.graph.write_graphml(out, options.task, {"value": [0.0 if v is None else v for v in graph.state_values()]})
    elif out is not None:
        write_whole(out, _sampling(graph, options.task, "dot" if out.suffix == ".dot" else "json"))
    report = graph.report()
    shown = {name: report[name] for name in ("tasks", "attempts", "steps", "states", "singleton_share")}
    emit(shown | {"out": None if out is None else str(out)}, as_json, table(list(shown), [list(shown.values())]))


@app.verb(settings=Options)
def advantages(
    options: Options,
    source: Source,
    out: Annotated[Path, option(help=".parquet or .jsonl to write.")],
    positive: Annotated[bool, option("--positive", help="Only steps that made progress (delta > 0), for SFT.")] = False,
    as_json: Json = False,
) -> None:
    """Write every step with its credit."""
    rows = _graph(source, options).rows(positive)
    write_rows(out, rows)
    emit({"out": str(out), "steps": len(rows)}, as_json, f"{out} holds {plural(len(rows), 'step')} with credit")


@app.verb(settings=Options)
def report(options: Options, source: Source, as_json: Json = False) -> None:
    """How much states repeat, where the credit comes from, and which moves stand out of chance."""
    found = _graph(source, options).report(options.level)
    text = table(["number", "value"], [[k, v] for k, v in found.items() if isinstance(v, (int, float))])
    text += f"\n\n{found['verdict']}"
    if found["decisive"]:
        text += "\n\n" + _moves(found["decisive"], ["difference", "takers", "others", "p_corrected"], "decisive moves")
    for title in ("top_gains", "top_losses"):
        if found[title]:
            text += "\n\n" + _moves(found[title], ["delta", "p_corrected"], f"{title.replace('_', ' ')}, chance included")
    if source.is_dir() and (found["top_losses"] or found["top_gains"]):
        text += f"\n\nThe numbers behind a step, and what else was done in its state: `ramify graph-credit why {source} NODE`."
    emit(found, as_json, text)


def _moves(moves: list[dict[str, Any]], numbers: list[str], title: str) -> str:
    """A table of moves with some of their numbers, and their nodes where they have any."""
    nodes = any(e.get("node") for e in moves)
    rows = [
        [
            short(e["task"]),
            *_apart(e["from"], e["to"], short(e["action"])),
            *("-" if e.get(name) is None else e[name] for name in numbers),
            *([short(e["node"] or "-")[:12]] if nodes else []),
        ]
        for e in moves
    ]
    return table(["task", "from", "action", "to", *numbers, *(["node"] if nodes else [])], rows, title)


@app.verb(settings=Options)
def show(
    options: Options,
    source: Source,
    form: Annotated[Literal["dot", "json"], option("--format", help="dot or json; --json is short for the second.")] = "dot",
    as_json: Json = False,
) -> None:
    """Print the merged graph."""
    graph = _graph(source, options)
    emit(graph.to_json(options.task), as_json or form == "json", _sampling(graph, options.task, form))


@app.verb(settings=Options)
def mark(
    options: Options,
    run: Annotated[Path, argument(help="Folder of a run.")],
    as_json: Json = False,
) -> None:
    """Store each step's credit, and the numbers that explain it, in a run: `ramify show --web` then colours the steps by it."""
    if options.task is not None:
        raise UserError("credit is stored for all tasks of a run, or of one --group: leave --task out")
    with Run.open(run, write=True) as stored:
        present = dict.fromkeys(info.group for info in stored.trees(options.group))
        if not present:
            raise UserError(f"{run} holds no trees" + (f" of the group '{options.group}'" if options.group is not None else ""))
        steps = credited = 0
        decisive: dict[str, Any] = {}
        keys, unscored = _Keys.of(options), []
        for group in present:  # groups apart: attempts of one task under different weights are not compared
            try:
                attempts = CreditGroup.of(stored, group, keys=keys.make, scorer=options.scorer)
            except UnscoredError as error:
                unscored.append(error)
                continue
            rule = GraphCredit(options, options.level)
            credit = credit_group(stored, rule, attempts)
            steps += len(credit)
            credited += sum(bool(values.any()) for values in credit.values())
            annotations = {annotation.node: annotation.value for annotation in stored.annotations(name="why", maker=MAKER)}
            decisive |= {node: annotations[node] for node in credit if annotations[node]["decisive"]}
            for doubt in rule.doubts:
                say(f"warning: {doubt}")
        if len(unscored) == len(present):
            raise unscored[0]
        keys.check()
        stored.conclude("graph-credit mark", [_finding(run, node, value, options) for node, value in decisive.items()])
        stored.commit()
    sentence = f"{credited} of {steps} steps of {run} have credit other than 0: see them with `ramify show {run} --web`"
    none = f"no step of {run} has any credit: all {steps} are 0"
    verdict = (
        f"{len(decisive)} of them stand out of chance" if decisive else "nothing stands out: no step's credit is more than chance"
    )
    verdict += f", at level {options.level:g}, corrected over " + ("each group" if len(present) > 1 else "all moves")
    found = {"run": str(run), "steps": steps, "credited": credited, "decisive": sorted(decisive), "verdict": verdict}
    emit(found, as_json, f"{sentence if credited else none}\n{verdict}")


@app.verb(settings=Options)
def why(
    options: Options,
    source: Source,
    node: Annotated[str, argument(help="Node of a run: its id or the start of it.")] = "",
    attempt: str | None = None,
    step: int | None = None,
    as_json: Json = False,
) -> None:
    """The numbers that explain one step's credit: of a node of a run, or of --task, --attempt and --step of a file."""
    if source.is_dir():
        if not node:
            raise UserError(f"name a node of the run {source}")
        with Run.open(source) as run:
            name = run.find(node)
            annotations = (
                []
                if options.model_fields_set
                else sorted(run.annotations(name="why", node=name), key=lambda annotation: annotation.maker != MAKER)
            )
            meaning = meanings(run).get(annotations[0].maker, {}) if annotations and annotations[0].maker != MAKER else {}
            group = run.tree_info(run.node(name).tree).group
        if annotations:
            found: dict[str, Any] = {"node": name} | dict(annotations[0].value)
            if annotations[0].maker != MAKER:  # another rule's: what it says, as it says it
                rows = [[k, _shown(v), meaning.get(k, "")] for k, v in found.items()]
                emit(found, as_json, table(["number", "value", "what it is"], rows, f"credit by {annotations[0].maker}"))
                return
        else:
            at = options.model_copy(update={"group": options.group or group or None})
            found = _graph(source, at).why_node(name, options.level)
    else:
        if node:
            raise UserError(f"{source} is a file of steps, which has no node '{node}'")
        graph = _graph(source, options)
        if options.task is None or attempt is None or step is None:
            raise UserError("a step of a file is named by --task, --attempt and --step")
        found = graph.why(options.task, attempt, step, options.level)
    first = [name for name in ("node", "task", "attempt", "step", "key", "action") if name in found]
    names = [*first, *(name for name in found if name not in (*first, "visits"))]
    rows = [[k, _shown(found[k])] for k in names]
    text = table(["number", "value"], rows)
    if visits := found.get("visits"):
        moves = [[short(v["attempt"]), v["step"], short(v["action"]), v["V_next"]] for v in visits]
        text += "\n\n" + table(["attempt", "step", "action", "V_next"], moves, "all visits to this state")
    emit(found, as_json, f"{text}\n\n{_sentence(found)}")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else short(value)


def _finding(run: Path, node: str, value: dict[str, Any], options: Options) -> Finding:
    """A decisive step, as the run keeps it."""
    numbers = {
        name: value[name] for name in ("A", "difference", "interval", "p", "p_corrected", "takers", "others") if name in value
    }
    do = f"ramify fork {run} {node[:12]} samples what else could have been done there"
    settings = options.to_json()
    return Finding(
        "decisive step", "graph-credit mark", _sentence(value), node, 0, do, value["difference"], "reward", numbers, settings
    )


def _sentence(found: dict[str, Any]) -> str:
    """Whether a step's credit is more than chance."""
    if found["decisive"] is None:
        return (
            "no attempt did anything else when it was first in this state, so the step cannot be compared: its credit may be "
            "chance"
        )
    comparison = (
        f"rewards {found['difference']:+.3g} against {plural(found['others'], 'other')} in its state, corrected p "
        f"{found['p_corrected']:.2g}"
    )
    return f"the step {'stands' if found['decisive'] else 'does not stand'} out of chance: {comparison}"


def _apart(source: Any, target: Any, action: str, width: int = 40) -> list[str]:
    """Two states with the action between; long ones from shortly before the first character in which they differ."""
    keys = [state["key"] if isinstance(state, dict) and state.keys() == {"key"} else state for state in (source, target)]
    old, new = (key if isinstance(key, str) else canonical(key) for key in keys)
    alike = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    cut = max(0, alike - width // 3) if max(len(old), len(new)) > width else 0
    before, after = (short("…" * (cut > 0) + text[cut:], width) for text in (old, new))
    return [before, action, after]


def _sampling(graph: StateGraph, task: str | None, form: str) -> str:
    if form == "json":
        return json.dumps(graph.to_json(task), ensure_ascii=False) + "\n"
    return graph.graph.to_dot(task, {"value": ["-" if v is None else f"{v:.4g}" for v in graph.state_values()]})
