"""Which step of an attempt lost it: fork its steps under the unchanged agent, find where success fell,
and say what else was possible there.

The attempt is chosen (:func:`choose`), then its positions are forked as :class:`ramify.jobs.decline.Decline` says. Other attempts
at the same task that passed through the same state are counted with the forks: they are samples of the same continuation. Without
a way to run the agent again the attempts that are there are compared, and the result says that this is not a counterfactual.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ramify.base import notebook
from ramify.base.errors import RamifyError, UserError
from ramify.base.ids import json_hash, stable_hash
from ramify.base.waiting import wait_for
from ramify.base.words import plural
from ramify.env.protocol import AnyEnvironment, conversation_of
from ramify.env.tools import effect_options
from ramify.jobs.decline import Decline, falls
from ramify.jobs.judged import judge as judge
from ramify.jobs.share import Looks, walks
from ramify.model.function import AnyModel
from ramify.rollout.attempts import Attempt
from ramify.rollout.potential import RunCounts, potential
from ramify.rollout.run import Episodes
from ramify.rollout.steps import Steps, StepTrace
from ramify.rollout.stored import named_components, open_episodes, task_of
from ramify.stats.drops import Counts
from ramify.stats.intervals import Interval, wilson
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.message import named_calls
from ramify.trace.node import ATTEMPTS, FORK, AttemptRecord, Finding, Node, TreeInfo
from ramify.trace.outcome import ended, how_to_judge, settled
from ramify.trace.view import Step, TokenMessage, View, views_in

MAKER = "why"
"""Maker of its findings and annotations."""
LEVEL, LEAST, N, FIRST, DESCRIBE = 0.05, 0.05, 48, 4, 16
REPEATS = 8
"""How often the last action is repeated, where it is the one that stands out: its outcome was seen once."""
_KNOWN = ATTEMPTS | {FORK}  # the rest was played to find something out: what is found would depend on what was asked since
DEAD = 8
"""So many continuations in a row that the agent's endpoint failed end the search: it is gone, or refuses all of them."""
OTHER = "something else"
"""The alternatives of agents that never say the same twice, as one."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A chance of success: ``k`` of ``n`` attempts, and its interval (Wilson); ``p`` is None of none."""

    k: int
    n: int
    interval: Interval
    exact: bool = False
    """The attempt had ended, so there is no error."""

    @classmethod
    def of(cls, counts: Counts, level: float = 0.95, exact: bool = False) -> Chance:
        """The chance that ``counts`` say."""
        if exact and counts.n:
            k = int(counts.k > 0)
            return cls(k, 1, (float(k), float(k)), True)
        return cls(counts.k, counts.n, wilson(counts.k, counts.n, level))

    @property
    def p(self) -> float | None:
        """Share of successes."""
        return self.k / self.n if self.n else None

    def to_json(self) -> dict[str, Any]:
        """``p`` and ``interval``."""
        return {"p": self.p, "interval": list(self.interval)}

    def __str__(self) -> str:
        return "-" if self.p is None else f"{100 * self.p:.0f} %"


@dataclass(frozen=True, slots=True)
class Alternative:
    """What other attempts did in the state before the step, and what became of them."""

    action: str
    chance: Chance

    def to_json(self) -> dict[str, Any]:
        """Action, n, p, interval."""
        return {"action": self.action, "n": self.chance.n, **self.chance.to_json()}


@dataclass(frozen=True, slots=True)
class StepChance:
    """One step of the attempt: the chance of success after it, where it was counted, and how far it fell there."""

    node: str
    """The reply."""
    action: str
    after: Chance | None
    change: float | None = None
    """Success after it minus success before it; None where one of the two was not counted."""
    interval: Interval | None = None
    """Of the change, corrected over the steps and the looks."""
    stands_out: bool = False
    conversation: int = 0
    """Whose step it is, where the agent has subagents: 0 is the conversation it began with."""


@dataclass(frozen=True, slots=True)
class StepShare:
    """How much of the change from the start to the end is one step's."""

    node: str
    """The reply."""
    action: str
    value: float | None
    """Its Shapley value, below 0 where holding it lost success; None where no walk was finished."""
    interval: Interval | None
    """Corrected over the steps and the looks."""
    credited: bool
    """The interval lies beyond the least change."""

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        interval = None if self.interval is None else list(self.interval)
        return {"node": self.node, "action": self.action, "share": self.value, "interval": interval, "credited": self.credited}


@dataclass(frozen=True, slots=True)
class Share:
    """Credit shared over the steps of an attempt (:mod:`ramify.jobs.share`); the shares sum to ``end`` minus ``start``."""

    walks: int
    start: Chance
    """With no step held."""
    end: Chance
    """With every step held."""
    steps: tuple[StepShare, ...]
    samples: int
    """Continuations that were played for it, now or earlier."""
    failed: int = 0
    spent: bool = False
    """The budget ended it before it was decided which steps get credit."""

    @property
    def credited(self) -> list[StepShare]:
        """The steps with credit, the largest share first."""
        return sorted((one for one in self.steps if one.credited), key=lambda one: -abs(one.value or 0.0))

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        own = {"walks": self.walks, "start": self.start.to_json(), "end": self.end.to_json(), "samples": self.samples}
        return own | {"steps": [one.to_json() for one in self.steps]}


