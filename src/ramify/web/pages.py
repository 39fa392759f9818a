"""The pages of a run: each is one self-contained HTML file that works with scripts disabled and loads nothing.

Every value a template shows passes :func:`ramify.render.escape.escape`; the only markup let through is our own SVG.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ramify.base import codec
from ramify.base.words import plural
from ramify.jobs.curve import curves
from ramify.jobs.results import EvaluatedArm, EvaluationEntry, Improved, UpdateReport
from ramify.jobs.summary import counted
from ramify.jobs.why.findings import MAKER as WHY
from ramify.jobs.why.findings import NOTHING, read
from ramify.render.charts import Curve, Slice, bar_svg, curves_svg
from ramify.render.escape import data_block, escape, visible
from ramify.render.graphs import graph_svg
from ramify.render.result import to_html
from ramify.render.sections import sections_of
from ramify.render.svg import signed
from ramify.render.terminal import short
from ramify.render.trees import tree_svg
from ramify.rollout.commands import commands, run_name
from ramify.score.credit.protocol import meanings
from ramify.stats.intervals import difference_of_proportions, paired_proportions, wilson
from ramify.trace.db import Run
from ramify.trace.failures import failures
from ramify.trace.node import Finding, TreeInfo
from ramify.trace.outcome import NOBODY, Decider, by_leaf, is_reward, settled, undecided
from ramify.trace.view import HowEnded
from ramify.web.beside import compare_runs, pairs
from ramify.web.drawn import PageData, drawn, number, numbers
from ramify.web.lanes import lanes
from ramify.web.outline import Outline, SuccessAfter, outline
from ramify.web.potentials import potential_pictures
from ramify.web.shares import share_picture
from ramify.web.shelf import is_written
from ramify.web.steps import START, ShownStep, TaskTree, merged, picture_steps, read_tree, step_text
from ramify.web.tasks import TaskRow, task_rows
from ramify.web.way import STATIONS, Nav, StoredAnswer, answers, in_code, key_of, left_off

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def script() -> str:
    """The script of the pages, made by ``page/build.mjs`` and committed."""
    return resources.files("ramify.web").joinpath("static", "page.js").read_text("ascii")


@functools.cache
def job_script() -> str:
    """The script of a job's page."""
    return resources.files("ramify.web").joinpath("static", "job.js").read_text("ascii")


def content_policy(served: bool = False, forms: bool = False) -> str:
    """What a page may do: run our scripts, by their hashes, which may set no markup;
    a served one may ask its own server for data, and with ``forms`` send it a form."""
    texts = (script(), job_script()) if served else (script(),)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    scripts, asked = " ".join(f"'sha256-{digest}'" for digest in digests), "self" if forms else "none"
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    policy += f"form-action '{asked}'; require-trusted-types-for 'script'; trusted-types 'none'"
    return policy + ("; connect-src 'self'" if served else "")


SHOWN_TREES = 3
CHANGES = "improve"
"""Who finds what training changed: ramify.jobs.changes, which is not imported for it."""
MOST_TASKS, MOST_FINDINGS = 100, 100
"""Rows of the tables of tasks and findings of a page without a script."""
LISTED = 200
"""Trees of one page of the list of all."""
_SCANNED = 90  # trees read to choose the shown ones: enough to find a mixed one, bounded for long runs
_PICTURED = 80  # leaves a tree picture stays readable with


