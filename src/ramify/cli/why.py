"""``ramify why``: which step lost an attempt, what else was possible there, and what would have helped."""

from __future__ import annotations

import math
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base import codec
from ramify.base.errors import BudgetSpentError, UserError
from ramify.base.words import plural
from ramify.env.tools import effect_options, read_effects
from ramify.kit import DryRun, Effects, ForkEnv, ForkModel, Json, RunArgument, Trust, Verbs, argument, find_run, option
from ramify.render.terminal import emit, progress, say, table

if TYPE_CHECKING:
    from ramify.base.progress import Progress
    from ramify.jobs.helped import Helped
    from ramify.jobs.why import Share, Why
    from ramify.rollout.attempts import Attempt
    from ramify.trace.view import View

app = Verbs("why")
ROWS = 16
"""Steps the terminal shows; --json and the run have all of them."""
TOOLS = 8
SPENT = "the budget of {} samples was spent before {}: give the same command with a larger --samples to continue"

NOTHING_TO_CHANGE = "--do changes the step that lost the attempt, and none stands out: nothing was changed."


@app.itself()
def why(
    run: RunArgument,
    where: Annotated[
        str,
        argument(
            "TREE-or-NODE",
            help="Name of a tree, or a node of an attempt: its id or the first digits. Default: a failed attempt at the task "
            "with most successes.",
        ),
    ] = "",
    samples: Annotated[
        int | None,
        option(help="At most this many continuations in all; 0 runs nothing and compares the attempts that are there.", min=0),
    ] = None,
    n: Annotated[int, option(help="At most this many continuations from one position.", min=1)] = 48,
    first: Annotated[int, option(help="This many continuations from a position to begin with.", min=1)] = 4,
    level: Annotated[float, option(help="Chance of naming a step where none stands out.", min=1e-9, max=0.5)] = 0.05,
    least: Annotated[float, option(help="Change of success that a step must exceed to stand out.", min=0, max=0.99)] = 0.05,
    describe: Annotated[
        int, option(help="Continuations from before that step, to say what else was possible there.", min=0)
    ] = 16,
    share: Annotated[
        bool, option(help="Also share the change of success over the steps: at most --n walks, Shapley values.")
    ] = False,
    do: Annotated[
        list[str] | None,
        option(
            metavar="CHANGE",
            help="What if, there: resample, action[=TEXT], observation=TEXT, context=FILE (an edit) or policy=MODEL; repeatable.",
        ),
    ] = None,
    every: Annotated[bool, option("--all", help="One failed attempt of every tree, and what their tools lost.")] = False,
    scorer: Annotated[str | None, option(metavar="NAME", help="Scorer that decides which attempts succeeded.")] = None,
    model: ForkModel = None,
    env: ForkEnv = None,
    effect: Effects = None,
    trust: Trust = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Which step of an attempt lost it, what else was possible there, and what would have helped.

    Steps are sampled again under the unchanged agent, most where success fell. The same command again loads what is there and
    continues what was interrupted. Where the agent cannot be run again the attempts that are there are compared.
    """
    from ramify.jobs import helped as change
    from ramify.jobs import why as job
    from ramify.trace.db import Run

    folder = find_run(run)
    for text in do or []:
        change.change_of(text)
    if every and (where or do):
        raise UserError("--all asks about every tree, so it takes no tree, node or --do")
    who: dict[str, Any] = {"model": model, "env": env, "trust": trust, "effects": read_effects(effect or [])}
    if not dry_run:
        job.judge(folder, **who)
    with Run.open(folder) as opened:
        views = [job.choose(opened, name, scorer) for name in (job.failed_trees(opened, scorer) if every else [where])]
        again = samples != 0 and job.can_play(opened, model, env)
        several = len(opened.trees()) > 1 and not where
    steps = sum(len(view.steps) for view in views)
    most = min(n * steps * (1 + share), math.inf if samples is None else samples * len(views)) * again + 2 * n * len(do or [])
    if dry_run:
        plan = {"run": str(folder), "attempts": len(views), "steps": steps, "samples": int(most), "counterfactual": again}
        emit(plan, as_json, table(["cost estimate", "at most"], list(plan.items())))
        return
    settings: dict[str, Any] = {"n": n, "first": first, "samples": samples, "level": level, "least": least}
    settings |= {"scorer": scorer, "describe": describe, "share": share}
    found, changes = _ask(folder, views, do or [], settings, who, int(most), as_json)
    with Run.open(folder) as opened:
        fleet = job.tools(opened, scorer) if several and not every else []
    record = found[0].to_json() | ({"do": [codec.to_json(one.told) for one in changes]} if do else {})
    if every:
        record |= {"all": [one.to_json() for one in found], "tools": job.lost_by_tool(found)}
    options = effect_options(who["effects"])
    text = _fleet_text(found, record["tools"]) if every else _text(found[0], changes, fleet, str(folder), bool(do), options)
    emit(record, as_json, "" if as_json else text)
    if any(one.spent for one in found):
        raise BudgetSpentError(SPENT.format(samples, "credit was shared" if share else "a step stood out"))


def _ask(
    folder: Path, views: list[View], do: list[str], settings: dict[str, Any], who: dict[str, Any], most: int, as_json: bool
) -> tuple[list[Why], list[Helped]]:
    """What is found about each attempt, and what the changes come to, under a progress bar."""
    from ramify.jobs.helped import helped
    from ramify.jobs.why import why

    kept = f"the continuations played so far stay in {folder}: the same command continues"
    with progress("why", as_json=as_json, kept=kept) as bar:
        on_attempt = _counting(bar, most)
        on_note = cache(say)  # each note once, however many attempts it is about
        found = [why(folder, view.leaf, on_attempt=on_attempt, on_note=on_note, **settings, **who) for view in views]
        first = found[0]
        if not do or (first.counterfactual and first.node is None):
            return found, []
        return found, helped(folder, first, do, settings["n"], on_attempt=on_attempt, **who)


def _counting(bar: Progress, most: int) -> Any:
    from ramify.rollout.attempts import Success

    success = Success()
    bar.begin(most, 0, "", "continuations at most")

    def on_attempt(attempt: Attempt) -> None:
        success.add(attempt)
        bar.at(success.ended, success.note)

    return on_attempt


def _text(why: Why, changes: list[Helped], fleet: list[dict[str, Any]], folder: str, did: bool, options: str) -> str:
    """The headline, the steps, the alternatives, what would have helped, and what to do next."""
    parts = [why.headline, _steps_text(why)]
    if why.share is not None:
        parts.append(_share_text(why.share))
    if why.alternatives:
        rows = [
            (_named(one.action), one.chance.n, str(one.chance), _ends(one.chance.interval)) for one in why.alternatives[:ROWS]
        ]
        parts.append(table(["what others did there", "attempts", "success", "95 % interval"], rows))
    if changes:
        parts.append(_changes_text(changes))
    elif did:
        parts.append(NOTHING_TO_CHANGE)
    if compared := [row for row in fleet if row["difference"] is not None][:TOOLS]:
        parts.append(_tools_text(compared))
    sampled = why.samples + (0 if why.share is None else why.share.samples)
    counted = f"{plural(sampled, 'continuation')} sampled, {plural(why.free, 'attempt')} that were there counted with them"
    failed = (
        f"; {plural(why.failed, 'continuation')} failed, not counted: the same command tries them again" if why.failed else ""
    )
    parts.append(f"{counted if why.counterfactual else plural(why.free, 'other attempt') + ' compared'}{failed}.")
    if why.note:
        parts.append(why.note)
    parts.append("\n".join(_next(why, folder, did, options)))
    return "\n\n".join(parts)


def _next(why: Why, folder: str, did: bool, options: str) -> list[str]:
    name = shlex.quote(folder)
    if why.verdict == "step" and why.counterfactual:
        best = next(
            (one.action for one in why.alternatives if one.action != "something else" and not one.action.endswith(" …")), ""
        )
        change = (
            ""
            if did
            else f"Change it: `ramify why {name} {why.attempt[:12]} --do "
            f"{shlex.quote('action=' + best) if best else 'resample'}{options}`"
        )
        return [
            line for line in (change, f"Go on from there: `{why.command}`", f"Look at it: `ramify show {name} --web`") if line
        ]
    if not why.counterfactual:
        again = f"To sample its steps again, say what plays: `ramify why {name} --model MODEL --env ENV`"
        return [again, f"Look at it: `ramify show {name} --web`"]
    together = f"Several steps may have lost it together: `ramify why {name} {why.attempt[:12]} --share{options}`"
    return [*([together] if why.several and why.share is None else []), f"Look at it: `ramify show {name} --web`"]


def _named(action: str) -> str:
    """An action as a table shows it: calls that a model wrote into its text as ``name(arguments)``."""
    from ramify.trace.message import named_calls  # help starts faster without numpy

    return named_calls(action)


def _share_text(share: Share) -> str:
    whole = [(str(i), one) for i, one in enumerate(share.steps, 1)]
    kept = {i for i, one in sorted(whole, key=lambda row: (not row[1].credited, -abs(row[1].value or 0.0)))[:ROWS]}
    rows = [
        (
            i,
            _named(one.action)[:200],
            "-" if one.value is None else f"{100 * one.value:+.0f}",
            "-" if one.interval is None else f"[{100 * one.interval[0]:+.0f}, {100 * one.interval[1]:+.0f}]",
            "<-" if one.credited else "",
        )
        for i, one in whole
        if i in kept
    ]
    left = f", {plural(len(whole) - len(rows), 'step')} with smaller shares left out" if len(rows) < len(whole) else ""
    title = f"shares of {share.start} -> {share.end} ({plural(share.walks, 'walk')}, intervals corrected over the steps{left})"
    return table(["step", "action", "points", "interval of it", ""], rows, title)


def _steps_text(why: Why) -> str:
    known = [i for i, step in enumerate(why.steps) if step.after is not None or step.change is not None]
    if len(known) > ROWS:  # those nearest to the step, or the largest changes
        rank = sorted(known, key=lambda i: (not why.steps[i].stands_out, -abs(why.steps[i].change or 0.0)))[:ROWS]
        known = sorted(rank)
    rows: list[tuple[Any, ...]] = (
        [("", "(start)", str(why.before if why.verdict == "none" else "-"), "", "", "", "")] if why.verdict == "none" else []
    )
    talks = any(step.conversation for step in why.steps)
    for i in known:
        step = why.steps[i]
        after = step.after
        rows.append(
            (
                str(i + 1),
                _named(step.action)[:200] + (f" (conversation {step.conversation})" if talks else ""),
                "-" if after is None else str(after),
                "-" if after is None else "ended" if after.exact else _ends(after.interval),
                "-" if step.change is None else f"{100 * step.change:+.0f}",
                "-" if step.interval is None else f"[{100 * step.interval[0]:+.0f}, {100 * step.interval[1]:+.0f}]",
                "<-" if step.stands_out else "",
            )
        )
    title = "success after each step" + (", intervals corrected over the steps" if why.counterfactual else "")
    left = len(why.steps) - len(known)
    title += f" ({plural(left, 'step')} between not counted)" if left else ""
    return table(["step", "action", "success after", "interval", "points", "interval of it", ""], rows, title)


def _ends(interval: Any) -> str:
    return f"[{interval[0]:.1%}, {interval[1]:.1%}]"


def _changes_text(changes: list[Helped]) -> str:
    rows = [
        (
            one.kind + (f"={one.value}" if one.value else ""),
            f"{one.arm.k}/{one.arm.n}",
            f"{one.control.k}/{one.control.n}",
            f"{100 * one.row.difference:+.0f}",
            f"[{100 * one.row.difference_interval[0]:+.0f}, {100 * one.row.difference_interval[1]:+.0f}]",
            f"{one.row.p_corrected:.2g}",
        )
        for one in changes
    ]
    return table(
        ["instead", "succeeded", "without it", "points", "95 % interval", "p, corrected"], rows, "what would have helped"
    )


def _tools_text(fleet: list[dict[str, Any]]) -> str:
    rows = [
        (
            row["tool"],
            row["steps"],
            _named(row["action"] or "-"),
            row["takers"],
            row["others"],
            row["difference"],
            row["p_corrected"],
            (row["node"] or "-")[:12],
        )
        for row in fleet
    ]
    columns = ["tool", "steps", "worst move", "did it", "did not", "reward difference", "p, corrected", "node"]
    return table(
        columns, rows, "where the attempts of all tasks part (those that are there, without forks: not a counterfactual)"
    )


def _fleet_text(found: list[Why], tools: list[dict[str, Any]]) -> str:
    lost = sum(one.verdict == "step" for one in found)
    rows = [
        (
            one.tree,
            _named(one.action or "-"),
            f"{one.before} -> {one.after}",
            _named(one.alternatives[0].action) if one.alternatives else "-",
            (one.node or "-")[:12],
        )
        for one in found
    ]
    text = f"{lost} of {plural(len(found), 'failed attempt')} have a step that stands out."
    text += "\n\n" + table(["tree", "lost at", "success", "best alternative", "node"], rows)
    if tools:
        columns = ["tool", "attempts lost", "mean change", "worst step", "tree", "node"]
        worst_steps = [
            (one["tool"], one["lost"], one["change"], _named(one["action"]), one["tree"], one["node"][:12]) for one in tools
        ]
        text += "\n\n" + table(columns, worst_steps, "which tool loses most")
    worst = max(found, key=lambda one: (one.verdict == "step", (one.before.p or 0) - (one.after.p or 0)))
    return f"{text}\n\n{worst.headline}\n\nLook at it: `{worst.command}`"