@dataclass(frozen=True, slots=True)
class Why:
    """What was found out about one attempt. ``verdict`` is ``step`` where one stands out, else ``none``."""

    tree: str
    attempt: str
    """Its last node."""
    success: bool
    verdict: Literal["step", "none"]
    headline: str
    """One or two sentences for a person."""
    before: Chance
    """Of the step; of no step: at the attempt's start."""
    after: Chance
    node: str | None = None
    """The step's reply, None where no step stands out."""
    action: str | None = None
    alternatives: tuple[Alternative, ...] = ()
    steps: tuple[StepChance, ...] = ()
    samples: int = 0
    """Continuations that were played for it, now or earlier."""
    free: int = 0
    """Attempts that were there and were counted with them."""
    counterfactual: bool = True
    """False where nothing was run again: attempts that did other things may differ in more than that."""
    failed: int = 0
    """Continuations that an infrastructure failure ended: not counted, and tried again by the next call."""
    note: str = ""
    """What a reader must know besides: that another agent continued than the one that sampled the attempt."""
    spent: bool = False
    """The budget ended the search."""
    command: str = ""
    """What shows or changes it."""
    share: Share | None = None
    """Credit shared over the steps, where it was asked for."""

    @property
    def conversation(self) -> int | None:
        """The number of the step's conversation; None without a step, or where the attempt has one conversation alone."""
        if not any(one.conversation for one in self.steps):
            return None
        return next((one.conversation for one in self.steps if one.node == self.node), None)

    @property
    def several(self) -> bool:
        """Whether success changed beyond chance on the way, though no single step stands out: then credit can be shared."""
        before, after = (self.before, self.after) if not self.success else (self.after, self.before)
        return self.counterfactual and self.verdict == "none" and before.interval[0] > after.interval[1] + LEAST

    def to_json(self) -> dict[str, Any]:
        """The machine-readable result, as ``ramify why --json`` prints it."""
        shared: dict[str, Any] = {} if self.share is None else {"share": self.share.to_json()}
        if self.conversation is not None:
            shared["conversation"] = self.conversation
        return {
            "tree": self.tree,
            "verdict": self.verdict,
            "node": self.node,
            "action": self.action,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "alternatives": [one.to_json() for one in self.alternatives],
            "samples": self.samples,
            "counterfactual": self.counterfactual,
        } | shared

    def finding(self, settings: Mapping[str, Any]) -> Finding:
        """As the run stores it; :func:`found` reads it back."""
        change = None if self.verdict == "none" else (self.after.p or 0.0) - (self.before.p or 0.0)
        name = "no step stands out" if self.verdict == "none" else "lost here" if not self.success else "won here"
        where = self.node or self.attempt
        return Finding(name, MAKER, self.headline, where, 0, self.command, change, "success", asdict(self), settings)

    def __str__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        return notebook.html(self)

    def __repr__(self) -> str:
        return f"<why {self.tree!r}:\n {self.headline}>"


def found(run: Run, tree: str | None = None) -> list[Why]:
    """What earlier calls found out and stored in ``run``, of one ``tree`` or all;
    a record that is none (of a foreign run) is left out."""
    return [why for one in run.findings(tree=tree, maker=MAKER) if (why := _read(one)) is not None]


def _read(finding: Finding) -> Why | None:
    try:
        return _from_json(finding.evidence)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _from_json(record: Mapping[str, Any]) -> Why:
    def chance(value: Mapping[str, Any] | None) -> Any:
        return None if value is None else Chance(**{**value, "interval": tuple(value["interval"])})

    steps = tuple(
        StepChance(**{**s, "after": chance(s["after"]), "interval": None if s["interval"] is None else tuple(s["interval"])})
        for s in record["steps"]
    )
    alternatives = tuple(Alternative(a["action"], chance(a["chance"])) for a in record["alternatives"])
    own = {"before": chance(record["before"]), "after": chance(record["after"]), "steps": steps, "alternatives": alternatives}
    if (share := record.get("share")) is not None:
        ends = {"start": chance(share["start"]), "end": chance(share["end"])}
        rows = tuple(
            StepShare(**{**s, "interval": None if s["interval"] is None else tuple(s["interval"])}) for s in share["steps"]
        )
        own["share"] = Share(**{**share, **ends, "steps": rows})
    return Why(**{**record, **own})


# -- the attempts that are there -------------------------------------------------------------------------------------------------


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

    def passing(self, t: int, passages: Sequence[Passage]) -> list[Passage]:
        """Those that came through position ``t``."""
        return [one for one in passages if self.keys[t] in one.first]


def walked(view: View) -> tuple[list[Step], list[Node], list[str]]:
    """The steps of an attempt (replies without an observation between are one),
    the observation before each and the end, their states."""
    steps: list[Step] = []
    seen: list[Node] = []
    for step in view.steps:
        if not step.observed:
            continue
        at = step.observed[-1].nodes[-1]
        if seen and seen[-1].id == at.id:
            continue
        steps.append(step)
        seen.append(at)
    seen.append(view.end)
    texts = [*(step.observation for step in steps), view.ending]
    keys, past = [], ""
    for i, node in enumerate(seen):
        past = stable_hash("state", past, texts[i], steps[i - 1].action if i else "")
        keys.append(past if node.state_key is None else f"key {node.state_key}")
    return steps, seen, keys


