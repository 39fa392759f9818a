"""The verbs of ``ramify graph-credit``. SOURCE is a file of step records or the folder of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.files import write_whole
from ramify.base.words import plural
from ramify.kit import Verbs, argument, only_for, option
from ramify.methods.graph_credit.algorithm import CreditConfig
from ramify.methods.graph_credit.decisive import LEVEL
from ramify.methods.graph_credit.report import CreditReport, RuleNumbers, StepCredit, StepNumbers
from ramify.methods.graph_credit.rules import GraphCredit
from ramify.methods.graph_credit.run import MAKER, StateGraph
from ramify.render.result import Result, Section, Verbatim, table
from ramify.rollout.commands import Commands, commands
from ramify.score.credit.protocol import CreditGroup, credit_group, meanings
from ramify.score.steps import UnscoredError, read_steps, write_rows
from ramify.trace.db import Run
from ramify.trace.formats import pick_reader
from ramify.trace.keys import Canonicaliser, StatePattern, canonicaliser
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
    """One task only (show, why)."""
    level: float = Field(LEVEL, gt=0, lt=1)
    """Chance of calling any step decisive where none is (report, why, mark)."""


app = Verbs("graph-credit", help="Merge attempts by state and credit each step by its progress.")
Source = Annotated[Path, argument(help="Step records (.jsonl or .parquet) or the folder of a run.")]


@dataclass(frozen=True)
class _Keys:
    """How the options identify states."""

    pattern: StatePattern | None
    make: Canonicaliser | None

    @classmethod
    def of(cls, options: Options) -> _Keys:
        pattern = None if options.state_pattern is None else StatePattern(options.state_pattern)
        return cls(pattern, canonicaliser(pattern, options.scrub, options.history))

    def doubts(self) -> tuple[str, ...]:
        """Where the pattern was not found. Raises UserError where it never was."""
        return () if self.pattern is None else tuple(self.pattern.check())


def _graph(source: Path, options: Options) -> tuple[StateGraph, tuple[str, ...]]:
    """The credited graph of a source, and the doubts about its states; :meth:`StateGraph.doubts` has those about its credit."""
    keys = _Keys.of(options)
    if source.is_dir():
        if options.anchor != Options().anchor:
            raise UserError(f"{source} is a run, which stores its states, so --anchor does not apply")
        with Run.open(source) as run:
            graph = StateGraph.from_run(run, options.group, keys.make, options.scorer)
    else:
        for name in ("scorer", "group"):
            if getattr(options, name) is not None:
                raise UserError(f"{source} is not a run but a file of steps, so --{name} does not apply")
        rows = _steps(source)
        try:
            graph = StateGraph.from_steps(rows, options.anchor, keys.make)
        except UserError as error:
            raise UserError(f"{source}: {error}") from error
    doubts = keys.doubts()
    graph.assign(options)
    return graph, doubts


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


@dataclass(frozen=True)
class MergedStates(Result):
    """How far attempts share states."""

    tasks: int
    attempts: int
    steps: int
    states: int
    singleton_share: float
    out: Path

    def sections(self) -> Iterable[Section]:
        """One row of numbers."""
        names = ("tasks", "attempts", "steps", "states", "singleton_share")
        yield Section.of("", table(names, [[getattr(self, name) for name in names]]))


@dataclass(frozen=True)
class CreditWritten(Result):
    """A file of steps with their credit."""

    out: Path
    steps: int

    def sections(self) -> Iterable[Section]:
        """One sentence."""
        yield Section.of("", f"{self.out} holds {plural(self.steps, 'step')} with credit")


@app.verb(settings=Options)
def advantages(
    options: Options,
    source: Source,
    out: Annotated[Path, option(help=".parquet or .jsonl to write.")],
    positive: Annotated[bool, option("--positive", help="Only steps that made progress (delta > 0), for SFT.")] = False,
) -> CreditWritten:
    """Write every step with its credit."""
    graph, doubts = _graph(source, options)
    rows = graph.rows(positive)
    write_rows(out, rows)
    return CreditWritten(out, len(rows), caveats=(*doubts, *graph.doubts()))


@app.verb(settings=Options, keeps="source")
def report(options: Options, source: Source) -> CreditReport:
    """How much states repeat, where the credit comes from, and which moves stand out of chance."""
    graph, doubts = _graph(source, options)
    credited = graph.report(options.level)
    return replace(credited, run=str(source) if source.is_dir() else "", caveats=(*doubts, *credited.caveats))


@dataclass(frozen=True)
class DrawnGraph(Result):
    """The merged graph, as Graphviz's text or as node-link JSON."""

    graph: dict[str, Any]
    text: str

    def sections(self) -> Iterable[Section]:
        """The text."""
        yield Section.of("", Verbatim(self.text))

    def to_json(self) -> dict[str, Any]:
        """The graph itself."""
        return self.graph


