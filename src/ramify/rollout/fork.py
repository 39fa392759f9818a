"""Fork: rewind to any token of a stored run, change one thing, go on n times, and see what changed in the outcomes.

An edit is one JSON object:

- ``{"append": "text"}`` or ``{"append_tokens": [ids]}``: the agent's message goes on with this, then with its own words;
- ``{"replace": "text"}``: the whole message is this; at an observation, what the agent sees is this (the world stays as it was);
- ``{"ban": ["text", ...]}`` or ``{"ban_tokens": [ids]}``: the next token must not be (the first token of) any of these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError, UserError, nearest
from ramify.env.protocol import Task
from ramify.model.protocol import Tokenizer, require
from ramify.rollout.replay import said_to_world
from ramify.rollout.run import Attempt, Episodes
from ramify.stats.intervals import difference_of_proportions, wilson
from ramify.trace.context import whole_tokens
from ramify.trace.node import Node, make_node

EDITS = {"append": str, "append_tokens": list, "replace": str, "ban": list, "ban_tokens": list}
AFTER = ("resample", "replay", "keep")


@dataclass(frozen=True, eq=False)
class Arm:
    """The attempts of one side of a fork. Attempts cut off by a failure are counted apart."""

    attempts: tuple[Attempt, ...]

    @property
    def scored(self) -> int:
        """Attempts with an outcome."""
        return sum(a.outcome is not None for a in self.attempts)

    @property
    def successes(self) -> int:
        """Attempts that succeeded."""
        return sum(bool(a.outcome) for a in self.attempts)

    def to_json(self) -> dict[str, Any]:
        """Counts, rate and its 95 % Wilson interval."""
        low, high = wilson(self.successes, self.scored) if self.scored else (0.0, 1.0)
        rate = self.successes / self.scored if self.scored else None
        failed = len(self.attempts) - self.scored
        return {"successes": self.successes, "n": self.scored, "success": rate, "interval": [low, high], "failed": failed}


@dataclass(frozen=True, eq=False)
class Fork:
    """What a fork found. ``control`` went on from the same place unedited; None where there was no edit or nothing was drawn."""

    node: str
    offset: int
    edit: Mapping[str, Any] | None
    after: str
    arm: Arm
    control: Arm | None
    kept_logprob: float | None = None
    """after="keep": summed log-probability of the recorded rest behind the edit, minus the same without it."""

    def to_json(self) -> dict[str, Any]:
        """Everything, with the difference of success rates and its 95 % interval (Newcombe) where both arms were drawn."""
        record = {"node": self.node, "offset": self.offset, "edit": self.edit, "after": self.after, "fork": self.arm.to_json()}
        if self.control is not None:
            record["control"] = self.control.to_json()
            if self.arm.scored and self.control.scored:
                low, high = difference_of_proportions(
                    self.arm.successes, self.arm.scored, self.control.successes, self.control.scored
                )
                rate = self.arm.successes / self.arm.scored - self.control.successes / self.control.scored
                record["difference"] = {"success": rate, "interval": [low, high]}
        if self.kept_logprob is not None:
            record["kept_logprob"] = self.kept_logprob
        return record


def check_edit(edit: Any) -> dict[str, Any] | None:
    """An edit as read from JSON, checked. Raises UserError in one sentence."""
    if edit is None:
        return None
    if not isinstance(edit, dict) or len(edit) != 1:
        raise UserError(f"an edit is one JSON object with one key out of {', '.join(EDITS)}")
    ((kind, value),) = edit.items()
    if kind not in EDITS:
        raise UserError(f"unknown edit '{kind}' ({nearest(kind, EDITS)})")
    inner = {"append_tokens": int, "ban_tokens": int, "ban": str}.get(kind)
    if not isinstance(value, EDITS[kind]) or not value or (inner and not all(type(v) is inner for v in value)):
        what = "a non-empty text" if inner is None else f"a non-empty list of {'token ids' if inner is int else 'texts'}"
        raise UserError(f"edit '{kind}' takes {what}")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"edit '{kind}' holds a lone surrogate, which is no valid text") from None
    return edit


async def fork(
    episodes: Episodes,
    tree: str,
    task: Task,
    node_id: str,
    offset: int | None = None,
    n: int = 32,
    edit: Mapping[str, Any] | None = None,
    after: str = "resample",
    control: bool = True,
) -> Fork:
    """Rewind ``tree`` to ``offset`` tokens inside ``node_id`` (default: 0 for an agent's message, its end for an observation).

    ``after``: ``resample`` draws the rest anew n times; ``replay`` re-issues the recorded later actions behind the edited message
    once; ``keep`` keeps the recorded rest of the message and only scores it again. With an edit, ``resample`` also draws n unedited
    continuations from the same place as a control. The prefix is computed once.

    Raises UserError on a place or edit that does not exist, NeedsError where the model lacks a capability.
    """
    edit = check_edit(edit)
    if after not in AFTER:
        raise UserError(f"after='{after}' is not one of {', '.join(AFTER)}")
    if n < 1:
        raise UserError(f"n must be at least 1, not {n}")
    node = episodes.load(tree).node(node_id)
    if node.role not in ("assistant", "user", "tool"):
        raise UserError(f"node {node_id} is a {node.role} message; fork at an agent's message or at an observation")
    offset = _offset(episodes, node, offset, edit)
    if after == "keep":
        return Fork(node.id, offset, edit, after, Arm(()), None, await _keep(episodes, node, offset, edit))
    if after == "replay":
        return Fork(node.id, offset, edit, after, Arm((await _replay(episodes, tree, task, node, edit),)), None)
    start = _taken(episodes, tree, node.id if node.role != "assistant" or offset else str(node.parent))
    if edit and "replace" in edit and node.role == "assistant":
        first = await _replay(episodes, tree, task, node, edit, rest=False)
        behind = _taken(episodes, tree, first.leaf)
        ended = first.failure is not None or bool(episodes.load(tree).node(first.leaf).stop)
        drawn = [] if ended else [episodes.branch(tree, task, first.leaf, behind + i) for i in range(n)]
    else:
        first, ended = None, False
        insert, ban = _prepare(episodes, node, offset, edit)
        drawn = [episodes.edited(tree, task, node.id, offset, start + i, insert, ban) for i in range(n)]
    others = [episodes.edited(tree, task, node.id, offset, start + n + i) for i in range(n if edit and control else 0)]
    done = await asyncio.gather(*drawn, *others)
    arm = (first,) if first is not None and ended else tuple(done[: len(drawn)])
    return Fork(node.id, offset, edit, after, Arm(arm), Arm(tuple(done[len(drawn) :])) if others else None)


def _taken(episodes: Episodes, tree: str, node_id: str) -> int:
    """The first sample index no child of a node has."""
    return max((child.index for child in episodes.load(tree).children(node_id)), default=-1) + 1


def _offset(episodes: Episodes, node: Node, offset: int | None, edit: Mapping[str, Any] | None) -> int:
    if node.role != "assistant":
        if offset not in (None, len(node)):
            raise UserError(f"node {node.id} is an observation: fork behind it (offset {len(node)}) or replace it, not inside it")
        return len(node)
    head = 0 if node.sampled is None else int(np.argmax(node.sampled))
    offset = head if offset is None else offset
    if not 0 <= offset <= len(node):
        raise UserError(f"offset {offset} is outside node {node.id}, which has {len(node)} tokens or messages")
    if offset > head:
        require(episodes.agent.model, ("tokens", "continue"), "a fork inside a message")
    return max(offset, head)


def _tokenizer(episodes: Episodes) -> Tokenizer:
    if episodes.agent.template is None:
        raise NeedsError("this edit needs a model that takes token ids")
    return episodes.agent.template.tokenizer


def _prepare(episodes: Episodes, node: Node, offset: int, edit: Mapping[str, Any] | None) -> tuple[Node | None, tuple[int, ...]]:
    """The node an edit inserts, and the tokens it bans."""
    if edit is None:
        return None, ()
    ((kind, value),) = edit.items()
    if kind in ("ban", "ban_tokens"):
        ids = value if kind == "ban_tokens" else [_tokenizer(episodes).encode(text)[0] for text in value]
        return None, tuple(ids)
    if kind == "replace" and node.role != "assistant":
        return episodes.replaced(node, value), ()
    if node.role != "assistant":
        raise UserError(f"edit '{kind}' goes into an agent's message; node {node.id} is an observation")
    tokenizer = _tokenizer(episodes)
    tokens = value if kind == "append_tokens" else tokenizer.encode(value)
    fields = {"tokens": tokens, "ends": tokenizer.ends(tokens), "opens": False, "data": {"edit": dict(edit)}}
    return make_node(node.tree, node.id, offset, "assistant", tokenizer.decode(tokens), **fields), ()


async def _replay(
    episodes: Episodes, tree: str, task: Task, node: Node, edit: Mapping[str, Any] | None, rest: bool = True
) -> Attempt:
    """The message that ``edit`` puts in the place of ``node``, and with ``rest`` the recorded later actions behind it."""
    if node.role != "assistant" or (edit is not None and "replace" not in edit):
        raise UserError("after='replay' goes with an agent's message and a 'replace' edit or none")
    known = episodes.load(tree)
    actions, here = [edit["replace"] if edit else said_to_world(node.text, node.data)], node
    while rest and (children := known.children(here.id)):
        here = min(children, key=lambda c: c.index)
        if here.role == "assistant":
            actions.append(said_to_world(here.text, here.data))
    before = known.path(node.id).segments[-2][0]
    return await episodes.reissue(tree, task, before, actions)


async def _keep(episodes: Episodes, node: Node, offset: int, edit: Mapping[str, Any] | None) -> float:
    """Log-probability of the recorded rest of the message behind the edit, minus the same without it."""
    require(episodes.agent.model, ("tokens", "prompt_logprobs"), "after='keep'")
    insert, ban = _prepare(episodes, node, offset, edit)
    if node.role != "assistant" or node.tokens is None or insert is None or insert.tokens is None or ban:
        raise UserError("after='keep' goes with an agent's message and an 'append' edit")
    before = whole_tokens(episodes.shown(node, offset))
    rest = node.tokens[offset:]
    rows: Sequence[np.ndarray] = [np.concatenate([before, insert.tokens, rest]), np.concatenate([before, rest])]
    scores = await episodes.agent.model.logprobs(rows)
    with_edit, without = (float(s.logprobs[-len(rest) :].sum()) if len(rest) else 0.0 for s in scores)
    return with_edit - without