def _passage(view: View, provenance: str | None, plain: bool) -> Passage | None:
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
    steps, seen, keys = walked(view)
    begins = {node.id for node in (own if own[0].role != "assistant" else own[1:])}
    first: dict[str, Step | None] = {}
    for i, node in enumerate(seen):
        if node.id in begins:
            first.setdefault(keys[i], steps[i] if i < len(steps) else None)
    return Passage(success, record.start or "", record.purpose, record.index, first, view.leaf)


def _cohort(run: Run, info: TreeInfo, scorer: str | None) -> Iterator[View]:
    """All attempts at the task of a tree, in the group of trees it belongs to."""
    deciding = settled(run, scorer)
    for other in sorted(run.trees(info.group), key=lambda one: one.name):
        if other.name == info.name or (other.task.get("id") is not None and other.task.get("id") == info.task.get("id")):
            yield from _attempts(run, other, deciding)


def _attempts(run: Run, info: TreeInfo, deciding: Any) -> Iterator[View]:
    return views_in(info, run.tree(info.name), ended(run, info.name, deciding))


def choose(run: Run, where: str = "", scorer: str | None = None) -> View:
    """The attempt to ask about: one that failed, in the tree ``where``, or through the node of that id.

    Without ``where`` of the task at which most attempts succeeded: there the failed ones have most to be compared with. The first
    of those that fit; of a task without failed ones the first that succeeded. Forks that were made to find this out are no
    attempts. Raises UserError where there is none.
    """
    names = [info.name for info in run.trees()]
    node = ""
    if where and where not in names:
        node = run.find(where)
    deciding = settled(run, scorer)
    wanted = [info for info in run.trees() if (info.name == (run.node(node).tree if node else where) if where else True)]
    best: tuple[tuple[Any, ...], View] | None = None
    for info in sorted(wanted, key=lambda one: one.name):
        views = [view for view in _attempts(run, info, deciding) if view.success is not None and view.broken_off is None]
        views = [view for view in views if _record(view).purpose in _KNOWN]
        if node:
            views = [view for view in views if any(one.id == node for one, _ in view.path.segments)]
        whole = [view for view in views if _whole(view)]
        won = sum(bool(view.success) for view in whole) / max(1, len(whole))
        for view in views:
            if view.steps:
                rank = (bool(view.success), 0.0 if where else -won, not _whole(view), _record(view).index, info.name, view.leaf)
                if best is None or rank < best[0]:
                    best = rank, view
    if best is None:
        place = f" through node {node[:12]}" if node else f" of tree '{where}'" if where else ""
        raise UserError(
            f"{run.folder} holds no attempt{place} that somebody judged, so there is nothing to explain: {how_to_judge(run)}"
        )
    return best[1]


def _record(view: View) -> AttemptRecord:
    """The attempt's record; of one that has none, as an attempt from the beginning."""
    return view.record or AttemptRecord(view.leaf, view.info.name)


def _whole(view: View) -> bool:
    """Whether the attempt was played from its beginning."""
    start = _record(view).start
    return start is None or any(node.id == start for step in view.steps[:1] for one in step.observed for node in one.nodes)


def read_case(run: Run, view: View, provenance: str | None, scorer: str | None = None) -> AskedAttempt:
    """The attempt with all others at its task; ``provenance`` is that of the agent that continues, None where nothing does."""
    steps, seen, keys = walked(view)
    if not steps:
        raise UserError(f"the attempt that ends at {view.leaf[:12]} has no step of the agent after an observation")
    task, _ = task_of(run, view.info.name)
    actions = tuple(step.action for step in steps)
    nodes = tuple(node.id for node in seen)
    trace = StepTrace(view.leaf, view.info.name, task, nodes, actions, view.success, ended=view.success is not None)
    plain = all(node.context is None for step in steps for node in step.reply.nodes)
    passages = (_passage(one, provenance, plain) for one in _cohort(run, view.info, scorer) if one.leaf != view.leaf)
    return AskedAttempt(view, trace, tuple(steps), tuple(keys), tuple(one for one in passages if one is not None))


# -- forks
# ------------------------------------------------------------------------------------------------------------------------


