"""A finding as part of the prompt of a repair agent (section 3.7):
which findings are told, which fields, and what the agent is asked to do."""

from __future__ import annotations

from collections.abc import Sequence

from ramify.base.errors import UserError, nearest
from ramify.methods.diagnose.algorithm import InjectionGate
from ramify.methods.diagnose.case import FIELDS, CaseFile

HEAD = "A separate step looked for the place of this bug. What it found may be wrong:"
ASKED = """Before you edit anything: find your way around, read the source named above and check that it does what is said, look \
at the tests
near it, and reproduce the bug. Where what you see contradicts this, go by what you see."""


def inject(case: CaseFile, gate: InjectionGate | None = None, fields: Sequence[str] = FIELDS, issue: str | None = None) -> str:
    """The prompt: the issue, the locations with ``fields``, and what to do first.
    Without a finding that the gate lets through, the issue alone.

    Without a gate every finding is told; with one, those whose ``confidence`` it lets through. Raises UserError on an unknown
    field, and where a gate is given and a finding has no confidence.
    """
    for name in fields:
        if name not in FIELDS:
            raise UserError(f"a finding has no field '{name}' ({nearest(name, FIELDS)})")
    kept = []
    for one in case.findings:
        if gate is not None and one.confidence is None:
            raise UserError(
                f"{one.location} has no confidence for a gate to judge by: run `ramify diagnose run` with --samples 3"
            )
        if gate is None or gate.injects(one.confidence or 0.0):
            kept.append(one)
    parts = [(case.issue if issue is None else issue).strip()]
    if kept:
        parts.append(HEAD)
        for one in kept:
            lines = [f"- {name.replace('_', ' ')}: {getattr(one, name)}" for name in fields if getattr(one, name)]
            parts.append("\n".join([f"{one.file}, lines {one.start} to {one.end}", *lines]))
        parts.append(ASKED)
    return "\n\n".join(part for part in parts if part) + "\n"
