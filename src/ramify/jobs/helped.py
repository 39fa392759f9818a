"""What would have helped: change one thing at the step that lost an attempt, fork from there,
and compare with as many unchanged forks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.base.files import read_small
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment, Task
from ramify.jobs.why import OTHER, Why
from ramify.model.function import AnyModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.edits import check_edit
from ramify.rollout.fork import fork
from ramify.rollout.run import Episodes
from ramify.rollout.stored import open_episodes
from ramify.stats.drops import Counts, SuccessShare
from ramify.stats.evidence import EvidenceRow, each_against
from ramify.stats.intervals import Interval
from ramify.trace.db import Run
from ramify.trace.message import unspoken
from ramify.trace.node import Finding, Node

MAKER = "why --do"
KINDS = {
    "resample": "sample the step anew, against keeping it",
    "action": "do this instead; by default what went best for others",
    "observation": "see this instead of what came back",
    "context": "FILE of an edit of what the agent is shown: rule, history or insert",
    "policy": "another agent from here on",
}
CONTEXT = ("rule", "history", "insert")


@dataclass(frozen=True, slots=True)
class HelpedChange:
    """One change as a result tells it: success with it and without it, and the difference."""

    do: str
    value: str
    node: str
    changed: SuccessShare
    control: SuccessShare
    difference: float
    interval: Interval
    p_corrected: float


@dataclass(frozen=True, slots=True)
class Helped:
    """One change: ``row`` compares its forks with those without it, corrected over all changes of one call."""

    kind: str
    value: str
    node: str
    """Where it was made."""
    arm: Counts
    control: Counts
    row: EvidenceRow

    @property
    def told(self) -> HelpedChange:
        """As results and findings hold it."""
        row = self.row
        found = row.difference, row.difference_interval, row.p_corrected
        return HelpedChange(self.kind, self.value, self.node, self.arm.share, self.control.share, *found)


def change_of(text: str) -> tuple[str, str]:
    """``KIND`` or ``KIND=VALUE`` as the two. Raises UserError where there is no such kind, or it lacks its value."""
    kind, equals, value = text.partition("=")
    if kind not in KINDS:
        raise UserError(f"--do: there is no change '{kind}' ({nearest(kind, KINDS)})")
    if kind in ("observation", "context", "policy") and not value:
        raise UserError(f"--do {kind} needs a value: --do {kind}=..., {KINDS[kind]}")
    if kind == "resample" and equals:
        raise UserError("--do resample takes no value")
    return kind, value


def helped(
    path: Path | str,
    why: Why,
    changes: Sequence[str],
    n: int = 32,
    model: AnyModel | None = None,
    env: AnyEnvironment | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
) -> list[Helped]:
    """Make each of ``changes`` (``KIND=VALUE``, see :data:`KINDS`) at the step that ``why`` names,
    ``n`` forks each, and ``n`` without it.

    Forks that are stored are loaded. What is found is stored as findings.
    Raises UserError where the step, or what is to be done, is none.
    """
    wanted = [change_of(text) for text in changes]
    if why.node is None or not why.counterfactual:
        raise UserError("--do changes the step that lost the attempt, and none stands out by forks")
    with Run.open(path) as run:
        step = run.node(why.node)
    made: list[tuple[str, str, str, Counts, Counts]] = []
    with open_episodes(path, step, model, env, trust=trust, effects=effects) as (episodes, task):
        episodes.on_attempt = on_attempt
        with episodes.committing():
            at = _Place(episodes, task, why, n)
            for kind, value in wanted:
                if kind != "policy":
                    made.append(at.make(kind, value))
            control = at.unchanged(at.step) if any(kind == "policy" for kind, _ in wanted) else Counts(0, 0)
    for _, value in [one for one in wanted if one[0] == "policy"]:
        with open_episodes(path, step, value, env, trust=trust, effects=effects) as (episodes, task):
            episodes.on_attempt = on_attempt
            with episodes.committing():
                other = _Place(episodes, task, why, n)
                made.append(("policy", value, other.step.id, other.unchanged(other.step), control))
    rows = each_against({str(i): ((c.k, c.n), (a.k, a.n)) for i, (_, _, _, a, c) in enumerate(made)})
    found = [Helped(*one, row) for one, row in zip(made, rows, strict=True)]
    _keep(path, why, found, {"n": n})
    return found


class _Place:
    """The step of an attempt at which changes are made."""

    def __init__(self, episodes: Episodes, task: Task, why: Why, n: int) -> None:
        self.episodes, self.task, self.why, self.n = episodes, task, why, n
        tree = episodes.load(why.tree)
        path = [node for node, _ in tree.path(why.attempt).segments]
        at = next(i for i, node in enumerate(path) if node.id == why.node)
        while not path[at].opens:  # a reply that was forked inside: from its beginning
            at -= 1
        self.step, self.rest = path[at], path[at + 1 :]

    def make(self, kind: str, value: str) -> tuple[str, str, str, Counts, Counts]:
        """One change: (kind, value, node, counts with it, counts without)."""
        if kind == "resample":
            seen = self._seen()
            return kind, value, self.step.id, self.unchanged(self.step), self._ended(seen) or self.unchanged(seen)
        if kind == "action":
            value = value or self._best()
            said = unspoken(value) if self.step.data.get("tool_calls") else value  # as actions with calls are shown
            return kind, value, self.step.id, self._fork(self.step, {"replace": said}), self.unchanged(self.step)
        if kind == "observation":
            seen = self._seen()
            if self._ended(seen):
                raise UserError(f"--do observation: the attempt ended with the answer to node {self.step.id[:12]}")
            return kind, value, seen.id, self._fork(seen, {"replace": value}), self.unchanged(seen)
        edit = check_edit(_read(value))
        if edit is None or next(iter(edit)) not in CONTEXT:
            raise UserError(f"--do context: {value} must hold an edit of {', '.join(CONTEXT)}")
        return kind, value, self.step.id, self._fork(self.step, edit), self.unchanged(self.step)

    def unchanged(self, node: Node) -> Counts:
        """Forks at a node without any change."""
        return self._fork(node, None)

    def _fork(self, node: Node, edit: Mapping[str, Any] | None) -> Counts:
        key = f"why/{json_hash([node.id, edit, self.episodes.provenance.hash])}"
        done = wait_for(fork(self.episodes, self.why.tree, self.task, node.id, n=self.n, edit=edit, control=False, key=key))
        return done.arm.counts

    def _seen(self) -> Node:
        node = next((one for one in self.rest if one.role != "assistant"), None)
        if node is None:
            raise UserError(f"node {self.step.id[:12]} was never answered, so there is no observation to change")
        return node

    def _ended(self, seen: Node) -> Counts | None:
        """The attempt's outcome where it ended with the answer to the step."""
        return Counts(self.n * self.why.success, self.n) if seen.stop else None

    def _best(self) -> str:
        alternatives = [one.action for one in self.why.alternatives if one.action != OTHER and not one.action.endswith(" …")]
        if not alternatives:
            raise UserError("--do action: no other attempt did anything that can be repeated, so say what: --do action=TEXT")
        return alternatives[0]


def _read(file: str) -> Any:
    try:
        return json.loads(read_small(Path(file), "the edit").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON: {error}") from None


def _about(finding: Finding) -> tuple[Any, ...]:
    evidence = finding.evidence if isinstance(finding.evidence, Mapping) else {}
    return tuple(evidence.get(name) for name in ("attempt", "do", "value"))


def _keep(path: Path | str, why: Why, found: Sequence[Helped], settings: Mapping[str, Any]) -> None:
    with Run.open(path, write=True) as run:
        new = {(why.attempt, one.kind, one.value) for one in found}
        old = [one for one in run.findings(maker=MAKER) if _about(one) not in new]
        findings = [
            Finding(
                "would have helped" if one.row.p_corrected <= 0.05 and one.row.difference > 0 else "was tried instead",
                MAKER,
                f"{one.kind}{f' `{one.value}`' if one.value else ''} instead: {one.arm.k} of {one.arm.n} succeeded, "
                f"{one.control.k} of {one.control.n} without it",
                one.node,
                value=one.row.difference,
                unit="success",
                evidence={"attempt": why.attempt, **codec.to_json(one.told)},
                identity=settings,
            )
            for one in found
        ]
        run.conclude(MAKER, [*old, *findings])
        run.commit()
