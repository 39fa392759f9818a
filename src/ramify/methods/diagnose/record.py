"""Localizations in a run: each conversation as nodes, its case file in the journal, and its findings, whose node is the answer.

A run of `ramify diagnose run` grows by one issue at a time;
an issue that is there, of the same settings, is loaded and not looked for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.methods.diagnose.case import CaseFile, Diagnosis, read_case
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import Finding, Provenance, make_node

KIND = "diagnose run"
ENTRY = "case file"


def begin(folder: Path, settings: Mapping[str, Any]) -> Run:
    """The run in ``folder``, open for writing. Its settings decide no more than how its next issue is looked for."""
    return Run.begin(folder, KIND, {}, settings)


def known(run: Run, key: str) -> CaseFile | None:
    """The case file that is stored under ``key``; None where there is none."""
    return next((read_case(entry.payload["case"], f"{run.folder}, case {key}") for entry in run.journal(ENTRY, key)), None)


def cases(run: Run) -> list[CaseFile]:
    """Every case file of a run, in the order in which they were found."""
    return [read_case(entry.payload["case"], f"{run.folder}, case {entry.key}") for entry in run.journal(ENTRY)]


def keep(run: Run, key: str, case: CaseFile, history: Sequence[Message], settings: Mapping[str, Any]) -> None:
    """Store a localization and what it found, and commit."""
    with run.transaction():
        tree = f"{case.issue_id}-{key[:6]}"
        run.add_tree(tree, {"id": case.issue_id, "data": {"repo": case.repo, "commit": case.commit}})
        node = root(run, tree)
        provenance = Provenance(
            str(case.meta.get("by", "")), str(case.meta.get("weights", "")), dict(settings), int(settings.get("seed", 0))
        )
        run.add(provenance)
        for message in history:
            sampled = {"provenance": provenance.hash, "index": 0} if message.role == "assistant" else {}
            node = make_node(tree, node.id, len(node), message.role, message.text, data=dict(message.data), **sampled)
            run.add(node)
        run.log(ENTRY, key, {"case": case.to_json(), "node": node.id})
        run.conclude(KIND, [finding for entry in run.journal(ENTRY) for finding in _findings(entry.payload)])


def _findings(payload: Mapping[str, Any]) -> list[Finding]:
    case = read_case(payload["case"], ENTRY)
    if not case.findings:
        return [
            Finding(
                "no location",
                KIND,
                f"{case.issue_id}: no place was found in {case.meta.get('turns', 0)} turns",
                payload["node"],
                evidence=payload["case"],
            )
        ]
    return [_finding(case, one, payload["node"]) for one in case.findings]


def _finding(case: CaseFile, one: Diagnosis, node: str) -> Finding:
    why = f"{case.issue_id}: {one.location}: {one.root_cause or one.location_explanation or 'named without a reason'}"
    unit = "" if one.confidence is None else "probability"
    about = {"by": case.meta.get("by", ""), "repo": case.repo, "commit": case.commit}
    evidence = {name: value for name, value in case.to_json().items() if name in ("issue_id", "repo", "commit")}
    evidence |= {
        "place": one.location,
        "diagnosis": next(f for f in case.to_json()["findings"] if f["file"] == one.file and f["start"] == one.start),
    }
    return Finding("bug location", KIND, why, node, 0, one.solution_idea, one.confidence, unit, evidence, about)
