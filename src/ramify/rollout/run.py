"""Grow trees: play an agent in a world and store every message as a node, as many episodes at once as the model can batch.

A draw is keyed by its place (run seed, parent node, offset, sample index), so the tree does not depend on how many episodes run
at once, on their order, or on where an earlier run was cut off: an attempt that is stored already is read, not drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import BoundaryError, RamifyError
from ramify.base.ids import canonical_json, stable_hash
from ramify.base.seeds import place_key
from ramify.env.protocol import Env, Observation, Task, World
from ramify.model.chat import ChatTemplate, assistant_node_parts
from ramify.model.protocol import Message, Model, Prefix, Sampling
from ramify.rollout.failures import FailurePolicy
from ramify.rollout.replay import restore
from ramify.trace.db import Run
from ramify.trace.node import Node, Producer, Verdict, make_node
from ramify.trace.tree import Tree


@dataclass(frozen=True)
class Agent:
    """A model, how chats are written for it, and how it is sampled. ``template`` is None for a model that takes messages."""

    model: Model
    template: ChatTemplate | None = None
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, eq=False)
class Turn:
    """One reply of the agent and the world's answer. ``entropy`` is the mean over drawn tokens, in nats."""

    node: Node
    answer: Node
    entropy: float | None = None
    entropy_kind: str = "none"
    """exact (from full distributions), sampled (minus the mean log-probability of the drawn tokens), none."""

    @property
    def forkable(self) -> bool:
        """Whether the world can be put back to the state after this turn."""
        return self.answer.snapshot is not None and not self.answer.stop