@app.verb(settings=Options)
def show(
    options: Options,
    source: Source,
    form: Annotated[
        Literal["dot", "json"] | None, option("--format", help="dot (the default) or json; --json is short for the second.")
    ] = None,
    out: Annotated[
        Path | None, option(help="Write it as .json (node-link), .graphml or .dot, and print how far states merge.")
    ] = None,
) -> DrawnGraph | MergedStates:
    """Print the merged graph, or write it to a file."""
    graph, doubts = _graph(source, options)
    if out is None:
        caveats = (*doubts, *graph.doubts())
        return DrawnGraph(graph.to_json(options.task), _drawn(graph, options.task, form or "dot"), caveats=caveats)
    only_for("--out, whose name says the format,", format=form)
    if out.suffix == ".graphml":
        graph.graph.write_graphml(out, options.task, {"value": [0.0 if v is None else v for v in graph.state_values()]})
    else:
        write_whole(out, _drawn(graph, options.task, "dot" if out.suffix == ".dot" else "json"))
    merged = graph.report()
    caveats = (*doubts, *merged.caveats)
    return MergedStates(merged.tasks, merged.attempts, merged.steps, merged.states, merged.singleton_share, out, caveats=caveats)


@dataclass(frozen=True)
class CreditMarked(Result):
    """How many steps of a run got credit, and which of them stand out of chance."""

    run: Path
    steps: int
    credited: int
    decisive: tuple[str, ...]
    """Nodes."""
    verdict: str

    def sections(self) -> Iterable[Section]:
        """Two sentences."""
        sentence = (
            f"{self.credited} of {self.steps} steps of {self.run} have credit other than 0: see them with "
            f"`ramify show {shlex.quote(str(self.run))} --web`"
        )
        none = f"no step of {self.run} has any credit: all {self.steps} are 0"
        yield Section.of("", f"{sentence if self.credited else none}\n{self.verdict}")


@app.verb(settings=Options, keeps="run")
def mark(options: Options, run: Annotated[Path, argument(help="Folder of a run.")]) -> CreditMarked:
    """Store each step's credit, and the numbers that explain it, in a run: `ramify show --web` then colours the steps by it."""
    if options.task is not None:
        raise UserError("credit is stored for all tasks of a run, or of one --group: leave --task out")
    with Run.open(run, write=True) as stored:
        present = dict.fromkeys(info.group for info in stored.trees(options.group))
        if not present:
            raise UserError(f"{run} holds no trees" + (f" of the group '{options.group}'" if options.group is not None else ""))
        steps = credited = 0
        decisive: dict[str, StepNumbers] = {}
        keys, unscored, doubts = _Keys.of(options), list[UnscoredError](), list[str]()
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
            decisive |= {node: rule.steps[node] for node in credit if rule.steps[node].decisive}
            doubts += [doubt for doubt in rule.doubts if doubt not in doubts]
        if len(unscored) == len(present):
            raise unscored[0]
        doubts += keys.doubts()
        able = commands(stored)
        stored.conclude("graph-credit mark", [_finding(able, node, value, options) for node, value in decisive.items()])
        stored.commit()
    verdict = (
        f"{len(decisive)} of them stand out of chance" if decisive else "nothing stands out: no step's credit is more than chance"
    )
    verdict += f", at level {options.level:g}, corrected over " + ("each group" if len(present) > 1 else "all moves")
    return CreditMarked(run, steps, credited, tuple(sorted(decisive)), verdict, caveats=tuple(doubts))


@app.verb(settings=Options)
def why(
    options: Options,
    source: Source,
    node: Annotated[str, argument(help="Node of a run: its id or the start of it.")] = "",
    attempt: str | None = None,
    step: int | None = None,
) -> StepCredit | RuleNumbers:
    """The numbers that explain one step's credit: of a node of a run, or of --task, --attempt and --step of a file."""
    if source.is_dir():
        if not node:
            raise UserError(f"name a node of the run {source}")
        return _why_node(source, node, options)
    if node:
        raise UserError(f"{source} is a file of steps, which has no node '{node}'")
    graph, doubts = _graph(source, options)
    if options.task is None or attempt is None or step is None:
        raise UserError("a step of a file is named by --task, --attempt and --step")
    explained = graph.why(options.task, attempt, step, options.level)
    return replace(explained, caveats=(*doubts, *graph.doubts()))


def _why_node(source: Path, node: str, options: Options) -> StepCredit | RuleNumbers:
    """Of the credit that a run stores, unless options ask for another; else computed now."""
    with Run.open(source) as run:
        name = run.find(node)
        stored = [] if options.model_fields_set else run.annotations(name="why", node=name)
        group = run.tree_info(run.node(name).tree).group
        for annotation in sorted(stored, key=lambda annotation: annotation.maker != MAKER):
            numbers = dict(annotation.value)
            if annotation.maker == MAKER:
                return codec.from_json(StepCredit, {"node": name, **numbers}, f"{source}, node {name}")
            return RuleNumbers(name, annotation.maker, numbers, meanings(run).get(annotation.maker, {}))
    graph, doubts = _graph(source, options.model_copy(update={"group": options.group or group or None}))
    return replace(graph.why_node(name, options.level), caveats=(*doubts, *graph.doubts()))


def _finding(able: Commands, node: str, value: StepNumbers, options: Options) -> Finding:
    """A decisive step, as the run keeps it."""
    names = ("A", "difference", "interval", "p", "p_corrected", "takers", "others")
    numbers = {name: getattr(value, name) for name in names}
    do = able.go_on(node, "what else could have been done there")
    settings = options.to_json()
    return Finding(
        "decisive step", "graph-credit mark", value.sentence(), node, 0, do, value.difference, "reward", numbers, settings
    )


def _drawn(graph: StateGraph, task: str | None, form: str) -> str:
    if form == "json":
        return json.dumps(graph.to_json(task), ensure_ascii=False) + "\n"
    return graph.graph.to_dot(task, {"value": ["-" if v is None else f"{v:.4g}" for v in graph.state_values()]})
