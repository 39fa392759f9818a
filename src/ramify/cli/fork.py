"""``ramify fork``: rewind a stored run to a token, change one thing, go on n times, and compare the outcomes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramify.base.errors import UserError
from ramify.cli.common import Json, RunArgument, find_run
from ramify.render import terminal

if TYPE_CHECKING:
    from ramify.env.protocol import Task
    from ramify.rollout.run import Episodes
    from ramify.trace.db import Run
    from ramify.trace.node import Node

app = typer.Typer(add_completion=False)


@app.command()
def fork(
    run: RunArgument,
    node: Annotated[str, typer.Argument(metavar="NODE[:OFFSET]", help="Id of a node or its start, and a token inside it.")],
    edit: Annotated[
        Path | None, typer.Option(metavar="FILE", help='What to change, e.g. {"append": " wait,"}; nothing by default.')
    ] = None,
    n: Annotated[int, typer.Option(help="Continuations to draw.", min=1)] = 32,
    after: Annotated[
        str, typer.Option(help="resample, replay (recorded actions) or keep (the recorded rest, scored again).")
    ] = "resample",
    as_json: Json = False,
) -> None:
    """Rewind a run to a token, change one thing, go on n times, and show what changed in the outcomes."""
    folder = find_run(run)
    name, offset = parse_place(node)
    from ramify.rollout.fork import AFTER, check_edit, fork

    if after not in AFTER:
        raise UserError(f"--after: must be one of {', '.join(AFTER)}, not '{after}'")
    change = None if edit is None else check_edit(read_edit(edit))
    from ramify.trace.db import Run

    with Run.open(folder, write=True) as opened:
        found = opened.node(name)
        episodes, task = play_on(opened, found)
        result = asyncio.run(fork(episodes, found.tree, task, found.id, offset, n, change, after))
    record = result.to_json()
    terminal.emit(record, as_json, table(record))


def play_on(run: Run, node: Node) -> tuple[Episodes, Task]:
    """Episodes with the run's own agent and world, and the task of the node's tree.

    The agent is the one that drew the node when its weights are kept (the start and the end of a run are), else the trained one,
    else the one the run began with. Raises UserError when the run does not say which agent and world it is about.
    """
    from ramify.base.config import check
    from ramify.env.protocol import Task
    from ramify.jobs import parts
    from ramify.jobs.improve import ImproveConfig, Job

    config = run.meta.get("config")
    if not isinstance(config, dict) or not {"model", "env"} <= config.keys():
        raise UserError(
            f"{run.folder} was not made by `ramify improve`, so its agent and world are not known: use ramify.rollout.fork"
        )
    job = Job(check(ImproveConfig, config, str(run.folder)), run.folder)
    drawn_by = None if node.producer is None else run.producer(node.producer).weights
    if (run.folder / "agent").is_dir() and drawn_by != job.weights:
        job.model, job.template = parts.load_model(run.folder / "agent")
    if drawn_by not in (None, job.model.identity.weights):
        terminal.say("ramify: the weights that drew this node are not kept; the trained agent goes on from it")
    task = next(tree.task for tree in run.trees() if tree.name == node.tree)
    return job.episodes(run, "fork"), Task(task["id"], task.get("data", {}))


def parse_place(text: str) -> tuple[str, int | None]:
    """``NODE[:OFFSET]`` as node id (or its start) and token offset. Raises UserError."""
    found = re.fullmatch(r"([0-9a-f]+)(?::(\d+))?", text)
    if found is None:
        raise UserError(f"'{text}' is not NODE or NODE:OFFSET, with a node's hexadecimal id and a token count")
    return found[1], None if found[2] is None else int(found[2])


def read_edit(file: Path) -> Any:
    """The JSON value in ``file``. Raises UserError naming the file, and the line of a syntax error."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the edit {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read the edit {file}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}: not JSON ({error.msg})") from None


def table(record: dict[str, Any]) -> str:
    """Outcomes of both arms and their difference as text."""
    if record["after"] == "keep":
        return f"the recorded rest is {record['kept_logprob']:+.3f} nats more likely behind the edit"
    rows = []
    for name, arm in (("unedited", record.get("control")), ("edited" if record["edit"] else "forked", record["fork"])):
        if arm is not None:
            low, high = arm["interval"]
            rate = None if arm["success"] is None else f"{arm['success']:.1%}"
            rows.append((name, arm["successes"], arm["n"], rate, f"[{low:.1%}, {high:.1%}]", arm["failed"]))
    text = terminal.table(["", "successes", "of", "success", "95 % interval", "failed"], rows)
    if "difference" in record:
        low, high = record["difference"]["interval"]
        text += (
            f"\n\nThe edit changed success by {record['difference']['success']:+.1%}, 95 % interval [{low:+.1%}, {high:+.1%}]."
        )
    return f"fork at {record['node']}:{record['offset']}, after: {record['after']}\n\n{text}"
