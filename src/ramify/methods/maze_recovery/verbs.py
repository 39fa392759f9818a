"""The verbs of ``ramify maze-recovery``. SOURCE is the folder of a run, or a file of traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ledger import Ledger
from ramify.kit import Form, Verbs, argument, option
from ramify.methods.maze_recovery import theory_verbs
from ramify.methods.maze_recovery.attempts import Source, Traces, load
from ramify.methods.maze_recovery.audit import RecoveryAudit, audit_traces
from ramify.methods.maze_recovery.build import BuildConfig, SetSummary, SftSet, build_sft, check_masks
from ramify.methods.maze_recovery.run import audit_replies, detector_for, doubts, mark, on_labels
from ramify.methods.maze_recovery.traces import ReplyAudit
from ramify.rollout.commands import Commands, commands_at
from ramify.score.judge import Judge
from ramify.score.steps import write_rows
from ramify.trace.keys import scrub
from ramify.trace.node import Finding
from ramify.trace.sources import conclude

LEVEL = 0.05
"""Above this p a dead end may be bad luck, and is not a finding."""


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


@app.verb(settings=AuditOptions, keeps="source")
def audit(
    options: AuditOptions,
    source: Traced,
    form: Form = None,
    out: Annotated[Path | None, option(help=".jsonl or .parquet: one row a trace.")] = None,
) -> RecoveryAudit | ReplyAudit:
    """How much traces show of getting out of wrong turns: coverage, dead ends, loops, ambiguity, trace by trace."""
    traces = load(source, options, form)
    detector = _detector(options, traces)
    found: RecoveryAudit | ReplyAudit
    if detector is None:
        family = scrub(*options.family) if options.family else None
        found = audit_traces(traces, family=family, min_examples=options.min_examples)
    else:
        found = audit_replies(traces, detector, options.labels)
    if out is not None:
        write_rows(out, codec.to_json(found.per_trace))
    lost = conclude(source, AUDIT, _findings(found, commands_at(source), options))
    return replace(found, caveats=(*filter(None, [lost]), *found.caveats))


@app.verb(settings=BuildOptions)
def build(
    options: BuildOptions,
    source: Traced,
    out: Annotated[Path, option(help=".jsonl or .parquet to write.")],
    form: Form = None,
) -> SetSummary:
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
    caveats: tuple[str, ...] = ()
    if detector is not None:
        measured = None if options.labels is None else on_labels(detector, options.labels, spent)
        check_masks(options, measured)  # before all replies are read
        marks, caveats = mark(traces, detector, spent)
        caveats += doubts(measured)
    chosen = {name: getattr(options, name) for name in BuildConfig.model_fields}
    made = build_sft(traces, marks=marks, measured=measured, template=template, **chosen)
    rows = list(_rows(made, options.form, template))
    write_rows(out, rows)
    caveats = (*made.summary.caveats, *caveats)
    return replace(made.summary, form=options.form, rows=len(rows), out=str(out), spent=spent.spent, caveats=caveats)


def _findings(found: RecoveryAudit | ReplyAudit, able: Commands, options: AuditOptions) -> list[Finding]:
    """What an audit of a run, whose commands these are, found, as the run keeps it:
    the verdict with all its numbers, and the dead ends that are more than chance."""
    settings = options.model_dump(mode="json", exclude_defaults=True)
    numbers = codec.to_json({name: value for name, value in vars(found).items() if name not in ("per_trace", "verdict")})
    made = [Finding("recoveries", AUDIT, found.verdict, evidence=numbers, identity=settings)]
    for end in found.dead_end_list if isinstance(found, RecoveryAudit) else ():
        if end.p > LEVEL:
            continue
        untried = f"; untried there: {', '.join(end.untried)}" if end.untried else ""
        why = f"no attempt that was in the state {end.state} succeeded{untried}"
        do = able.go_on(end.node, "other ways out of it") if end.node else ""
        evidence = codec.to_json(end)
        made.append(Finding("dead end", AUDIT, why, end.node, 0, do, end.visits, "visits", evidence, settings))
    return made


def _detector(options: AuditOptions | BuildOptions, traces: Traces) -> Judge | None:
    detector = detector_for(options.detector, traces)
    if options.labels is not None and detector is None:
        raise UserError("--labels measures a detector: name one with --detector")
    return detector


def _rows(made: SftSet, form: str, template: Any) -> Any:
    for example in made.examples:
        about = {"task": str(example.task), "recovery": example.recovery}
        if form == "tokens":
            yield example.conversation.to_tokens(template) | about
        elif form == "messages":
            yield example.conversation.to_messages() | about
        else:
            yield from (row | about for row in example.conversation.to_completions())