def report_html(run: Run, nav: Nav | None = None, scorer: str | None = None, beside: Run | None = None) -> str:
    """The report of a run, finished or not. ``nav`` adds links to the other pages of :mod:`ramify.web.server`.

    ``scorer`` says which attempts succeeded, where several could; ``beside`` is another run to compare with. Raises UserError
    where nobody is called that.
    """
    deciding, base = settled(run, scorer), base_of(nav)
    arm = own_arm(run)
    every = list(run.memo("update", UpdateReport).values())
    own = [update for update in every if update.arm == arm]
    evals = run.memo("eval", EvaluationEntry)
    result = run.memo("result", Improved).get("improve")
    trees = _trees(run, base, deciding, beside, scorer)
    tasks = task_rows(run, deciding, [tree["name"] for tree in trees])
    linked = {step["id"] for tree in trees for step in tree["steps"]}
    found = [finding for finding in run.findings() if finding.maker != CHANGES]
    return page(
        "report.html",
        f"Run {run.folder.resolve().name}",
        nav,
        findings=[_finding_view(finding, base, linked) for finding in found[:MOST_FINDINGS]],
        left=max(0, len(found) - MOST_FINDINGS),
        left_off=[] if nav is None or is_written(run.folder) else list(left_off(run)),
        success=_counted(run, deciding) if not evals and not every else "",
        changes=None if result is None else _changes(run, result, base),
        cost="" if result is None else result.cost,
        compare=_compare(run, arm, {update.arm for update in every}),
        headline=_headline(evals),
        table=_before_after(evals, run.memo("compare", EvaluatedArm)),
        curves=_curves(every, arm),
        budget=_budget(own, evals),
        updates=_update_rows(own),
        sections=[markup(to_html(own, maker)) for maker, own in sections_of(run).items() if nav is None or maker == run.kind],
        answers=[] if nav is None else stored_answers(run, nav),
        trees=trees,
        tasks=tasks,
        most_tasks=MOST_TASKS,
        data=markup(_data(run, base, trees, tasks)),
        trained=arm_given(run) or bool(every) or bool(evals),
        beside=None if beside is None else _beside(run, beside, deciding, settled(beside, scorer)),
        abandoned=_abandoned(own),
        failed=failures(run).sentence(most=10),
        config=list(_flatten(run.config)),
        environment=_environment(run),
        result=[json.dumps(result.to_json(), ensure_ascii=False)] if result is not None else [],
    )


def _counted(run: Run, deciding: Decider) -> str:
    """How many attempts succeeded; empty where nobody said."""
    attempts, _ = counted(run, deciding, forks=False)
    if attempts is None:
        return ""
    interval = "" if attempts.interval is None else f", 95 % interval {_range(attempts.interval)}"
    return f"{attempts.successes} of {attempts.n} succeeded: {percent(attempts.successes / attempts.n)}{interval}."


def _trees(run: Run, base: str, deciding: Decider, beside: Run | None, scorer: str | None) -> list[dict[str, Any]]:
    """The trees of the report, each followed by the other run's of the same task."""
    theirs = {} if beside is None else {info.name: other.name for info, other in pairs(run, beside)}
    trees = []
    for name in interesting(run, deciding=deciding):
        trees.append(_tree_view(run, name, base, deciding))
        if beside is not None and name in theirs:
            other = _tree_view(beside, theirs[name], "", settled(beside, scorer))
            other["data"] = replace(other["data"], run=run_name(beside.folder))
            trees.append(other | {"name": f"{theirs[name]} in {run_name(beside.folder)}"})
    return trees


def _beside(run: Run, other: Run, deciding: Decider, theirs: Decider) -> dict[str, Any]:
    """Two runs beside each other as the report shows them."""

    def chance(of: SuccessAfter | None) -> str:
        return "-" if of is None else f"{percent(of.p)} ({_range(of.interval)})"

    def taken(count: tuple[int, int]) -> str:
        return f"{count[0]} of {count[1]}"

    rows, parting = compare_runs(run, other, deciding, theirs)
    shown = []
    for row in rows:
        gain = row.difference
        change = "-" if gain is None else f"{signed_points(gain[0])} ({signed_points(gain[1][0])} to {signed_points(gain[1][1])})"
        shown.append([row.name, chance(row.success), chance(row.other_success), change])
    return {
        "name": run_name(other.folder),
        "own": run_name(run.folder),
        "rows": shown[:MOST_TASKS],
        "parting": [
            [
                one.tree,
                one.history or "the start",
                one.action,
                taken(one.taken),
                taken(one.other_taken),
                f"{one.p:.2g}",
                chance(one.success),
            ]
            for one in parting
        ],
        "sure": sum(one.p <= 0.05 for one in parting),
    }


def tree_html(run: Run, name: str, nav: Nav | None = None, scorer: str | None = None) -> str:
    """The page of one tree. Raises UserError when there is none of that name."""
    base = base_of(nav)
    tree = _tree_view(run, name, base, settled(run, scorer))
    return page("tree.html", f"Tree {name}", nav, tree=tree, data=markup(_data(run, base, [tree])))


def report_data(run: Run, nav: Nav, scorer: str | None = None, beside: Run | None = None) -> str:
    """The data of the served report alone, for a page that is open while the run grows."""
    deciding = settled(run, scorer)
    trees = _trees(run, nav.base, deciding, beside, scorer)
    return _data(run, nav.base, trees, task_rows(run, deciding, [tree["name"] for tree in trees]))


