"""A tree as the page draws it: equal replies after an equal history are one choice,
with its count and the chance of success after it.

Every attempt of a tree shares its beginning with others. Choices are the steps of :mod:`ramify.web.steps` with equal ones merged:
the prefix is there once, and a choice says how many samples took it and what became of them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramify.render.escape import visible
from ramify.render.svg import clip
from ramify.stats.intervals import wilson
from ramify.trace.context import changed
from ramify.trace.db import Run
from ramify.trace.node import Annotation, Node
from ramify.trace.outcome import by_leaf, is_reward
from ramify.web.steps import ShownStep, TaskTree, outcome_of

MOST_CHOICES = 20_000
"""Choices of one tree that a page holds."""
MOST_TEXT = 20_000
"""Characters of one text that a page holds."""
MOST_TOKENS = 60_000
"""Tokens of a tree whose probabilities a page holds; measured ones are always there."""
_SAMPLES = 50  # ids of equal samples that a page names


@dataclass(frozen=True, slots=True)
class SuccessAfter:
    """A probability of success: of how many independent samples it is worth, and its 95 % interval."""

    p: float
    n: float
    measured: bool = False
    """From forks that were counted there, else from the attempts that go through."""

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's."""
        return wilson(self.p * self.n, self.n)


@dataclass(slots=True)
class Choice:
    """One reply after one history, by however many samples. Choice 0 is the task."""

    parent: int
    steps: list[ShownStep] = field(default_factory=list)
    edit: str = ""
    """What was changed here, one line; its outcomes do not count for what comes before."""
    chance: SuccessAfter | None = None
    children: list[int] = field(default_factory=list)

    @property
    def ends(self) -> Counter[str]:
        """Attempts that end here, by outcome."""
        return Counter(step.outcome for step in self.steps if step.outcome)

    @property
    def text(self) -> str:
        """What the agent wrote and called."""
        return self.steps[0].message.spoken() if self.steps else ""


@dataclass(frozen=True, slots=True)
class Outline:
    """The choices of a tree, every parent before its children."""

    choices: tuple[Choice, ...]
    of: Mapping[str, int]
    """Place in ``choices`` by id of a node: of replies, and of the messages that answer them."""
    left_out: int
    """Steps beyond :data:`MOST_CHOICES`."""

    @property
    def drop(self) -> tuple[float, int] | None:
        """The largest fall of the chance of success at one choice that more than chance explains,
        and where; None where there is none.

        Its interval lies below the chance before it."""
        found = []
        for at, choice in enumerate(self.choices[1:], 1):
            before = self.choices[choice.parent].chance
            if choice.chance is not None and before is not None and choice.chance.interval[1] < before.p:
                found.append((choice.chance.p - before.p, at))
        return min(found, default=None)


def outline(run: Run, tree: TaskTree) -> Outline:
    """Merge a tree's equal steps and estimate the chance of success after each."""
    choices = [Choice(-1)]
    places: dict[str, int] = {}
    keys: dict[tuple[Any, ...], int] = {}
    left_out = 0
    for step in tree.steps:
        parent = 0 if step.parent is None else places.get(step.parent, -1)
        edit = _edit(run, step)
        key = (parent, edit, *(node.text for node in step.lead), None, step.message.spoken())
        at = -1 if parent < 0 else keys.get(key, -1)
        if at < 0:
            if parent < 0 or len(choices) > MOST_CHOICES:
                left_out += 1
                continue
            at = keys[key] = len(choices)
            choices.append(Choice(parent, edit=edit))
            choices[parent].children.append(at)
        choices[at].steps.append(step)
        places[step.id] = at
    of: dict[str, int] = {}
    for at, choice in enumerate(choices):
        for step in choice.steps:
            for node in (*(node for node, _ in step.pieces), *step.answers):
                of.setdefault(node.id, at)
    for step in tree.steps:  # a reply that others were forked out of is its own step, not theirs
        if step.id in places:
            of[step.id] = places[step.id]
    _estimate(choices, _measured(run, tree, choices, of))
    return Outline(tuple(choices), of, left_out)


def _edit(run: Run, step: ShownStep) -> str:
    """What a fork changed at a step, "" where nothing was."""
    for node in (*step.lead, *(node for node, _ in step.pieces)):
        edit = node.data.get("edit")
        if edit is None and node.provenance is not None:
            edit = run.provenance(node.provenance).edit
        if edit is not None:
            return clip(json.dumps(edit, ensure_ascii=False, default=str), 300)
    return ""


