"""A file of score records, which `score --out` wrote until it made runs, read into a run."""

from __future__ import annotations

from pathlib import Path

from ramify.base.registry import register
from ramify.methods.implicit_advantage.run import add_record
from ramify.methods.implicit_advantage.verbs import read_scores
from ramify.trace.foreign import import_records
from ramify.trace.formats import Reader

LEFT = "what the agent was shown and the grades of single tokens are not in score records, so trees hold its actions alone"


def import_scores(path: Path, folder: Path) -> int:
    """Make a run of a file of score records. Returns how many; raises UserError as
    :func:`~ramify.methods.implicit_advantage.verbs.read_scores`."""
    records = enumerate(read_scores(path), 1)
    return import_records(
        path,
        folder,
        "implicit-advantage",
        lambda run, record, where, number: add_record(run, record, number),
        records,
        {"left": LEFT},
    )


register("reader", "implicit-advantage")(
    Reader(
        "implicit-advantage",
        "Score records that `ramify implicit-advantage score --out` of older versions wrote: the actions of attempts with their "
        "grades.",
        lambda path, first: first is not None and {"trajectory_id", "task_id", "steps", "score"} <= first.keys(),
        import_scores,
    )
)
