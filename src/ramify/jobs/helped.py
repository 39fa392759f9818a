"""What would have helped: change one thing at the step that lost an attempt, fork from there,
and compare with as many unchanged forks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.base.files import read_small
from ramify.base.ids import json_hash
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment, Task
from ramify.jobs.why.answer import Why
from ramify.jobs.why.records import Chance, Helped
from ramify.model.function import AnyModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.edits import check_edit
from ramify.rollout.fork import WantedArm, arms
from ramify.rollout.run import Episodes
from ramify.rollout.stored import WhoPlays, episodes_in
from ramify.stats.drops import Counts
from ramify.stats.evidence import EvidenceRow, each_against
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
) -> tuple[Helped, ...]:
    """Make each of ``changes`` (``KIND=VALUE``, see :data:`KINDS`) at the step that ``why`` names,
    ``n`` forks each, and ``n`` without it.

    Forks that are stored are loaded. What is found is stored as findings.
    Raises UserError where the step, or what is to be done, is none.
    """
    with Run.open(path, write=True) as run:
        return helped_in(run, why, changes, n, WhoPlays(model, env, trust, effects or {}), on_attempt)


def helped_in(
    run: Run, why: Why, changes: Sequence[str], n: int, who: WhoPlays, on_attempt: Callable[[Attempt], object]
) -> tuple[Helped, ...]:
    """:func:`helped` in a run that is open for writing."""
    wanted = [change_of(text) for text in changes]
    if why.node is None or not why.counterfactual:
        raise UserError("--do changes the step that lost the attempt, and none stands out by forks")
    step = run.node(why.node)
    place = _Place(*episodes_in(run, step, who), why, n)
    planned = [place.make(kind, value) for kind, value in wanted if kind != "policy"]
    policies = [value for kind, value in wanted if kind == "policy"]
    control = place.unchanged(place.step) if policies else None
    with place.played(on_attempt):
        trials = [change.counted(place.counts()) for change in planned]
        without = Counts(0, 0) if control is None else place.counts()[control]
    for value in policies:
        other = _Place(*episodes_in(run, step, replace(who, model=value)), why, n)
        change = other.unchanged(other.step)
        with other.played(on_attempt):
            trials.append(_Made("policy", value, other.step.id, other.counts()[change], without))
    rows = each_against(
        {str(i): ((trial.control.k, trial.control.n), (trial.changed.k, trial.changed.n)) for i, trial in enumerate(trials)}
    )
    results = tuple(trial.against(why.attempt, row) for trial, row in zip(trials, rows, strict=True))
    _keep(run, results, {"n": n})
    return results


class _Made(NamedTuple):
    """One change as it was made, and what came of it with and without."""

    do: str
    value: str
    node: str
    changed: Counts
    control: Counts

    def against(self, attempt: str, row: EvidenceRow) -> Helped:
        """With the evidence."""
        changed, control = Chance.of(self.changed), Chance.of(self.control)
        about = attempt, self.do, self.value, self.node
        return Helped(*about, changed, control, row.difference, row.difference_interval, row.p_corrected)


class _Planned(NamedTuple):
    """One change as it is to be made: the arms with and without it, by their keys, or what they came to already."""

    do: str
    value: str
    node: str
    changed: str | Counts
    control: str | Counts

    def counted(self, counts: Mapping[str, Counts]) -> _Made:
        """With what came of it."""
        changed, control = (counts[arm] if isinstance(arm, str) else arm for arm in (self.changed, self.control))
        return _Made(self.do, self.value, self.node, changed, control)


class _Place:
    """The step of an attempt at which changes are made. All its arms are played in turns, those without a change among them."""

    def __init__(self, episodes: Episodes, task: Task, why: Why, n: int) -> None:
        self.episodes, self.task, self.why, self.n = episodes, task, why, n
        self._wanted: dict[str, WantedArm] = {}
        self._counts: dict[str, Counts] | None = None
        tree = episodes.load(why.tree)
        path = [node for node, _ in tree.path(why.attempt).segments]
        at = next(i for i, node in enumerate(path) if node.id == why.node)
        while not path[at].opens:  # a reply that was forked inside: from its beginning
            at -= 1
        self.step, self.rest = path[at], path[at + 1 :]

    @contextmanager
    def played(self, on_attempt: Callable[[Attempt], object]) -> Iterator[None]:
        """Forks inside are stored as they end, and told."""
        self.episodes.on_attempt = on_attempt
        with self.episodes.committing():
            yield

    def counts(self) -> Mapping[str, Counts]:
        """What came of each arm, by its key; played at the first call."""
        if self._counts is None:
            done = wait_for(arms(self.episodes, self.why.tree, self.task, list(self._wanted.values()), self.n))
            self._counts = {key: arm.counts for key, arm in zip(self._wanted, done, strict=True)}
        return self._counts

    def make(self, kind: str, value: str) -> _Planned:
        """One change, to be played."""
        if kind == "resample":
            seen = self._seen()
            return _Planned(kind, value, self.step.id, self.unchanged(self.step), self._ended(seen) or self.unchanged(seen))
        if kind == "action":
            value = value or self._best()
            said = unspoken(value) if self.step.data.get("tool_calls") else value  # as actions with calls are shown
            return _Planned(kind, value, self.step.id, self._fork(self.step, {"replace": said}), self.unchanged(self.step))
        if kind == "observation":
            seen = self._seen()
            if self._ended(seen):
                raise UserError(f"--do observation: the attempt ended with the answer to node {self.step.id[:12]}")
            return _Planned(kind, value, seen.id, self._fork(seen, {"replace": value}), self.unchanged(seen))
        edit = check_edit(_read(value))
        if edit is None or next(iter(edit)) not in CONTEXT:
            raise UserError(f"--do context: {value} must hold an edit of {', '.join(CONTEXT)}")
        return _Planned(kind, value, self.step.id, self._fork(self.step, edit), self.unchanged(self.step))

    def unchanged(self, node: Node) -> str:
        """Forks at a node without any change, by their key."""
        return self._fork(node, None)

    def _fork(self, node: Node, edit: Mapping[str, Any] | None) -> str:
        key = f"why/{json_hash([node.id, edit, self.episodes.provenance.hash])}"
        self._wanted[key] = WantedArm(node.id, None, check_edit(edit), key)
        return key

    def _seen(self) -> Node:
        node = next((below for below in self.rest if below.role != "assistant"), None)
        if node is None:
            raise UserError(f"node {self.step.id[:12]} was never answered, so there is no observation to change")
        return node

    def _ended(self, seen: Node) -> Counts | None:
        """The attempt's outcome where it ended with the answer to the step."""
        return Counts(self.n * self.why.success, self.n) if seen.stop else None

    def _best(self) -> str:
        alternatives = [alternative.action for alternative in self.why.alternatives if alternative.repeatable]
        if not alternatives:
            raise UserError("--do action: no other attempt did anything that can be repeated, so say what: --do action=TEXT")
        return alternatives[0]