def _measured(run: Run, tree: TaskTree, choices: Sequence[Choice], of: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    """Counted forks after a choice: at its end, or at a message that answers it, or before the reply that follows."""
    nodes = {step.id: step.node for step in tree.steps}
    found: dict[int, tuple[int, int]] = {}
    for annotation in run.annotations(tree=tree.info.name, name="potential"):
        counts = counted(annotation)
        if counts is None:
            continue
        at = of.get(annotation.node, 0)  # elsewhere are the messages of the prompt
        node = nodes.get(annotation.node)
        if node is not None and annotation.offset <= node.head and node.opens:
            at = choices[at].parent
        elif node is not None and annotation.offset < len(node):
            continue  # inside the reply
        k, n = found.get(at, (0, 0))
        found[at] = k + counts[0], n + counts[1]
    return found


def counted(annotation: Annotation) -> tuple[int, int] | None:
    """Successes and forks of a ``potential`` annotation; None where they are no counts."""
    value = annotation.value if isinstance(annotation.value, Mapping) else {}
    k, n = value.get("k"), value.get("n")
    return (k, n) if type(k) is int and type(n) is int and 0 <= k <= n and n else None


def _estimate(choices: Sequence[Choice], measured: Mapping[int, tuple[int, int]]) -> None:
    """Set every choice's chance, the last ones first.

    The chance at a choice is the mean over the samples taken there of the chance after them, so that many forks of one sample
    count as one before it. Its variance is that within the samples (each choice's own) and that between them (Cochran 1977,
    section 10.2); the chance is worth as many independent samples as have that variance, or,
    where all end alike, as Kish's formula says.
    """
    for at in range(len(choices) - 1, -1, -1):
        choice = choices[at]
        if at in measured:
            k, n = measured[at]
            choice.chance = SuccessAfter(k / n, float(n), True)
            continue
        ends = choice.ends
        parts = [(1.0, 1.0, 1.0)] * ends["success"] + [(1.0, 0.0, 1.0)] * (ends["failure"] + ends["cut"])
        for child in choice.children:
            chance = choices[child].chance
            if chance is not None and not choices[child].edit:
                parts.append((float(len(choices[child].steps)), chance.p, chance.n))
        choice.chance = _pooled(parts)


def _pooled(parts: Sequence[tuple[float, float, float]]) -> SuccessAfter | None:
    """(samples, chance, worth) of each part as one."""
    total = sum(count for count, _, _ in parts)
    if not total:
        return None
    p = min(1.0, max(0.0, sum(count * chance for count, chance, _ in parts) / total))
    within = sum((count / total) ** 2 * chance * (1 - chance) / worth for count, chance, worth in parts)
    between = sum(count / total * (chance - p) ** 2 for count, chance, _ in parts) / total
    spread = within + between
    kish = 1 / sum((count / total) ** 2 / worth for count, _, worth in parts)
    return SuccessAfter(p, p * (1 - p) / spread if 1e-12 < p < 1 - 1e-12 and spread > 0 else kish)


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    text = visible(str(value))
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… ({len(text) - MOST_TEXT} more characters)"


class _Messages:
    """Texts that a page shows often, each once."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self._at: dict[tuple[str, str], int] = {}

    def add(self, role: str, text: str) -> int:
        key = (role, text)
        if key not in self._at:
            self._at[key] = len(self.rows)
            self.rows.append([role, _text(text)])
        return self._at[key]

    def nodes(self, nodes: Iterable[Node]) -> list[int]:
        return [self.add(node.role, node.message.spoken()) for node in nodes if node.role != "root" or node.text]


def outline_json(run: Run, tree: TaskTree, found: Outline, explained: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What the page's script draws: plain JSON, every text already visible (see :func:`ramify.render.escape.visible`)."""
    messages = _Messages()
    states: dict[str, int] = {}
    scores: dict[int, list[list[str]]] = {}
    records = by_leaf(run.attempts(tree=tree.info.name))
    for score in run.scores(tree=tree.info.name):
        shown = "none" if score.value is None else f"{score.value:.4g}"
        unit = outcome_of(records.get(score.node), score) if is_reward(score.unit) else score.unit
        scores.setdefault(found.of.get(score.node, 0), []).append([_text(score.scorer), shown, _text(unit), score.node])
    inside = _inside(run, tree, found)
    rows = []
    for at, choice in enumerate(found.choices):
        row: dict[str, Any] = {"up": choice.parent, "n": len(choice.steps)}
        if choice.chance is not None:
            low, high = choice.chance.interval
            row["p"] = [round(choice.chance.p, 4), round(low, 4), round(high, 4), round(choice.chance.n, 1)]
            if choice.chance.measured:
                row["measured"] = 1
        if choice.steps:
            row |= _step_row(run, choice, found, messages, states, explained)
        if at in inside:
            row["inside"] = inside[at]
        if at in scores:
            row["scores"] = scores[at][:_SAMPLES]
        rows.append(row)
    return {
        "name": _text(tree.info.name),
        "id": tree.info.name if visible(tree.info.name) == tree.info.name else "",
        "group": _text(tree.info.group),
        "task": _text(json.dumps(dict(tree.info.task), ensure_ascii=False, indent=1, default=str)),
        "messages": messages.rows,
        "choices": rows,
        "forks": len(tree.forks),
        "left_out": found.left_out,
    }


def findings_json(run: Run, tree: TaskTree, found: Outline) -> dict[str, Any]:
    """What methods found in a tree, by choice; what `ramify why` found; and the largest drop of the attempts themselves."""
    out: dict[str, Any] = {"findings": [], "why": []}
    for one in run.findings(tree=tree.info.name):
        at = found.of.get(one.node or "", 0)
        if one.maker == WHY:
            said = {"at": at, "lost": one.name != NOTHING, "says": _text(one.why), "command": _text(one.action)}
            ends = {name: _counted_chance(one.evidence, name) for name in ("before", "after")} if said["lost"] else {}
            out["why"].append(said | {name: chance for name, chance in ends.items() if chance is not None})
        value = "" if one.value is None else f"{one.value:.4g} {one.unit}"
        shown = {"name": one.name, "maker": one.maker, "why": one.why, "action": one.action, "value": value}
        evidence = one.evidence if one.maker != WHY else None
        out["findings"].append({"at": at, "evidence": facts(evidence)} | {name: _text(text) for name, text in shown.items()})
    if found.drop is not None:
        out["drop"] = found.drop[1]
    return out


def _counted_chance(evidence: Any, name: str) -> list[float] | None:
    """[p, low, high, n] of one of the chances that `ramify why` counted; None where there is none."""
    known = evidence.get(name) if isinstance(evidence, Mapping) else None
    if not isinstance(known, Mapping):
        return None
    k, n, interval = known.get("k"), known.get("n"), known.get("interval")
    if type(k) is not int or type(n) is not int or not 0 <= k <= n or not n or not isinstance(interval, list | tuple):
        return None
    low, high = (float(end) if isinstance(end, int | float) and math.isfinite(end) else math.nan for end in (*interval, 0, 0)[:2])
    return None if math.isnan(low) or math.isnan(high) else [round(v, 4) for v in (k / n, low, high)] + [n]


WHY, NOTHING = "why", "no step stands out"
"""Maker of the findings of `ramify why`, and the name of those that name no step."""


def facts(evidence: Any, most: int = 40) -> list[list[str]]:
    """Evidence of a finding as rows of (name, value), nested names joined with dots."""
    rows: list[list[str]] = []

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in value):
            for at, inner in enumerate(value):
                walk(inner, f"{name}.{at}" if name else str(at))
        elif value not in (None, "", [], {}):
            rows.append([_text(name), _text(clip(number(value), 500))])

    walk(evidence, "")
    return rows if len(rows) <= most else [*rows[:most], ["…", f"and {len(rows) - most} more"]]


