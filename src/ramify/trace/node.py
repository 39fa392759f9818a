"""The records a run is made of: nodes, contexts, attempts, per-token values, annotations, scores, findings.

A run of an agent is a path, runs of one task are a tree. A node is one message, or the part of one message that was sampled or
inserted in one go. Nodes are append-only and content-addressed. Where tokens exist they are truth and are never made again from
text; a node from a chat log has text only, and then its offsets count whole messages (0: before it, 1: after it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ramify.base.ids import canonical_json, stable_hash
from ramify.base.words import plural
from ramify.trace.message import Message

#: Why a sampled node ended, or where an environment left the episode ("" while it continues).
STOPS = ("", "eos", "stop", "length", "budget", "cancelled", "terminated", "truncated", "failed")


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One append-only piece of a tree.

    ``id`` is the stable hash of tree, parent, offset, role, content, context, provenance, purpose and sample index, so two equal
    samples are two nodes, those of two purposes too, and a given (unsampled) message is one. Arrays have one entry per token,
    shape (T,).
    """

    id: str
    tree: str
    """Name of the tree, unique in its run, e.g. ``update-003/task-17``."""
    parent: str | None
    """Id of the parent; None for the root."""
    offset: int
    """Where this node starts inside its parent: tokens kept of the parent,
    or messages kept (0 or 1) where the parent is text only."""
    role: str
    """system, user, assistant, tool, or root."""
    text: str
    tokens: np.ndarray | None = None
    """int32 (T,), template tokens included; None for a text-only node."""
    sampled: np.ndarray | None = None
    """bool (T,): which tokens the provenance sampled; None when it sampled none."""
    logprobs: np.ndarray | None = None
    """float32 (T,): log-probability of each sampled token under the sampling distribution, 0 elsewhere."""
    ends: np.ndarray | None = None
    """int32 (T,): end of each token's text as a character offset into ``text``."""
    opens: bool = True
    """True where the node opens a message, False where it continues inside its parent's."""
    context: str | None = None
    """Hash of an explicit :class:`Context`; None means the path's concatenation was what the model saw."""
    provenance: str | None = None
    """Hash of the :class:`Provenance`; None for given text (prompts, observations, edits)."""
    index: int = -1
    """Sample index among the samples of one purpose at (parent, offset); -1 for given text."""
    purpose: str = ""
    """What it was sampled for (:attr:`AttemptRecord.purpose`); empty for given text, and where nobody said."""
    snapshot: str | None = None
    """Environment state after this node as canonical JSON, or ``blob:HASH`` for bytes; None where the environment gave none."""
    state_key: str | None = None
    """The environment's own key of the state after this node."""
    stop: str = ""
    reward: float | None = None
    """Reward the environment paid when it answered with this node."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Small JSON extras: the edit that made the node, tool calls with token spans, a failure."""

    def __len__(self) -> int:
        """Length in the unit of offsets: tokens, or 1 message where there are none;
        0 for a root that only holds a tree together."""
        if self.tokens is None:
            return 0 if self.role == "root" and not self.text else 1
        return len(self.tokens)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the provenance sampled."""
        return 0 if self.sampled is None else int(self.sampled.sum())

    @property
    def head(self) -> int:
        """Offset of the first sampled token: what lies before it opens the message. 0 where none was sampled."""
        return 0 if self.sampled is None else int(np.argmax(self.sampled))

    @property
    def sampled_mask(self) -> np.ndarray:
        """bool (T,): the tokens that a model sampled; of a node without tokens the one message it counts as."""
        return np.full(len(self), self.tokens is None) if self.sampled is None else self.sampled

    @property
    def message(self) -> Message:
        """The message that the node holds, or its part of one."""
        return Message(self.role, self.text, self.data)

    def __repr__(self) -> str:
        text = " ".join(self.text[:200].split())
        tokens = "no tokens" if self.tokens is None else f"{len(self.tokens)} tokens, {self.sampled_tokens} sampled"
        return f"<node {self.id}, {self.role}, {tokens}:\n {text[:90] + '…' if len(text) > 90 else text!r}>"


_INT, _BOOL, _FLOAT = np.dtype(np.int32), np.dtype(np.bool_), np.dtype(np.float32)


def make_node(tree: str, parent: str | None, offset: int, role: str, text: str, **fields: Any) -> Node:
    """Build a node and its id. ``fields`` are those of :class:`Node`; token ids and masks are copied into compact arrays.

    Raises ValueError when arrays differ in length, a number is beyond float32 or a stop reason is unknown.
    """
    tokens = _array(fields.pop("tokens", None), _INT)
    sampled = _array(fields.pop("sampled", None), _BOOL)
    logprobs = _array(fields.pop("logprobs", None), _FLOAT)
    ends = _array(fields.pop("ends", None), _INT)
    for name, array in (("sampled", sampled), ("logprobs", logprobs), ("ends", ends)):
        if array is not None and (tokens is None or len(array) != len(tokens)):
            raise ValueError(f"{name} has {plural(len(array), 'entry')} for {0 if tokens is None else len(tokens)} tokens")
    if fields.get("stop", "") not in STOPS:
        raise ValueError(f"unknown stop reason {fields['stop']!r}")
    offset, index = int(offset), int(fields.pop("index", -1))
    node = Node("", tree, parent, offset, role, text, tokens, sampled, logprobs, ends, index=index, **fields)
    object.__setattr__(node, "id", content_id(node))  # nobody has seen it without yet
    return node


def content_id(node: Node) -> str:
    """The id that belongs to a node's content. One that is read back with another content than its id says is damaged or
    forged."""
    return stable_hash(
        node.tree,
        node.parent,
        node.offset,
        node.role,
        node.text,
        None if node.tokens is None else node.tokens.tobytes(),
        None if node.sampled is None else node.sampled.tobytes(),
        int(node.opens),
        node.context,
        node.provenance,
        node.purpose,
        node.index,
    )


def _array(values: Any, dtype: np.dtype[Any]) -> np.ndarray | None:
    if values is None:
        return None
    try:  # a copy: a node never changes with a buffer it was made from
        if getattr(values, "dtype", None) == dtype:
            array = np.array(values, order="C")
        else:
            with np.errstate(over="raise"):
                array = np.array(values, dtype=dtype, order="C")
    except FloatingPointError:
        raise ValueError("a number of a token is beyond what is stored for one") from None
    if array.ndim != 1:
        raise ValueError(f"an array of a node has one entry per token, not shape {array.shape}")
    return array


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens or messages ``start`` to ``end`` of one node, as shown to a model."""

    node: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Insert:
    """Tokens or text shown to a model that are on no node (a summary's header, a template's filler)."""

    text: str
    tokens: tuple[int, ...] | None = None
    role: str = ""
    """Role of the message it opens; empty where it continues inside the message before it."""


