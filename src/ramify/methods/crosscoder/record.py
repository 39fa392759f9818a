"""A study of steering as a run: the scores under each change in the journal, what came of them as a finding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.methods.crosscoder.report import study_verdict
from ramify.trace.connect import holds_run
from ramify.trace.db import Run
from ramify.trace.node import Finding

KIND = "crosscoder steer"
SCORES, STUDY = "scores", "study"
"""Kinds of the journal's entries: the scores under one change; all that a study found."""


def begin_study(folder: Path, options: Mapping[str, Any]) -> Run:
    """The run of a study: a new one, or one that continues.
    Scores are found by all they depend on, so each call may have other options.

    Raises UserError as :meth:`ramify.trace.db.Run.begin`.
    """
    return Run.begin(folder, KIND, {}, options)


def keep_study(run: Run, study: Mapping[str, Any]) -> None:
    """Store what a study found, and its verdict as a finding, instead of that of an earlier call."""
    known = run.journal(STUDY)
    chosen, options = study["confirmed"][0], study["about"]["options"]
    evidence = {"chosen": study["chosen"], "confirmed": study["confirmed"], "sets": study.get("sets", [])}
    with run.transaction():
        if not known or known[-1].payload != json.loads(json.dumps(study)):
            run.log(STUDY, f"{len(known):04d}", study)
        lift = float(chosen["lift"])
        run.conclude(KIND, [Finding("steering", KIND, study_verdict(dict(study)), None, 0, "", lift, "score", evidence, options)])


def read_study(folder: Path) -> dict[str, Any]:
    """What a study found. Raises UserError where there is none."""
    if not holds_run(folder):
        raise UserError(f"{folder} holds no study: `ramify {KIND}` makes one")
    with Run.open(folder) as run:
        studies = [entry.payload for entry in run.journal(STUDY)]
    if not studies:
        raise UserError(f"{folder} holds no study that came to its end: the same `ramify {KIND}` again continues it")
    return dict(studies[-1])
