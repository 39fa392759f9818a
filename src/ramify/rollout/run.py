"""Grow trees: play an agent in an environment and store every message as a node, as many episodes at once as the model can batch.

A sample is keyed by its position (run seed, parent node, offset, purpose, sample index), so the tree does not depend on how many
episodes run at once, on their order, or on where an earlier run was interrupted: stored attempts are loaded, the rest sampled.

The environment's side is in ``stage.py``, the store's in ``record.py``, the prompt's in ``prompt.py``; turns are made here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError
from ramify.base.ids import stable_hash
from ramify.env.protocol import Env, Environment, Observation, Task, Volatile, tools_of
from ramify.model.asked import as_asked, shape_of
from ramify.model.protocol import Prefix, Sampling
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt, Draw, Turn, as_turn
from ramify.rollout.edits import Change, taps_of
from ramify.rollout.prompt import Prompts
from ramify.rollout.record import Position, Record
from ramify.rollout.sampler import FailurePolicy, Sampler, sample_key
from ramify.rollout.stage import Stage, check
from ramify.trace.db import Run
from ramify.trace.message import Message
from ramify.trace.node import FORK, RECORDED, ROLLOUT, AttemptRecord, Node, Provenance, Score
from ramify.trace.tree import Tree
from ramify.trace.view import TokenMessage

_KIND = "answered"


class Answering:
    """What ``run`` knows of the server behind ``model``, if it is one. Middleware is looked through."""

    def __init__(self, run: Run, model: Any) -> None:
        while (inner := getattr(model, "inner", None)) is not None:
            model = inner
        self.run, self.model = run, model if hasattr(model, "answered") else None
        self._kept = ""
        if self.model is not None:
            self._kept = next((str(entry.payload) for entry in run.journal(_KIND, self._key)), "")
            self.model.answered = self._kept

    @property
    def _key(self) -> str:
        return str(self.model.identity.weights)  # type: ignore[union-attr]  # called where there is a model

    def keep(self) -> None:
        """Store the name of who answered first."""
        if self.model is not None and not self._kept and self.model.answered:
            self._kept = self.model.answered
            self.run.log(_KIND, self._key, self._kept)


REPLAY = "replay"
"""Purpose of what only repeats recorded replies."""


@dataclass(frozen=True)
class _Which:
    """Which attempt is played: its draw, where it starts (None: at the beginning), and who samples it (None: nobody)."""

    draw: Draw
    start: tuple[Node, int] | None
    provenance: Provenance | None
    insert: Node | None = None
    """Where it starts, where that is an edit that may not be stored yet."""
    known: AttemptRecord | None = None
    """Its record so far, where it was recorded elsewhere."""

    def record(self, leaf: Node, **ended: Any) -> AttemptRecord:
        """Its record, ending at ``leaf``; ``ended``: how (fields of the record)."""
        if self.known is not None:
            return replace(self.known, leaf=leaf.id, **ended)
        start, offset = (None, 0) if self.start is None else (self.start[0].id, self.start[1])
        by = None if self.provenance is None else self.provenance.hash
        made = AttemptRecord(leaf.id, leaf.tree, start, offset, self.draw.purpose, self.draw.index, provenance=by)
        return replace(made, **ended)


class Episodes:
    """Plays episodes of one agent in one environment and writes them into one run. Call the coroutines from one event loop."""

    def __init__(
        self,
        agent: Agent,
        environment: Environment,
        run: Run,
        seed: int = 0,
        group: str = "",
        budget: Budget | None = None,
        policy: FailurePolicy | None = None,
    ) -> None:
        self.agent, self.environment, self.run, self.group = agent, environment, run, group
        self.sampler = Sampler(agent.model, seed, budget=budget, retries=policy)
        self.stage, self.record = Stage(environment, run), Record(run, agent.template, group)
        self.prompts = Prompts(agent, self.record, self.sampler)
        self.trees = self.record.trees
        """Trees in memory, by name."""
        self.on_attempt: Callable[[Attempt], object] = lambda attempt: None
        """Called with every attempt that ended."""
        identity = agent.model.identity
        self.answering = Answering(run, agent.model)
        self.provenance = Provenance(identity.name, identity.weights, agent.settings(agent.sampling), seed)
        run.add(self.provenance)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Every attempt is committed when it ends, so a kill loses those under way and nothing else."""
        on_attempt = self.on_attempt

        def kept(attempt: Attempt) -> None:
            self.run.commit()
            on_attempt(attempt)

        self.on_attempt = kept
        try:
            yield
        finally:
            self.on_attempt = on_attempt

    async def attempt(self, tree: str, task: Task, index: int, turns: int | None = None, purpose: str = ROLLOUT) -> Attempt:
        """Play attempt ``index`` of ``task`` from the beginning; ``tree`` names the tree it belongs to.

        It pauses after ``turns`` turns where it has not ended by then: no record is stored, and :meth:`branch` continues it.
        ``purpose``: see :class:`ramify.trace.node.AttemptRecord`; attempts of another one are other samples."""
        which = _Which(Draw(index, purpose), None, self.provenance)

        async def go(env: Env, first: Node) -> Attempt:
            return await self._play(env, task, self.prompts.at(first), which, turns=turns)

        return await self._episode(tree, task, None, which, go)

    async def branch(
        self,
        tree: str,
        task: Task,
        node_id: str,
        index: int,
        turns: int | None = None,
        held: Mapping[int, TokenMessage] | None = None,
        purpose: str = ROLLOUT,
    ) -> Attempt:
        """Put the environment back to its state after ``node_id`` (an observation) and continue from there with sample ``index``.

        ``turns`` and ``purpose`` as in :meth:`attempt`. ``held`` are turns, counted from 0 at ``node_id``, at which this reply is
        given instead of sampled, whatever was observed before it; ``index`` applies to the first turn that is sampled. An attempt
        of held turns alone is stored without a record: it is not a sample."""
        back_to = self.load(tree).node(node_id)
        which = _Which(Draw(index, purpose), (back_to, len(back_to)), self.provenance)

        async def go(env: Env, node: Node) -> Attempt:
            return await self._play(env, task, self.prompts.at(node), which, turns=turns, held=held or {})

        return await self._episode(tree, task, back_to, which, go)

    async def edited(
        self,
        tree: str,
        task: Task,
        node_id: str,
        offset: int,
        index: int,
        insert: Node | None = None,
        change: Change | None = None,
        purpose: str = FORK,
        turns: int | None = None,
    ) -> Attempt:
        """Keep ``offset`` tokens of message ``node_id``, continue with ``insert`` if given, sample the rest and play on.

        In the agent's own message the environment goes back to its state before the message and acts on the whole new reply;
        after an observation it keeps the state it had then. ``change`` says what else is other than it was. ``turns`` and
        ``purpose`` as in :meth:`attempt`.
        """
        path = self.load(tree).path(node_id)
        node = path.segments[-1][0]
        which = _Which(Draw(index, purpose), self._place(node, offset, insert), self._sampling(change)[1], insert)

        async def go(env: Env, _: Node) -> Attempt:
            if insert is not None:
                self.trees[tree].add(insert)
                position = replace(self.prompts.at(insert), insert=insert)
            else:
                position = self.prompts.at(node, offset if node.role == "assistant" else None)
            if change is not None and change.rewrite is not None:
                position = self.prompts.instead(position, change.rewrite(self.prompts.shown(position.parent, position.offset)))
            return await self._play(env, task, position, which, change, turns)

        return await self._episode(tree, task, next(n for n, _ in reversed(path.segments) if n.role != "assistant"), which, go)

    def _place(self, node: Node, offset: int, insert: Node | None) -> tuple[Node, int]:
        """Where what continues from ``offset`` of ``node``, or from ``insert`` there, starts (:meth:`Prompts.at`)."""
        if insert is not None:
            return insert, len(insert)
        if node.role == "assistant" and offset > 0:
            return node, offset
        start = self.load(node.tree).node(str(node.parent)) if node.role == "assistant" else node
        return start, len(start)

    async def reissue(self, tree: str, task: Task, start: Node, actions: Sequence[str]) -> Attempt:
        """Apply given replies after observation ``start``, as far as the environment goes; nothing is sampled."""

        async def go(env: Env, _: Node) -> Attempt:
            position, turns, failure = self.prompts.at(start), [], None
            for action in actions:
                after = position.messages[-1].role
                node = self.record.given(position.parent, "assistant", action, after)
                try:
                    turn = await self._answered(env, position, node)
                except InfrastructureError as error:
                    failure = str(error)
                    break
                turns.append(turn)
                position = self.prompts.after(position, turn)
                if turn.answer.stop:
                    break
            leaf = position.parent
            failure = failure or leaf.data.get("failure")
            outcome = None if failure else bool(leaf.data.get("outcome", False))
            truncated = failure is None and leaf.stop != "terminated"
            return Attempt(tree, task, -1, start.id, tuple(turns), position.reward, outcome, truncated, failure, leaf.id)

        return await self._episode(tree, task, start, _Which(Draw(-1, REPLAY), (start, len(start)), None), go)

    async def judged(self, tree: str, task: Task, leaf: str) -> Attempt:
        """Play the recorded attempt that ends in reply ``leaf`` again, to the environment's answer, which is stored with its
        score and record. Nothing is sampled. What does not come to an end has no outcome."""
        path = [node for node, _ in self.load(tree).path(leaf).segments]
        first = next(node for node in path if node.role not in ("root", "system"))
        before = next(node for node in reversed(path) if node.role != "assistant")
        index = next(node.index for node in path if node.role == "assistant" and node.provenance == path[-1].provenance)
        known = next(iter(self.run.attempts(leaf=leaf)), AttemptRecord(leaf, tree, None, 0, RECORDED, index))
        which = _Which(Draw(known.index, known.purpose), None, None, None, known)

        async def go(env: Env, _: Node) -> Attempt:
            position = self.prompts.at(before)
            try:
                turn = await self._answered(env, position, path[-1])
            except InfrastructureError as error:
                return Attempt(tree, task, index, first.id, (), position.reward, None, False, str(error), leaf)
            end, data = self.prompts.after(position, turn), turn.answer.data
            if not turn.answer.stop:
                why = "the recording ends before the agent does"
                return Attempt(tree, task, index, first.id, (turn,), end.reward, None, False, why, end.parent.id)
            cut, failure = turn.answer.stop == "truncated", data.get("failure")
            return self._ended(task, self.prompts.at(first), end, which, (turn,), data.get("outcome"), cut, failure)

        return await self._episode(tree, task, before, which, go)

    def load(self, tree: str) -> Tree:
        """The tree in memory, read from the run when it is not there yet. Raises UserError when the run has none of that name."""
        return self.record.load(tree)

    async def _episode(
        self, tree: str, task: Task, back_to: Node | None, which: _Which, go: Callable[[Env, Node], Awaitable[Attempt]]
    ) -> Attempt:
        """Open an environment, bring it to its state after ``back_to`` (None: the start), play, and close it whatever happens.

        An environment that fails before that is a failed attempt without turns.
        """
        async with self.stage.gate():
            try:
                env = self.stage.make()
            except InfrastructureError as error:
                return self._failed(tree, task, which, str(error))
            try:
                try:
                    node = await self._begin(env, tree, task, back_to)
                    replayed = 0
                    if back_to is not None:
                        node, replayed = back_to, await self.stage.restore(env, task, back_to, self.trees[tree])
                except InfrastructureError as error:
                    return self._failed(tree, task, which, str(error))
                attempt = replace(await go(env, node), replayed=replayed)
                self.on_attempt(attempt)
                return attempt
            finally:
                await self.stage.close(env)

    def failed(self, tree: str, task: Task, start: Node | None, draw: Draw, why: str) -> Attempt:
        """An attempt that failed before its first turn, stored where it would have started (None: at the tree's root)."""
        place = None if start is None else (start, len(start))
        return self._failed(tree, task, _Which(draw, place, self.provenance), why)

    def _failed(self, tree: str, task: Task, which: _Which, why: str) -> Attempt:
        if which.known is not None:  # it stays as it was recorded
            return Attempt(tree, task, which.draw.index, "", (), 0.0, None, False, why, which.known.leaf)
        root = self.record.root(tree, task)
        start, offset = which.start or (root, len(root))
        position = Position(start, offset, [], [], 0.0, 0, insert=which.insert)
        return self._ended(task, position, position, which, (), None, False, why)

    async def _begin(self, env: Env, tree: str, task: Task, back_to: Node | None) -> Node:
        """Reset ``env`` to the start of ``task``; the node of its first observation, stored once per tree.

        Raises InfrastructureError where the environment starts otherwise than it did for this tree before.
        """
        recorded: list[Message] = []
        if back_to is not None:
            self.stage.branch(env, back_to, self.trees[tree])
            path = self.trees[tree].path(back_to.id).segments
            recorded = [next(node for node, _ in path if node.role not in ("root", "system")).message]
        first = await self.stage.reset(env, task, sample_key(self.sampler.seed, ("env", tree)), recorded)
        node = self.record.root(tree, task)
        starts = self._starts(tree, getattr(env, "varies", False), back_to)
        for start in starts:
            try:
                check(task, 0, start, first)
                return start
            except InfrastructureError:
                if first.failure or back_to is not None or not getattr(env, "varies", False):
                    raise
        if not starts and (known := self.trees[tree].children(node.id)):
            node = known[0]
        if env.system and node.role == "root":
            node = self.record.given(node, "system", env.system, "")
            self.record.add(node)
        start = self._observed(env, node, first, "" if node.role == "root" else node.role, data=dict(first.data))
        self.record.add(start)
        return start

    def _starts(self, tree: str, varies: bool, back_to: Node | None) -> list[Node]:
        """The first observations of a tree, without those that are edits: one, but where an environment that is not ours to seed
        ``varies``; there, to go ``back_to`` a node, the one above it."""
        known = self.trees[tree]
        heads = [node for node in known.children(known.root.id) if "edit" not in node.data]
        starts = [
            start
            for node in heads
            for start in ([node] if node.role != "system" else known.children(node.id))
            if "edit" not in start.data
        ]
        if varies and back_to is not None:
            above = {node.id for node, _ in known.path(back_to.id).segments}
            near = [start for start in starts if any(node.id in above for node in known.children(str(start.parent)))]
            starts = [start for start in near if start.id in above] or near
        return starts if varies and back_to is None else starts[:1]

    def _observed(self, env: Env, parent: Node, seen: Observation, after: str, **fields: Any) -> Node:
        """An observation after ``parent``, not stored yet, with the environment's state when it can report one."""
        kept, state_key = self.stage.state(env)
        fields |= {"snapshot": self.record.durable(kept), "state_key": state_key}
        node = self.record.given(parent, seen.role, seen.text, after, **fields)
        if isinstance(kept, Volatile):
            self.stage.keep(node.id, kept)
        return node

    async def _play(
        self,
        env: Env,
        task: Task,
        position: Position,
        which: _Which,
        change: Change | None = None,
        turns: int | None = None,
        held: Mapping[int, TokenMessage] = MappingProxyType({}),
    ) -> Attempt:
        """Turn after turn to the end of the episode, or a pause after ``turns``. The index and ``change`` apply to the first
        sample; later ones are the only child. ``held``: see :meth:`branch`."""
        start, draw, played = position, which.draw, list[Turn]()
        outcome: bool | None = False
        truncated, failure = True, None
        while position.turns < env.max_turns and not self.sampler.budget.spent_out:
            if turns is not None and len(played) >= turns:
                return self._paused(task, start, position, which, tuple(played))
            given = held.get(len(played))
            try:
                if given is not None:
                    turn = await self._answered(env, position, self.record.held(position, given))
                else:
                    turn = await self._stored_turn(env, task, position, draw, change) or await self._turn(
                        env, position, draw, change
                    )
            except InfrastructureError as error:
                outcome, truncated, failure = None, False, str(error)
                break
            played.append(turn)
            position = self.prompts.after(position, turn)
            if turn.answer.stop:
                truncated, outcome = turn.answer.stop == "truncated", turn.answer.data.get("outcome")
                failure = turn.answer.data.get("failure") if turn.answer.stop == "failed" else None
                break
            if given is None:
                draw, change = Draw(0, draw.purpose), change if change is not None and change.shown is not None else None
        if played and failure is None and all(i in held for i in range(len(played))):
            return Attempt(
                start.parent.tree,
                task,
                which.draw.index,
                start.parent.id,
                tuple(played),
                position.reward,
                outcome,
                truncated,
                None,
                position.parent.id,
            )
        return self._ended(task, start, position, which, tuple(played), outcome, truncated, failure)

    def _paused(self, task: Task, start: Position, end: Position, which: _Which, turns: tuple[Turn, ...]) -> Attempt:
        """An attempt that stops for now: its turns are stored, and no record; that of an earlier try that failed is gone."""
        here, leaf = start.parent, end.parent
        self.run.take_back(which.record(leaf))
        return Attempt(here.tree, task, which.draw.index, here.id, turns, end.reward, None, False, None, leaf.id, paused=True)

    def _ended(
        self,
        task: Task,
        start: Position,
        end: Position,
        which: _Which,
        turns: tuple[Turn, ...],
        outcome: bool | None,
        truncated: bool,
        failure: str | None,
    ) -> Attempt:
        """The attempt, with its record stored, and the environment's score at its end where no failure ended it."""
        leaf, tree, index = end.parent, start.parent.tree, which.draw.index
        if start.insert is not None:
            self.record.add(start.insert)
        if which.provenance is not None and which.provenance != self.provenance:
            self.run.add(which.provenance)
        if failure is None:
            self.run.add(Score(leaf.id, "env", end.reward, judges={"env": stable_hash("world", self.environment.name)}))
        reward = None if failure else end.reward
        self.run.add(which.record(leaf, outcome=outcome, reward=reward, truncated=truncated, failure=failure))
        return Attempt(tree, task, index, start.parent.id, turns, end.reward, outcome, truncated, failure, leaf.id)

    def _sampling(self, change: Change | None) -> tuple[Sampling, Provenance]:
        """How the next reply is sampled, and what is stored of that."""
        if change is None:
            return self.agent.sampling, self.provenance
        sampling = replace(self.agent.sampling, ban_first=change.ban)
        return sampling, replace(self.provenance, settings=self.agent.settings(sampling), edit=change.stored())

    async def _stored_turn(self, env: Env, task: Task, position: Position, draw: Draw, change: Change | None) -> Turn | None:
        """The stored turn at this position, if it is complete; the environment is brought to the state after it."""
        known = self.record.known(position.parent, position.offset, draw, self._sampling(change)[1].hash)
        if known is None:
            return None
        node, answer = known
        if answer.snapshot is not None:
            await self.stage.restore(env, task, answer, self.trees[answer.tree])
        else:
            seen = await self._step(env, position, node, [answer.message])
            try:
                check(task, position.turns + 1, answer, seen)
            except InfrastructureError:
                if seen.failure or not getattr(env, "varies", False):
                    raise
                return self._stored_answer(env, position, node, seen)  # the same reply, answered otherwise this time
        return as_turn(node, answer)

    async def _turn(self, env: Env, position: Position, draw: Draw, change: Change | None) -> Turn:
        """Sample one reply and let the environment answer it."""
        position = await self.prompts.fitted(position)
        sampling, provenance = self._sampling(change)
        edit = None if change is None else change.shown
        prompt = self.prompts.prompt(position, tools_of(self.environment), getattr(env, "asked", None), edit)
        taps = None
        if change is not None and change.state is not None:
            assert prompt.prefix.tokens is not None
            taps = taps_of(change.state, len(prompt.prefix.tokens))
        at = (position.parent.id, position.offset, draw.purpose)
        asked = self.as_asked(sampling, prompt.prefix)
        completion = await self.sampler.one(prompt.prefix, asked, at, draw.index, "turn", taps)
        if shape_of(asked) != shape_of(sampling):  # those under which the provenance says that it was sampled are not known
            completion = replace(completion, logprobs=None)
        self.answering.keep()
        if position.insert is not None:
            self.record.add(position.insert)
        if change is not None:
            self.run.add(provenance)
        node = self.record.sampled(position, prompt, completion, provenance, draw)
        self.sampler.budget.charge(turns=1)
        return await self._answered(env, position, node)

    def as_asked(self, sampling: Sampling, prefix: Prefix) -> Sampling:
        """``sampling`` as the agent's program asks, where the model is in this process: an endpoint is sent what is asked."""
        if self.agent.template is None or not prefix.asked or hasattr(self.agent.model, "forwards"):
            return sampling
        return as_asked(sampling, prefix, self.agent.follows)

    async def _step(self, env: Env, position: Position, node: Node, recorded: Sequence[Message] = ()) -> Observation:
        message = replace(node.message, text=position.begun + node.text) if position.begun else node.message
        return await self.stage.step(env, message, node.stop, recorded)

    async def _answered(self, env: Env, position: Position, node: Node) -> Turn:
        """Let the environment act on the whole reply; store reply and answer."""
        turn = self._stored_answer(env, position, node, await self._step(env, position, node))
        if getattr(env, "varies", False):  # what was paid for is on the disk, however the attempt ends
            self.run.commit()
        return turn

    def _stored_answer(self, env: Env, position: Position, node: Node, seen: Observation) -> Turn:
        """Store the whole reply and the answer ``seen``."""
        stop = "terminated" if seen.terminated else "truncated" if seen.truncated or position.turns + 1 >= env.max_turns else ""
        data = {**seen.data, **({} if seen.valid else {"valid": False})}
        if seen.failure:
            stop, data["failure"] = "failed", seen.failure
        elif stop:
            # an environment that reports no outcome succeeded if it ended by itself with a reward
            data["outcome"] = seen.outcome if seen.outcome is not None else seen.terminated and seen.reward > 0
        answer = self._observed(env, node, seen, "assistant", reward=float(seen.reward), stop=stop, data=data)
        self.record.add(node, answer)
        return as_turn(node, answer)