@dataclass(frozen=True, slots=True)
class PathRest:
    """All that follows ``node`` on the path of the sampled node. So the replies after a compaction share a context,
    and a run does not grow with the square of their number."""

    node: str


@dataclass(frozen=True, slots=True)
class Context:
    """The prompt of a sampled node where it is not the path's concatenation (compaction, truncation, views)."""

    parts: tuple[Span | Insert | PathRest, ...]

    def to_json(self) -> list[Any]:
        """Canonical JSON form; :func:`context_from_json` reads it back."""
        return [_part_json(part) for part in self.parts]

    @property
    def hash(self) -> str:
        """Stable hash of the context."""
        return stable_hash("context", canonical_json(self.to_json()))


def context_from_json(parts: list[Any]) -> Context:
    """Inverse of :meth:`Context.to_json`."""
    return Context(tuple(map(_json_part, parts)))


def _part_json(part: Span | Insert | PathRest) -> dict[str, Any]:
    if isinstance(part, PathRest):
        return {"after": part.node}
    if isinstance(part, Span):
        return {"node": part.node, "start": part.start, "end": part.end}
    return {"text": part.text, "tokens": None if part.tokens is None else list(part.tokens), "role": part.role}


def _json_part(p: Mapping[str, Any]) -> Span | Insert | PathRest:
    if "after" in p:
        return PathRest(p["after"])
    if "node" in p:
        return Span(p["node"], p["start"], p["end"])
    return Insert(p["text"], None if p["tokens"] is None else tuple(p["tokens"]), p["role"])


