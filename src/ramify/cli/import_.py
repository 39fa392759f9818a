"""``ramify import``: make a run from traces in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import UserError
from ramify.base.words import plural
from ramify.kit import Form, Json, Verbs, argument, option

if TYPE_CHECKING:
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
    outcomes: Annotated[
        Path | None,
        option(
            metavar="FILE",
            help="Task or file -> outcome: a report of SWE-bench, JSON, JSON lines or CSV, or a folder with verifier/reward.txt "
            "of each trial. Alone, it judges the attempts that the run holds.",
        ),
    ] = None,
    skip_bad: Annotated[bool, option("--skip-bad", help="Leave out bad records, and say which and why.")] = False,
    as_json: Json = False,
) -> None:
    """Make a run from traces in files, or add to one, whole or not at all. A file that the run holds already adds nothing."""
    from ramify.render import terminal
    from ramify.trace.aliases import Fields
    from ramify.trace.intake import take
    from ramify.trace.notes import BadRecordError, noting
    from ramify.trace.outcomes import read_outcomes

    if not files and outcomes is None:
        raise UserError("nothing to import: give a FILE, or --outcomes FILE for the attempts that the run holds")
    judged = None if outcomes is None else read_outcomes(outcomes)
    with noting(skip_bad) as notes:
        try:
            taken = take(files or [], run, form, Fields(task_field, reward_field), judged, outcomes)
        except BadRecordError as error:
            error.args = (f"{error}; --skip-bad leaves out bad records, and counts them",)
            raise
    record, lines = _summary(run, taken)
    named = ", ".join(map(str, files or [])) if len(files or []) < 4 else plural(len(files or []), "file")
    lines[0] += f", from {named} ({record['form'] or 'nothing new'})" if files else ""
    if outcomes is not None or taken.given:
        nobody = f"; of no attempt: {_some(taken.unmatched)}" if taken.unmatched else ""
        lines.insert(1, f"{plural(taken.given, 'attempt')} judged by {outcomes or 'the reward beside the file'}{nobody}")
    terminal.emit(record | notes.to_json(), as_json, "\n".join([*lines, *notes.sentences()]))


def _summary(folder: Path, taken: Taken) -> tuple[dict[str, Any], list[str]]:
    """What the run holds now and what was read into it, as JSON and as lines."""
    from ramify.trace.db import Run
    from ramify.trace.failures import failures
    from ramify.trace.outcome import settled, successes, undecided

    with Run.open(folder) as run:
        trees, nodes = len(run.trees()), len(run)
        scored = sum(success is not None for success in successes(run, settled(run)))
        several = undecided(run)
        failed = failures(run)
    record = {"run": str(folder), "form": ", ".join(sorted(set(taken.forms))), "records": taken.records}
    record |= {"trees": trees, "nodes": nodes, "scored": scored, "scorers": several, "failed": len(failed.reasons)}
    record |= {"ignored": taken.ignored, "already": taken.again, "unknown": taken.unknown}
    record |= {"judged": taken.given, "unmatched": taken.unmatched}
    by = (
        f"scores by {', '.join(several)}" if several else f"{plural(scored, 'attempt') if scored else 'no attempt'} with a reward"
    )
    lines = [f"{folder}: {plural(trees, 'tree')}, {plural(nodes, 'node')}, {by}"]
    lines += [f"held already, so nothing of it was added: {_some(taken.again)}"] if taken.again else []
    lines += [f"of no format known here, and left out: {_some(taken.unknown)}"] if taken.unknown else []
    for name, about in taken.ignored.items():
        lines.append(f"'{name}' of {about['count']} {about['what']} does not describe an attempt: ignored")
    lines += [failed.sentence()] if failed.reasons else []
    return record, lines


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")
