"""The attempts of a run: which one is asked about, and what the others at its task did in the states that it came through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.env.protocol import conversation_of
from ramify.rollout.steps import StepTrace
from ramify.rollout.stored import task_of
from ramify.trace.db import Run
from ramify.trace.node import ATTEMPTS, FORK, AttemptRecord, Node, TreeInfo
from ramify.trace.outcome import Decider, ended
from ramify.trace.outcomes import how_to_judge
from ramify.trace.view import Step, View, views_in

KNOWN = ATTEMPTS | {FORK}
"""Purposes of the attempts that are asked about and compared. The rest was played to find something out: what is found would
depend on what was asked since."""


def attempts_in(run: Run, info: TreeInfo, deciding: Decider) -> Iterator[View]:
    """All attempts and forks of a tree, with their outcomes by ``deciding``."""
    return views_in(info, run.tree(info.name), ended(run, info.name, deciding))


def asked(run: Run, deciding: Decider, where: str = "", every: bool = False) -> list[View]:
    """The attempt to ask about (:func:`choose`), or with ``every`` one that failed of each tree. Raises UserError where there is
    none."""
    if not every:
        return [choose(run, deciding, where)]
    found = []
    for info in sorted(run.trees(), key=lambda one: one.name):
        views = list(attempts_in(run, info, deciding))
        if any(one.success is False and one.broken_off is None and one.steps and not one.fork for one in views):
            found += [view for view, _ in [_first(views, True)] if view is not None]
    if not found:
        raise UserError(f"{run.folder} holds no judged attempt that failed")
    return found


def choose(run: Run, deciding: Decider, where: str = "") -> View:
    """The attempt to ask about: one that failed, in the tree ``where``, or through the node of that id.

    Without ``where`` of the task at which most attempts succeeded: there the failed ones have most to be compared with. The first
    of those that fit; of a task without failed ones the first that succeeded. Forks that were made to find this out are no
    attempts. Raises UserError where there is none.
    """
    names = [info.name for info in run.trees()]
    node = run.find(where) if where and where not in names else ""
    tree = run.node(node).tree if node else where
    best: tuple[View | None, tuple[Any, ...]] = (None, ())
    for info in sorted(run.trees(), key=lambda one: one.name):
        if tree in ("", info.name):
            one = _first(attempts_in(run, info, deciding), bool(where), node)
            best = one if best[0] is None or (one[0] is not None and one[1] < best[1]) else best
    if best[0] is None:
        place = f" through node {node[:12]}" if node else f" of tree '{where}'" if where else ""
        raise UserError(
            f"{run.folder} holds no attempt{place} that somebody judged, so there is nothing to explain: {how_to_judge(run)}"
        )
    return best[0]


def _first(views: Iterable[View], named: bool, node: str = "") -> tuple[View | None, tuple[Any, ...]]:
    """Of the attempts of one tree, or of those through ``node``, the one to ask about, and how it ranks among those of other
    trees: the smallest first. None where none was judged. ``named``: this tree was asked for."""
    able = [one for one in views if one.success is not None and one.broken_off is None and _record(one).purpose in KNOWN]
    if node:
        able = [one for one in able if any(own.id == node for own, _ in one.path.segments)]
    whole = [one for one in able if _whole(one)]
    won = 0.0 if named else sum(bool(one.success) for one in whole) / max(1, len(whole))

    def rank(one: View) -> tuple[Any, ...]:
        return bool(one.success), -won, not _whole(one), _record(one).index, one.info.name, one.leaf

    best = min((one for one in able if one.steps), key=rank, default=None)
    return best, () if best is None else rank(best)


def _record(view: View) -> AttemptRecord:
    """The attempt's record; of one that has none, as an attempt from the beginning."""
    return view.record or AttemptRecord(view.leaf, view.info.name)


def _whole(view: View) -> bool:
    """Whether the attempt was played from its beginning."""
    start = _record(view).start
    return start is None or any(node.id == start for step in view.steps[:1] for one in step.observed for node in one.nodes)


def first_reply(view: View) -> Node:
    """The attempt's first reply: the agent that sampled it continues."""
    return next(node for node, _ in view.path.segments if node.role == "assistant")


@dataclass(frozen=True, slots=True)
class Passage:
    """What one attempt sampled: the states it came through and what it did there, each state once, and its outcome."""

    success: bool
    start: str
    """The node it continued from; empty where it began at the beginning."""
    purpose: str
    index: int
    first: Mapping[str, Step | None]
    """State -> the step it took when it was first there, None at its end."""
    leaf: str