@dataclass(frozen=True)  # no slots: the hash is computed once, not for every node
class Provenance:
    """The origin of a sampled node: model identity with its weights hash, sampling settings, run seed,
    and hidden-state edits if any."""

    model: str
    weights: str
    settings: Mapping[str, Any]
    seed: int
    edit: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON form, as stored."""
        edit = None if self.edit is None else dict(self.edit)
        return {"model": self.model, "weights": self.weights, "settings": dict(self.settings), "seed": self.seed, "edit": edit}

    @cached_property
    def hash(self) -> str:
        """Stable hash of the provenance."""
        return stable_hash("producer", canonical_json(self.to_json()))


ROLLOUT, EVAL, IMPORT, RECORDED, FORK = "rollout", "eval", "import", "recorded", "fork"
ATTEMPTS = frozenset({ROLLOUT, EVAL, IMPORT, RECORDED})
"""Purposes of attempts at a task. What was played for any other purpose is a fork: it was made to find something out, and counts
in no rate of success, or forks of one step would count as often as they are many."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt at a task, or a fork of one: where it began, for what, and how it ended. Written once, where it ends or is
    imported; another of the same tree, start, offset, purpose, index and provenance replaces it.
    """

    leaf: str
    """Id of its last node."""
    tree: str
    start: str | None = None
    """Id of the node it continued from; None where it began at the beginning."""
    offset: int = 0
    """Tokens or messages kept of ``start``."""
    purpose: str = ROLLOUT
    index: int = 0
    """Its number among those of one purpose from one start: the sample index of the first reply it sampled."""
    outcome: bool | None = None
    """Whether it succeeded; None where nobody said."""
    reward: float | None = None
    """What it was paid in all, the part before ``start`` included; None where nobody judged it."""
    truncated: bool = False
    """A limit ended it."""
    failure: str | None = None
    """The failure that ended it and that was not the model's (of a provider, an environment, a tool): then it was not judged.
    What the model does wrong is an outcome."""
    provenance: str | None = None
    """Hash of the :class:`Provenance` of who sampled it; None where nobody knows."""

    @property
    def success(self) -> bool | None:
        """Whether it succeeded: as its judge said, else by a reward above 0; None where there is neither."""
        if self.failure is not None:
            return None
        if self.outcome is not None:
            return self.outcome
        return None if self.reward is None else self.reward > 0

    @property
    def fork(self) -> bool:
        """Whether it was made to find something out, and not as an attempt. What a selector chose to continue is an attempt."""
        return self.purpose not in ATTEMPTS


@dataclass(frozen=True, slots=True, eq=False)
class TokenValues:
    """Floats along a node's tokens (credit, entropy, reference log-probs), shape (T,), or one float for a text-only node."""

    node: str
    name: str
    maker: str
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Annotation:
    """A note at one offset of one node."""

    node: str
    offset: int
    name: str
    maker: str
    value: Any


@dataclass(frozen=True, slots=True)
class Score:
    """A scored judgement of the path that ends at ``node``.

    ``judges`` maps each slot to the hash of the judge it depended on (code, prompt, model, settings), so one judge's scores can
    be erased and nothing else. ``value`` is None where the scorer failed: an unscored path is never a failed one.
    """

    node: str
    scorer: str
    value: float | None
    unit: str = "reward"
    confidence: float | None = None
    evidence: Any = None
    cost: Mapping[str, float] = field(default_factory=dict)
    judges: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """See :func:`judge_version`."""
        return judge_version(self.scorer, self.judges)


def judge_version(scorer: str, judges: Mapping[str, str]) -> str:
    """Which version of its judge a score depends on: the start of the judge's hash, with the slot's name where that is not the
    scorer's; "" where none was recorded."""
    versions = (f"{'' if slot == scorer else slot + ' '}{judge[:12]}" for slot, judge in sorted(judges.items()))
    return ", ".join(versions)


@dataclass(frozen=True, slots=True)
class Finding:
    """A method's finding: where, why, what to do about it, and the evidence.

    Findings of one ``maker`` are replaced together (:meth:`ramify.trace.db.Run.conclude`); erasing a judge erases none.
    """

    name: str
    """The kind of finding, in a word or two: decisive step, rule lost, dead end."""
    maker: str
    """The verb that found it: ``graph-credit mark``."""
    why: str
    """One sentence: the observation that supports it."""
    node: str | None = None
    """Where; None where it is about the whole run."""
    offset: int = 0
    action: str = ""
    """What to do about it, in one sentence or one command."""
    value: float | None = None
    unit: str = ""
    """What ``value`` counts: reward, share, nats."""
    evidence: Any = None
    """The numbers that explain it."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What made it besides the verb: settings, models with their weights, judges."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    """What a verb returned, as its run keeps it: a newer one of the same ``maker`` replaces it."""

    maker: str
    """The verb: ``graph-credit report``."""
    result: Mapping[str, Any]
    """Its fields."""
    sections: Sequence[Any]
    """What a reader sees of it, as :mod:`ramify.render.result` writes and reads them."""


@dataclass(frozen=True, slots=True)
class TreeInfo:
    """A tree without its nodes: its task, the group it belongs to, and small JSON extras."""

    name: str
    task: Mapping[str, Any]
    group: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> str:
        """The answer that the task names (``answer`` in its data; ``answer`` or ``ground_truth`` of a log); empty without one."""
        known = {**self.task, **(self.task["data"] if isinstance(self.task.get("data"), Mapping) else {})}
        found = next((known[name] for name in ("answer", "ground_truth") if known.get(name) is not None), "")
        return found if isinstance(found, str) else canonical_json(found)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the journal of what was done."""

    kind: str
    key: str
    payload: Any
