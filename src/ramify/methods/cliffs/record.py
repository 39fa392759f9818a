"""A scan as a run: one tree per trace, counts as annotations of its reply,
cliffs and rebounds as findings at it, the verdict as a finding of the run.

A trace is committed whole when it was scanned, so an interrupted scan continues after the last one; findings follow at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.methods.cliffs.algorithm import Cliff
from ramify.methods.cliffs.forks import ForkSource
from ramify.methods.cliffs.report import spots, summary
from ramify.methods.cliffs.run import ScanConfig, Scanned, corrected
from ramify.methods.cliffs.traces import sampling_of, store_trace
from ramify.model.protocol import Tokenizer
from ramify.rollout.potential import MAKER
from ramify.rollout.token_traces import TokenTrace
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.lines import at_place
from ramify.trace.node import Annotation, Finding, JournalEntry, Node
from ramify.trace.sources import run_folder

KIND = "cliffs scan"
ENTRY = "scanned"
"""What the journal calls a trace that was scanned; its key is the trace's id,
its payload what no other record of the run says."""
_PARTS = ("weights", "judge")
_SETTINGS = {"model": "model_name", "verifier": "verifier", "truncated": "truncated", "seed": "seed", "sampling": "sampling"}
"""What forks are of (:meth:`ReplyForks.source`) -> what the run's settings call it."""
_NAMES = {"confirmed": "cliff", "refuted": "refuted cliff", "found": "candidate"}


@dataclass(frozen=True)
class _Entry:
    """What the journal says of a trace that was scanned."""

    reply: str
    """Its node."""
    verifier: str
    model: str
    tokenizer: str
    seed: int | None
    early_stopped_at: int | None
    forks: int
    tested: int
    gap: float
    entropy_of: int
    cliffs: tuple[Cliff, ...]
    rebounds: tuple[Cliff, ...]

    @classmethod
    def of(cls, reply: str, one: Scanned) -> _Entry:
        told = {name: getattr(one.trace, name) for name in _TOLD}
        return cls(reply, **told, **{name: getattr(one, name) for name in (*_COUNTED, "cliffs", "rebounds")})

    @classmethod
    def read(cls, run: Run, entry: JournalEntry) -> _Entry:
        return codec.from_json(cls, entry.payload, f"{run.folder}, trace '{entry.key}'")


_TOLD = ("verifier", "model", "tokenizer", "seed", "early_stopped_at")
_COUNTED = ("forks", "tested", "gap", "entropy_of")


def begin(out: Path, config: ScanConfig, source: ForkSource, named: Mapping[str, Any], dry: bool = False) -> Run:
    """The run of a scan with forks of ``source``: a new one, or the one that the same command began; ``dry`` leaves it as it is.

    ``named`` says how model and verifier (``judge``, ``seconds``) are found again, which `ramify fork` does.

    Raises as :meth:`ramify.trace.db.Run.begin`.
    """
    decides, parts = _settings(config, source)
    free = {**named, "budget_rollouts": config.budget_rollouts}
    return Run.begin(out, KIND, decides, {} if dry else free, parts)


def _settings(config: ScanConfig, source: ForkSource) -> tuple[dict[str, Any], dict[str, str]]:
    """What decides the counts of a scan, and the hashes of what that names."""
    given = {name: value for name, value in config.to_json().items() if name != "budget_rollouts"}
    named = {setting: getattr(source, name) for name, setting in _SETTINGS.items()}
    return given | named, {name: getattr(source, name) for name in _PARTS}


def keep(run: Run, one: Scanned, tokenizer: Tokenizer) -> None:
    """Store a trace with its counts and candidates, not decided yet, and commit.
    Raises UserError where the run has a tree of its name."""
    with run.transaction():
        run.log(ENTRY, one.trace.id, codec.to_json(_Entry.of(store_trace(run, one.trace, tokenizer), one)))


def conclude(run: Run, scanned: Sequence[Scanned], config: ScanConfig) -> None:
    """Store what was found, known once every trace was scanned, replacing what an earlier call found:
    findings, and where pages point."""
    replies = {entry.key: _Entry.read(run, entry).reply for entry in run.journal(ENTRY)}
    found = [finding for one in scanned for finding in _findings(replies[one.trace.id], one, config)]
    totals = summary(scanned, config)
    verdict = Finding("cliffs", KIND, totals.verdict, None, 0, "", float(totals.cliffs), "cliffs", totals.to_json())
    with run.transaction():
        for one in scanned:
            run.add(*_annotations(replies[one.trace.id], one))
        run.conclude(KIND, [verdict, *sorted(found, key=lambda finding: finding.name != "cliff")])


def _annotations(reply: str, one: Scanned) -> Iterable[Annotation]:
    """Where pages point at in the curve."""
    for spot in spots(one):
        yield Annotation(reply, spot.t, "cliff", "methods.cliffs", {"kind": spot.kind, "note": spot.note})


