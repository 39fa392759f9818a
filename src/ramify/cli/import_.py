"""``ramify import``: make a run from traces in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ramify.base.words import plural
from ramify.kit import Form, Json, Verbs, argument, option

app = Verbs("import")


def _formats() -> str:
    from ramify.trace.formats import readers

    return "\n".join(["Formats:", *(f"  {reader.name}\n        {reader.help}" for reader in readers().values())])


@app.itself(epilogue=_formats)
def import_(
    file: Annotated[Path, argument(metavar="FILE", help="The file to read.")],
    run: Annotated[Path, option("--run", metavar="RUN", help="Folder of the run to make.")],
    form: Form = None,
    task_field: Annotated[
        str | None,
        option(metavar="NAME", help="Field with a record's task, where it has another name than usual (a.b: b inside a)."),
    ] = None,
    reward_field: Annotated[
        str | None, option(metavar="NAME", help="Field with an attempt's reward, where it has another name than usual.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a run from traces in a file, whole or not at all."""
    from ramify.render import terminal
    from ramify.trace.aliases import Fields
    from ramify.trace.db import Run
    from ramify.trace.failures import failures
    from ramify.trace.formats import pick_reader
    from ramify.trace.outcome import settled, successes, undecided

    reader = pick_reader(file, form)
    count = reader.make(file, run, Fields(task_field, reward_field))
    with Run.open(run) as opened:
        trees, nodes = len(opened.trees()), len(opened)
        record = {"run": str(run), "form": reader.name, "records": count, "trees": trees, "nodes": nodes}
        scored = sum(success is not None for success in successes(opened, settled(opened)))
        several = undecided(opened)
        failed = failures(opened)
        ignored = {entry.key: dict(entry.payload) for entry in opened.journal("ignored")}
    judged = (
        f"scores by {', '.join(several)}" if several else f"{plural(scored, 'attempt') if scored else 'no attempt'} with a reward"
    )
    text = f"{run}: {plural(trees, 'tree')}, {plural(nodes, 'node')}, {judged}, from {file} ({reader.name})"
    unread = [
        f"'{name}' of {about['count']} {about['what']} does not describe an attempt: ignored" for name, about in ignored.items()
    ]
    terminal.emit(
        record | {"scored": scored, "scorers": several, "failed": len(failed.reasons), "ignored": ignored},
        as_json,
        "\n".join([text, *unread, *([failed.sentence()] if failed.reasons else [])]),
    )