def _read(file: str) -> Any:
    try:
        return json.loads(read_small(Path(file), "the edit").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not readable as JSON: {error}") from None


def _about(finding: Finding) -> tuple[str, str, str] | None:
    """The attempt and the change that a finding is about; None where it is none of ours."""
    try:
        helped = codec.from_json(Helped, finding.evidence)
    except UserError:
        return None
    return helped.attempt, helped.do, helped.value


def _keep(run: Run, results: Sequence[Helped], settings: Mapping[str, Any]) -> None:
    new = {(result.attempt, result.do, result.value) for result in results}
    old = [result for result in run.findings(maker=MAKER) if _about(result) not in new]
    run.conclude(MAKER, [*old, *(_finding(result, settings) for result in results)])
    run.commit()


def _finding(result: Helped, settings: Mapping[str, Any]) -> Finding:
    name = "would have helped" if result.p_corrected <= 0.05 and result.difference > 0 else "was tried instead"
    tried = (
        f"{result.do}{f' `{result.value}`' if result.value else ''} instead: {result.changed.k} of {result.changed.n} succeeded"
    )
    without = f"{result.control.k} of {result.control.n} without it"
    evidence = codec.to_json(result)
    return Finding(
        name,
        MAKER,
        f"{tried}, {without}",
        result.node,
        value=result.difference,
        unit="success",
        evidence=evidence,
        identity=settings,
    )
