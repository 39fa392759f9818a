"""``ramify fork``: rewind a stored run to a token, change one thing, sample n continuations, and compare the outcomes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.files import read_small
from ramify.base.waiting import wait_for
from ramify.env.tools import read_effects
from ramify.kit import Effects, ForkEnv, ForkModel, Json, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render import terminal

if TYPE_CHECKING:
    from ramify.rollout.attempts import Attempt

app = Verbs("fork")


@app.itself()
def fork(
    run: RunArgument,
    node: Annotated[
        str, argument(metavar="NODE[:OFFSET]", help="Id of a node (or its first digits), and a token offset inside it.")
    ],
    edit: Annotated[
        list[Path] | None,
        option(
            metavar="FILE",
            help='JSON file with the edit, e.g. {"append": " wait,"} or {"rule": {"add": "Ask first."}}; default: no edit. '
            "Several files share "
            "one control.",
        ),
    ] = None,
    n: Annotated[int, option(help="Continuations to sample.", min=1)] = 32,
    after: Annotated[
        str, option(help="resample, replay (recorded actions) or keep (the recorded rest, scored again).")
    ] = "resample",
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Rewind a run to a token, change one thing, sample n continuations, and show what changed in the outcomes.

    The same command again continues a fork that was interrupted; after a finished one it takes new samples.
    """
    folder = find_run(run)
    name, offset = parse_position(node)
    effects = read_effects(effect or [])
    from ramify.rollout.fork import AFTER, check_edit, compare, fork, interruptible

    if after not in AFTER:
        raise UserError(f"--after: must be one of {', '.join(AFTER)}, not '{after}'")
    changes = {file.name: check_edit(read_edit(file)) or {} for file in edit or []}
    if len(changes) < len(edit or []):
        raise UserError("--edit: two files have the same name, which would name two rows of the table")
    if len(changes) > 1 and after != "resample":
        raise UserError(f"--after {after} goes with one --edit")
    from ramify.rollout.attempts import Success
    from ramify.rollout.stored import named_components, open_episodes
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        named_components(opened, model, env)
        found = opened.node(name)
    kept = f"the continuations played so far stay in {folder}: the same command continues"
    with (
        terminal.progress("fork", as_json=as_json, kept=kept) as bar,
        open_episodes(folder, found, model, env, trust=trust, effects=effects) as (episodes, task),
    ):
        arms = len(changes) + 1 if changes else 1
        bar.begin(n * arms if after == "resample" else 1, 0, "", "continuations")
        success = Success()

        def on_attempt(attempt: Attempt) -> None:
            success.add(attempt)
            bar.at(success.ended, success.note)

        episodes.on_attempt = on_attempt
        with interruptible(episodes, found.id, offset, list(changes.values()), n, after) as key:
            if len(changes) > 1:
                forks, rows = wait_for(compare(episodes, found.tree, task, found.id, changes, offset, n, key=key))
            else:
                change = next(iter(changes.values()), None)
                forks, rows = [wait_for(fork(episodes, found.tree, task, found.id, offset, n, change, after, key=key))], []
    records = [one.to_json() for one in forks]
    if rows:
        evidence = [row.to_json() for row in rows]
        terminal.emit({"forks": records, "evidence": evidence}, as_json, compared(records, evidence))
    else:
        terminal.emit(records[0], as_json, table(records[0]))
    played = [attempt for one in forks for arm in (one.arm, one.control) if arm is not None for attempt in arm.attempts]
    if played and all(attempt.failure for attempt in played):
        raise RamifyError(f"every continuation failed, the first at {played[0].failure}")


def parse_position(text: str) -> tuple[str, int | None]:
    """``NODE[:OFFSET]`` as node id (or its first digits) and token offset. Raises UserError."""
    found = re.fullmatch(r"([0-9a-f]+)(?::(\d+))?", text)
    if found is None:
        raise UserError(f"'{text}' is not NODE or NODE:OFFSET, with a node's hexadecimal id and a token count")
    return found[1], None if found[2] is None else int(found[2])


def read_edit(file: Path) -> Any:
    """The JSON value in ``file``. Raises UserError naming the file, and the line of a syntax error."""
    try:
        return json.loads(read_small(file, "the edit").decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"cannot read the edit {file}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise UserError(f"{file}: not readable as JSON: {error}") from None


def compared(records: list[dict[str, Any]], rows: list[dict[str, Any]]) -> str:
    """Several edits against one control: the table of evidence and the diff of each."""
    control = records[0]["control"]
    base = ("unedited", f"{control['successes']}/{control['n']}", *_ends(control["success"], control["interval"]), "", "", "")
    lines = [base]
    for row in rows:
        ends = f"[{100 * row['difference_interval'][0]:+.1f}, {100 * row['difference_interval'][1]:+.1f}]"
        share = _ends(row["share"], row["share_interval"])
        lines.append(
            (
                row["intervention"],
                f"{row['hits']}/{row['n']}",
                *share,
                f"{100 * row['difference']:+.1f}",
                ends,
                f"{row['p_corrected']:.2g}",
            )
        )
    columns = ["edit", "successes", "success", "95 % interval", "points", "95 % interval of it", "p, corrected"]
    diffs = "\n\n".join(
        f"{row['intervention']}:\n{record['diff']}" for row, record in zip(rows, records, strict=True) if record["diff"]
    )
    return terminal.table(columns, lines) + (f"\n\n{diffs}" if diffs else "")


def _ends(share: float | None, interval: Any) -> tuple[str, str]:
    return "-" if share is None else f"{share:.1%}", f"[{interval[0]:.1%}, {interval[1]:.1%}]"


def table(record: dict[str, Any]) -> str:
    """Outcomes of both arms and their difference as text."""
    if record["after"] == "keep":
        return f"the recorded rest is {record['kept_logprob']:+.3f} nats more likely after the edit"
    rows = []
    for name, arm in (("unedited", record.get("control")), ("edited" if record["edit"] else "forked", record["fork"])):
        if arm is not None:
            rows.append((name, arm["successes"], arm["n"], *_ends(arm["success"], arm["interval"]), arm["failed"]))
    text = terminal.table(["", "successes", "of", "success", "95 % interval", "failed"], rows)
    if record["difference"] is not None:
        low, high = record["difference"]["interval"]
        text += (
            f"\n\nThe edit changed success by {100 * record['difference']['success']:+.1f} points, "
            f"95 % interval {100 * low:+.1f} to {100 * high:+.1f}, p = {record['evidence']['p']:.2g}. These counts would have "
            "shown a "
            f"change of {100 * record['evidence']['detectable']:.0f} points 4 times in 5."
        )
    if record["diff"]:
        text += f"\n\n{record['diff']}"
    return f"fork at {record['node']}:{record['offset']}, after: {record['after']}\n\n{text}"
