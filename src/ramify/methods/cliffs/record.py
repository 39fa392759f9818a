"""A scan as a run: one tree per trace, counts as annotations of its reply,
cliffs and rebounds as findings at it, the verdict as a finding of the run.

A trace is committed whole when it was scanned, so an interrupted scan continues after the last one; findings follow at the end.
The files that a scan was before, one trace a line, are read and imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base.config import check
from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.methods.cliffs.algorithm import Cliff
from ramify.methods.cliffs.report import sentence, spots, summary
from ramify.methods.cliffs.run import ScanConfig, Scanned, corrected
from ramify.model.protocol import Tokenizer
from ramify.rollout.potential import MAKER
from ramify.rollout.token_traces import TokenTrace, sampling_of, store_trace, trace_of
from ramify.stats.drops import Counts
from ramify.trace.db import Run
from ramify.trace.formats import Reader
from ramify.trace.jsonl import new_run
from ramify.trace.lines import at_place, read_lines
from ramify.trace.node import Annotation, Finding, Node
from ramify.trace.sources import run_folder

KIND = "cliffs scan"
ENTRY = "scanned"
"""What the journal calls a trace that was scanned; its key is the trace's id,
its payload what no other record of the run says."""
_COUNTED: dict[str, type[int] | type[float]] = {"forks": int, "tested": int, "gap": float, "entropy_of": int}
_TOLD = ("verifier", "model", "tokenizer", "seed", "early_stopped_at")
_PARTS = ("weights", "judge")
_SETTINGS = {"model": "model_name", "verifier": "verifier", "truncated": "truncated", "seed": "seed", "sampling": "sampling"}
"""What forks are of (:meth:`ReplyForks.source`) -> what the run's settings call it."""
_NAMES = {"confirmed": "cliff", "refuted": "refuted cliff", "found": "candidate"}


def refuse_file(out: Path) -> None:
    """Raises UserError where ``out`` is a file, such as a scan of an older ramify."""
    if out.is_file():
        raise UserError(
            f"{out} is a file and no run: `ramify import {out} --run DIR` makes one of a scan, which continues under --out DIR"
        )


def begin(out: Path, config: ScanConfig, source: Mapping[str, Any], named: Mapping[str, Any], dry: bool = False) -> Run:
    """The run of a scan with forks of ``source``: a new one, or the one that the same command began; ``dry`` leaves it as it is.

    ``named`` says how model and verifier (``judge``, ``seconds``) are found again, which `ramify fork` does.

    Raises as :meth:`ramify.trace.db.Run.begin`.
    """
    refuse_file(out)
    decides, parts = _settings(config, source)
    free = {**named, "budget_rollouts": config.budget_rollouts}
    return Run.begin(out, KIND, decides, {} if dry else free, parts)


