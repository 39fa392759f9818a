"""``ramify fork``: rewind a stored run to a token, change one thing, sample n continuations, and compare the outcomes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from ramify.base.errors import UserError
from ramify.base.files import read_small
from ramify.base.waiting import wait_for
from ramify.env.tools import read_effects
from ramify.kit import Effects, ForkEnv, ForkModel, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.terminal import progress
from ramify.rollout import fork as job
from ramify.rollout.fork import ForkResult, ForksCompared

app = Verbs("fork")


@app.itself()
def fork(
    run: RunArgument,
    node: Annotated[
        str, argument(metavar="NODE[:OFFSET]", help="Id of a node (or its first digits), and a token offset inside it.")
    ],
    edit: Annotated[
        list[str] | None,
        option(
            metavar="FILE",
            help='The edit as JSON, or a file with it, e.g. {"append": " wait,"} or {"rule": {"add": "Ask first."}}; default: no '
            "edit. Several share one control.",
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
) -> ForkResult | ForksCompared:
    """Rewind a run to a token, change one thing, sample n continuations, and show what changed in the outcomes.

    The same command again continues a fork that was interrupted; after a finished one it takes new samples.
    """
    folder = find_run(run)
    name, offset = parse_position(node)
    effects = read_effects(effect or [])
    if after not in job.AFTER:
        raise UserError(f"--after: must be one of {', '.join(job.AFTER)}, not '{after}'")
    changes = {name_of(given): job.check_edit(read_edit(given)) or {} for given in edit or []}
    if len(changes) < len(edit or []):
        raise UserError("--edit: two of them have the same name, which would name two rows of the table")
    if len(changes) > 1 and after != "resample":
        raise UserError(f"--after {after} goes with one --edit")
    from ramify.rollout.stored import named_components, open_episodes, other_agent
    from ramify.trace.db import Run

    with Run.open(folder) as opened:
        named_components(opened, model, env)
        stored = opened.node(name)
    kept = f"the continuations played so far stay in {folder}: the same command continues"
    with (
        progress("fork", kept=kept) as bar,
        open_episodes(folder, stored, model, env, trust=trust, effects=effects) as (episodes, task),
    ):
        arms = len(changes) + 1 if changes else 1
        bar.begin(n * arms if after == "resample" else 1, 0, "", "continuations")
        others_say = other_agent(episodes, stored)
        first, *others = [*changes] if len(changes) > 1 else ["edited"]
        counted = job.ArmsCounted([first, "unedited", *others] if changes else ["forked"], bar.at)
        here = (episodes, stored.tree, task, stored.id)
        with job.interruptible(episodes, stored.id, offset, list(changes.values()), n, after) as key:
            if len(changes) > 1:
                forks, rows = wait_for(job.compare(*here, changes, offset, n, key=key, counted=counted))
            else:
                change = next(iter(changes.values()), None)
                forks, rows = [wait_for(job.fork(*here, offset, n, change, after, key=key, counted=counted))], []
    told = tuple(replace(each.told, caveats=(*each.told.caveats, *others_say)) for each in forks)
    caveats = told[0].caveats if all(each.failure for each in told) else others_say
    return ForksCompared(told, tuple(rows), caveats=caveats) if rows else told[0]


def parse_position(text: str) -> tuple[str, int | None]:
    """``NODE[:OFFSET]`` as node id (or its first digits) and token offset. Raises UserError."""
    match = re.fullmatch(r"([0-9a-f]+)(?::(\d+))?", text)
    if match is None:
        raise UserError(f"'{text}' is not NODE or NODE:OFFSET, with a node's hexadecimal id and a token count")
    return match[1], None if match[2] is None else int(match[2])


def name_of(edit: str) -> str:
    """What an edit is called: its file, or the JSON that it is."""
    return edit if edit.lstrip().startswith("{") else Path(edit).name


def read_edit(given: str | Path) -> Any:
    """The JSON value ``given``, or that in the file of this name. Raises UserError naming the file, and the line of a syntax
    error."""
    text = str(given)
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"--edit: {text[:80]} is not JSON: {error}") from None
    file = Path(given)
    try:
        return json.loads(read_small(file, "the edit").decode("utf-8"))
    except UnicodeDecodeError:
        raise UserError(f"cannot read the edit {file}: it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise UserError(f"{file}: not readable as JSON: {error}") from None