def _step_row(
    run: Run,
    choice: Choice,
    found: Outline,
    messages: _Messages,
    states: dict[str, int],
    explained: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    first = choice.steps[0]
    row: dict[str, Any] = {"text": _text(choice.text), "ids": [step.id for step in choice.steps[:_SAMPLES]], "depth": first.depth}
    row["state"] = states.setdefault(first.before, len(states))
    row["lead"] = messages.nodes(first.lead)
    if first.message.functions and first.message.text:
        row["act"] = _text(clip(choice.text.removeprefix(first.message.text), 200))
    reasoning = first.message.reasoning
    if reasoning:
        row["thought"] = _text(reasoning)
    answers = Counter(messages.add(node.role, node.message.spoken()) for step in choice.steps for node in step.answers)
    if answers:
        row["answers"] = [[at, count] for at, count in answers.most_common(20)]
    if choice.edit:
        row["edit"] = _text(choice.edit)
    if choice.ends:
        row["ends"] = dict(choice.ends)
    for name, values in (("reward", [step.reward for step in choice.steps]), ("credit", [step.credit for step in choice.steps])):
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if finite:
            row[name] = round(sum(finite) / len(finite), 4)
    noted = next((step for step in choice.steps if step.why), None)
    if noted is not None:
        row["why"] = [[_text(one) for one in line] for line in numbers(noted.why, explained.get(noted.rule, {}))]
    graded = [(g.maker, numbers(g.value, {})) for step in choice.steps for g in step.grades if isinstance(g.value, Mapping)]
    if graded:
        row["grades"] = [[_text(maker), [[_text(one) for one in line] for line in lines]] for maker, lines in graded[:5]]
    if len(first.pieces) > 1:
        node, kept = first.pieces[-2]
        if node.ends is not None or node.tokens is None:
            row["from"] = [found.of[node.id], 0 if not kept or node.ends is None else int(node.ends[kept - 1])]
    if changed(first.node):
        row["shown"] = [messages.add(one.role, one.spoken()) for one in run.shown(first.id).messages]
    return row


def _inside(run: Run, tree: TaskTree, found: Outline) -> dict[int, dict[str, Any]]:
    """By choice what is known of the tokens of one of its replies:
    ends in the text, log-probabilities, potential, cliffs, values."""
    name = tree.info.name
    potential: dict[str, dict[int, list[float]]] = {}
    cliffs: dict[str, list[list[Any]]] = {}
    for annotation in run.annotations(tree=name, name="potential"):
        if (counts := counted(annotation)) is not None:
            k, n = counts
            potential.setdefault(annotation.node, {})[annotation.offset] = [round(v, 4) for v in (k / n, *wilson(k, n))] + [n]
    for annotation in run.annotations(tree=name, name="cliff"):
        value = annotation.value if isinstance(annotation.value, Mapping) else {}
        note = [annotation.offset, _text(value.get("kind", "cliff")), _text(value.get("note", ""))]
        cliffs.setdefault(annotation.node, []).append(note)
    values: dict[str, dict[str, list[float]]] = {}
    for line in run.token_values(tree=name):
        if len(line.values) > 1:
            finite = [round(float(v), 4) if math.isfinite(v) else 0.0 for v in line.values]
            values.setdefault(line.node, {})[_text(f"{line.name} ({line.maker})")] = finite
    out: dict[int, dict[str, Any]] = {}
    tokens = 0
    for at, choice in enumerate(found.choices):
        whole = [step for step in choice.steps if len(step.pieces) == 1 and step.node.ends is not None]
        if not whole:
            continue
        known = next((s for s in whole if s.id in potential or s.id in cliffs), None)
        step = known or next((s for s in whole if s.id in values), whole[0])
        node = step.node
        if node.ends is None or node.text != choice.text or len(visible(node.text)) > MOST_TEXT:
            continue
        tokens += len(node)
        if known is None and tokens > MOST_TOKENS:
            continue
        pieces = (visible(node.text[a:b]) for a, b in itertools.pairwise([0, *node.ends.tolist()]))
        row: dict[str, Any] = {"ends": list(itertools.accumulate(map(len, pieces)))}
        if node.logprobs is not None:
            row["logprobs"] = [round(float(v), 2) if math.isfinite(v) else 0.0 for v in node.logprobs]
        if node.id in potential:
            row["potential"] = sorted([t, *numbers] for t, numbers in potential[node.id].items() if t <= len(node))
        if node.id in cliffs:
            row["cliffs"] = cliffs[node.id]
        if node.id in values:
            row["values"] = values[node.id]
        if len(row) > 1:
            out[at] = row
    return out


def numbers(why: Mapping[str, Any], explained: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, value, meaning) of the numbers that were stored, those that ``explained`` holds first, in its order."""
    names = itertools.chain((name for name in explained if name in why), (name for name in why if name not in explained))
    return [(name, number(why[name]), explained.get(name, "")) for name in names]


def number(value: Any) -> str:
    """A stored value as people read it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{value:.4g}"