def _settings(config: ScanConfig, source: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides the counts of a scan, and the hashes of what that names."""
    given = {name: value for name, value in config.to_json().items() if name != "budget_rollouts"}
    named = {_SETTINGS[name]: source[name] for name in _SETTINGS if name in source}
    return given | named, {name: source[name] for name in _PARTS if name in source}


def keep(run: Run, one: Scanned, config: ScanConfig, tokenizer: Tokenizer) -> None:
    """Store a trace with its counts and candidates, not decided yet, and commit.
    Raises UserError where the run has a tree of its name."""
    record = {name: getattr(one.trace, name) for name in _TOLD} | {name: getattr(one, name) for name in _COUNTED}
    record["cliffs"] = [cliff.to_json(config.finding) for cliff in one.cliffs]
    record["rebounds"] = [rise.to_json(config.test) for rise in one.rebounds]
    with run.transaction():
        run.log(ENTRY, one.trace.id, {"reply": store_trace(run, one.trace, tokenizer), **record})


def conclude(run: Run, scanned: Sequence[Scanned], config: ScanConfig) -> None:
    """Store what was found, known once every trace was scanned, replacing what an earlier call found:
    findings, and where pages point."""
    replies = {entry.key: str(entry.payload["reply"]) for entry in run.journal(ENTRY)}
    found = [finding for one in scanned for finding in _findings(replies[one.trace.id], one, config)]
    totals = summary(scanned, config)
    verdict = Finding("cliffs", KIND, sentence(scanned, config), None, 0, "", float(totals["cliffs"]), "cliffs", totals)
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
        evidence = cliff.to_json(config.finding)
        yield Finding(
            name, KIND, f"{why}; {cliff.facts.kind or 'of no class'}", reply, cliff.t - 1, do, drop, "success", evidence
        )
    for rise in one.rebounds:
        why = f"token {rise.t} takes success from {rise.prev.rate:.2f} to {rise.cur.rate:.2f}"
        evidence = rise.to_json(config.test)
        yield Finding("rebound", KIND, why, reply, rise.t - 1, "", -rise.drop, "success", evidence)


def read_scan(path: Path) -> tuple[ScanConfig, dict[str, Any], list[Scanned]]:
    """Settings, source of the forks and traces of a scan: its run, or a file that an older ramify wrote.

    Cliffs are confirmed or refuted over the traces that are there, whatever was stored of an interrupted scan.
    Raises UserError where the path holds none, naming file, line and field.
    """
    folder = run_folder(path)
    if folder is None:
        return _read_file(path)
    with Run.open(folder) as run:
        config, source, scanned = read_run(run)
    if not scanned:
        raise UserError(f"{path} holds no scanned trace")
    return config, source, scanned


def read_run(run: Run) -> tuple[ScanConfig, dict[str, Any], list[Scanned]]:
    """As :func:`read_scan`, of an open run, which may hold no trace yet."""
    if run.kind != KIND:
        raise UserError(f"{run.folder} was not made by `ramify {KIND}`")
    counts: dict[str, dict[int, Counts]] = {}
    with at_place(str(run.folder)):
        config = check(ScanConfig, {name: value for name, value in run.config.items() if name in ScanConfig.model_fields})
        source = {name: run.config[setting] for name, setting in _SETTINGS.items()}
        for annotation in run.annotations(name="potential", maker=MAKER):
            counts.setdefault(annotation.node, {})[annotation.offset] = Counts(**annotation.value)
        tasks = {info.name: info.task for info in run.trees()}
        scanned = []
        for entry in run.journal(ENTRY):
            record = dict(entry.payload)
            reply = str(record["reply"])
            trace = _trace(run, entry.key, record, tasks[entry.key]).with_potentials(
                counts.get(reply, {}), record["early_stopped_at"]
            )
            cliffs, rebounds = (tuple(Cliff.from_json(c) for c in record[name]) for name in ("cliffs", "rebounds"))
            scanned.append(Scanned(trace, cliffs, rebounds, **_counted(record)))
    return config, source | {name: run.parts[name] for name in _PARTS if name in run.parts}, corrected(scanned, config)


def _counted(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kind(record[name]) for name, kind in _COUNTED.items()}


def _trace(run: Run, name: str, record: Mapping[str, Any], task: Mapping[str, Any]) -> TokenTrace:
    """A trace as it was stored, without potentials."""
    reply = run.node(str(record["reply"]))
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
        **{field: record[field] for field in _TOLD if field != "early_stopped_at"},
    )


def stem_of(run: Run, name: str) -> tuple[Node, TokenTrace]:
    """The prompt of a trace that was scanned, and the trace, without potentials."""
    (entry,) = run.journal(ENTRY, name)
    tree = run.tree_info(name)
    return run.node(str(run.node(str(entry.payload["reply"])).parent)), _trace(run, name, entry.payload, tree.task)


def left_to_scan(run: Run, done: Mapping[str, Scanned], traces: Sequence[TokenTrace]) -> list[TokenTrace]:
    """Those of ``traces`` that the run does not hold. Raises UserError where it holds another reply of that id."""
    for trace in traces:
        if trace.id in done and done[trace.id].trace.response_ids != trace.response_ids:
            raise UserError(f"{run.folder} holds a scan of another reply '{trace.id}': choose another folder")
    return [trace for trace in traces if trace.id not in done]


def token_texts(path: Path, trace: str) -> list[str] | None:
    """The text of each token of a reply, as a run of a scan has it; None of a file, which has none."""
    folder = run_folder(path)
    if folder is None:
        return None
    with Run.open(folder) as run:
        (entry,) = run.journal(ENTRY, trace)
        node = run.node(str(entry.payload["reply"]))
    ends = [0, *([] if node.ends is None else node.ends.tolist())]
    return [node.text[a:b] for a, b in itertools.pairwise(ends)]


# Files that scans were


def _read_file(path: Path, ended: bool = False) -> tuple[ScanConfig, dict[str, Any], list[Scanned]]:
    """As :func:`read_scan`, of a file; ``ended`` leaves out a line that a kill cut off."""
    config: ScanConfig | None = None
    source: dict[str, Any] = {}
    found: dict[str, Scanned] = {}
    for number, record in read_lines(path, ended):
        with at_place(f"{path}:{number}"):
            if not isinstance(record.get("scan"), dict) or not isinstance(record.get("cliffs"), list):
                raise UserError("not a trace that `ramify cliffs scan` wrote: it has no 'scan' or no 'cliffs'")
            scan = record.pop("scan")
            cliffs, rebounds = (tuple(Cliff.from_json(c) for c in record.pop(name)) for name in ("cliffs", "rebounds"))
            own = check(ScanConfig, _then(scan["config"]))
            if config is not None and (_same(own), scan["source"]) != (_same(config), source):
                raise UserError("scanned with other settings than the traces before")
            config, source, trace = own, dict(scan["source"]), trace_of(record)
            if trace.id in found:
                raise UserError(f"trace '{trace.id}' is there twice")
            found[trace.id] = Scanned(trace, cliffs, rebounds, **_counted(scan))
    if config is None:
        raise UserError(f"{path} holds no scanned trace")
    return config, source, corrected(list(found.values()), config)


def _then(stored: dict[str, Any]) -> dict[str, Any]:
    """Stored settings of any version: those without ``candidate`` found drops at level ``alpha`` and checked them on 128
    forks."""
    if "candidate" in stored:
        return stored
    fresh = 0 if stored.get("faithful") else 128
    return stored | {"candidate": stored["alpha"], "confirm": fresh if stored.get("confirm") is None else stored["confirm"]}


def _same(config: ScanConfig) -> dict[str, Any]:
    return config.to_json() | {"budget_rollouts": None}


class _Ids:
    """Writes token ids instead of texts: a file of a scan has no tokenizer."""

    def encode(self, text: str) -> list[int]:
        return [int(part) for part in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        return np.cumsum([len(f"{token} ") for token in tokens], dtype=np.int32)

    @property
    def hash(self) -> str:
        return ""


def import_scan(path: Path, folder: Path, tokenizer: Tokenizer | None = None) -> int:
    """Import a file of a scan as a run, atomically; the scan can be continued there.
    Texts are those of ``tokenizer``, or token ids.

    Returns how many traces there are. Raises UserError as :func:`read_scan`, and where something is in the folder.
    """
    config, source, scanned = _read_file(path, ended=True)
    decides, parts = _settings(config, source)
    with new_run(folder, {**decides, "imported": {"form": "cliffs", "file": path.name}}, KIND, parts) as run:
        for one in scanned:
            with at_place(f"{path}: trace '{one.trace.id}'"):
                keep(run, one, config, tokenizer or _Ids())
        with at_place(str(path)):
            conclude(run, scanned, config)
    return len(scanned)


register("reader", "cliffs")(
    Reader(
        "cliffs",
        "A scan that `ramify cliffs scan` of version 0.1.0 wrote: replies with their potentials and cliffs; texts are token ids.",
        lambda path, first: first is not None and {"response_ids", "scan", "cliffs", "rebounds"} <= first.keys(),
        import_scan,
    )
)
