"""``ramify import``: make a run from traces in a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.kit import Form, Verbs, argument, option
from ramify.render.result import Result, Section
from ramify.trace.intake import IgnoredPart
from ramify.trace.notes import NAMED, Notes, UnreadField

if TYPE_CHECKING:
    from ramify.trace.db import Run
    from ramify.trace.intake import Taken

app = Verbs("import")


def _formats() -> str:
    from ramify.trace.formats import readers

    return "\n".join(["Formats:", *(f"  {reader.name}\n        {reader.help}" for reader in readers().values())])


@app.itself(epilogue=_formats)
def import_(
    files: Annotated[
        list[Path] | None,
        argument(metavar="FILE...", help="The files to read, or folders of them; - is standard input. Also .gz and UTF-16."),
    ] = None,
    *,
    run: Annotated[Path, option("--run", metavar="RUN", help="Folder of the run to make, or of an imported run to add to.")],
    form: Form = None,
    task_field: Annotated[
        str | None,
        option(metavar="NAME", help="Field with a record's task, where it has another name than usual (a.b: b inside a)."),
    ] = None,
    reward_field: Annotated[
        str | None, option(metavar="NAME", help="Field with an attempt's reward, where it has another name than usual.")
    ] = None,
    answer_field: Annotated[
        str | None, option(metavar="NAME", help="Field with the task's right answer, where it has another name than usual.")
    ] = None,
    outcomes: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Task or file -> outcome: a report of SWE-bench, JSON, JSON lines or CSV, or a folder with verifier/reward.txt "
            "of each trial. Alone, it judges the attempts that the run holds.",
        ),
    ] = None,
    skip_bad: Annotated[bool, option("--skip-bad", help="Leave out bad records, and say which and why.")] = False,
) -> ImportedRun:
    """Make a run from traces in files, or add to one, whole or not at all. A file that the run holds already adds nothing."""
    from ramify.trace.aliases import Fields
    from ramify.trace.intake import take
    from ramify.trace.notes import BadRecordError, noting
    from ramify.trace.outcomes import read_outcomes

    if not files and outcomes is None:
        raise UserError("nothing to import: give a FILE, or --outcomes FILE for the attempts that the run holds")
    judged = None if outcomes is None else read_outcomes(outcomes)
    with noting(skip_bad) as notes:
        try:
            taken = take(files or [], run, form, Fields(task_field, reward_field, answer_field), judged, outcomes)
        except BadRecordError as error:
            error.args = (f"{error}; --skip-bad leaves out bad records, and counts them",)
            raise
    return _imported(run, taken, notes, tuple(map(str, files or [])), None if outcomes is None else str(outcomes))


@dataclass(frozen=True)
class ImportedRun(Result):
    """What a run holds now, and what was read into it."""

    run: str
    form: str
    """Formats of the files that were read."""
    records: int
    trees: int
    nodes: int
    scored: int
    scorers: tuple[str, ...]
    """Candidates, where several could decide which attempts succeeded."""
    failed: int
    """Attempts that a failure ended."""
    ignored: Mapping[str, IgnoredPart]
    already: tuple[str, ...]
    """Files that the run held."""
    told_already: tuple[str, ...]
    """An agent's own logs of attempts that were read from the trajectory beside them."""
    unknown: tuple[str, ...]
    """Files of no format that is known."""
    judged: int
    """Attempts that ``--outcomes`` judged; without it, those that something beside their file did."""
    judged_by: Mapping[str, int]
    """What judged attempts -> how many."""
    unmatched: tuple[str, ...]
    """Outcomes of no attempt."""
    not_understood: tuple[UnreadField, ...]
    bad: int
    """Records that were left out."""
    bad_first: tuple[str, ...]
    open_calls: int
    files: tuple[str, ...]
    outcomes: str | None
    told: tuple[str, ...] = field(metadata={"json": False})
    """What failed and what was not understood, a sentence each."""

    def sections(self) -> Iterable[Section]:
        """What it holds, what was read, what was not."""
        scored = f"{plural(self.scored, 'attempt') if self.scored else 'no attempt'} with a reward"
        by = f"scores by {', '.join(self.scorers)}" if self.scorers else scored
        named = ", ".join(self.files) if len(self.files) < 4 else plural(len(self.files), "file")
        source = f", from {named} ({self.form or 'nothing new'})" if self.files else ""
        lines = [f"{self.run}: {plural(self.trees, 'tree')}, {plural(self.nodes, 'node')}, {by}{source}"]
        for judge, judged in self.judged_by.items():
            nobody = f"; of no attempt: {_some(self.unmatched)}" if self.unmatched and judge == self.outcomes else ""
            lines.append(f"{plural(judged, 'attempt')} judged by {judge}{nobody}")
        lines += [f"held already, so nothing of it was added: {_some(self.already)}"] if self.already else []
        lines += [f"told by the trajectory.json beside it, and left out: {_some(self.told_already)}"] if self.told_already else []
        lines += [f"of no format known here, and left out: {_some(self.unknown)}"] if self.unknown else []
        for name, ignored in self.ignored.items():
            lines.append(f"'{name}' of {ignored.count} {ignored.what} does not describe an attempt: ignored")
        yield Section.of("", "\n".join([*lines, *self.told]))


def _partly(run: Run) -> Iterator[str]:
    """That rewards between 0 and 1 count as successes, where there are some and nothing else says who succeeded."""
    unclear = [r for r in run.attempts() if r.outcome is None and r.reward is not None and 0 < r.reward < 1 and not r.fork]
    if unclear:
        yield (
            f"{plural(len(unclear), 'attempt')} with a reward between 0 and 1, as {unclear[0].reward:g}: a reward above 0 counts "
            "as a success where the log does not say 'success'"
        )


def _imported(folder: Path, taken: Taken, notes: Notes, files: tuple[str, ...], outcomes: str | None) -> ImportedRun:
    from ramify.trace.db import Run
    from ramify.trace.failures import failures
    from ramify.trace.outcome import settled, successes, undecided

    with Run.open(folder) as run:
        failed = failures(run)
        return ImportedRun(
            run=str(folder),
            form=", ".join(sorted(set(taken.forms))),
            records=taken.records,
            trees=len(run.trees()),
            nodes=len(run),
            scored=sum(success is not None and not fork for fork, success in successes(run, settled(run))),
            scorers=tuple(undecided(run)),
            failed=len(failed.reasons),
            ignored=taken.ignored,
            already=tuple(taken.again),
            told_already=tuple(taken.told),
            unknown=tuple(taken.unknown),
            judged=taken.given if outcomes is not None else taken.beside.total(),
            judged_by={**taken.beside, **({} if outcomes is None else {outcomes: taken.given})},
            unmatched=tuple(taken.unmatched),
            not_understood=notes.unread,
            bad=len(notes.bad),
            bad_first=tuple(notes.bad[:NAMED]),
            open_calls=notes.open_calls,
            files=files,
            outcomes=outcomes,
            told=(*_partly(run), *([failed.sentence()] if failed.reasons else []), *notes.sentences()),
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
