"""What a log says already: rates by what was recorded of each run. Nothing was changed on purpose, so it suggests and proves nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.base.errors import BoundaryError, UserError, nearest
from ramify.base.ids import canonical_json
from ramify.score.classify import Behaviour, as_said
from ramify.stats.drops import Counts
from ramify.stats.experiment import TestResult, counterfactuals
from ramify.trace.lines import field, read_lines

OBSERVED = "observed, not changed"
Log = list[tuple[Mapping[str, Any], bool | None]]
"""(fields, behaviour) of each run."""


def read_log(path: Path, behaviour: Behaviour) -> Log:
    """(fields, behaviour) of each run of a file of JSON lines: ``messages`` as in OpenAI's form, ``fields`` what was recorded of it.

    A run that the grader fails on is invalid (None). A run of the same ``id`` as an earlier one is the same run and is left out. Raises
    UserError naming file and line.
    """
    seen: set[str] = set()
    found: Log = []
    for number, record in read_lines(path):
        place = f"{path}:{number}"
        messages = field(record, "messages", list, place)
        if not messages or not all(isinstance(m, dict) for m in messages):
            raise UserError(f"{place}: 'messages' must be a list of at least one object with role and content")
        name = str(record.get("id", number))
        if name in seen:
            continue
        seen.add(name)
        fields = field(record, "fields", dict, place, {})
        found.append((fields, asyncio.run(_graded(behaviour, as_said(messages)))))
    if not found:
        raise UserError(f"{path} holds no run")
    return found


async def _graded(behaviour: Behaviour, said: Any) -> bool | None:
    try:
        return await behaviour(said)
    except BoundaryError:
        return None


def by_field(runs: Log, name: str) -> list[TestResult]:
    """Every value of a recorded field against the most frequent one. Raises UserError where fewer than two values were recorded.

    Each result carries the confound that nothing was changed: whatever else went with the value may be what moved the rate.
    """
    seen: dict[str, list[bool | None]] = defaultdict(list)
    for fields, did in runs:
        if name in fields:
            seen[fields[name] if isinstance(fields[name], str) else canonical_json(fields[name])].append(did)
    counts = {value: Counts.of(verdicts) for value, verdicts in seen.items()}
    if len(counts) < 2:
        known = {key for fields, _ in runs for key in fields}
        raise UserError(f"the log records {len(counts)} values of '{name}' and two are needed ({nearest(name, known)})")
    first, *others = sorted(counts, key=lambda value: (-counts[value].forks, value))
    found = counterfactuals(counts[first], {f"{name}={value} (not {first})": counts[value] for value in others})
    return [replace(one, confounds=(OBSERVED,)) for one in found]
