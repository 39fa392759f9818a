"""The controller at work: candidates are written, critics and the verifier asked, as a policy over beliefs says."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.methods.verify_or_ship.algorithm import (
    REWRITE,
    SHIP,
    STOP,
    VERIFY,
    ControlConfig,
    Plan,
    Tables,
    TakenAction,
    Tracker,
    greedy,
)
from ramify.methods.verify_or_ship.calibration import FEW, CandidateAttempt, CodeCandidate, Counters, calibrate, same_text
from ramify.methods.verify_or_ship.records import BELIEF, CHECK, PROBABILITY, VERIFIER, read_source
from ramify.methods.verify_or_ship.replay import Regime, regimes
from ramify.score.judge import Item, Judge, judged
from ramify.trace.db import Run
from ramify.trace.foreign import root
from ramify.trace.message import Message
from ramify.trace.node import Annotation, AttemptRecord, Score, make_node

MAKER = "verify-or-ship"
Price = float | Callable[[str], float]
"""Utility, or a function of the candidate's text that gives it."""
Rewrite = Callable[[Item, str | None, Mapping[str, Any]], Awaitable[str] | str]
"""(task, last candidate or None for the first, what critics said of it) -> the next candidate."""


@dataclass(frozen=True)
class Critic:
    """A judge that is asked about candidates, by the name that the tables know it by."""

    name: str
    judge: Judge
    cost: Price | None = None
    """What asking costs; None: as the settings say. A function is charged as it says, and planned with as the settings say."""


@dataclass
class TaskOutcome:
    """What became of a task."""

    candidate: str
    """The last candidate."""
    belief: float
    """Probability that it is right, as far as was seen."""
    delivered: bool
    """Verified, or shipped."""
    verified: bool | None
    """What the verifier said of it; None where it was not asked or could not run."""
    actions: list[str] = field(default_factory=list)
    tried: list[tuple[str, float]] = field(default_factory=list)
    """Every candidate with the belief it was left at."""
    cost: float = 0.0
    failures: list[str] = field(default_factory=list)
    """Why critics or the verifier could not run."""
    contradicted: bool = False
    """Something was seen that the tables say is impossible: calibrate again."""

    def utility(self, reward: float, loss: float = 0.0) -> float:
        """Expected utility with what is known: of a verified candidate its worth, of a shipped one what the belief says."""
        if not self.delivered:
            return -self.cost
        right = float(self.verified) if self.verified is not None else self.belief
        return reward * right - loss * (1 - right) * (self.verified is None) - self.cost