def _findings(reply: str, one: Scanned, config: ScanConfig) -> Iterable[Finding]:
    """Cliffs and rebounds at the offset before their token, where a fork samples it anew."""
    for cliff in one.cliffs:
        name = _NAMES[cliff.status] if config.fresh else "cliff"
        drop = cliff.drop if cliff.fresh_drop is None else cliff.fresh_drop
        why = f"token {cliff.t} takes success from {cliff.prev.rate:.2f} to {cliff.cur.rate:.2f}"
        if cliff.fresh_drop is not None:
            why += f", on fresh forks by {cliff.fresh_drop:.2f} (p = {cliff.p:.2g}): {cliff.status}"
        do = (
            "`ramify cliffs ablate` resamples from before it, `ramify cliffs pairs` makes training pairs"
            if name == "cliff"
            else ""
        )
        evidence = codec.to_json(cliff.evidence(config.finding))
        yield Finding(
            name, KIND, f"{why}; {cliff.facts.kind or 'of no class'}", reply, cliff.t - 1, do, drop, "success", evidence
        )
    for rise in one.rebounds:
        why = f"token {rise.t} takes success from {rise.prev.rate:.2f} to {rise.cur.rate:.2f}"
        evidence = codec.to_json(rise.evidence(config.test))
        yield Finding("rebound", KIND, why, reply, rise.t - 1, "", -rise.drop, "success", evidence)


def read_scan(path: Path) -> tuple[ScanConfig, ForkSource, list[Scanned]]:
    """Settings, source of the forks and traces of a scan.

    Cliffs are confirmed or refuted over the traces that are there, whatever was stored of an interrupted scan.
    Raises UserError where the path holds none.
    """
    with Run.open(run_folder(path) or path) as run:
        config, source, scanned = read_run(run)
    if not scanned:
        raise UserError(f"{path} holds no scanned trace")
    return config, source, scanned


def read_run(run: Run) -> tuple[ScanConfig, ForkSource, list[Scanned]]:
    """As :func:`read_scan`, of an open run, which may hold no trace yet."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    counts: dict[str, dict[int, Counts]] = {}
    with at_place(str(run.folder)):
        config = check(ScanConfig, {name: value for name, value in run.config.items() if name in ScanConfig.model_fields})
        source = ForkSource(
            **{name: run.config[setting] for name, setting in _SETTINGS.items()},
            **{name: run.parts[name] for name in _PARTS if name in run.parts},
        )
        for annotation in run.annotations(name="potential", maker=MAKER):
            counts.setdefault(annotation.node, {})[annotation.offset] = Counts(**annotation.value)
        tasks = {info.name: info.task for info in run.trees()}
        scanned = []
        for entry in run.journal(ENTRY):
            held = _Entry.read(run, entry)
            trace = _trace(run, entry.key, held, tasks[entry.key]).with_potentials(
                counts.get(held.reply, {}), held.early_stopped_at
            )
            numbers = {name: getattr(held, name) for name in _COUNTED}
            scanned.append(Scanned(trace, held.cliffs, held.rebounds, **numbers))
    return config, source, corrected(scanned, config)


def _trace(run: Run, name: str, held: _Entry, task: Mapping[str, Any]) -> TokenTrace:
    """A trace as it was stored, without potentials."""
    reply = run.node(held.reply)
    prompt = run.node(str(reply.parent))
    if reply.tokens is None or prompt.tokens is None:
        raise UserError(f"trace '{name}' has no token ids")
    verdicts = run.scores(scorer="env", node=reply.id)
    settings = run.provenance(str(reply.provenance)).settings
    return TokenTrace(
        id=name,
        problem_id=str(task["id"]),
        prompt_ids=tuple(prompt.tokens.tolist()),
        response_ids=tuple(reply.tokens.tolist()),
        sampler=sampling_of(settings),
        correct=bool(verdicts[0].value) if verdicts and verdicts[0].value is not None else None,
        stop=reply.stop,
        data=dict(task["data"]),
        logprobs=None if reply.logprobs is None else tuple(reply.logprobs.tolist()),
        **{field: getattr(held, field) for field in _TOLD if field != "early_stopped_at"},
    )


def stem_of(run: Run, name: str) -> tuple[Node, TokenTrace]:
    """The prompt of a trace that was scanned, and the trace, without potentials."""
    (entry,) = run.journal(ENTRY, name)
    held = _Entry.read(run, entry)
    return run.node(str(run.node(held.reply).parent)), _trace(run, name, held, run.tree_info(name).task)


def left_to_scan(run: Run, done: Mapping[str, Scanned], traces: Sequence[TokenTrace]) -> list[TokenTrace]:
    """Those of ``traces`` that the run does not hold. Raises UserError where it holds another reply of that id."""
    for trace in traces:
        if trace.id in done and done[trace.id].trace.response_ids != trace.response_ids:
            raise UserError(f"{run.folder} holds a scan of another reply '{trace.id}': choose another folder")
    return [trace for trace in traces if trace.id not in done]


def token_texts(path: Path, trace: str) -> list[str]:
    """The text of each token of a reply, as a run of a scan has it."""
    with Run.open(run_folder(path) or path) as run:
        (entry,) = run.journal(ENTRY, trace)
        node = run.node(_Entry.read(run, entry).reply)
    ends = [0, *([] if node.ends is None else node.ends.tolist())]
    return [node.text[a:b] for a, b in itertools.pairwise(ends)]
