"""Grow trees: play an agent in a world and store every message as a node, as many episodes at once as the model can batch.

A draw is keyed by its place (run seed, parent node, offset, sample index), so the tree does not depend on how many episodes run
at once, on their order, or on where an earlier run was cut off: an attempt that is stored already is read, not drawn again.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import BoundaryError, RamifyError
from ramify.base.ids import canonical_json, stable_hash
from ramify.env.protocol import Env, Observation, Snapshot, Task, Volatile, World, close, tools_of
from ramify.model.chat import JinjaTemplate, assistant_node_parts
from ramify.model.protocol import Message, Prefix, Sampling
from ramify.rollout.agent import Agent as Agent
from ramify.rollout.attempts import Attempt as Attempt
from ramify.rollout.attempts import Turn as Turn
from ramify.rollout.attempts import as_turn as as_turn
from ramify.rollout.compact import fitted
from ramify.rollout.edits import Change, taps_of
from ramify.rollout.failures import FailurePolicy
from ramify.rollout.replay import check, restore
from ramify.rollout.sampler import Sampler, sample_key
from ramify.rollout.shown import head_of, rendered_parts
from ramify.trace.context import HISTORY, changed, context_of_parts, seen, whole_tokens
from ramify.trace.db import Run
from ramify.trace.node import Node, Producer, Verdict, make_node
from ramify.trace.path import Part, as_messages
from ramify.trace.tree import Tree

VOLATILE = 256
"""Snapshots that cannot be stored are kept for this many of the newest messages."""
T = TypeVar("T")


@dataclass
class _Place:
    """Where the next message goes: the path so far, in the form the model wants."""

    parent: Node
    offset: int
    tokens: list[np.ndarray]
    messages: list[Message]
    reward: float
    turns: int
    begun: str | None = None
    """Text of the reply begun already, when a fork goes on inside it."""
    shown: list[Part] | None = None
    """The model's history where that is not the path: something was compacted or edited. What it is shown of it, its template says."""
    insert: Node | None = None
    """The parent where it is an edit, which is stored with what is drawn behind it: one that the model refuses leaves nothing."""


