"""Answers in a run: one finding an attempt, written and read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import json_hash
from ramify.jobs.why.answer import Why
from ramify.trace.db import Run
from ramify.trace.node import Finding

MAKER = "why"
"""Maker of its findings and annotations."""
NOTHING = "no step stands out"
"""Name of a finding that names no step."""


def found(run: Run, tree: str | None = None) -> list[Why]:
    """What earlier calls found out and stored in ``run``, of one ``tree`` or all;
    a record that is none (of a foreign run) is left out."""
    answers = [why for one in run.findings(tree=tree, maker=MAKER) if (why := read(one)) is not None]
    return [replace(answer, commands=answer.commands.of(run)) for answer in answers]


def read(finding: Finding) -> Why | None:
    """The answer that a finding of :data:`MAKER` holds; None where it holds none."""
    try:
        return codec.from_json(Why, finding.evidence)
    except UserError:
        return None


def stored(run: Run, tree: str, attempt: str, identity: Mapping[str, Any]) -> Why | None:
    """What the same call found out before, where no continuation failed."""
    for one in run.findings(tree=tree, maker=MAKER):
        if json_hash(dict(one.identity)) == json_hash(dict(identity)):
            why = read(one)
            if why is not None and why.attempt == attempt and not why.failed:
                return why
    return None


def keep(run: Run, why: Why, identity: Mapping[str, Any]) -> None:
    """Store the answer; those about other attempts stay."""
    others = [one for one in run.findings(maker=MAKER) if getattr(read(one), "attempt", why.attempt) != why.attempt]
    run.conclude(MAKER, [*others, _finding(why, identity)])
    run.commit()


def _finding(why: Why, identity: Mapping[str, Any]) -> Finding:
    name = NOTHING if why.verdict == "none" else "won here" if why.success else "lost here"
    evidence = codec.to_json(why)
    return Finding(name, MAKER, why.headline, why.node or why.attempt, 0, why.command, why.change, "success", evidence, identity)
