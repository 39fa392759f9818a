"""The tables of an answer, as sections for the terminal, a page and a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ramify.base.words import plural
from ramify.jobs.why.parting import FirstParting, WholeDifference
from ramify.jobs.why.records import Alternative, BrokenRule, Chance, Helped, LostByTool, Share, StepChance, StepShare, ToolMove
from ramify.render.numbers import p_value, percent, percent_interval, points, points_interval
from ramify.render.result import Cell, Folded, Part, Section, table

ROWS = 16
"""Steps and alternatives that are shown at once; --json and the run have all of them."""
TOOLS = 8
"""Tools whose worst move is shown."""
WIDE = 60
"""Characters of what was done at a parting, or in a row of steps: of more a terminal makes a column of a dozen lines."""
MOST_WAYS = 4
"""Ways at one parting that are shown."""
LONGEST = 200
"""Characters of an action."""


def steps(found: Sequence[StepChance], before: Chance, verdict: str, counterfactual: bool) -> Iterator[Part]:
    """Success after each step that was counted, of many those nearest to the step or with the largest changes; then all steps,
    to unfold, where some are left out."""
    known = [i for i, step in enumerate(found) if step.after is not None or step.change is not None]
    if len(known) > ROWS:
        known = sorted(sorted(known, key=lambda i: (not found[i].stands_out, -abs(found[i].change or 0.0)))[:ROWS])
    talks = any(step.conversation for step in found)
    start: list[tuple[Cell, ...]] = [("", "(start)", str(before), "", "", "", "")] if verdict == "none" else []
    left = len(found) - len(known)
    title = "success after each step" + (", intervals corrected over the steps" if counterfactual else "")
    title += f" ({plural(left, 'step')} between not counted)" if left else ""
    head = ("step", "action", "success after", "interval", "points", "interval of it", "")
    yield table(head, [*start, *(_step(i + 1, found[i], talks) for i in known)], title)
    if left:
        lines = (" ".join(str(value) for value in _step(i, one, talks)[:3]) for i, one in enumerate(found, 1))
        yield Folded(f"all {plural(len(found), 'step')}, with the success after them", "\n".join(lines))


def _step(number: int, step: StepChance, talks: bool) -> tuple[Cell, ...]:
    after = step.after
    return (
        str(number),
        cut(named(step.action)) + (f" (conversation {step.conversation})" if talks else ""),
        percent(None if after is None else after.p, 0),
        "ended" if after is not None and after.exact else percent_interval(None if after is None else after.interval),
        points(step.change, 0),
        points_interval(step.interval, 0),
        "<-" if step.stands_out else "",
    )


def shares(share: Share) -> Section:
    """How much of the change is each step's; of many those with credit and the largest."""
    whole = list(enumerate(share.steps, 1))
    kept = {i for i, one in sorted(whole, key=lambda row: (not row[1].credited, -abs(row[1].share or 0.0)))[:ROWS]}
    rows = [_share(i, one) for i, one in whole if i in kept]
    left = f", {plural(len(whole) - len(rows), 'step')} with smaller shares left out" if len(rows) < len(whole) else ""
    title = f"shares of {share.start} -> {share.end} ({plural(share.walks, 'walk')}, intervals corrected over the steps{left})"
    return Section.of(title, table(("step", "action", "points", "interval of it", ""), rows))


def _share(number: int, one: StepShare) -> tuple[Cell, ...]:
    credited = "<-" if one.credited else ""
    return str(number), named(one.action), points(one.share, 0), points_interval(one.interval, 0), credited


def alternatives(found: Sequence[Alternative]) -> Section:
    """What others did in the state before the step."""
    rows = ((named(one.action), one.n, percent(one.p, 0), percent_interval(one.interval)) for one in found[:ROWS])
    return Section.of("what others did there", table(("action", "attempts", "success", "95 % interval"), rows))


def broken(rules: Sequence[BrokenRule]) -> Section:
    """Steps that break a rule, and how many successful logs have such a step."""
    rows = [
        (str(rule.step), cut(rule.action), rule.rule, rule.why, f"{rule.k} of {rule.n}", rule.node[:12]) for rule in rules[:ROWS]
    ]
    sources = {True: "of this run", False: "of tau-bench and an AgentDojo, since this run has too few"}
    whose = "; ".join(sources[own] for own in sorted({rule.of_run for rule in rules}, reverse=True))
    says = f"Successful logs ({whose}) that break the same rule or a rarer rule; rules read the log, and prove no cause."
    left = f" ({len(rules) - ROWS} more are left out)" if len(rules) > ROWS else ""
    head = ("step", "action", "rule", "what breaks it", "successful logs", "node")
    return Section.of(f"steps that break a rule{left}", table(head, rows), says) if rows else Section.of("")


