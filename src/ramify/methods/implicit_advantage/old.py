"""A file of score records, read into a run: a tree a task, the agent's actions as nodes, their grades at them and the attempt's at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.methods.implicit_advantage.run import GRADE, MAKER, UNIT, grade_mark
from ramify.methods.implicit_advantage.verbs import read_scores
from ramify.trace.aliases import IMPORTED
from ramify.trace.db import Record, Run
from ramify.trace.foreign import import_records, root
from ramify.trace.formats import Reader
from ramify.trace.node import Verdict, make_node

LEFT = "what the agent was shown and the grades of single tokens are not in score records, so trees hold its actions alone"


def import_scores(path: Path, folder: Path) -> int:
    """Make a run of a file of score records. Returns how many; raises UserError as :func:`~ramify.methods.implicit_advantage.verbs.read_scores`."""
    records = enumerate(read_scores(path), 1)
    return import_records(path, folder, "implicit-advantage", _add, records, {"left": LEFT})


def _add(run: Run, record: dict[str, Any], place: str, number: int) -> None:
    task = record["task_id"]
    run.add_tree(task, {"id": task})
    node, steps = root(run, task), []
    for step in record["steps"]:
        node = make_node(task, node.id, len(node), "assistant", step.get("action") or "", index=number)
        steps.append({**step, "node": node.id})
        run.add(node, grade_mark(steps[-1], record["token_agg"]))
    end = make_node(task, node.id, len(node), "user", "", index=number)
    kept = {name: value for name, value in record.items() if name not in ("baselines", "judges")} | {"steps": steps}
    models = {side: stable_hash("by name", str(record.get(side))) for side in ("policy", "reference")}
    found: list[Record] = [Verdict(end.id, MAKER, record["score"], UNIT, evidence=kept, judges=models)]
    for name, value in (record.get("baselines") or {}).items():
        known = (record.get("judges") or {}).get(name)
        found.append(Verdict(end.id, name, value, GRADE, judges={} if known is None else {name: known}))
    if record.get("success") is not None:
        paid = float(record["success"]) if record.get("reward") is None else float(record["reward"])
        found.append(Verdict(end.id, IMPORTED, paid, evidence={"outcome": record["success"]}))
    run.add(end, *found)


register("reader", "implicit-advantage")(
    Reader(
        "implicit-advantage",
        "Score records that `ramify implicit-advantage score --out` writes: the actions of attempts with their grades.",
        lambda path, first: first is not None and {"trajectory_id", "task_id", "steps", "score"} <= first.keys(),
        import_scores,
    )
)
