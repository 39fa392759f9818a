"""What replacing a judge costs in a run with many scores: one store operation, and reading what counts after it.

    python benchmarks/judges.py [--scores 1000000] [--save]

Ten judges in two slots have scored the same nodes. Times are wall and CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from common import save

from ramify.methods.judge_evolution.ledger import at_stake
from ramify.trace.db import Run
from ramify.trace.node import Score, make_node


def timed(what: str, rows: list[list[object]], call: object, note: str = "") -> object:
    cpu, wall = time.process_time(), time.perf_counter()
    found = call()
    rows.append(
        [what, f"{time.perf_counter() - wall:.3f}", f"{time.process_time() - cpu:.3f}", found if isinstance(found, int) else note]
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=int, default=1_000_000)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    nodes, rows = options.scores // 10, []
    with tempfile.TemporaryDirectory() as place, Run.create(Path(place) / "run", {}) as run:
        run.add_tree("t", {"id": "t"})
        root = make_node("t", None, 0, "root", "")
        run.add(root)
        for i in range(nodes):
            node = make_node("t", root.id, 0, "assistant", "reply", index=i)
            run.add(node, *(Score(node.id, f"s{j}", 1.0, judges={"ab"[j % 2]: f"judge-{j // 2}"}) for j in range(10)))
        run.commit()
        timed("replace the judge of a slot", rows, lambda: run.replace_judge("a", "judge-0"))
        timed("replace it again", rows, lambda: run.replace_judge("a", "judge-1"))
        timed("say what a replacement would erase", rows, lambda: at_stake(run, "b", "judge-0").erased)
        timed("list the scorers that count", rows, lambda: len(run.scorers()))
        timed("read the scores of one node that count", rows, lambda: len(run.scores(node=node.id)))
    columns = ["what", "wall s", "CPU s", "scores"]
    for row in [columns, *rows]:
        print(" | ".join(map(str, row)))
    if options.save:
        save(
            "judges",
            f"Replacing a judge in a run with {options.scores:,} scores",
            columns,
            rows,
            "One entry of the journal; whether a score counts is computed when it is read.",
        )


if __name__ == "__main__":
    main()