class _Forks(Steps):
    """Counts forks; those that are stored are read, without their environment."""

    def __init__(self, episodes: Episodes, case: AskedAttempt, purpose: str) -> None:
        super().__init__(episodes, truncated="graded")
        self.case = case
        self.flaky = False
        """Whether the answer to the last action is another one each time."""
        mine = {node: t for t, node in reversed(list(enumerate(case.trace.nodes)))}
        self.refused = 0
        """Continuations in a row that the model failed, not the environment: that one may be at fault in one state alone."""
        self.made: dict[tuple[int, int], Passage] = {}
        """Forks by position and number."""
        self.others: list[Passage] = []
        for one in case.others:
            if one.start in mine and one.purpose == purpose:
                self.made[mine[one.start], one.index] = one
            elif one.purpose in _KNOWN:
                self.others.append(one)

    async def count(self, trace: StepTrace, t: int, n: int, purpose: str, start: int = 0) -> Counts:
        """See :class:`ramify.rollout.steps.Steps`; of an end that chance decides,
        how often the last action's answer is a success."""
        if t == trace.length and trace.ended:
            return await self.repeated(n) if self.flaky else Counts(n * bool(trace.correct), n)
        counts = Counts(0, 0)
        missing = []
        for i in range(start, start + n):
            known = self.made.get((t, i))
            if known is None:
                missing.append(i)
            else:
                counts += Counts(int(known.success), 1)
        if missing:
            counts += await self._play(trace, t, missing, purpose)
        return counts

    async def repeated(self, n: int) -> Counts:
        """Successes among ``n`` repetitions of the last action as it was, in the state it was done in:
        what the environment alone decides."""
        trace = self.case.trace
        before = self.episodes.load(trace.tree).node(trace.nodes[-2])
        said = [self.case.replies[-1].reply.message.written()]
        ends = [await self.episodes.reissue(trace.tree, trace.task, before, said) for _ in range(n)]
        return Counts.of(end.outcome for end in ends)

    async def _play(self, trace: StepTrace, t: int, missing: Sequence[int], purpose: str) -> Counts:
        if self.refused >= DEAD:
            why = "the same command continues with those that were played"
            raise RamifyError(f"{self.refused} continuations in a row failed, the first at {self.first_failure}; {why}")
        played = await asyncio.gather(
            *(self.episodes.branch(trace.tree, trace.task, trace.nodes[t], i, purpose=purpose) for i in missing)
        )
        self.ledger.add(purpose, forks=len(played), sampled_tokens=sum(a.sampled_tokens for a in played))
        for i, attempt in zip(missing, played, strict=True):
            refused = attempt.outcome is None and (attempt.failure or "").startswith(("provider", "engine"))
            self.refused = self.refused + 1 if refused else 0
            if attempt.outcome is None:
                self.first_failure = self.first_failure or attempt.failure or ""
                continue
            view = View(self.case.view.info, self.episodes.load(trace.tree), self.episodes.load(trace.tree).path(attempt.leaf))
            steps, seen, keys = walked(view)
            at = next(j for j, node in enumerate(seen) if node.id == trace.nodes[t])
            first: dict[str, Step | None] = {}
            for j in range(at, len(seen)):
                first.setdefault(keys[j], steps[j] if j < len(steps) else None)
            self.made[t, i] = Passage(attempt.outcome, trace.nodes[t], purpose, i, first, attempt.leaf)
        return Counts.of(a.outcome for a in played)

    def through(self, own: Mapping[int, Counts]) -> dict[int, list[Passage]]:
        """What passed through each position besides the forks from it:
        other attempts, and the forks from elsewhere that are counted."""
        counted = [(s, one) for (s, i), one in sorted(self.made.items()) if s in own and i < own[s].forks]
        return {
            t: self.case.passing(t, self.others) + self.case.passing(t, [one for s, one in counted if s != t])
            for t in range(self.case.trace.length + 1)
        }

    def passing(self, own: Mapping[int, Counts]) -> dict[int, Counts]:
        """The counts of :meth:`through`; at an end that is known none are needed."""
        last = self.case.trace.length if self.case.trace.ended and not self.flaky else -1
        return {t: Counts.of(one.success for one in ones) for t, ones in self.through(own).items() if ones and t != last}


@dataclass(frozen=True, slots=True)
class _Held:
    """A played attempt: the node before each of its steps, its actions, and its outcome."""

    nodes: tuple[str, ...]
    actions: tuple[str, ...]
    success: bool


class _HeldForks:
    """Coalitions of the steps of an attempt in a run. Played attempts are stored in the run,
    and those that are stored are loaded."""

    def __init__(self, episodes: Episodes, case: AskedAttempt, purpose: str) -> None:
        self.episodes, self.case = episodes, case
        self.purpose = purpose
        self.played = self.failed = 0
        self.flaky = False
        """Whether the recorded actions come to another outcome each time."""
        self.known = {
            (one.purpose, one.index): (one.leaf, one.outcome)
            for one in episodes.run.attempts(tree=case.trace.tree)
            if one.outcome is not None
        }
        """Stored attempts by purpose and index: their last node and their outcome."""

    async def free(self, walk: int) -> _Held | None:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return await self._play(self.case.trace.nodes[0], walk, 0, {})

    async def hold(self, attempt: _Held, step: int, held: frozenset[int], walk: int) -> _Held | None:
        """See :class:`ramify.jobs.share.Coalitions`."""
        if step >= len(attempt.actions) or attempt.actions[step] == self.case.trace.actions[step]:
            return attempt
        turns = {one - step: self.case.replies[one].reply for one in held if one >= step}
        return await self._play(attempt.nodes[step], walk, step + 1, turns)

    async def whole(self) -> bool:
        """See :class:`ramify.jobs.share.Coalitions`."""
        return await self._again() if self.flaky else bool(self.case.trace.correct)

    async def check(self) -> None:
        """Repeat the attempt as it was some times: where its outcome differs, chance decides it.
        Raises RamifyError where it cannot be."""
        self.flaky = any([await self._again() != bool(self.case.trace.correct) for _ in range(REPEATS)])

    async def _again(self) -> bool:
        trace = self.case.trace
        turns = {t: step.reply for t, step in enumerate(self.case.replies)}
        again = await self.episodes.branch(trace.tree, trace.task, trace.nodes[0], 0, held=turns, purpose=f"{self.purpose}/again")
        if again.outcome is None:
            raise RamifyError(f"the attempt's own actions could not be repeated: {again.failure}")
        return again.outcome

    async def _play(self, node: str, walk: int, index: int, turns: Mapping[int, TokenMessage]) -> _Held | None:
        trace, purpose = self.case.trace, f"{self.purpose}/{walk}"
        if (purpose, index) not in self.known:
            attempt = await self.episodes.branch(trace.tree, trace.task, node, index, held=turns, purpose=purpose)
            self.played += len(attempt.turns) != sum(turn < len(attempt.turns) for turn in turns)
            if attempt.outcome is None:
                self.failed += 1
                return None
            leaf, success = attempt.leaf, attempt.outcome
        else:
            leaf, success = self.known[purpose, index]
            self.played += 1
        tree = self.episodes.load(trace.tree)
        steps, seen, _ = walked(View(self.case.view.info, tree, tree.path(leaf)))
        return _Held(tuple(one.id for one in seen), tuple(one.action for one in steps), success)


