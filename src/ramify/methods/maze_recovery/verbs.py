"""The verbs of ``ramify maze-recovery``. SOURCE is the folder of a run, or a file of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base.errors import UserError
from ramify.base.ledger import Ledger
from ramify.kit import Form, Json, Verbs, argument, option
from ramify.methods.maze_recovery import theory_verbs
from ramify.methods.maze_recovery.attempts import Source, Traces, load
from ramify.methods.maze_recovery.audit import audit_traces
from ramify.methods.maze_recovery.build import BuildConfig, SftSet, build_sft, check_masks
from ramify.methods.maze_recovery.run import UNMEASURED, audit_replies, detector_for, mark, on_labels
from ramify.render.terminal import emit, say, table
from ramify.score.judge import Judge
from ramify.score.steps import write_rows
from ramify.trace.graph import short
from ramify.trace.keys import scrub
from ramify.trace.node import Finding
from ramify.trace.sources import conclude

LEVEL = 0.05
"""Above this p a dead end may be bad luck, and is no finding."""


class AuditOptions(Source):
    """Options of ``audit`` in addition to the source."""

    min_examples: int = Field(3, ge=1)
    """Ways back that a kind of state needs to count as covered."""
    family: tuple[str, ...] = ()
    """Taken out of states to put those of one kind together: numbers, timestamps, whitespace."""
    detector: str | None = None
    """Read replies instead of states: lexicon (English phrases), or a model that labels them (chat:MODEL@URL, hf:PATH)."""
    labels: Path | None = None
    """Labelled steps (JSON lines with text and kind, trace and target where known), to measure the detector on."""


class BuildOptions(Source, BuildConfig):
    """Options of ``build`` in addition to the source."""

    BASIC = "mode rho token_budget mask_mistakes seed scorer group labels"
    form: Literal["messages", "prompt-completion", "tokens"] = "messages"
    """Rows: whole conversations with their trained ranges of characters, one pair a trained reply, or token ids with labels."""
    checkpoint: Path | None = None
    """Folder of the checkpoint whose tokenizer and chat template count and lay out texts."""
    detector: str | None = None
    """Read replies instead of states, as in audit."""
    labels: Path | None = None
    """Labelled steps, as in audit: what a detector saw hides mistakes (mask_mistakes) only where it is measured on some."""


AUDIT = "maze-recovery audit"
app = Verbs("maze-recovery", help="Measure and teach recovery: how traces get out of their own wrong turns.")
app.verb()(theory_verbs.exact)
app.verb()(theory_verbs.train)
Traced = Annotated[
    Path, argument(help="Folder of a run, or a file of traces: whole ones in lines, or any that `ramify import` reads.")
]


@app.verb(settings=AuditOptions)
def audit(
    options: AuditOptions,
    source: Traced,
    form: Form = None,
    out: Annotated[Path | None, option(help=".jsonl or .parquet: one row a trace.")] = None,
    as_json: Json = False,
) -> None:
    """How much traces show of getting out of wrong turns: coverage, dead ends, loops, ambiguity, trace by trace."""
    traces = load(source, options, form)
    detector = _detector(options, traces)
    if detector is None:
        family = scrub(*options.family) if options.family else None
        found = audit_traces(traces, family=family, min_examples=options.min_examples)
    else:
        found = audit_replies(traces, detector, options.labels)
    if out is not None:
        write_rows(out, found["per_trace"])
    if why := conclude(source, AUDIT, _findings(found, source, options)):
        say(f"warning: {why}")
    _warn(found)
    emit(found, as_json, f"{found['verdict']}\n\n{_page(found)}")


@app.verb(settings=BuildOptions)
def build(
    options: BuildOptions,
    source: Traced,
    out: Annotated[Path, option(help=".jsonl or .parquet to write.")],
    form: Form = None,
    as_json: Json = False,
) -> None:
    """Write a set for supervised training (TRL's SFTTrainer and others) that keeps recoveries, or a control without them."""
    if options.form == "prompt-completion" and out.suffix == ".parquet":
        raise UserError("pairs of messages are written as JSON lines: name a file that ends in .jsonl")
    template = None
    if options.checkpoint is not None:
        from ramify.engine.checkpoints import chat_template

        template = chat_template(options.checkpoint)
    traces = load(source, options, form)
    detector = _detector(options, traces)
    marks, measured, spent = None, None, Ledger()
    if detector is not None:
        measured = None if options.labels is None else on_labels(detector, options.labels, spent)
        check_masks(options, measured)  # before all replies are read
        marks = mark(traces, detector, spent)
    chosen = {name: getattr(options, name) for name in BuildConfig.model_fields}
    made = build_sft(traces, marks=marks, measured=measured, template=template, **chosen)
    rows = list(_rows(made, options.form, template))
    write_rows(out, rows)
    found = made.summary | {"form": options.form, "rows": len(rows), "out": str(out), "spent": spent.to_json()["spent"]}
    if detector is not None and measured is None:
        found["warnings"] = [*found["warnings"], UNMEASURED]
    _warn(found)
    emit(found, as_json, table(["number", "value"], [[k, v] for k, v in found.items() if k not in ("warnings", "spent")]))


def _findings(found: dict[str, Any], run: Path, options: AuditOptions) -> list[Finding]:
    """What an audit of the run ``run`` found, as the run keeps it:
    the verdict with all its numbers, and the dead ends that are more than chance."""
    settings = options.model_dump(mode="json", exclude_defaults=True)
    numbers = {name: value for name, value in found.items() if name not in ("per_trace", "verdict")}
    made = [Finding("recoveries", AUDIT, found["verdict"], evidence=numbers, identity=settings)]
    for end in found.get("dead_end_list") or ():
        if end["p"] > LEVEL:
            continue
        untried = f"; untried there: {', '.join(end['untried'])}" if end["untried"] else ""
        why = f"no attempt that was in the state {end['state']} succeeded{untried}"
        do = f"ramify fork {run} {end['node'][:12]} samples other ways out of it" if end["node"] else ""
        made.append(Finding("dead end", AUDIT, why, end["node"], 0, do, end["visits"], "visits", end, settings))
    return made


def _detector(options: AuditOptions | BuildOptions, traces: Traces) -> Judge | None:
    detector = detector_for(options.detector, traces)
    if options.labels is not None and detector is None:
        raise UserError("--labels measures a detector: name one with --detector")
    return detector


def _warn(found: dict[str, Any]) -> None:
    for warning in found["warnings"]:
        say(f"warning: {warning}")


def _rows(made: SftSet, form: str, template: Any) -> Any:
    for example in made.examples:
        about = {"task": str(example.task), "recovery": example.recovery}
        if form == "tokens":
            yield example.conversation.to_tokens(template) | about
        elif form == "messages":
            yield example.conversation.to_messages() | about
        else:
            yield from (row | about for row in example.conversation.to_completions())


def _page(found: dict[str, Any]) -> str:
    shown = [
        [name, _cell(value)]
        for name, value in found.items()
        if not isinstance(value, list) and name not in ("kinds", "agreement", "verdict", "spent")
    ]
    shown += [[f"judge: {unit}", amount] for unit, amount in found.get("spent", {}).get("judge", {}).items()]
    for name in ("kinds", "agreement"):
        shown += [[f"{name}: {key}", _cell(value)] for key, value in (found.get(name) or {}).items()]
    text = table(["number", "value"], shown)
    if found.get("dead_end_list"):
        rows = [
            [short(d["task"]), d["state"], d["visits"], d["p"], d["untried"] and ", ".join(d["untried"]), d["node"]]
            for d in found["dead_end_list"]
        ]
        text += "\n\n" + table(["task", "state", "visits", "p", "untried", "node"], rows, "dead ends")
    if found.get("lacking"):
        text += "\n\n" + table(
            ["state", "visits", "examples"], [list(row.values()) for row in found["lacking"]], "no way back shown"
        )
    return text


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        ends = "" if value["interval"] is None else "[{:.3f}, {:.3f}] ".format(*value["interval"])
        return f"{value['value']:.4g} {ends}({value['k']} of {value['n']})"
    return value