class Episodes:
    """Plays episodes of one agent in one world and writes them into one run. Call the coroutines from one event loop."""

    def __init__(
        self,
        agent: Agent,
        world: World,
        run: Run,
        seed: int = 0,
        group: str = "",
        budget: Budget | None = None,
        policy: FailurePolicy | None = None,
    ) -> None:
        self.agent, self.world, self.run, self.group = agent, world, run, group
        self.sampler = Sampler(agent.model, seed, budget=budget, retries=policy)
        self.trees: dict[str, Tree] = {}
        self.tell: Callable[[Attempt], object] = lambda attempt: None
        """Called with every attempt that ended."""
        self._volatile: OrderedDict[str, Volatile] = OrderedDict()
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        identity = agent.model.identity
        self.producer = Producer(identity.name, identity.weights, agent.settings(agent.sampling), seed)
        run.add(self.producer)

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """Play attempt ``index`` of ``task`` from the beginning; ``tree`` names the tree it belongs to."""

        async def go(env: Env, first: Node) -> Attempt:
            return await self._play(env, task, self._place_at(first), index)

        return await self._episode(tree, task, None, index, go)

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """Put the world back to its state after ``node_id`` (an observation) and go on from there with sample ``index``."""

        async def go(env: Env, node: Node) -> Attempt:
            return await self._play(env, task, self._place_at(node), index)

        return await self._episode(tree, task, self.load(tree).node(node_id), index, go)

    async def edited(
        self,
        tree: str,
        task: Task,
        node_id: str,
        offset: int,
        index: int,
        insert: Node | None = None,
        change: Change | None = None,
    ) -> Attempt:
        """Keep ``offset`` tokens of message ``node_id``, go on with ``insert`` if given, draw the rest and play on.

        In the agent's own message the world goes back to its state before the message and acts on the whole new reply; after an
        observation it keeps the state it had then. ``change`` says what else is other than it was.
        """
        path = self.load(tree).path(node_id)
        node = path.segments[-1][0]

        async def go(env: Env, _: Node) -> Attempt:
            if insert is not None:
                self.trees[tree].add(insert)
                place = replace(self._place_at(insert), insert=insert)
            elif node.role == "assistant" and offset == 0:
                place = self._place_at(self.trees[tree].node(str(node.parent)))
            else:
                place = self._place_at(node, offset if node.role == "assistant" else None)
            if change is not None and change.rewrite is not None:
                parts = change.rewrite(self.shown(place.parent, place.offset))
                place = replace(place, **self._laid_out(parts), shown=parts)
            return await self._play(env, task, place, index, change)

        return await self._episode(tree, task, next(n for n, _ in reversed(path.segments) if n.role != "assistant"), index, go)

    async def reissue(self, tree: str, task: Task, start: Node, actions: Sequence[str]) -> Attempt:
        """Apply given replies after observation ``start``, as far as the world goes; nothing is drawn."""

        async def go(env: Env, _: Node) -> Attempt:
            place, turns, failure = self._place_at(start), [], None
            for action in actions:
                after = place.messages[-1].role
                node = self._given(place.parent, "assistant", action, after)
                try:
                    turn = await self._answered(env, place, node)
                except BoundaryError as error:
                    failure = str(error)
                    break
                turns.append(turn)
                place = self._after(place, turn)
                if turn.answer.stop:
                    break
            leaf = place.parent
            outcome = None if failure else bool(leaf.data.get("outcome", False))
            truncated = failure is None and leaf.stop != "terminated"
            return Attempt(tree, task, -1, start.id, tuple(turns), place.reward, outcome, truncated, failure, leaf.id)

        return await self._episode(tree, task, start, -1, go)

    def load(self, tree: str) -> Tree:
        """The tree in memory, read from the run when it is not there yet. Raises UserError when the run has none of that name."""
        if tree not in self.trees:
            self.trees[tree] = self.run.tree(tree)
        return self.trees[tree]

    def replaced(self, node: Node, text: str) -> Node:
        """An observation that says ``text`` in the place of ``node``; the world's state stays what it was."""
        parent = self.load(node.tree).node(str(node.parent))
        after = "" if parent.role == "root" else parent.role
        return self._like(node, parent, node.role, text, after, {"replace": text}, node.reward)

    def inserted(self, node: Node, role: str, text: str) -> Node:
        """One more message, behind observation ``node``; the world's state stays what it was."""
        return self._like(node, node, role, text, node.role, {"insert": {"role": role, "text": text}}, None)

    def _like(self, node: Node, parent: Node, role: str, text: str, after: str, edit: Any, reward: float | None) -> Node:
        fields = {"snapshot": node.snapshot, "state_key": node.state_key, "reward": reward, "data": {"edit": edit}}
        return self._given(parent, role, text, after, None, **fields)

    async def _episode(
        self, tree: str, task: Task, back_to: Node | None, index: int, go: Callable[[Env, Node], Awaitable[Attempt]]
    ) -> Attempt:
        """Open a world, bring it to its state after ``back_to`` (None: the start), play, and close it whatever happens.

        A world that does not come that far is a failed attempt without turns.
        """
        async with self._gate():
            try:
                env = _guard("env", f"making the world '{self.world.name}'", self.world.make)
            except BoundaryError as error:
                return self.failed(tree, task, back_to, index, str(error))
            try:
                try:
                    node = await self._begin(env, tree, task)
                    replayed = 0
                    if back_to is not None:
                        node, replayed = back_to, await self._restore(env, task, back_to)
                except BoundaryError as error:
                    return self.failed(tree, task, back_to, index, str(error))
                attempt = replace(await go(env, node), replayed=replayed)
                self.tell(attempt)
                return attempt
            finally:
                with suppress(BoundaryError):  # what was played stands, however badly the world leaves
                    await self._world("env", "close", lambda: close(env))

    def failed(self, tree: str, task: Task, start: Node | None, index: int, why: str) -> Attempt:
        """An attempt that did not come to its first turn, noted where it would have started (None: at the tree's root)."""
        at = start or self._root(tree, task)
        place = _Place(at, len(at), [], [], 0.0, 0)
        return self._ended(task, place, place, index, (), None, False, why)

    def _gate(self) -> AbstractAsyncContextManager[Any]:
        """Held while an episode is open, where the world limits how many may be."""
        limit = getattr(self.world, "at_once", None)
        if limit is None:
            return nullcontext()
        loop = asyncio.get_running_loop()
        if loop not in self._gates:
            self._gates = {loop: asyncio.Semaphore(limit)}
        return self._gates[loop]

    async def _world(self, boundary: str, what: str, action: Callable[[], T]) -> T:
        """Ask the world something, in a thread where it blocks."""
        if getattr(self.world, "blocking", False):
            return await asyncio.to_thread(_guard, boundary, what, action)
        return _guard(boundary, what, action)

    def _root(self, tree: str, task: Task) -> Node:
        """The root of a tree, which is stored when it is not there yet."""
        if tree not in self.trees:
            self.run.add_tree(tree, {"id": task.id, "data": dict(task.data)}, self.group)
            self.trees[tree] = self.run.tree(tree)
        if not len(self.trees[tree]):
            empty = None if self.agent.template is None else np.zeros(0, np.int32)
            self._add(make_node(tree, None, 0, "root", "", tokens=empty))
        return self.trees[tree].root

    async def _begin(self, env: Env, tree: str, task: Task) -> Node:
        """Reset ``env`` to the start of ``task``; the node of its first observation, stored once per tree.

        Raises BoundaryError where the world starts otherwise than it did for this tree before.
        """
        what = f"reset of task '{task.id}'"
        first = await self._world("env", what, lambda: _observed(env.reset(task, self._env_seed(tree))))
        node = self._root(tree, task)
        known = self.trees[tree]
        while children := [child for child in known.children(node.id) if "edit" not in child.data]:
            node = children[0]
            if node.role != "system":
                check(task, 0, node, first)
                return node
        if env.system and node.role == "root":
            node = self._given(node, "system", env.system, "")
            self._add(node)
        start = self._given(node, first.role, first.text, "" if node.role == "root" else node.role, env, data=dict(first.data))
        self._add(start)
        return start

    def _env_seed(self, tree: str) -> int:
        return sample_key(self.sampler.seed, ("env", tree))

    def _given(self, parent: Node, role: str, text: str, after: str, env: Env | None = None, **fields: Any) -> Node:
        """An unsampled message after ``parent``: a system text or an observation, with the world's state when it can tell."""
        if self.agent.template is not None:
            fields["tokens"], fields["ends"], text = self.agent.template.render(role, text, after)
        kept = None
        if env is not None:
            kept, state_key = _guard("env", "snapshot", lambda: (env.snapshot(), env.key()))
            fields |= {"snapshot": self._durable(kept), "state_key": state_key}
        node = make_node(parent.tree, parent.id, len(parent), role, text, **fields)
        if isinstance(kept, Volatile):
            self._volatile[node.id] = kept
            while len(self._volatile) > VOLATILE:
                self._volatile.popitem(last=False)
        return node

    def _durable(self, snapshot: Any) -> str | None:
        """A snapshot as a node stores it. Raises BoundaryError on one that cannot be stored and does not say so."""
        if snapshot is None or isinstance(snapshot, Volatile):
            return None
        if isinstance(snapshot, bytes):
            return "blob:" + self.run.put_blob(snapshot)
        try:
            return canonical_json(snapshot)
        except (TypeError, ValueError) as error:
            raise BoundaryError("env", f"a snapshot is neither JSON, bytes nor Volatile: {error}") from None

    def _add(self, *nodes: Node) -> None:
        for node in nodes:
            self.trees[node.tree].add(node)
        self.run.add(*nodes)

    async def _restore(self, env: Env, task: Task, node: Node) -> int:
        async def step(action: str) -> Observation:
            return await self._world("env", "step", lambda: _observed(env.step(action)))

        def back(snapshot: Snapshot) -> None:
            _guard("env", "restore", lambda: env.restore(snapshot))

        return await restore(back, step, task, node, self.trees[node.tree], self.run, self._volatile)

    def _place_at(self, node: Node, offset: int | None = None) -> _Place:
        """The place after ``node``, or after ``offset`` tokens of it, with what the model will be shown."""
        path = self.trees[node.tree].path(node.id)
        if offset is not None:
            path = path.upto(offset)
        nodes = [n for n, _ in path.segments]
        explicit = any(changed(n) for n in nodes)
        parts = self.shown(node, offset)
        prompt = self._laid_out(parts)
        inside = node.role == "assistant" and (offset is not None or node.producer is None)
        replies = sum(n.role == "assistant" and n.opens for n in nodes)
        return _Place(
            node,
            len(node) if offset is None else offset,
            prompt["tokens"],
            prompt["messages"],
            sum(n.reward or 0.0 for n in nodes),
            replies - inside,
            prompt["messages"][-1].text if inside else None,
            parts if explicit else None,
        )

    def shown(self, node: Node, offset: int | None = None) -> list[Part]:
        """The history of a model that goes on after ``node``, or after ``offset`` tokens of it."""
        known = self.load(node.tree)
        path = known.path(node.id)
        return seen(path if offset is None else path.upto(offset), known.node, self.run.context)

    async def _fitted(self, place: _Place) -> _Place:
        """``place`` with what is shown shortened by the agent's compactor where it is beyond the window."""
        if self.agent.compactor is None:
            return place
        parts = place.shown or self.shown(place.parent, place.offset)
        shown = await fitted(self.agent, parts, place.begun is None, self.sampler, ("compact", place.parent.id, place.offset))
        return place if shown is None else replace(place, **self._laid_out(shown), shown=shown)

    def tokens_of(self, parts: list[Part], begun: bool) -> np.ndarray:
        """int32 (T,): what the model is shown of the history ``parts``, which ends in its own reply, ``begun``, or not.

        Raises NeedsError where a part has text only, BoundaryError("template") where the template refuses the history.
        """
        if isinstance(self.agent.template, JinjaTemplate):
            parts = rendered_parts(self.agent.template, parts, not begun)[0] or parts
        return whole_tokens(parts)

    def _laid_out(self, parts: list[Part]) -> dict[str, Any]:
        tokens = [] if self.agent.template is None else [whole_tokens(parts)]
        return {"tokens": tokens, "messages": as_messages(parts)}

    async def _play(self, env: Env, task: Task, place: _Place, index: int, change: Change | None = None) -> Attempt:
        """Turn after turn to the end of the episode. ``index`` and ``change`` apply to the first draw; later ones are the only child."""
        start, first, turns = place, index, list[Turn]()
        outcome: bool | None = False
        truncated, failure = True, None
        while place.turns < env.max_turns and not self.sampler.budget.spent_out:
            try:
                turn = await self._stored_turn(env, task, place, index, change) or await self._turn(env, place, index, change)
            except BoundaryError as error:
                outcome, truncated, failure = None, False, str(error)
                break
            turns.append(turn)
            place = self._after(place, turn)
            if turn.answer.stop:
                truncated, outcome = turn.answer.stop == "truncated", turn.answer.data.get("outcome")
                break
            index, change = 0, None
        return self._ended(task, start, place, first, tuple(turns), outcome, truncated, failure)

    def _ended(
        self,
        task: Task,
        start: _Place,
        end: _Place,
        index: int,
        turns: tuple[Turn, ...],
        outcome: bool | None,
        truncated: bool,
        failure: str | None,
    ) -> Attempt:
        """The attempt, and its verdict stored at its end."""
        leaf = end.parent.id
        if start.insert is not None:
            self._add(start.insert)
        evidence = {"outcome": outcome, "truncated": truncated, "start": start.parent.id, "index": index, "failure": failure}
        value = None if failure else end.reward
        self.run.add(Verdict(leaf, "env", value, evidence=evidence, judges={"env": stable_hash("world", self.world.name)}))
        if failure is None and turns:
            self.run.erase_failed([start.parent.id, *(turn.answer.id for turn in turns[:-1])], start.parent.id, index)
        tree = start.parent.tree
        return Attempt(tree, task, index, start.parent.id, turns, end.reward, outcome, truncated, failure, leaf)

    def _drawing(self, change: Change | None) -> tuple[Sampling, Producer]:
        """How the next reply is sampled, and what is stored of that."""
        if change is None:
            return self.agent.sampling, self.producer
        sampling = replace(self.agent.sampling, ban_first=change.ban)
        return sampling, replace(self.producer, settings=self.agent.settings(sampling), edit=change.stored())

    async def _stored_turn(self, env: Env, task: Task, place: _Place, index: int, change: Change | None) -> Turn | None:
        """The turn drawn at this place before, if it is stored whole; the world is brought to the state after it."""
        known, made = self.trees[place.parent.tree], self._drawing(change)[1].hash
        for node in known.children(place.parent.id):
            if (node.index, node.offset, node.producer) == (index, place.offset, made):
                for answer in known.children(node.id):
                    if answer.role != "assistant":
                        if answer.snapshot is not None:
                            await self._restore(env, task, answer)
                        else:
                            check(task, place.turns + 1, answer, await self._step(env, place, node))
                        return as_turn(node, answer)
        return None

    async def _turn(self, env: Env, place: _Place, index: int, change: Change | None) -> Turn:
        """Draw one reply and let the world answer it."""
        place = await self._fitted(place)
        template, (sampling, producer) = self.agent.template, self._drawing(change)
        rendered, head = self._rendered(place)
        pieces = list(place.tokens) if rendered is None else [whole_tokens(rendered)]
        if head is not None:
            pieces.append(head)
        prefix = Prefix(np.concatenate(pieces) if pieces else None, tuple(place.messages), tuple(tools_of(self.world)))
        taps = None
        if change is not None and change.state is not None:
            assert prefix.tokens is not None
            taps = taps_of(change.state, len(prefix.tokens))
        draw = await self.sampler.one(prefix, sampling, (place.parent.id, place.offset), index, "turn", taps)
        if place.insert is not None:
            self._add(place.insert)
        if change is not None:
            self.run.add(producer)

        opens = place.begun is None
        fields: dict[str, Any] = {"text": draw.text}
        if template is not None:
            fields = assistant_node_parts(template, draw, opens=opens, head=head)
        data = dict(draw.data or {})
        if draw.entropy is not None and len(draw.entropy):
            data["entropy"] = float(draw.entropy.mean())
        fields["data"] = data
        fields |= {"producer": producer.hash, "index": index, "stop": draw.stop, "opens": opens}
        if place.shown is not None:
            fields["context"] = self._context(place.shown)
        if rendered is not None:
            data[HISTORY] = fields.get("context", "")
            fields["context"] = self._context(rendered)
        node = make_node(place.parent.tree, place.parent.id, place.offset, "assistant", fields.pop("text"), **fields)

        self.sampler.budget.charge(turns=1)
        return await self._answered(env, place, node)

    def _context(self, parts: list[Part]) -> str:
        """The hash of the context that shows ``parts``, which is stored."""
        context = context_of_parts(parts)
        self.run.add(context)
        return context.hash

    def _rendered(self, place: _Place) -> tuple[list[Part] | None, np.ndarray | None]:
        """What the model is shown at ``place`` where its template makes something else of the history, and the tokens that open its reply.

        Raises BoundaryError("template") where the template refuses the history.
        """
        template = self.agent.template
        if template is None:
            return None, None
        if not isinstance(template, JinjaTemplate):
            return None, head_of(template, place.messages) if place.begun is None else None
        return rendered_parts(template, place.shown or self.shown(place.parent, place.offset), place.begun is None)

    async def _step(self, env: Env, place: _Place, node: Node) -> Observation:
        action = replace(node.message, text=(place.begun or "") + node.text).written()
        return await self._world("env", "step", lambda: _observed(env.step(action)))

    async def _answered(self, env: Env, place: _Place, node: Node) -> Turn:
        """Let the world act on the whole reply; store reply and answer."""
        seen = await self._step(env, place, node)
        stop = "terminated" if seen.terminated else "truncated" if seen.truncated or place.turns + 1 >= env.max_turns else ""
        data = {**seen.data, **({} if seen.valid else {"valid": False})}
        if stop:
            # a world that never says how it ended succeeded if it ended by itself and paid
            data["outcome"] = seen.outcome if seen.outcome is not None else seen.terminated and seen.reward > 0
        answer = self._given(node, seen.role, seen.text, "assistant", env, reward=float(seen.reward), stop=stop, data=data)
        self._add(node, answer)
        return as_turn(node, answer)

    def _after(self, place: _Place, turn: Turn) -> _Place:
        node, answer = turn.node, turn.answer
        if node.context is not None:
            return self._place_at(answer)
        tokens = [*place.tokens]
        if node.tokens is not None and answer.tokens is not None:
            tokens += [node.tokens, answer.tokens]
        before = place.messages if place.begun is None else place.messages[:-1]
        reply = Message("assistant", (place.begun or "") + node.text, dict(node.data))
        messages = [*before, reply, Message(answer.role, answer.text, dict(answer.data))]
        return _Place(answer, len(answer), tokens, messages, place.reward + (answer.reward or 0.0), place.turns + 1)


def _observed(seen: Any) -> Observation:
    """What an environment answered, where it is an observation that can be stored. Raises TypeError or ValueError."""
    if not isinstance(seen, Observation):
        raise TypeError(f"an Observation was wanted, not {type(seen).__name__}")
    if not isinstance(seen.text, str) or not isinstance(seen.role, str) or not isinstance(seen.data, Mapping):
        raise TypeError("an observation's text and role are texts, its data a mapping")
    seen.text.encode()
    if not math.isfinite(float(seen.reward)):
        raise ValueError(f"a reward must be finite, not {seen.reward}")
    if seen.data:
        canonical_json(dict(seen.data))
    return seen


def _guard(boundary: str, what: str, action: Callable[[], T]) -> T:
    """Whatever a stranger's world raises becomes a failure at the boundary; errors of ours keep their kind."""
    try:
        return action()
    except RamifyError:
        raise
    except (Exception, SystemExit) as error:  # exit() of one environment must not end all the others
        raise BoundaryError(boundary, f"{what} failed: {type(error).__name__}: {error}") from error
