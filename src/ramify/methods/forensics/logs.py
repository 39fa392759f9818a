"""What a log says already: rates by what was recorded of each run.
Nothing was changed on purpose, so it suggests and proves nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base import codec, verdicts
from ramify.base.errors import UserError, nearest
from ramify.base.ids import canonical_json
from ramify.base.ledger import Ledger
from ramify.base.waiting import wait_for
from ramify.methods.forensics.experiment import TestResult, counterfactuals
from ramify.methods.forensics.judges import as_messages, shows
from ramify.score.judge import Judge
from ramify.stats.drops import Counts
from ramify.trace.failures import failures
from ramify.trace.lines import first_record, read_lines
from ramify.trace.message import Message
from ramify.trace.sources import opened, run_folder
from ramify.trace.view import View, views

OBSERVED = "observed, not changed"


class Logged(NamedTuple):
    """One run of a log."""

    fields: Mapping[str, Any]
    did: bool | None
    """Whether it shows the behaviour; None: it is invalid."""
    why: str = ""
    """Why it is invalid, where that was said."""


Log = list[Logged]


def read_log(
    path: Path, behaviour: Judge, form: str | None = None, scorer: str | None = None, ledger: Ledger | None = None
) -> Log:
    """The runs of a log: the folder of a run, a file that can be imported (of the format ``form``, by default detected from the
    content), or JSON lines with ``messages`` as in OpenAI's form and ``fields``, what was recorded of each.

    Of a run and an imported file the fields are the task (``task``, and what its data holds) and what was recorded with the
    attempt; the behaviour ``outcome`` is what ``scorer`` says. A run that failed, whose last reply was cut by its limit of
    tokens, or that the grader fails on, is invalid. A line of the same ``id`` as an earlier one is the same run and is left out.
    Raises UserError naming file and line, and where every run failed. What judging cost goes to ``ledger``.
    """
    first = None if form is not None or path.is_dir() else first_record(path)[1]
    if first is None or "messages" not in first or run_folder(path) is not None:
        with opened(path, form) as run:
            tasks = {info.name: info.task.get("data") for info in run.trees()}
            found = [_of_run(attempt, tasks, behaviour, ledger) for attempt in views(run, scorer=scorer, unjudged=True)]
            failed = failures(run)
        if failed.all:
            raise UserError(f"{path}: {failed.sentence()}")
    else:
        if scorer is not None:
            raise UserError(f"{path} is JSON lines of messages, which hold no scores, so --scorer does not apply")
        found = list(_of_lines(path, behaviour, ledger))
    if not found:
        raise UserError(f"{path} holds no run")
    return found


@dataclass(frozen=True)
class LoggedLine:
    """A line of a log of your own: messages in OpenAI's form, and what was recorded of the run."""

    messages: tuple[dict[str, Any], ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    id: Any = None

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("'messages' must be a list of at least one object with role and content")


def _of_lines(path: Path, behaviour: Judge, ledger: Ledger | None) -> Iterator[Logged]:
    seen: set[str] = set()
    for number, record in read_lines(path):
        line = codec.from_json(LoggedLine, record, f"{path}:{number}")
        name = str(number if line.id is None else line.id)
        if name in seen:
            continue
        seen.add(name)
        yield wait_for(_graded(behaviour, as_messages(line.messages), line.fields, ledger))


def _of_run(attempt: View, tasks: Mapping[str, Any], behaviour: Judge, ledger: Ledger | None) -> Logged:
    """An attempt of a stored run. Its score replaces the environment's outcome."""
    parts = [tasks.get(attempt.tree.name), *(attempt.end.data.get(name) for name in ("sample", "record"))]
    parts += [part.get("metadata") for part in parts if isinstance(part, Mapping)]
    fields = {"task": attempt.task} | {
        name: value
        for part in parts
        if isinstance(part, Mapping)
        for name, value in part.items()
        if isinstance(value, str | int | float)
    }
    if attempt.failure is not None:
        return Logged(fields, None, attempt.failure)
    if attempt.path.cut:
        verdicts.left_open(attempt.leaf)
        return Logged(fields, None, "its limit of tokens cut its last reply")
    messages = attempt.path.messages()
    if messages and attempt.score is not None and attempt.success is not None and "outcome" not in messages[-1].data:
        messages[-1] = replace(messages[-1], data={**messages[-1].data, "outcome": attempt.success})
    return wait_for(_graded(behaviour, messages, fields, ledger))


async def _graded(behaviour: Judge, messages: Sequence[Message], fields: Mapping[str, Any], ledger: Ledger | None) -> Logged:
    return Logged(fields, *await shows(behaviour, messages, "", ledger))


def invalid(runs: Log) -> dict[str, int]:
    """Why runs are invalid, how often each, the most frequent first."""
    return dict(Counter(run.why or "no verdict" for run in runs if run.did is None).most_common())


def by_field(runs: Log, name: str) -> list[TestResult]:
    """Every value of a recorded field against the most frequent one. Raises UserError where fewer than two values were recorded.

    Each result carries the confound that nothing was changed: whatever else went with the value may be what moved the rate.
    """
    seen: dict[str, list[bool | None]] = defaultdict(list)
    for fields, did, _ in runs:
        if name in fields:
            seen[fields[name] if isinstance(fields[name], str) else canonical_json(fields[name])].append(did)
    counts = {value: Counts.of(verdicts) for value, verdicts in seen.items()}
    if len(counts) < 2:
        known = {key for run in runs for key in run.fields}
        raise UserError(f"the log records {len(counts)} values of '{name}' and two are needed ({nearest(name, known)})")
    first, *others = sorted(counts, key=lambda value: (-counts[value].forks, value))
    found = counterfactuals(counts[first], {f"{name}={value} (not {first})": counts[value] for value in others})
    return [replace(one, confounds=(OBSERVED,)) for one in found]
