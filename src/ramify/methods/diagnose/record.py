"""Localizations in a run: each conversation as nodes, its case file in the journal, and its findings, whose node is the answer.

A run of `ramify diagnose run` grows by one issue at a time;
an issue that is there, of the same settings, is loaded and not looked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ramify.base import codec
from ramify.base.errors import InfrastructureError
from ramify.methods.diagnose.case import CaseFile, Diagnosis
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import Finding, Node, Provenance, make_node

KIND = "diagnose run"
ENTRY = "case file"


class Traced(Protocol):
    """What localizes: :class:`ramify.methods.diagnose.localizer.Localizer` or one by tests that were run."""

    def key(self, snapshot: Snapshot, issue: str) -> str:
        """Stable hash of all that decides a localization."""
        ...

    def traced(
        self, repo: Snapshot, issue: str, issue_id: str, progress: Callable[[int], object]
    ) -> tuple[CaseFile, list[Message]]:
        """The case file of an issue, and the conversation that led to it."""
        ...


@dataclass(frozen=True)
class KeptCase:
    """A case file in a run, and the node of its answer."""

    case: CaseFile
    node: str


def begin(folder: Path, settings: Mapping[str, Any]) -> Run:
    """The run in ``folder``, open for writing. Its settings decide no more than how its next issue is looked for."""
    return Run.begin(folder, KIND, {}, settings)


def cases(run: Run) -> list[CaseFile]:
    """Every case file of a run, in the order in which they were found."""
    return [one.case for one in _kept(run)]


def _kept(run: Run) -> list[KeptCase]:
    return [codec.from_json(KeptCase, one.payload, f"{run.folder}, case {one.key}") for one in run.journal(ENTRY)]


def looked(
    run: Run,
    localizer: Traced,
    snapshot: Snapshot,
    issue: str,
    name: str,
    settings: Mapping[str, Any],
    progress: Callable[[int], object] = lambda turn: None,
) -> CaseFile:
    """The case file of an issue: loaded where the run has it, else looked for and kept with its conversation and findings.

    Raises UserError on an empty issue, InfrastructureError where the model fails.
    """
    key = localizer.key(snapshot, issue)

    def look() -> tuple[KeptCase, list[Node]]:
        case, history = localizer.traced(snapshot, issue, name, progress)
        if case.meta.failed:
            raise InfrastructureError("provider", case.meta.failed)
        nodes = _conversation(run, f"{case.issue_id}-{key[:6]}", case, history, settings)
        return KeptCase(case, nodes[-1].id), nodes

    made = run.once(ENTRY, key, KeptCase, look)
    run.conclude(KIND, [finding for one in _kept(run) for finding in _findings(one)])
    return made.case


def _conversation(run: Run, tree: str, case: CaseFile, history: Sequence[Message], settings: Mapping[str, Any]) -> list[Node]:
    """The messages as nodes of a tree, whose first, empty one and provenance are added."""
    run.add_tree(tree, {"id": case.issue_id, "data": {"repo": case.repo, "commit": case.commit}})
    nodes = [root(run, tree)]
    provenance = Provenance(case.meta.by, case.meta.weights, dict(settings), int(settings.get("seed", 0)))
    run.add(provenance)
    for message in history:
        sampled = {"provenance": provenance.hash, "index": 0} if message.role == "assistant" else {}
        above = nodes[-1]
        nodes.append(make_node(tree, above.id, len(above), message.role, message.text, data=dict(message.data), **sampled))
    return nodes


def _findings(kept: KeptCase) -> list[Finding]:
    case = kept.case
    if case.findings:
        return [_finding(case, one, kept.node) for one in case.findings]
    why = f"{case.issue_id}: no place was found in {case.meta.turns} turns"
    return [Finding("no location", KIND, why, kept.node, evidence=case.to_json())]


def _finding(case: CaseFile, one: Diagnosis, node: str) -> Finding:
    why = f"{case.issue_id}: {one.location}: {one.root_cause or one.location_explanation or 'named without a reason'}"
    unit = "" if one.confidence is None else "probability"
    about = {"repo": case.repo, "commit": case.commit}
    evidence = {"issue_id": case.issue_id, **about, "place": one.location, "diagnosis": codec.to_json(one)}
    identity = {"by": case.meta.by, **about}
    return Finding("bug location", KIND, why, node, 0, one.solution_idea, one.confidence, unit, evidence, identity)