class _Shown:
    """A store that keeps counts for pages and loads none: forks are read from the trees."""

    def __init__(self, run: Run) -> None:
        self.kept = RunCounts(run)

    def load(self, path: Any, purpose: str) -> dict[int, Counts]:
        """Nothing."""
        return {}

    def keep(self, path: Any, purpose: str, counts: Mapping[int, Counts]) -> None:
        """Store them as annotations."""
        self.kept.keep(path, purpose, counts)


def why(
    path: Path | str,
    where: str = "",
    *,
    n: int = N,
    first: int = FIRST,
    samples: int | None = None,
    level: float = LEVEL,
    least: float = LEAST,
    describe: int = DESCRIBE,
    share: bool = False,
    model: AnyModel | None = None,
    env: AnyEnvironment | None = None,
    scorer: str | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
    on_attempt: Callable[[Attempt], object] = lambda attempt: None,
    on_note: Callable[[str], object] = lambda note: None,
) -> Why:
    """Which step of an attempt in the run at ``path`` lost it (of a successful one: won it), and what else was possible there.

    ``where`` names a tree or a node, see :func:`choose`. ``first`` forks a position to begin with and at most ``n``; at most
    ``samples`` in all (None: no limit; 0: nothing is run again, and the attempts that are there are compared). A step stands out
    where success changed by more than ``least`` at ``level``, corrected over the steps. ``describe``: continuations to have from
    before the step that stands out, to say what else was possible there. ``share``: also share the change of success over the
    steps, by at most ``n`` walks (:mod:`ramify.jobs.share`). ``model`` and ``env`` are needed where the run names none: without
    them nothing is run again. With them recorded attempts that nobody judged are (:func:`ramify.jobs.judged.judge`). ``effects``:
    what tools do to the world, by name (:data:`ramify.env.tools.EFFECTS`). ``on_note`` is called, before anything is sampled,
    with what a reader must know: that another agent continues than the one that sampled the attempt. The result is stored as a
    finding; the same call again loads it, another one loads the forks there are. Raises UserError, and RamifyError where
    every continuation failed.
    """
    if not 1 <= first <= n:
        raise UserError(f"first={first} forks a position cannot be more than n={n}, nor less than 1")
    judge(path, model, env, trust, effects)
    with Run.open(path) as run:
        view = choose(run, where, scorer)
        again = samples != 0 and can_play(run, model, env)
    if share and not again:
        raise UserError(
            "credit is shared over steps that are sampled again: say what plays (a model and an environment) and leave samples "
            "for it"
        )
    settings: dict[str, Any] = {"n": n, "first": first, "samples": samples, "level": level, "least": least, "scorer": scorer}
    settings["describe"] = describe
    if share:
        settings["share"] = True
    if not again:
        with Run.open(path, write=True) as run:
            result = _recorded(run, read_case(run, view, None, scorer), level, scorer)
            _keep(run, replace(result, command=_command(run, result)), settings)
            return replace(result, command=_command(run, result))
    with open_episodes(path, first_reply(view), model, env, trust=trust, effects=effects) as (episodes, _):
        settings["agent"] = episodes.provenance.to_json()
        if (stored := _stored(episodes.run, view, settings)) is not None:
            return stored
        episodes.on_attempt = on_attempt
        case = read_case(episodes.run, view, episodes.provenance.hash, scorer)
        purpose = f"why {episodes.provenance.hash[:12]}"
        if note := _other(episodes, view):
            on_note(note)
        forks = _Forks(episodes, case, purpose)
        rule = Decline(n, first, level, least, math.inf if samples is None else samples, forks.passing, gain=bool(view.success))
        with episodes.committing():
            rule, own, stood = wait_for(_search(forks, rule, purpose, describe))
            result = replace(_result(case, forks, rule, own, stood, level), note=note)
            if forks.first_failure:
                result = replace(result, note=f"{result.note} The first that failed: {forks.first_failure}.".strip())
            if forks.first_failure and not result.before.n:
                raise RamifyError(f"every continuation failed, the first at {forks.first_failure}")
            if share:
                result = wait_for(_shared(episodes, case, result, Looks(n, level, least, bool(view.success)), rule.samples))
        result = replace(
            result, command=_command(episodes.run, result) + effect_options(effects or {}) * (result.verdict == "step")
        )
        _keep(episodes.run, result, settings)
        return result


def _stored(run: Run, view: View, settings: Mapping[str, Any]) -> Why | None:
    """What the same call found out before, where no continuation failed."""
    for one in run.findings(tree=view.info.name, maker=MAKER):
        if json_hash(dict(one.identity)) == json_hash(settings):
            stored = _read(one)
            if stored is not None and stored.attempt == view.leaf and not stored.failed:
                return stored
    return None