class Controller:
    """Runs tasks as a policy over beliefs says. Raises UserError where the tables do not know a critic."""

    def __init__(
        self,
        critics: Sequence[Critic],
        verifier: Judge,
        rewrite: Rewrite,
        config: ControlConfig | None = None,
        tables: Tables | None = None,
        *,
        tries: int = 2,
        learn: bool = False,
    ) -> None:
        """``tries``: how often a verifier that cannot run is asked.
        ``learn``: verified transitions move the kernel (from 10 of them on)."""
        self.critics = {critic.name: critic for critic in critics}
        self.verifier, self.rewrite, self.tries = verifier, rewrite, tries
        self.config = config or ControlConfig()
        fixed = {name: critic.cost for name, critic in self.critics.items() if isinstance(critic.cost, int | float)}
        named = {one.rpartition("=")[0] for one in self.config.costs}
        more = tuple(f"{name}={cost}" for name, cost in fixed.items() if name not in named)
        self.config = self.config.model_copy(update={"costs": (*self.config.costs, *more)})
        ControlConfig.model_validate(self.config.model_dump())
        self.counters = Counters() if learn else None
        self.tables: Tables | None = None
        if tables is not None:
            self._use(tables)

    def calibrate(self, records: Iterable[CandidateAttempt] | str | Path) -> Tables:
        """Make the tables of attempts, or of the run or file that holds them, and plan. Raises UserError as calibration does."""
        source = read_source(Path(records)) if isinstance(records, str | Path) else list(records)
        self._use(calibrate(source))
        assert self.tables is not None
        return self.tables

    def _use(self, tables: Tables) -> None:
        missing = [name for name in self.critics if name not in tables.names]
        if missing:
            raise UserError(f"the tables know no critic '{missing[0]}'; they know {', '.join(tables.names)}")
        self.tables = tables.only(list(self.critics))
        plan = Plan(self.tables, self.config) if self.config.planner == "dp" else None
        self._decide = greedy(self.tables, self.config) if plan is None else plan.decide

    def regime(self) -> Regime:
        """Which fixed rule is within 1 of the optimum, and how much the best one loses."""
        tables = self._tables()
        (row,) = regimes(tables, self.config, [self.config.c_ver])
        return row

    def _tables(self) -> Tables:
        if self.tables is None:
            raise UserError("the controller has no tables: call calibrate first, or give it some")
        return self.tables

    async def run(self, task: Item | str, first: str | None = None, record: Run | None = None) -> TaskOutcome:
        """Work on ``task`` to an end. ``first``: its first candidate, else one is written.

        ``record``: a run that keeps the candidates, every score with its judge's identity, and the decisions. A critic that could
        not run leaves the belief as it was; a verifier that could not, after all tries,
        ends the task undelivered: that says nothing of the candidate.
        """
        item = task if isinstance(task, Item) else Item(id=stable_hash(task)[:12], prompt=task)
        tracker = Tracker(self._tables(), resets=self.config.planner == "greedy")
        text = first if first is not None else await self._written(item, None, {})
        kept = _Kept(record, item)
        kept.candidate(text)
        found = TaskOutcome(text, tracker.state.belief, False, None)
        answers: dict[str, Any] = {}
        verified_before: bool | None = None
        while True:
            action = self._decide(tracker.state)
            found.actions.append(action)
            kept.decision(action, tracker.state.belief)
            if action in (STOP, SHIP):
                found.delivered = action == SHIP
                break
            if action == VERIFY:
                truth = await self._verified(item, text, found, kept)
                if truth is not None:
                    self._learn(verified_before, truth)
                    verified_before = truth
                found.verified, found.delivered = truth, truth is True
                found.belief = tracker.state.belief if truth is None else float(truth)
                if truth is False and self.config.after_verify == "continue":
                    tracker.refused()
                    continue
                break
            if action == REWRITE:
                found.cost += self.config.c_gen
                found.tried.append((text, tracker.state.belief))
                before, text = text, await self._written(item, text, answers)
                same = same_text(CodeCandidate(None, {}, before), CodeCandidate(None, {}, text))
                kept.belief(tracker.state.belief)
                kept.candidate(text)
                tracker.rewritten(same)
                answers = answers if same else {}
                found.candidate, found.verified = text, None
                continue
            answers[action] = await self._ask(action, item, text, tracker, found, kept)
        found.candidate, found.contradicted = text, tracker.contradicted
        if found.verified is None:
            found.belief = tracker.state.belief
        found.tried.append((text, found.belief))
        failed = action == VERIFY and found.verified is None
        kept.end(found.verified, found.failures[-1] if failed else None)
        kept.belief(found.belief)
        return found

    async def _written(self, item: Item, last: str | None, answers: Mapping[str, Any]) -> str:
        made = self.rewrite(item, last, answers)
        text = await made if inspect.isawaitable(made) else made
        if not isinstance(text, str):
            raise UserError(f"the rewriter returned a {type(text).__name__}; a candidate is text")
        return text

    async def _ask(self, name: str, item: Item, text: str, tracker: Tracker, found: TaskOutcome, kept: _Kept) -> Any:
        critic = self.critics[name]
        (one,) = await judged(critic.judge, [replace(item, text=text)])
        found.cost += critic.cost(text) if callable(critic.cost) else self.config.cost(name)
        if one.failure:
            found.failures.append(f"{name}: {one.failure}")
        tracker.observe(name, self._tables().critics[name].level(one.value))
        kept.score(name, one.value, CHECK, critic.judge.identity, one.failure)
        return one.value

    async def _verified(self, item: Item, text: str, found: TaskOutcome, kept: _Kept) -> bool | None:
        for _ in range(max(1, self.tries)):
            found.cost += self.config.c_ver
            (one,) = await judged(self.verifier, [replace(item, text=text)])
            if one.value is not None:
                break
            found.failures.append(f"verifier: {one.failure or 'it cannot say'}")
        if one.value not in (None, 0, 1):
            raise UserError(f"the verifier '{self.verifier.name}' gave {one.value:g}, where only yes and no count")
        kept.score(VERIFIER, one.value, "reward", self.verifier.identity, one.failure)
        return None if one.value is None else bool(one.value)

    def _learn(self, before: bool | None, after: bool) -> None:
        if self.counters is None or before is None:
            return
        self.counters.add(before, after)
        if self.counters.n >= FEW:
            self._use(self._tables().model_copy(update={"kernel": self.counters.kernel(), "kernel_rejected": None}))


class _Kept:
    """What a run keeps of a task; nothing where there is no run."""

    def __init__(self, run: Run | None, item: Item) -> None:
        self.run, self.decisions = run, list[TakenAction]()
        if run is not None:
            tree = item.id or "task"
            run.add_tree(tree, {"id": tree, "data": dict(item.data)})
            self.node = root(run, tree)
            if item.prompt:
                self._hang(Message("user", item.prompt))
            self.index = sum(1 for node in run.nodes(tree) if node.role == "assistant")

    def _hang(self, message: Message, index: int = -1) -> None:
        assert self.run is not None
        self.node = make_node(self.node.tree, self.node.id, len(self.node), message.role, message.text, index=index)
        self.run.add(self.node)

    def candidate(self, text: str) -> None:
        if self.run is not None:
            self._hang(Message("assistant", text), self.index)
            self.decisions = []
            self.run.commit()

    def decision(self, action: str, belief: float) -> None:
        if self.run is not None:
            self.decisions.append(TakenAction(action, belief))
            self.run.add(Annotation(self.node.id, len(self.node), "decisions", MAKER, codec.to_json(self.decisions)))

    def score(self, name: str, value: Any, unit: str, identity: str, failure: str) -> None:
        if self.run is not None:
            number = None if value is None else float(value)
            self.run.add(
                Score(
                    self.node.id, name, number, unit, evidence={"failure": failure} if failure else None, judges={name: identity}
                )
            )

    def end(self, verified: bool | None, failure: str | None) -> None:
        if self.run is not None:
            reward = None if verified is None else float(verified)
            self.run.add(
                AttemptRecord(self.node.id, self.node.tree, index=self.index, outcome=verified, reward=reward, failure=failure)
            )

    def belief(self, value: float) -> None:
        if self.run is not None:
            self.run.add(Score(self.node.id, BELIEF, value, PROBABILITY))
            self.run.commit()
