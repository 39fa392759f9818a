"""What the page's script draws of a tree: records that go into the page as JSON, every number and label worked out here.

The script only lays out and shows. Texts are visible ones (see :func:`ramify.render.escape.visible`); a chance is
(p, low, high, n): the success after a choice, its 95 % interval, and how many independent samples it is worth.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ramify.jobs.why.findings import MAKER as WHY
from ramify.jobs.why.findings import NOTHING, read
from ramify.jobs.why.records import Chance as Counted
from ramify.render.escape import visible
from ramify.render.svg import clip
from ramify.rollout.commands import commands
from ramify.stats.intervals import wilson
from ramify.trace.context import changed, resolve
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import Finding, Insert, Node
from ramify.trace.outcome import by_leaf, is_reward
from ramify.trace.path import by_message, message_of
from ramify.trace.view import HowEnded
from ramify.web.outline import Choice, Outline, SuccessAfter, counted
from ramify.web.steps import ShownStep, TaskTree

MOST_TEXT = 20_000
"""Characters of one text that a page holds."""
MOST_TOKENS = 60_000
"""Tokens of a tree whose probabilities a page holds; measured ones are always there."""
_SAMPLES = 50  # ids of equal samples that a page names
_ANSWERS = 20  # different answers to one choice
_EDITED = 0.1  # weight of a fork's edit against a sample, where the script opens what is travelled most

Chance = tuple[float, float, float, float]
Numbers = tuple[tuple[str, str, str], ...]
"""(name, value, meaning)."""


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """What is known of the tokens of one reply."""

    ends: tuple[int, ...]
    """Ends of the tokens in the text, in characters."""
    logprobs: tuple[float, ...] | None = None
    potential: tuple[tuple[int, float, float, float, int], ...] | None = None
    """(token, p, low, high, forks), by token."""
    cliffs: tuple[tuple[int, str, str], ...] | None = None
    """(token, kind, note)."""
    values: Mapping[str, tuple[float, ...]] | None = None
    odds: tuple[tuple[int, str, float, str, str, bool], ...] | None = None
    """(token, another token, its probability, how often it came out as recorded with the token that stands there, with the other,
    whether it leads elsewhere), as `ramify why --tokens` counted it."""


@dataclass(frozen=True, slots=True)
class DrawnChoice:
    """One reply after one history, by however many samples; the first of a tree is the task itself."""

    up: int
    """Place of the choice before it."""
    n: int
    """Samples that took it."""
    below: int = 0
    """Attempts that end here or further on."""
    size: int = 1
    """Choices of the subtree."""
    reach: float = 1.0
    """How often an attempt comes here; forks of one step count as one."""
    p: Chance | None = None
    was: Chance | None = None
    """The chance before it: what `ramify why` counted there, else that of the choice before."""
    change: float | None = None
    sure: bool = False
    """The change is more than chance explains."""
    measured: str = ""
    """What was counted to know ``p``: ``fork``, ``attempt`` (by `ramify why`); "" where it is of the attempts that come here."""
    text: str = ""
    label: str = ""
    """Of a call the call; of a reply that was forked out of another what is different."""
    ids: tuple[str, ...] = ()
    depth: int = 0
    lead: tuple[int, ...] = ()
    """The messages since the choice before, as places in ``messages``."""
    thought: str = ""
    answers: tuple[tuple[int, int], ...] = ()
    """(message, how often)."""
    edit: str = ""
    ends: Mapping[str, int] | None = None
    """Attempts that end here, by outcome."""
    reward: float | None = None
    credit: float | None = None
    why: Numbers = ()
    grades: tuple[tuple[str, Numbers], ...] = ()
    scores: tuple[tuple[str, str, str, str], ...] = ()
    """(scorer, value, what it counts, its judge's version)."""
    fork_of: tuple[int, int] | None = None
    """The choice whose reply it was forked out of, and how many characters it keeps of it."""
    shown: tuple[int, ...] | None = None
    """What the model was shown, where it is not what stands before it."""
    inside: DrawnTokens | None = None
    rivals: int = -1
    """Place in the tree's ``rivals``; -1 where nothing else was chosen in its state."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What was chosen in one state, and what came of it, over the choices with the same text."""

    n: int
    choices: tuple[int, ...]
    p: Chance | None = None


@dataclass(frozen=True, slots=True)
class DrawnFinding:
    """A method's finding, at a choice."""

    at: int
    name: str
    maker: str
    why: str
    action: str = ""
    value: str = ""
    evidence: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """Everything that the script draws of one tree."""

    name: str
    task: str
    messages: tuple[tuple[str, str], ...]
    """(role, text), each once."""
    choices: tuple[DrawnChoice, ...]
    """Every parent before its children."""
    rivals: tuple[tuple[Rival, ...], ...] = ()
    """By state, the most frequent first."""
    findings: tuple[DrawnFinding, ...] = ()
    lost: int = -1
    """The choice at which `ramify why` says that it was lost."""
    drop: int = -1
    """The choice after which the attempts' own success fell most."""
    forks: int = 0
    left_out: int = 0
    credit_scale: float = 0.0
    """The strongest credit."""
    by: str = "success"
    """What colours show at first: ``success`` or ``credit``."""
    run: str = ""
    able: tuple[tuple[str, str, str], ...] = ()
    """What can be done at a step: what it does, and the command before and after the step's node. To ask why takes a chance."""
    who: str = ""
    """What it takes to go on from a step, where the run does not name who plays."""


@dataclass(frozen=True, slots=True)
class DrawnTask:
    """A row of the table of tasks; None is what nobody said, or what was not read."""

    name: str
    group: str
    attempts: int
    successes: int | None
    success: tuple[float, float, float] | None
    drop: float | None
    at: str
    tokens: int | None
    found: int
    forks: int


@dataclass(frozen=True, slots=True)
class PageData:
    """The JSON block of a page."""

    run: str
    base: str
    """Address that the served pages of the run begin with; empty in a file."""
    trees: tuple[DrawnTree, ...]
    tasks: tuple[DrawnTask, ...] | None = None
    source: str = ""
    """Where a served page asks for it again."""


def drawn(run: Run, tree: TaskTree, found: Outline, explained: Mapping[str, Mapping[str, str]]) -> DrawnTree:
    """A tree with its choices and what was found in it; ``explained`` says by credit rule what its numbers mean."""
    messages, findings = _Messages(run, tree), run.findings(tree=tree.info.name)
    lost = next((one for one in findings if one.maker == WHY and one.name != NOTHING and found.of.get(one.node or "", 0)), None)
    at_lost = -1 if lost is None else found.of[str(lost.node)]
    why = None if lost is None else read(lost)
    before, after = (None, None) if why is None else (_counted(why.before), _counted(why.after))
    chances = [None if choice.chance is None else _chance(choice.chance) for choice in found.choices]
    counted_there = before is not None and after is not None
    if counted_there:
        chances[at_lost] = after
    below, size, reach = _counts(found.choices)
    rivals, place = _rivals(found.choices, chances)
    scores, inside = _scores(run, tree, found), _inside(run, tree, found)
    choices, able = [], commands(run)
    for at, choice in enumerate(found.choices):
        by_why = counted_there and at == at_lost
        was = (before if by_why else chances[choice.parent]) if at and not choice.edit else None
        p = chances[at]
        sure = was is not None and p is not None and (p[2] < was[0] or p[1] > was[0])
        measured = "attempt" if by_why else "fork" if choice.chance is not None and choice.chance.measured else ""
        numbers: dict[str, Any] = {
            "below": below[at],
            "size": size[at],
            "reach": round(reach[at], 6),
            "p": p,
            "measured": measured,
        }
        if was is not None and p is not None:
            numbers |= {"was": was, "change": round(p[0] - was[0], 4), "sure": sure}
        if choice.steps:
            numbers |= _of_steps(choice, found, messages, explained)
        numbers |= {"scores": scores.get(at, ()), "inside": inside.get(at), "rivals": place.get(at, -1)}
        choices.append(DrawnChoice(choice.parent, len(choice.steps), **numbers))
    scale = max((abs(one.credit) for one in choices if one.credit is not None), default=0.0)
    return DrawnTree(
        name=_text(tree.info.name),
        task=_text(json.dumps(dict(tree.info.task), ensure_ascii=False, indent=1, default=str)),
        messages=tuple(messages.rows),
        choices=tuple(choices),
        rivals=rivals,
        findings=tuple(_finding(one, found) for one in findings),
        lost=at_lost,
        drop=-1 if found.drop is None else found.drop[1],
        forks=len(tree.forks),
        able=tuple(able.of_step(run.has_tokens(tree.info.name))),
        who="" if able.plays else able.go_on("", "what else may be done here"),
        left_out=found.left_out,
        credit_scale=scale,
        by="success" if any(one.change for one in choices) or not scale else "credit",
    )


def _chance(known: SuccessAfter) -> Chance:
    low, high = known.interval
    return round(known.p, 4), round(low, 4), round(high, 4), round(known.n, 1)


def _counts(choices: Sequence[Choice]) -> tuple[list[int], list[int], list[float]]:
    """Of each choice: attempts that end in its subtree, choices of the subtree, how often an attempt comes to it."""
    below, size, reach = ([0] * len(choices), [1] * len(choices), [1.0] * len(choices))
    for at in range(len(choices) - 1, -1, -1):
        below[at] = sum(choices[at].ends.values()) + sum(below[child] for child in choices[at].children)
        size[at] = 1 + sum(size[child] for child in choices[at].children)
    for at, choice in enumerate(choices):
        weights = {child: _EDITED if choices[child].edit else float(len(choices[child].steps)) for child in choice.children}
        all_of = sum(len(choices[child].steps) for child in choice.children if not choices[child].edit) or 1
        for child, weight in weights.items():
            reach[child] = reach[at] * weight / all_of
    return below, size, reach


def _rivals(choices: Sequence[Choice], chances: Sequence[Chance | None]) -> tuple[tuple[tuple[Rival, ...], ...], dict[int, int]]:
    """What was chosen in equal states, elsewhere in the tree too, and by choice where it stands."""
    states: dict[tuple[str, str], dict[str, list[int]]] = {}
    for at, choice in enumerate(choices):
        if choice.steps:
            states.setdefault((choice.steps[0].before, choice.edit), {}).setdefault(choice.text, []).append(at)
    made: list[tuple[Rival, ...]] = []
    place: dict[int, int] = {}
    for groups in states.values():
        if sum(map(len, groups.values())) < 2:
            continue
        place |= {at: len(made) for group in groups.values() for at in group}
        rivals = [
            Rival(sum(len(choices[at].steps) for at in group), tuple(group), _pooled(chances, group)) for group in groups.values()
        ]
        made.append(tuple(sorted(rivals, key=lambda one: -one.n)))
    return tuple(made), place


def _pooled(chances: Sequence[Chance | None], group: Sequence[int]) -> Chance | None:
    known = [chance for at in group if (chance := chances[at]) is not None]
    weight = sum(one[3] for one in known)
    if not weight:
        return None
    return _chance(SuccessAfter(sum(one[0] * one[3] for one in known) / weight, weight))


def _of_steps(choice: Choice, found: Outline, messages: _Messages, explained: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """What a choice's samples say: the first one's texts, and means and counts over all."""
    first, text = choice.steps[0], _text(choice.text)
    fork_of, label = None, text
    if len(first.reply.nodes) > 1:
        node, kept = first.reply.nodes[-2], first.node.offset
        if node.ends is not None or node.tokens is None:
            fork_of = found.of[node.id], 0 if not kept or node.ends is None else int(node.ends[kept - 1])
            label = f"…{text[fork_of[1] :]}" if fork_of[1] else text
    if first.message.functions and first.message.text:
        label = _text(clip(choice.text.removeprefix(first.message.text), 200))
    answers = Counter(messages.add(answer.message) for step in choice.steps for answer in step.answers)
    noted = next((step for step in choice.steps if step.why), None)
    graded = [(g.maker, numbers(g.value, {})) for step in choice.steps for g in step.grades if isinstance(g.value, Mapping)]
    return {
        "text": text,
        "label": label,
        "ids": tuple(step.id for step in choice.steps[:_SAMPLES]),
        "depth": first.depth,
        "lead": tuple(messages.add(told.message) for told in first.seen.lead),
        "thought": _text(first.message.reasoning or ""),
        "answers": tuple(answers.most_common(_ANSWERS)),
        "edit": _text(choice.edit),
        "ends": dict(choice.ends) or None,
        "reward": _mean(step.reward for step in choice.steps),
        "credit": _mean(step.credit for step in choice.steps),
        "why": () if noted is None else _visible(numbers(noted.why, explained.get(noted.rule, {}))),
        "grades": tuple((_text(maker), _visible(lines)) for maker, lines in graded[:5]),
        "fork_of": fork_of,
        "shown": messages.shown(first.node) if changed(first.node) else None,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return round(sum(finite) / len(finite), 4) if finite else None


def _text(value: object) -> str:
    text = visible(str(value))
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… ({len(text) - MOST_TEXT} more characters)"


def _visible(lines: Iterable[tuple[str, str, str]]) -> Numbers:
    return tuple((_text(name), _text(value), _text(meaning)) for name, value, meaning in lines)


class _Messages:
    """Texts that a page shows often, each once."""

    def __init__(self, run: Run, tree: TaskTree) -> None:
        self.rows: list[tuple[str, str]] = []
        self._at: dict[tuple[str, str], int] = {}
        self._of_parts: dict[tuple[tuple[str, int, int] | Insert, ...], int] = {}
        nodes = tree.tree.nodes
        self._node_of = lambda name: nodes.get(name) or run.node(name)
        self._context_of = cache(run.context)

    def add(self, message: Message) -> int:
        key = (message.role, message.spoken())
        if key not in self._at:
            self._at[key] = len(self.rows)
            self.rows.append((message.role, _text(key[1])))
        return self._at[key]

    def shown(self, node: Node) -> tuple[int, ...]:
        """What the model was shown when it sampled ``node``, which names a context: replies share most of theirs."""
        places = []
        for group in by_message(resolve(self._context_of(str(node.context)), self._node_of, node)):
            key = tuple(part if isinstance(part, Insert) else (part[0].id, *part[1:]) for part in group)
            if key not in self._of_parts:
                self._of_parts[key] = self.add(message_of(group))
            places.append(self._of_parts[key])
        return tuple(places)


def _scores(run: Run, tree: TaskTree, found: Outline) -> dict[int, tuple[tuple[str, str, str, str], ...]]:
    """By choice: (scorer, value, what it counts, its judge's version)."""
    made: dict[int, list[tuple[str, str, str, str]]] = {}
    records = by_leaf(run.attempts(tree=tree.info.name))
    for score in run.scores(tree=tree.info.name):
        shown = "none" if score.value is None else f"{score.value:.4g}"
        ended = HowEnded(tree.tree.node(score.node), records.get(score.node), score)
        unit = ended.word if is_reward(score.unit) else score.unit
        row = _text(score.scorer), shown, _text(unit), _text(score.version)
        made.setdefault(found.of.get(score.node, 0), []).append(row)
    return {at: tuple(rows[:_SAMPLES]) for at, rows in made.items()}


def _finding(one: Finding, found: Outline) -> DrawnFinding:
    value = "" if one.value is None else f"{one.value:.4g} {one.unit}"
    name, maker, why, action, value = (_text(text) for text in (one.name, one.maker, one.why, one.action, value))
    return DrawnFinding(
        found.of.get(one.node or "", 0), name, maker, why, action, value, facts(one.evidence) if one.maker != WHY else ()
    )


def _counted(known: Counted) -> Chance | None:
    """A chance that `ramify why` counted; None where it counted nothing."""
    if known.p is None:
        return None
    low, high = known.interval
    return round(known.p, 4), round(low, 4), round(high, 4), float(known.n)


def facts(evidence: Any, most: int = 40) -> tuple[tuple[str, str], ...]:
    """Evidence of a finding as rows of (name, value), nested names joined with dots."""
    rows = [(_text(name), _text(clip(number(value), 500))) for name, value in _leaves(evidence)]
    return tuple(rows if len(rows) <= most else [*rows[:most], ("…", f"and {len(rows) - most} more")])


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of what is neither an object nor a list of objects."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in value):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{name}.{at}" if name else str(at))
    elif value not in (None, "", [], {}):
        yield name, value


def _inside(run: Run, tree: TaskTree, found: Outline) -> dict[int, DrawnTokens]:
    """By choice what is known of the tokens of one of its replies."""
    potential, cliffs, values, odds = _of_tokens(run, tree.info.name)
    out: dict[int, DrawnTokens] = {}
    tokens = 0
    for at, choice in enumerate(found.choices):
        whole = [step for step in choice.steps if len(step.reply.nodes) == 1 and step.node.ends is not None]
        if not whole:
            continue
        known = next((s for s in whole if s.id in potential or s.id in cliffs or s.id in odds), None)
        step: ShownStep = known or next((s for s in whole if s.id in values), whole[0])
        node = step.node
        if node.ends is None or node.text != choice.text or len(visible(node.text)) > MOST_TEXT:
            continue
        tokens += len(node)
        if known is None and tokens > MOST_TOKENS:
            continue
        pieces = (visible(node.text[a:b]) for a, b in itertools.pairwise([0, *node.ends.tolist()]))
        points = sorted((t, *chance) for t, chance in potential.get(node.id, {}).items() if t <= len(node))
        made = DrawnTokens(
            tuple(itertools.accumulate(map(len, pieces))),
            None if node.logprobs is None else _finite(node.logprobs, 2),
            tuple(points) if node.id in potential else None,
            tuple(cliffs[node.id]) if node.id in cliffs else None,
            values.get(node.id),
            tuple(odds[node.id]) if node.id in odds else None,
        )
        if made != DrawnTokens(made.ends):
            out[at] = made
    return out


def _of_tokens(
    run: Run, tree: str
) -> tuple[
    dict[str, dict[int, tuple[float, float, float, int]]],
    dict[str, list[tuple[int, str, str]]],
    dict[str, dict[str, tuple[float, ...]]],
    dict[str, list[tuple[int, str, float, str, str, bool]]],
]:
    """By node: potentials by offset, cliffs, per-token values by name, and the odds of other tokens."""
    potential: dict[str, dict[int, tuple[float, float, float, int]]] = {}
    cliffs: dict[str, list[tuple[int, str, str]]] = {}
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    odds: dict[str, list[tuple[int, str, float, str, str, bool]]] = {}
    for annotation in run.annotations(tree=tree, name="potential"):
        if (counts := counted(annotation)) is not None:
            k, n = counts
            low, high = wilson(k, n)
            potential.setdefault(annotation.node, {})[annotation.offset] = round(k / n, 4), round(low, 4), round(high, 4), n
    for annotation in run.annotations(tree=tree, name="cliff"):
        value = annotation.value if isinstance(annotation.value, Mapping) else {}
        note = annotation.offset, _text(value.get("kind", "cliff")), _text(value.get("note", ""))
        cliffs.setdefault(annotation.node, []).append(note)
    for line in run.token_values(tree=tree):
        if len(line.values) > 1:
            values.setdefault(line.node, {})[_text(f"{line.name} ({line.maker})")] = _finite(line.values, 4)
    for annotation in run.annotations(tree=tree, name="odds"):
        for entry in annotation.value if isinstance(annotation.value, list) else ():
            if isinstance(entry, Mapping) and isinstance(entry.get("odds"), int | float):
                kept, changed = (_of(entry.get(name)) for name in ("kept", "changed"))
                row = annotation.offset, _text(repr(entry.get("instead", ""))), round(float(entry["odds"]), 4), kept, changed
                odds.setdefault(annotation.node, []).append((*row, entry.get("named") is True))
    return potential, cliffs, values, odds


def _of(counts: Any) -> str:
    """Counts as ``k of n``."""
    known = isinstance(counts, list) and len(counts) == 2 and all(type(count) is int for count in counts)
    return f"{counts[0]} of {counts[1]}" if known and counts[1] else "-"


def _finite(values: Iterable[float], digits: int) -> tuple[float, ...]:
    return tuple(round(float(v), digits) if math.isfinite(v) else 0.0 for v in values)


def numbers(why: Mapping[str, Any], explained: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, value, meaning) of the numbers that were stored, those that ``explained`` holds first, in its order."""
    names = itertools.chain((name for name in explained if name in why), (name for name in why if name not in explained))
    return [(name, number(why[name]), explained.get(name, "")) for name in names]


def number(value: Any) -> str:
    """A stored value as people read it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{value:.4g}"