async def _search(
    forks: _Forks, rule: Decline, purpose: str, describe: int
) -> tuple[Decline, dict[int, Counts], tuple[int, ...]]:
    """The rule with the positions it knows, the counts of forks, and the steps that stand out, the largest change first."""
    trace, store = forks.case.trace, _Shown(forks.episodes.run)
    positions = range(trace.length + 1)
    rule = replace(rule, known=frozenset({trace.length} if trace.ended else ()))
    own, stood = await potential(forks, trace, positions, rule, purpose, store)
    if trace.ended and trace.length in stood[:1] and (again := await forks.repeated(REPEATS)).k != bool(trace.correct) * again.n:
        forks.flaky, rule = True, replace(rule, known=frozenset())
        own, stood = await potential(forks, trace, positions, rule, purpose, store)
    if stood:
        t = stood[0] - 1
        have, there = own.get(t, Counts(0, 0)), len(forks.through(own)[t])
        left = rule.samples - sum(c.forks for t, c in own.items() if t != trace.length or not trace.ended)
        if (more := int(min(describe - have.forks - there, left))) > 0:
            own[t] = have + await forks.count(trace, t, more, purpose, start=have.forks)
            store.keep(trace, purpose, {t: own[t]})
    return rule, own, stood


async def _shared(episodes: Episodes, case: AskedAttempt, result: Why, looks: Looks, samples: float) -> Why:
    """The result with credit shared over the steps, at most ``samples`` continuations in all; where no single step stands out
    those with credit are its headline."""
    steps, name = case.trace.length, f"share {result.attempt[:12]} {episodes.provenance.hash[:12]}"
    game = _HeldForks(episodes, case, f"{MAKER} {name}")
    await game.check()
    taken, spent = await walks(game, steps, looks, name, samples - result.samples)
    rows = []
    for step in range(steps):
        value, interval, credited = None, None, False
        if taken:
            value, interval = looks.share(taken, step)
            credited = looks.credited(interval)
        rows.append(StepShare(case.replies[step].node, case.trace.actions[step], value, interval, credited))
    ends = Chance.of(Counts.of(one.outcomes[-1] for one in taken), exact=not game.flaky)
    start = Chance.of(Counts.of(one.outcomes[0] for one in taken))
    share = Share(len(taken), start, ends, tuple(rows), game.played, game.failed, spent)
    result = replace(result, share=share, failed=result.failed + share.failed, spent=result.spent or spent)
    return replace(result, headline=_together(result, share)) if result.verdict == "none" and share.credited else result


def _other(episodes: Episodes, view: View) -> str:
    """A note where another agent continues than the one that sampled the attempt."""
    sampled = first_reply(view).provenance
    then = "" if sampled is None else episodes.run.provenance(sampled).weights
    if then in ("", episodes.provenance.weights):
        return ""
    return (
        f"The attempt was sampled by other weights than those that continue ({then[:12]}, now "
        f"{episodes.provenance.weights[:12]}): "
        "this says where the present agent loses it."
    )


def first_reply(view: View) -> Node:
    """The attempt's first reply: the agent that sampled it continues."""
    return next(node for node, _ in view.path.segments if node.role == "assistant")


def can_play(run: Run, model: AnyModel | None, env: AnyEnvironment | None) -> bool:
    """Whether the run names an agent and an environment, or both are given.
    Raises UserError where one is given and the other is missing."""
    try:
        named_components(run, model, env)
    except UserError:
        if model is not None or env is not None:
            raise
        return False
    return True


def _keep(run: Run, result: Why, settings: Mapping[str, Any]) -> None:
    """Store the finding; those about other attempts stay."""
    others = [one for one in run.findings(maker=MAKER) if getattr(_read(one), "attempt", result.attempt) != result.attempt]
    run.conclude(MAKER, [*others, result.finding(settings)])
    run.commit()


def _command(run: Run, result: Why) -> str:
    if result.verdict == "step":
        return f"ramify fork {run.folder} {(result.node or '')[:12]} --n 32"
    return f"ramify show {run.folder} --web"


def _result(
    case: AskedAttempt, forks: _Forks, rule: Decline, own: Mapping[int, Counts], stood: Sequence[int], level: float
) -> Why:
    """What the counts come to."""
    last, known = case.trace.length, rule.known
    plain = replace(rule, gain=False)
    counts = plain.merged(own)
    confidence = 1 - level / max(last, 1)
    at = {t: Chance.of(c, confidence, t in known) for t, c in counts.items() if c.n or t in known}
    fell = {one.t: one for one in falls(rule, own, last)}
    sign = 1 if rule.gain else -1
    steps = []
    for t in range(1, last + 1):
        one = fell.get(t)
        change = None if one is None else sign * one.value + 0.0
        interval = None if one is None else _signed(one.interval, sign)
        stands = one is not None and t in stood
        talk = _conversation(case.replies[t - 1])
        steps.append(StepChance(case.replies[t - 1].node, case.trace.actions[t - 1], at.get(t), change, interval, stands, talk))
    played = sum(c.forks for t, c in own.items() if t != last or not case.trace.ended)
    through = forks.through(own)
    free = len(
        {one.leaf for t in at for one in through[t] if one.start != case.trace.nodes[t]} & {one.leaf for one in forks.others}
    )
    end = at.get(last, Chance.of(Counts(0, 0)))
    whole = Why(
        case.view.info.name, case.view.leaf, bool(case.view.success), "none", "", at.get(0, Chance.of(Counts(0, 0))), end,
        steps=tuple(steps), samples=played, free=free,
        failed=sum(c.missing for c in own.values()), spent=played >= rule.samples and not stood,
    )  # fmt: skip
    if not stood:
        return replace(whole, headline=_nothing(whole))
    t = stood[0]
    there = through[t - 1] + [
        one for (s, i), one in sorted(forks.made.items()) if s == t - 1 and i < own.get(s, Counts(0, 0)).forks
    ]
    others = alternatives(case, t, there)
    lost = replace(
        whole,
        verdict="step",
        node=steps[t - 1].node,
        action=steps[t - 1].action,
        before=at[t - 1],
        after=at[t],
        alternatives=others,
    )
    return replace(lost, headline=_lost(lost, len(there)))