def changes(found: Sequence[Helped]) -> Section:
    """What came of each change, against as many continuations without it."""
    rows = (
        (
            one.do + (f"={one.value}" if one.value else ""),
            f"{one.changed.k}/{one.changed.n}",
            f"{one.control.k}/{one.control.n}",
            points(one.difference, 0),
            points_interval(one.interval, 0),
            p_value(one.p_corrected),
        )
        for one in found
    )
    head = ("instead", "succeeded", "without it", "points", "95 % interval", "p, corrected")
    return Section.of("what would have helped", table(head, rows))


def moves(found: Sequence[ToolMove]) -> Section:
    """The worst move of each tool, where it can be compared."""
    rows = [
        (
            one.tool, one.steps, named(one.action or "-"), one.takers, one.others, one.difference, one.p_corrected,
            (one.node or "-")[:12],
        )
        for one in found
        if one.difference is not None
    ]  # fmt: skip
    head = ("tool", "steps", "worst move", "did it", "did not", "reward difference", "p, corrected", "node")
    title = "where the attempts of all tasks part (those that are there, without forks: not a counterfactual)"
    return Section.of(title, table(head, rows[:TOOLS]))


def partings(tasks: Sequence[FirstParting]) -> Section:
    """Where attempts at each task part first."""
    rows: list[tuple[Cell, ...]] = []
    for each in tasks[:TOOLS]:
        told = [f"{cut(named(way.action))}: {way.k} of {way.n}" for way in each.ways[:MOST_WAYS]]
        rows.append((each.task, each.step, told[0], p_value(each.p), each.node[:12]))
        rows += [(each.task, each.step, way, "", "") for way in told[1:]]
    left = f" ({len(tasks) - TOOLS} more tasks are left out)" if len(tasks) > TOOLS else ""
    title = f"where attempts at one task part first, and how each way fared{left}"
    says = f"p is of one task alone, the smallest first: of {len(tasks)} tasks chance alone gives some below 0.05."
    head = ("task", "step", "what they did: successes", "p, alike", "node before")
    return Section.of(title, table(head, rows), says if len(tasks) > 1 else "")


def differences(compared: Sequence[WholeDifference]) -> Section:
    """What good and bad attempts differ in."""
    rows = [
        (each.what, f"{each.having.k} of {each.having.n}", f"{each.lacking.k} of {each.lacking.n}", p_value(each.p_corrected))
        for each in compared[:TOOLS]
    ]
    count = plural(len(compared), "difference")
    says = f"A first guess, and no cause: attempts differ in more than that. {count} compared within tasks."
    none = "" if any(each.p_corrected <= 0.05 for each in compared) else "None of them is beyond chance."
    head = ("an attempt that", "succeeded", "others succeeded", "p, corrected")
    return Section.of("what good and bad attempts differ in", table(head, rows), says, none) if rows else Section.of("")


def lost(rows: Iterable[tuple[str, str | None, str, Alternative | None, str | None]]) -> Part:
    """Of each attempt the tree, the step that lost it, the success before and after, the best alternative and the node."""
    shown = (
        (tree, named(action or "-"), success, "-" if best is None else named(best.action), (node or "-")[:12])
        for tree, action, success, best, node in rows
    )
    return table(("tree", "lost at", "success", "best alternative", "node"), shown)


def tools(found: Sequence[LostByTool]) -> Section:
    """What each tool lost."""
    rows = ((one.tool, one.lost, one.change, named(one.action), one.tree, one.node[:12]) for one in found)
    head = ("tool", "attempts lost", "mean change", "worst step", "tree", "node")
    return Section.of("which tool loses most", table(head, rows))


def cut(action: str) -> str:
    """An action in one line of :data:`WIDE` characters at most."""
    line = " ".join(action.split())
    return line if len(line) <= WIDE else f"{line[: WIDE - 1]}…"


def named(action: str) -> str:
    """An action as a table shows it: calls that a model wrote into its text as ``name(arguments)``."""
    from ramify.trace.message import named_calls  # loads numpy

    return named_calls(action)[:LONGEST]