def tree_data(run: Run, name: str, nav: Nav, scorer: str | None = None) -> str:
    """The data of the served page of one tree alone. Raises UserError when there is none of that name."""
    return _data(run, nav.base, [_tree_view(run, name, nav.base, settled(run, scorer))])


def _data(run: Run, base: str, trees: Sequence[Mapping[str, Any]], tasks: Sequence[TaskRow] | None = None) -> str:
    """What the script draws from, for its element."""
    source = "/data" if tasks is not None else f"/data/tree/{quote(trees[0]['name'], safe='')}"
    drawn_tasks = None if tasks is None else tuple(row.drawn for row in tasks)
    drawn_trees = tuple(tree["data"] for tree in trees)
    data = PageData(run_name(run.folder), base, drawn_trees, drawn_tasks, base + source if base else "")
    return data_block(codec.to_json(data, lean=True))


def trees_html(run: Run, nav: Nav, at: int = 1) -> str:
    """The list of all trees of a run (served only), :data:`LISTED` a page; pages count from 1."""
    infos = run.trees()
    pages = max(1, -(-len(infos) // LISTED))
    at = min(max(1, at), pages)
    shown = [(tree.name, tree.group) for tree in infos[(at - 1) * LISTED : at * LISTED]]
    return page("trees.html", "Trees", nav, trees=shown, count=len(infos), page=at, pages=pages)


def node_html(run: Run, name: str, nav: Nav) -> str:
    """The page of one node, by id or the start of one (served only). Raises UserError when there is none."""
    node = run.node(name)
    path, record = run.path(node.id), by_leaf(run.attempts(leaf=node.id)).get(node.id)
    why = [annotation for annotation in run.annotations(name="why", node=node.id) if isinstance(annotation.value, Mapping)]
    return page(
        "node.html",
        f"Node {node.id[:12]}",
        nav,
        node=node,
        messages=[(message.role, message.spoken()) for message in path.messages()],
        numbers=numbers(why[0].value, meanings(run).get(why[0].maker, {})) if why else [],
        findings=[_finding_view(finding, nav.base, ()) for finding in run.findings(node=node.id)],
        scores=[
            (v.scorer, v.value, HowEnded(node, record, v).word if is_reward(v.unit) else v.unit, v.version)
            for v in run.scores(node=node.id)
        ],
    )


def cell_html(picture: str = "", result: str = "", **values: Any) -> str:
    """What a notebook's cell shows, for :mod:`ramify.web.notebook`; ``picture`` is our own SVG, ``result`` our own HTML."""
    empty = dict.fromkeys(("lines", "head", "rows", "diff", "page", "name"), "")
    return _templates().get_template("cell.html").render(picture=markup(picture), result=markup(result), **(empty | values))


def message_html(title: str, text: str) -> str:
    """A page that says one sentence (an unknown tree, a refused request)."""
    return page("message.html", title, Nav(""), text=text)


def _finding_view(finding: Finding, base: str, linked: Collection[str]) -> dict[str, Any]:
    node = finding.node or ""
    href = f"#step-{node}" if node in linked else f"{base}/node/{node}" if base and node else ""
    value = "" if finding.value is None else f"{finding.value:.4g} {finding.unit}"
    found = {"maker": finding.maker, "name": finding.name, "why": in_code(finding.why), "action": in_code(finding.action)}
    return found | {"where": node[:12] or "the run", "href": href, "value": value, "evidence": _evidence(finding)}


def _why_view(finding: Finding) -> dict[str, Any]:
    """What `ramify why` found, its code apart from its words."""
    why = read(finding)
    return {
        "parts": in_code(finding.why),
        "command": "" if finding.action.startswith("ramify show ") else finding.action,
        "picture": markup(share_picture(None if why is None else why.share)),
    }


def _evidence(finding: Finding) -> str:
    facts = {"evidence": finding.evidence, "made by": dict(finding.identity)}
    return (
        json.dumps({name: value for name, value in facts.items() if value}, ensure_ascii=False, indent=1)
        if any(facts.values())
        else ""
    )


def arm_given(run: Run) -> bool:
    """Whether the run trains."""
    return "arm" in run.config


def own_arm(run: Run) -> str:
    """The arm of the run; the others were run for comparison."""
    return str(run.config.get("arm", "infotree+g2po"))


def interesting(run: Run, count: int = SHOWN_TREES, deciding: Decider | None = None) -> list[str]:
    """Names of up to ``count`` trees worth showing, in the run's order:
    those with findings first, then mixed outcomes, then the strongest credit.

    Trees that were trained on come first, then different groups (updates), and pictures that stay readable. Long runs are looked
    through at even intervals.
    """
    every = [tree for tree in run.trees() if not tree.group.startswith("eval-")]
    infos = [tree.name for tree in every if re.fullmatch(rf"{re.escape(own_arm(run))}-\d+", tree.group)] or [
        t.name for t in every
    ]
    if len(infos) > _SCANNED:
        infos = [infos[round(i * (len(infos) - 1) / (_SCANNED - 1))] for i in range(_SCANNED)]
    deciding = deciding or settled(run)
    found = _found_in(run)
    ranked: list[tuple[tuple[bool, bool, bool, float], int, TreeInfo]] = []
    for index, name in enumerate(infos):
        tree = read_tree(run, name, deciding)
        if tree.steps:
            ranked.append(((name not in found, not tree.mixed, len(tree.ends) > _PICTURED, -tree.strongest), index, tree.info))
    ranked.sort(key=lambda item: item[:2])
    seen: set[str] = set()
    fresh = [item for item in ranked if not (item[2].group in seen or seen.add(item[2].group))]  # type: ignore[func-returns-value]
    chosen = (fresh + [item for item in ranked if item not in fresh])[:count]
    return [info.name for _, _, info in sorted(chosen, key=lambda item: (item[0][0], item[1]))]


def _found_in(run: Run) -> set[str]:
    """Trees in which a method found something; that no step stands out is nothing."""
    nodes = {finding.node for finding in run.findings() if finding.node is not None and finding.name != NOTHING}
    return {run.node(node).tree for node in nodes}


def _headline(evals: Mapping[str, EvaluationEntry]) -> dict[str, str] | None:
    before, after = evals.get("before"), evals.get("after")
    if before is None:
        return None
    out = {"before": percent(before.success), "before_interval": _range(before.interval), "n": f"{before.n}"}
    if after is not None:
        low, high = _gain_interval(before, after)
        out |= {
            "after": percent(after.success),
            "after_interval": _range(after.interval),
            "gain": f"{signed_points(after.success - before.success)} points",
            "gain_interval": f"{signed_points(low)} to {signed_points(high)}",
        }
    return out


def _gain_interval(before: EvaluationEntry, after: EvaluationEntry) -> tuple[float, float]:
    """Paired by episode where both evaluations kept their outcomes (the same tasks in the same order), else of two samples."""
    pairs = [(a, b) for a, b in zip(after.outcomes, before.outcomes, strict=False) if a is not None and b is not None]
    if len(pairs) > 1:
        return paired_proportions([a for a, _ in pairs], [b for _, b in pairs])
    hits = [round(e.success * e.n) for e in (after, before)]
    return difference_of_proportions(hits[0], after.n, hits[1], before.n)


def _before_after(evals: Mapping[str, EvaluationEntry], compare: Mapping[str, EvaluatedArm]) -> list[list[str]]:
    """Rows of (arm, before, after, gain, episodes, tokens, seconds)."""
    rows = []
    known = {"this run": EvaluatedArm(evals["before"], evals["after"])} if {"before", "after"} <= evals.keys() else {}
    for arm, pair in [*known.items(), *compare.items()]:
        before, after = pair.before, pair.after
        low, high = _gain_interval(before, after)
        rows.append([
            arm,
            f"{percent(before.success)} ({_range(before.interval)})",
            f"{percent(after.success)} ({_range(after.interval)})",
            f"{signed_points(after.success - before.success)} ({signed_points(low)} to {signed_points(high)})",
            f"{after.n}",
            short(before.tokens + after.tokens),
            f"{before.seconds + after.seconds:.1f}",
        ])  # fmt: skip
    return rows


def _changes(run: Run, result: Improved, base: str) -> dict[str, Any]:
    """What the agent does otherwise since training, as the first lines say it."""
    found = run.findings(maker=CHANGES)
    states = [(in_code(one.why), f"{base}/node/{one.node}" if base and one.node else "") for one in found]
    return {"why": result.changes.why, "states": states}


def _compare(run: Run, own: str, arms: Collection[str]) -> Any:
    """The curve of success over tokens where several arms were run."""
    if len({own, *arms}) < 2:
        return None
    shown = []
    for arm, points in curves(run).items():
        lows, highs = zip(*(point.interval for point in points), strict=True) if arm == own and points else (None, None)
        shown.append(Curve(arm, [point.tokens for point in points], [point.rate for point in points], lows, highs))
    name = "Success over tokens of every arm"
    return markup(curves_svg(shown, name, "tokens generated for training", "success", width=760, height=300, x_text=short))


def _curves(updates: Sequence[UpdateReport], own: str) -> Any:
    """Success and groups with mixed outcomes of this run with their bands, and success of the arms run alongside it."""
    if not updates:
        return None
    arms: dict[str, list[UpdateReport]] = {}
    for update in updates:
        arms.setdefault(update.arm, []).append(update)
    curves = []
    for arm, rows in arms.items():
        x = [float(row.update) + 1 for row in rows]
        if arm != own:
            curves.append(Curve(f"success of {arm}", x, [row.success for row in rows]))
            continue
        shares = [row.success for row in rows], [row.mixed for row in rows]
        for name, y in zip(("success while sampling", "groups with mixed outcomes"), shares, strict=True):
            bands = [wilson(round(share * row.groups), row.groups) for share, row in zip(y, rows, strict=True)]
            curves.append(Curve(name, x, y, [band[0] for band in bands], [band[1] for band in bands]))
    return markup(
        curves_svg(curves, "Success and groups with mixed outcomes by update", "update", "share", width=760, height=300)
    )


def _update_rows(updates: Sequence[UpdateReport]) -> list[list[str]]:
    """Rows of (update, tokens so far, success, mixed, groups, attempts, L1, losses)."""
    return [
        [
            f"{row.update + 1}",
            f"{row.tokens}",
            percent(row.success),
            percent(row.mixed),
            f"{row.groups}",
            number(row.leaves),
            number(row.l1),
            ", ".join(f"{name} {value:.3g}" for name, value in row.train.items() if name != "tokens" and value is not None),
        ]
        for row in updates
    ]


def _budget(updates: Sequence[UpdateReport], evals: Mapping[str, EvaluationEntry]) -> list[tuple[str, Any]]:
    """(what, picture) for tokens and seconds of this run; what the other arms spent is not shown."""
    tokens = {"sampling": max((update.tokens for update in updates), default=0)}
    names = {"sample": "sampling", "credit": "credit", "train": "training"}
    seconds = {shown: sum(update.seconds.get(name, 0.0) for update in updates) for name, shown in names.items()}
    for key in ("before", "after"):
        one = evals.get(key)
        tokens[f"evaluation {key}"], seconds[f"evaluation {key}"] = (0, 0.0) if one is None else (one.tokens, one.seconds)
    bars = [("tokens", [Slice(k, v, f"{short(v)} tokens") for k, v in tokens.items()])]
    bars.append(("seconds", [Slice(k, v, f"{v:.1f} s") for k, v in seconds.items()]))
    return [(what, markup(bar_svg(parts, f"Where the {what} went", width=760))) for what, parts in bars]


def _tree_view(run: Run, name: str, base: str, deciding: Decider) -> dict[str, Any]:
    tree, explained = read_tree(run, name, deciding), meanings(run)
    found = outline(run, tree)
    states, moves, left_out = merged(tree)
    wins = sum(step.outcome == "success" for step in tree.attempts)
    unsaid = sum(step.outcome == "done" for step in tree.attempts)
    findings: dict[str | None, list[Finding]] = {}
    for finding in run.findings(tree=name):
        findings.setdefault(finding.node, []).append(finding)
    return {
        "name": tree.info.name,
        "task": json.dumps(dict(tree.info.task), ensure_ascii=False, indent=1),
        "prompt": tree.prompt,
        "attempts": plural(len(tree.attempts), "attempt"),
        "judged": f"{len(tree.attempts) - unsaid} attempts",
        "unsaid": unsaid,
        "forks": plural(len(tree.forks), "fork") if tree.forks else "",
        "wins": wins,
        "success": _success(found),
        "told": unsaid < len(tree.attempts),
        "scorers": undecided(run) if deciding is NOBODY else [],
        "picture": markup(tree_svg(picture_steps(tree, "#step-"), f"Attempts of {tree.info.name}")),
        "graph": markup(graph_svg(states, moves, f"States of {tree.info.name}")) if states else None,
        "left_out": left_out,
        "potentials": [markup(svg) for svg in potential_pictures(run, name)],
        "steps": [_step_view(step, tree, findings.get(step.id, ()), explained) for step in tree.steps],
        "base": base,
        "data": drawn(run, tree, found, explained),
        "lanes": lanes(tree),
        "lost": {one.node for node in findings.values() for one in node if one.maker == WHY and one.name != NOTHING},
        "why": [_why_view(one) for node in findings.values() for one in node if one.maker == WHY],
        "ask": commands(run).why(visible(name)) if unsaid < len(tree.attempts) else "",
    }


def _success(found: Outline) -> str:
    """The chance of success where forks make it another one than the share of attempts; "" elsewhere."""
    root = found.choices[0]
    ends = sum((choice.ends for choice in found.choices), Counter())
    told = ends["success"] + ends["failure"] + ends["cut"]
    if root.chance is None or abs(root.chance.p * told - ends["success"]) < 0.01:
        return ""
    low, high = root.chance.interval
    how = "Forks counted at the start" if root.chance.measured else "Counting the forks of one step as one"
    return f"{how}: {percent(root.chance.p)} ({100 * low:.1f} to {100 * high:.1f})."


def _step_view(
    step: ShownStep, tree: TaskTree, findings: Sequence[Finding], explained: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    return {
        "id": step.id,
        "depth": step.depth,
        "credit": "no credit" if step.credit is None else signed(step.credit),
        "sign": "" if not step.credit else "up" if step.credit > 0 else "down",
        "said": step_text(step),
        "text": step.message.spoken(),
        "before": tree.prompt if step.before == START else tree.states.get(step.before, ""),
        "answer": step.answer,
        "outcome": {"success": "succeeds", "failure": "fails", "cut": "is cut off", "done": "ends"}.get(step.outcome, ""),
        "reward": "" if step.reward is None else f"{step.reward:.3g}",
        "numbers": numbers(step.why, explained.get(step.rule, {})),
        "findings": [_finding_view(finding, "", ()) for finding in findings],
        "grades": [
            (annotation.maker, numbers(annotation.value, {}))
            for annotation in step.grades
            if isinstance(annotation.value, Mapping)
        ],
    }


def _abandoned(updates: Iterable[UpdateReport]) -> list[tuple[str, int]]:
    counts = Counter(task for update in updates for task in update.abandoned)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _environment(run: Run) -> list[tuple[str, str]]:
    """Versions and the run's other data about its machine: its metadata without the config,
    and what it noted of its surroundings."""
    noted = {key: value for key, value in run.meta.items() if key != "config"}
    for entry in run.journal("environment"):
        noted |= entry.payload if isinstance(entry.payload, Mapping) else {entry.key: entry.payload}
    return list(_flatten(noted))


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(share: float) -> str:
    """A share as people read it: 14.2 %."""
    return f"{100 * share:.1f} %"


def signed_points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{'+' if share >= 0 else '−'}{abs(100 * share):.1f}"


def _range(interval: Sequence[float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def stored_answers(run: Run, nav: Nav, only: str = "") -> list[tuple[str, StoredAnswer, str]]:
    """What verbs stored in a run, of one station or all: the station, the answer and its page."""
    stations = [only] if only else STATIONS
    return [(name, each, f"{nav.base}/{name}/{key_of(each.key)}") for name in stations for each in answers(run, name)]


def base_of(nav: Nav | None) -> str:
    """Address that links to the run's other pages begin with; empty in a file, which has no others."""
    return "" if nav is None else nav.base


def page(template: str, title: str, nav: Nav | None, **values: Any) -> str:
    """A page of a template; with ``nav`` one that is served. What is in ``values`` is escaped, but for our own markup."""
    values = {"data": None, "title": title, "nav": nav, "base": base_of(nav), "live": False, **values}
    values["script"] = markup(script()) if values["data"] is not None or nav is not None else None
    policy = content_policy(nav is not None, bool(values.get("form_token")))
    return _templates().get_template(template).render(policy=policy, job_script=markup(job_script()), **values)


@functools.cache
def _templates() -> Environment:
    """The templates. ``finalize`` sends every shown value through our escape function; autoescape is the second lock."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("ramify.web", "templates")
    return Environment(
        loader=loader, autoescape=True, finalize=_inert, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _inert(value: Any) -> Any:
    from markupsafe import Markup

    return value if isinstance(value, Markup) else Markup(escape(value))


def markup(own: str) -> Any:
    """Our own SVG, script or data block, whose texts are escaped already, marked as markup."""
    from markupsafe import Markup

    return Markup(own)