def _signed(interval: Interval, sign: int) -> Interval:
    low, high = interval
    return (low, high) if sign > 0 else (-high + 0.0, -low + 0.0)


def alternatives(case: AskedAttempt, t: int, there: Sequence[Passage]) -> tuple[Alternative, ...]:
    """What was done in the state before step ``t`` other than that step,
    the most successful first (by the lower end of its interval)."""
    own = _words(case.trace.actions[t - 1])
    counts: dict[str, Counts] = {}
    for one in there:
        step = one.first[case.keys[t - 1]]
        if step is not None and (said := _words(step.action)) != own:
            counts[said] = counts.get(said, Counts(0, 0)) + Counts(int(one.success), 1)
    total = sum(c.n for c in counts.values())
    if total >= 4 and 2 * len(counts) > total:  # free text: by its first word, the tool, else together
        heads: dict[str, Counts] = {}
        for said, c in counts.items():
            heads[head(said)] = heads.get(head(said), Counts(0, 0)) + c
        alone = 2 * len(heads) > total or head(own) in heads
        counts = {OTHER: sum(counts.values(), Counts(0, 0))} if alone else {f"{name} …": c for name, c in heads.items()}
    found = [Alternative(action, Chance.of(c)) for action, c in counts.items()]
    best = (lambda one: one.chance.interval[0]) if not case.view.success else (lambda one: -one.chance.interval[1])
    return tuple(sorted(found, key=lambda one: (-best(one), -one.chance.n, one.action)))


def head(action: str) -> str:
    """The tool that an action calls: its first word, up to a bracket."""
    return (named_calls(action).split() or [""])[0].split("(")[0].strip(":`*\"'{}[]")


def _conversation(step: Step) -> int:
    return conversation_of(step.observed[-1].data) if step.observed else 0


def _words(action: str) -> str:
    return " ".join(action.split())


def _named(action: str) -> str:
    """An action as a headline has it."""
    return _words(named_calls(action))


def _lost(lost: Why, there: int) -> str:
    verb = "Won" if lost.success else "Lost"
    own = _named(lost.action or "")
    whose = "" if lost.conversation is None else f" (conversation {lost.conversation})"
    other = _named(lost.alternatives[0].action) if lost.alternatives else ""
    text = f"{verb} at `{_unlike(own, other)}`{whose}: success {lost.before} -> {lost.after}."
    if lost.alternatives:
        best = lost.alternatives[0]
        did = f"did {OTHER}" if best.action == OTHER else f"chose `{_unlike(_named(best.action), own)}`"
        text += f" From the same state {best.chance.n} of {plural(there, 'attempt')} {did}: {best.chance}."
    return text


def _unlike(action: str, other: str, width: int = 60) -> str:
    """An action in at most ``width`` characters; of a long one that begins as ``other`` does,
    its beginning and where they part."""
    same = next((i for i, (a, b) in enumerate(zip(action, other, strict=False)) if a != b), min(len(action), len(other)))
    if len(action) <= width or same < width - 10 or action == other:
        return short(action, width)
    return f"{action[:20]}…{short(action[same - 10 :], width - 21)}"


def _together(whole: Why, share: Share) -> str:
    *rest, last = (f"`{short(_named(one.action), 60)}` ({100 * (one.value or 0.0):+.0f})" for one in share.credited)
    steps = f"{', '.join(rest)} and {last}" if rest else last
    verb = "won" if whole.success else "lost"
    return f"No one step {verb} it: success {share.start} -> {share.end}, of which {steps} points."


def _nothing(whole: Why) -> str:
    low = whole.before
    if whole.success:
        return f"No step stands out: success was {low} at the start, and no step raised it by more than chance."
    if low.n and low.k == 0 and all(not s.after.k for s in whole.steps if s.after is not None):
        return f"No step stands out: success was 0 % from the start (0 of {low.n}), so there was nothing to lose."
    head = "No step stands out" + (" yet, and the budget is spent" if whole.spent else "")
    return f"{head}: success was {low} at the start and {whole.after} at the end, and no step lost more than chance."


# -- attempts alone
# ---------------------------------------------------------------------------------------------------------------