@dataclass(frozen=True, eq=False)
class Attempt:
    """One episode from the root, or from a branch point, to its end. ``turns`` holds the new turns only."""

    tree: str
    task: Task
    index: int
    start: str
    """Id of the node it went on from."""
    turns: tuple[Turn, ...]
    reward: float
    """Sum over the whole path, the part before ``start`` included."""
    outcome: bool | None
    """The world's verdict; None when it never spoke one because a boundary failed: unscored, not failed."""
    truncated: bool
    failure: str | None
    leaf: str

    @property
    def drawn(self) -> int:
        """Newly generated tokens."""
        return sum(turn.node.drawn for turn in self.turns)


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
        self.agent, self.world, self.run, self.seed, self.group = agent, world, run, seed, group
        self.budget = budget or Budget()
        self.policy = policy or FailurePolicy()
        self.trees: dict[str, Tree] = {}
        identity = agent.model.identity
        self.producer = Producer(identity.name, identity.weights, agent.sampling.to_json(), seed)
        run.add(self.producer)

    async def attempt(self, tree: str, task: Task, index: int) -> Attempt:
        """Play attempt ``index`` of ``task`` from the beginning; ``tree`` names the tree it belongs to."""
        env, first = self._begin(tree, task)
        return await self._play(env, task, self._place_at(first), index)

    async def branch(self, tree: str, task: Task, node_id: str, index: int) -> Attempt:
        """Put the world back to its state after ``node_id`` (an observation) and go on from there with sample ``index``."""
        env, _ = self._begin(tree, task)
        node = self.trees[tree].node(node_id)
        self._restore(env, task, node)
        return await self._play(env, task, self._place_at(node), index)

    async def edited(
        self, tree: str, task: Task, node_id: str, offset: int, index: int, insert: Node | None = None, ban: tuple[int, ...] = ()
    ) -> Attempt:
        """Keep ``offset`` tokens of message ``node_id``, go on with ``insert`` if given, draw the rest and play on.

        In the agent's own message the world goes back to its state before the message and acts on the whole new reply; after an
        observation it keeps the state it had then. ``ban``: tokens the first draw must not be.
        """
        env, _ = self._begin(tree, task)
        path = self.trees[tree].path(node_id)
        node = path.segments[-1][0]
        self._restore(env, task, next(n for n, _ in reversed(path.segments) if n.role != "assistant"))
        if insert is not None:
            self._add(insert)
            place = self._place_at(insert)
        elif node.role == "assistant" and offset == 0:
            place = self._place_at(self.trees[tree].node(str(node.parent)))
        else:
            place = self._place_at(node, offset if node.role == "assistant" else None)
        return await self._play(env, task, place, index, ban)

    async def reissue(self, tree: str, task: Task, start: Node, actions: Sequence[str]) -> Attempt:
        """Apply given replies after observation ``start``, as far as the world goes; nothing is drawn."""
        env, _ = self._begin(tree, task)
        self._restore(env, task, start)
        place, turns = self._place_at(start), []
        for action in actions:
            after = place.messages[-1].role
            node = self._given(place.parent, "assistant", action, after)
            turn = self._answered(env, place, node)
            turns.append(turn)
            place = self._after(place, turn)
            if turn.answer.stop:
                break
        leaf = place.parent
        outcome = bool(leaf.data.get("outcome", False))
        return Attempt(tree, task, -1, start.id, tuple(turns), place.reward, outcome, leaf.stop != "terminated", None, leaf.id)

    def load(self, tree: str) -> Tree:
        """The tree in memory, read from the run when it is not there yet. Raises UserError when the run has none of that name."""
        if tree not in self.trees:
            self.trees[tree] = self.run.tree(tree)
        return self.trees[tree]

    def replaced(self, node: Node, text: str) -> Node:
        """An observation that says ``text`` in the place of ``node``; the world's state stays what it was."""
        parent = self.load(node.tree).node(str(node.parent))
        after = "" if parent.role == "root" else parent.role
        fields = {
            "snapshot": node.snapshot,
            "state_key": node.state_key,
            "reward": node.reward,
            "data": {"edit": {"replace": text}},
        }
        return self._given(parent, node.role, text, after, None, **fields)

    def _begin(self, tree: str, task: Task) -> tuple[Env, Node]:
        """A fresh world at the start of ``task`` and the node of its first observation, stored once per tree."""
        env = self.world.make()
        first = _guard("env", f"reset of task '{task.id}'", lambda: env.reset(task, self._env_seed(tree)))
        if tree not in self.trees:
            self.run.add_tree(tree, {"id": task.id, "data": dict(task.data)}, self.group)
            self.trees[tree] = known = self.run.tree(tree)
            if not len(known):
                empty = None if self.agent.template is None else np.zeros(0, np.int32)
                node = make_node(tree, None, 0, "root", "", tokens=empty)
                self._add(node)
                if env.system:
                    node = self._given(node, "system", env.system, "")
                    self._add(node)
                self._add(self._given(node, first.role, first.text, node.role if env.system else "", env))
        known = self.trees[tree]
        node = known.root
        while node.role in ("root", "system"):
            node = known.children(node.id)[0]
        return env, node

    def _env_seed(self, tree: str) -> int:
        return place_key(self.seed, "env", tree)

    def _given(self, parent: Node, role: str, text: str, after: str, env: Env | None = None, **fields: Any) -> Node:
        """An unsampled message after ``parent``: a system text or an observation, with the world's state when it can tell."""
        if self.agent.template is not None:
            fields["tokens"], fields["ends"], text = self.agent.template.render(role, text, after)
        if env is not None:
            snapshot = env.snapshot()
            if isinstance(snapshot, bytes):
                snapshot = "blob:" + self.run.put_blob(snapshot)
            elif snapshot is not None:
                snapshot = canonical_json(snapshot)
            fields |= {"snapshot": snapshot, "state_key": env.key()}
        return make_node(parent.tree, parent.id, len(parent), role, text, **fields)

    def _add(self, *nodes: Node) -> None:
        for node in nodes:
            self.trees[node.tree].add(node)
        self.run.add(*nodes)

    def _restore(self, env: Env, task: Task, node: Node) -> None:
        restore(env, task, self._env_seed(node.tree), node, self.trees[node.tree], self.run)

    def _place_at(self, node: Node, offset: int | None = None) -> _Place:
        """The place after ``node``, or after ``offset`` tokens of it, with what the model will be shown."""
        path = self.trees[node.tree].path(node.id)
        if offset is not None:
            path = path.upto(offset)
        nodes = [n for n, _ in path.segments]
        said = [Message(role, text) for role, text, _ in path.messages()]
        inside = node.role == "assistant" and (offset is not None or node.producer is None)
        replies = sum(n.role == "assistant" and n.opens for n in nodes)
        return _Place(
            node,
            len(node) if offset is None else offset,
            [path.tokens] if self.agent.template is not None else [],
            said,
            sum(n.reward or 0.0 for n in nodes),
            replies - inside,
            said[-1].text if inside else None,
        )

    async def _play(self, env: Env, task: Task, place: _Place, index: int, ban_first: tuple[int, ...] = ()) -> Attempt:
        """Turn after turn to the end of the episode. Sample ``index`` applies to the first draw; later ones are the only child."""
        start, leaf, first, turns = place.parent, place.parent, index, []
        outcome: bool | None = False
        truncated, failure = True, None
        while place.turns < env.max_turns and not self.budget.spent_out:
            try:
                turn = self._stored_turn(env, task, place, index) or await self._turn(env, place, index, ban_first)
            except BoundaryError as error:
                outcome, truncated, failure = None, False, str(error)
                break
            turns.append(turn)
            leaf = turn.answer
            place = self._after(place, turn)
            if leaf.stop:
                truncated, outcome = leaf.stop == "truncated", leaf.data.get("outcome")
                break
            index, ban_first = 0, ()
        evidence = {"outcome": outcome, "truncated": truncated, "start": start.id, "index": first, "failure": failure}
        value = None if failure else place.reward
        self.run.add(Verdict(leaf.id, "env", value, evidence=evidence, judges={"env": stable_hash("world", self.world.name)}))
        return Attempt(start.tree, task, first, start.id, tuple(turns), place.reward, outcome, truncated, failure, leaf.id)

    def _stored_turn(self, env: Env, task: Task, place: _Place, index: int) -> Turn | None:
        """The turn drawn at this place before, if it is stored whole; the world is brought to the state after it."""
        known = self.trees[place.parent.tree]
        for node in known.children(place.parent.id):
            if (node.index, node.offset, node.producer) == (index, place.offset, self.producer.hash):
                for answer in known.children(node.id):
                    if answer.role != "assistant":
                        if answer.snapshot is not None:
                            self._restore(env, task, answer)
                        else:
                            env.step((place.begun or "") + node.text)
                        return self._as_turn(node, answer)
        return None

    async def _turn(self, env: Env, place: _Place, index: int, ban_first: tuple[int, ...]) -> Turn:
        """Draw one reply and let the world answer it."""
        model, template, sampling, producer = self.agent.model, self.agent.template, self.agent.sampling, self.producer
        if ban_first:
            sampling = replace(sampling, ban_first=ban_first)
            producer = replace(producer, settings=sampling.to_json())
            self.run.add(producer)
        after = place.messages[-1].role if place.messages else ""
        pieces = list(place.tokens)
        if template is not None and place.begun is None:
            pieces.append(np.asarray(template.open("assistant", after), np.int32))
        prefix = Prefix(np.concatenate(pieces) if pieces else None, tuple(place.messages))
        key = place_key(self.seed, place.parent.id, place.offset, index)
        draw = (await self.policy.call(lambda: model.sample(prefix, 1, sampling, [key])))[0]

        opens = place.begun is None
        fields: dict[str, Any] = {"text": draw.text}
        if template is not None:
            fields = assistant_node_parts(template, draw, opens=opens, after=after)
        if draw.entropy is not None and len(draw.entropy):
            fields["data"] = {"entropy": float(draw.entropy.mean())}
        fields |= {"producer": producer.hash, "index": index, "stop": draw.stop, "opens": opens}
        node = make_node(place.parent.tree, place.parent.id, place.offset, "assistant", fields.pop("text"), **fields)

        self.budget.charge(calls=1, tokens=node.drawn, turns=1)
        return self._answered(env, place, node)

    def _answered(self, env: Env, place: _Place, node: Node) -> Turn:
        """Let the world act on the whole reply; store reply and answer."""
        seen = _guard("env", "step", lambda: env.step((place.begun or "") + node.text))
        stop = "terminated" if seen.terminated else "truncated" if seen.truncated or place.turns + 1 >= env.max_turns else ""
        data: dict[str, Any] = {} if seen.valid else {"valid": False}
        if stop:
            # a world that never says how it ended succeeded if it ended by itself and paid
            data["outcome"] = seen.outcome if seen.outcome is not None else seen.terminated and seen.reward > 0
        answer = self._given(node, seen.role, seen.text, "assistant", env, reward=float(seen.reward), stop=stop, data=data)
        self._add(node, answer)
        return self._as_turn(node, answer)

    @staticmethod
    def _as_turn(node: Node, answer: Node) -> Turn:
        if "entropy" in node.data:
            return Turn(node, answer, node.data["entropy"], "exact")
        if node.logprobs is not None and node.drawn:
            return Turn(node, answer, -float(node.logprobs.sum()) / node.drawn, "sampled")
        return Turn(node, answer)

    @staticmethod
    def _after(place: _Place, turn: Turn) -> _Place:
        node, answer = turn.node, turn.answer
        tokens = [*place.tokens]
        if node.tokens is not None and answer.tokens is not None:
            tokens += [node.tokens, answer.tokens]
        before = place.messages if place.begun is None else place.messages[:-1]
        messages = [*before, Message("assistant", (place.begun or "") + node.text), Message(answer.role, answer.text)]
        return _Place(answer, len(answer), tokens, messages, place.reward + (answer.reward or 0.0), place.turns + 1)


def _guard(boundary: str, what: str, action: Callable[[], Observation]) -> Observation:
    """Whatever a stranger's world raises becomes a failure at the boundary; errors of ours keep their kind."""
    try:
        return action()
    except RamifyError:
        raise
    except Exception as error:
        raise BoundaryError(boundary, f"{what} failed: {type(error).__name__}: {error}") from error