@dataclass(frozen=True, eq=False)
class AskedAttempt:
    """The attempt in question, and all attempts at its task."""

    view: View
    trace: StepTrace
    replies: tuple[Step, ...]
    """The steps, (T,)."""
    keys: tuple[str, ...]
    """The state at each position, (T + 1,)."""
    others: tuple[Passage, ...]
    limited: bool
    """Whether an attempt at the task ended at a limit of turns: then who has more turns left is more likely to succeed from the
    same place, so states are equal after as many turns alone."""

    def conversation(self, t: int) -> int:
        """Whose step ``t`` is, from 1: the number of its conversation."""
        observed = self.replies[t - 1].observed
        return conversation_of(observed[-1].data) if observed else 0

    def passing(self, t: int, passages: Sequence[Passage]) -> list[Passage]:
        """Those that came through position ``t``."""
        return [one for one in passages if self.keys[t] in one.first]


def walked(view: View, limited: bool = False) -> tuple[list[Step], list[Node], list[str]]:
    """The steps of an attempt (replies without an observation between are one),
    the observation before each and the end, their states. ``limited``: turns are counted, so that a state with fewer of them left
    is another state."""
    steps: list[Step] = []
    seen: list[Node] = []
    texts: list[str] = []
    last: Step | None = None
    for step in view.steps:
        heard = last is not None and not step.shown and _speaker(step) != _speaker(last)
        if heard and last is not None:  # of several agents in one log each has heard the one before
            at, text = last.reply.nodes[-1], last.action
        elif step.observed:
            at, text = step.observed[-1].nodes[-1], step.observation
        last = step
        if not (heard or step.observed) or (seen and seen[-1].id == at.id):
            continue
        steps.append(step)
        seen.append(at)
        texts.append(text)
    seen.append(view.end)
    texts.append(view.ending)
    keys, past = [], ""
    for i, node in enumerate(seen):
        past = stable_hash("state", past, texts[i], steps[i - 1].action if i else "")
        # an environment's key may be the same before it ends and after
        key = f"key {node.state_key}{f' after {i}' * limited}{' ended' * (node.stop == 'terminated')}"
        keys.append(past if node.state_key is None else key)
    return steps, seen, keys


def _speaker(step: Step) -> Any:
    return step.reply.data.get("name")


def _passage(view: View, provenance: str | None, plain: bool, limited: bool) -> Passage | None:
    """What an attempt sampled by the unchanged agent; None where it was changed, cut off, or sampled by another one.

    ``plain``: the agent was shown the path as it is, so an attempt that was shown something else is another agent's.
    """
    success = view.success
    if success is None or view.broken_off is not None:
        return None
    record = _record(view)
    path = [node for node, _ in view.path.segments]
    start = next((i for i, node in enumerate(path) if node.id == record.start), 0)
    own = path[start:]
    said = [node for node in own[1:] if node.role == "assistant"]
    if any("edit" in node.data for node in own) or (provenance is not None and any(n.provenance != provenance for n in said)):
        return None
    if plain and any(node.context is not None for node in said):
        return None
    steps, seen, keys = walked(view, limited)
    begins = {node.id for node in (own if own[0].role != "assistant" else own[1:])}
    first: dict[str, Step | None] = {}
    for i, node in enumerate(seen):
        if node.id in begins:
            first.setdefault(keys[i], steps[i] if i < len(steps) else None)
    return Passage(success, record.start or "", record.purpose, record.index, first, view.leaf)


def _cohort(run: Run, info: TreeInfo, deciding: Decider) -> Iterator[View]:
    """All attempts at the task of a tree, in the group of trees it belongs to."""
    for other in sorted(run.trees(info.group), key=lambda one: one.name):
        if other.name == info.name or (other.task.get("id") is not None and other.task.get("id") == info.task.get("id")):
            yield from attempts_in(run, other, deciding)


def read_case(run: Run, view: View, deciding: Decider, provenance: str | None) -> AskedAttempt:
    """The attempt with all others at its task; ``provenance`` is that of the agent that continues, None where nothing does."""
    cohort = list(_cohort(run, view.info, deciding))
    limited = any(other.ended.cut and _record(other).purpose in KNOWN for other in cohort)
    steps, seen, keys = walked(view, limited)
    if not steps and provenance is not None:
        raise UserError(f"the attempt that ends at {view.leaf[:12]} has no step of the agent after an observation")
    task, _ = task_of(run, view.info.name)
    actions = tuple(step.action for step in steps)
    nodes = tuple(node.id for node in seen)
    trace = StepTrace(view.leaf, view.info.name, task, nodes, actions, view.success, ended=view.success is not None)
    plain = all(node.context is None for step in steps for node in step.reply.nodes)
    passages = [_passage(other, provenance, plain, limited) for other in cohort if other.leaf != view.leaf]
    return AskedAttempt(view, trace, tuple(steps), tuple(keys), tuple(filter(None, passages)), limited)