def _recorded(run: Run, case: AskedAttempt, level: float, scorer: str | None) -> Why:
    """What the attempts that are there say: the step after which attempts from one state did worst, corrected over the steps."""
    from ramify.stats.evidence import each_against

    last = case.trace.length
    pairs: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
    took: dict[int, tuple[Counts, Counts]] = {}
    for t in range(1, last + 1):
        own = _words(case.trace.actions[t - 1])
        there = [(one.first[case.keys[t - 1]], one.success) for one in case.passing(t - 1, case.others)]
        same = Counts.of(success for step, success in there if step is not None and _words(step.action) == own)
        rest = Counts.of(success for step, success in there if step is not None and _words(step.action) != own)
        took[t] = same, rest
        if same.n and rest.n:
            pairs[str(t)] = (rest.k, rest.n), (same.k, same.n)
    rows = {int(row.intervention): row for row in each_against(pairs)} if pairs else {}
    sign = 1 if case.view.success else -1
    steps = []
    for t in range(1, last + 1):
        row, ends = rows.get(t), case.passing(t, case.others) if t < last else []
        after = Chance.of(Counts.of(one.success for one in ends)) if ends else None
        stands = row is not None and row.p_corrected <= level and sign * row.difference > 0
        change, interval = (None, None) if row is None else (row.difference, row.difference_interval)
        talk = _conversation(case.replies[t - 1])
        steps.append(StepChance(case.replies[t - 1].node, case.trace.actions[t - 1], after, change, interval, stands, talk))
    start = Chance.of(Counts.of(one.success for one in case.passing(0, case.others)))
    end = Chance.of(Counts(int(bool(case.view.success)), 1), exact=True)
    whole = Why(
        case.view.info.name, case.view.leaf, bool(case.view.success), "none", "", start, end, steps=tuple(steps),
        free=len(case.others), counterfactual=False,
    )  # fmt: skip
    stood = [t for t, step in enumerate(steps, 1) if step.stands_out]
    note = "Recorded attempts only: this is not a counterfactual"
    if not stood:
        compared = f"of {plural(len(rows), 'step')} that can be compared with other attempts none differs by more than chance"
        text = compared if rows else "no other attempt did anything else in a state that this one came through"
        return replace(whole, headline=f"No step stands out: {text}. {note}.")
    t = max(stood, key=lambda t: (sign * rows[t].difference, -t))
    same, rest = took[t]
    others = alternatives(case, t, case.passing(t - 1, case.others))
    found = replace(
        whole, verdict="step", node=steps[t - 1].node, action=steps[t - 1].action, before=Chance.of(same + rest),
        after=Chance.of(same), alternatives=others,
    )  # fmt: skip
    return replace(found, headline=f"{_lost(found, (same + rest).n)} {note}.")


def tools(run: Run, scorer: str | None = None) -> list[dict[str, Any]]:
    """Where attempts of a run part: for each tool how many steps call it, and the worst of its moves,
    by what attempts did in one state.

    From the attempts that are there, without forks (:class:`ramify.methods.graph_credit.run.StateGraph`): ``difference`` is the
    mean reward of those that took the move minus that of the others in its state,
    ``p_corrected`` over all moves. The tool that loses most comes first.
    """
    from ramify.methods.graph_credit.algorithm import CreditConfig
    from ramify.methods.graph_credit.run import StateGraph
    from ramify.score.steps import columns_of, run_attempts

    columns = columns_of((one for one in run_attempts(run, scorer=scorer) if not one[0].fork), cohorts=True)
    if not columns["action"]:
        return []
    graph = StateGraph.of_attempts(columns)
    graph.assign(CreditConfig())
    called = Counter(head(str(action)) for action in columns["action"])
    worst: dict[str, Any] = {}
    for move in graph.comparison.moves:
        tool = head(str(columns["action"][move.row]))
        if tool not in worst or (move.difference, move.p) < (worst[tool].difference, worst[tool].p):
            worst[tool] = move
    rows = [
        {
            "tool": tool,
            "steps": steps,
            "action": None if tool not in worst else str(columns["action"][worst[tool].row]),
            "task": None if tool not in worst else columns["task_id"][worst[tool].row],
            "node": None if tool not in worst else columns["node"][worst[tool].row],
            "difference": None if tool not in worst else worst[tool].difference,
            "takers": None if tool not in worst else worst[tool].takers,
            "others": None if tool not in worst else worst[tool].others,
            "p_corrected": None if tool not in worst else worst[tool].p_corrected,
        }
        for tool, steps in called.items()
    ]
    return sorted(rows, key=lambda row: (row["difference"] is None, row["difference"] or 0.0, row["tool"]))


def failed_trees(run: Run, scorer: str | None = None) -> list[str]:
    """The trees that hold a judged attempt that failed, in order. Raises UserError where there is none."""
    deciding = settled(run, scorer)
    names = [
        info.name
        for info in sorted(run.trees(), key=lambda one: one.name)
        if any(
            view.success is False and view.broken_off is None and view.steps and not view.fork
            for view in _attempts(run, info, deciding)
        )
    ]
    if not names:
        raise UserError(f"{run.folder} holds no judged attempt that failed")
    return names


def lost_by_tool(found: Sequence[Why]) -> list[dict[str, Any]]:
    """For each tool: how many attempts were lost at a step that calls it, the mean change there,
    and the worst step; most lost first."""
    by_tool: dict[str, list[Why]] = {}
    for one in found:
        if one.verdict == "step" and not one.success:
            by_tool.setdefault(head(one.action or ""), []).append(one)

    def change(one: Why) -> float:
        return (one.after.p or 0.0) - (one.before.p or 0.0)

    rows: list[dict[str, Any]] = []
    for tool, ones in by_tool.items():
        worst = min(ones, key=change)
        mean = sum(map(change, ones)) / len(ones)
        about = {"action": worst.action, "tree": worst.tree, "node": worst.node}
        rows.append({"tool": tool, "lost": len(ones), "change": mean, **about})
    return sorted(rows, key=lambda row: (-row["lost"], row["change"], row["tool"]))
