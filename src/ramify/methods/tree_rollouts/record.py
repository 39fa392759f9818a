"""The record of one grown tree: positions, leaves, counts along paths,
and its exact JSON form in the journal of its run (3.1, 3.9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.base.errors import UserError
from ramify.base.ids import canonical_json
from ramify.methods.tree_rollouts.algorithm import is_mixed
from ramify.trace.db import Run
from ramify.trace.sources import opened

if TYPE_CHECKING:
    from ramify.rollout.attempts import Attempt, Turn


ENTRY = "tree"
"""What the journal of a run calls a grown tree; its key is the task's id."""


@dataclass(slots=True)
class Place:
    """What a turn led to: a prefix one can fork at, or the end of an attempt. Equal turns from one position are one position here
    (a view: the stored nodes stay two)."""

    id: str
    """stored node the agent continues from"""
    parent: str | None
    depth: int
    """turns from the root"""
    origin: int = 0
    """index of the root attempt on whose path this position was first reached"""
    text: str = ""
    """the turn that led here"""
    turn_tokens: list[int] | None = None
    logprobs: list[float] | None = None
    entropy: float | None = None
    """mean token entropy in nats of the next turns sampled here"""
    entropy_kind: str = "none"
    samples: int = 0
    """next turns sampled here of known entropy"""
    state_hash: str | None = None
    forkable: bool = False
    terminal: bool = False
    n: int = 0
    """scored leaves at or below"""
    s: int = 0
    """successes among them"""
    pending: int = 0
    """expansions at or below that are in flight"""
    duplicate: bool = False
    """some other sample gave the same turn"""
    path_cost: float = 0.0
    """cost from the root to here"""
    rest: float = 0.0
    """summed cost from here to the leaves, over ``passes`` attempts"""
    passes: int = 0
    errors: int = 0
    """1 when the environment refused the turn that led here"""

    @property
    def expected(self) -> float:
        """Expected cost of one more attempt from here: the mean of those seen."""
        return self.rest / self.passes if self.passes else 0.0


@dataclass(frozen=True, slots=True)
class Leaf:
    """The end of one attempt. ``cost`` counts newly sampled turns or tokens only."""

    node: str
    """position where it ended"""
    stored: str
    """leaf node of the attempt as stored"""
    index: int
    reward: float
    outcome: bool | None
    """None: unscored; it is in no group and is never a failure"""
    truncated: bool
    counted: bool
    """whether it is in the group: scored, and not left out by the policy on truncation"""
    cost: float
    origin: int
    """root attempt it goes back to"""
    failure: str | None = None


@dataclass
class GrownTree:
    """One prompt's tree with its group of leaves."""

    prompt_id: str
    tree: str
    """name of the stored tree"""
    seed: int
    budget: float
    unit: str
    selector: dict[str, Any]
    cost: float = 0.0
    places: dict[str, Place] = field(default_factory=dict)
    """by id, parents before children; the first is the root"""
    leaves: list[Leaf] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    """one entry a choice: step, node, weighted score terms"""
    notes: list[str] = field(default_factory=list)
    granted: float = 0.0
    """what an allocator added to the first budget"""
    abandoned: bool = False
    reserved: list[float] = field(default_factory=list, compare=False)
    """what each attempt in flight may cost, oldest first"""
    _twins: dict[tuple[Any, ...], str] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        grown = f"{len(self.places)} places, {len(self.leaves)} leaves, cost {self.cost:g} of {self.budget:g} {self.unit}"
        return f"<tree {self.tree[:90]!r}:\n {grown}, {self.root.s} of {self.root.n} succeeded>"

    @property
    def root(self) -> Place:
        """The position before the first turn."""
        return next(iter(self.places.values()))

    @property
    def group(self) -> list[Leaf]:
        """Leaves that count: the group of the advantage."""
        return [leaf for leaf in self.leaves if leaf.counted]

    @property
    def mixed(self) -> bool:
        """Whether both outcomes occur in the group."""
        return is_mixed(self.root.s, self.root.n)

    def path(self, place: str | None) -> list[Place]:
        """Positions from ``place`` up to the root."""
        places = []
        while place is not None:
            places.append(self.places[place])
            place = places[-1].parent
        return places

    def absorb(self, start: str, attempt: Attempt, counted: bool) -> Leaf:
        """Add an attempt that continued from ``start``: new positions, cost,
        and counts along its whole path (3.5, steps 4 and 5)."""
        at = self.places[start]
        fresh = start == self.root.id
        origin = attempt.index if fresh else at.origin
        last = len(attempt.turns) - 1
        for i, turn in enumerate(attempt.turns):
            if turn.entropy is not None:
                at.entropy = ((at.entropy or 0.0) * at.samples + turn.entropy) / (at.samples + 1)
                at.samples, at.entropy_kind = at.samples + 1, turn.entropy_kind
            at = self._place(at, turn, i == last, origin)
        end = at.path_cost
        cost = sum(self._cost(turn) for turn in attempt.turns)
        result = (attempt.index, attempt.reward, attempt.outcome, attempt.truncated)
        leaf = Leaf(at.id, attempt.leaf, *result, counted, cost, origin, attempt.failure)
        for place in self.path(at.id):
            place.rest += end - place.path_cost
            place.passes += 1
            if counted:
                place.n += 1
                place.s += bool(attempt.outcome)
        self.leaves.append(leaf)
        self.cost += leaf.cost
        return leaf

    def _cost(self, turn: Turn) -> int:
        return 1 if self.unit == "turns" else turn.node.sampled_tokens

    def _place(self, at: Place, turn: Turn, last: bool, origin: int) -> Place:
        node, answer = turn.node, turn.answer
        content = (node.text, canonical_json(node.data.get("tool_calls"))) if node.tokens is None else node.tokens.tobytes()
        key = (at.id, content, answer.text, last)
        if key in self._twins:
            twin = self.places[self._twins[key]]
            twin.duplicate = True
            return twin
        place = Place(answer.id, at.id, at.depth + 1, origin, node.text)
        place.turn_tokens = None if node.tokens is None else node.tokens.tolist()
        place.logprobs = None if node.logprobs is None else node.logprobs.tolist()
        place.state_hash, place.errors = answer.state_key, int(answer.data.get("valid") is False)
        place.terminal, place.forkable = last, not last and not answer.stop
        place.path_cost = at.path_cost + self._cost(turn)
        self.places[place.id] = place
        self._twins[key] = place.id
        return place

    def to_json(self) -> dict[str, Any]:
        """The JSON form; :meth:`from_json` reads it back exactly."""
        record = {k: v for k, v in vars(self).items() if k not in ("places", "leaves", "reserved", "_twins")}
        return record | {"nodes": [asdict(p) for p in self.places.values()], "leaves": [asdict(leaf) for leaf in self.leaves]}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> GrownTree:
        """Inverse of :meth:`to_json`: for reports and training rows, not for growing on.
        Raises UserError naming what is wrong."""
        try:
            places = [Place(**node) for node in record["nodes"]]
            leaves = [Leaf(**leaf) for leaf in record["leaves"]]
            rest = {k: v for k, v in record.items() if k not in ("nodes", "leaves")}
            tree = cls(**rest, places={place.id: place for place in places}, leaves=leaves)
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(f"not a grown tree: {error}") from None
        unknown = [x for x in [*(p.parent for p in places[1:]), *(leaf.node for leaf in leaves)] if x not in tree.places]
        if unknown or not places:
            raise UserError(f"not a grown tree: no node '{unknown[0]}'" if unknown else "not a grown tree: no nodes")
        return tree


def keep_trees(run: Run, trees: Iterable[GrownTree]) -> None:
    """Store grown trees, one a task, whole or not at all, and commit. Raises UserError on a second one of a task."""
    with run.transaction():
        for tree in trees:
            if not run.log(ENTRY, tree.prompt_id, tree.to_json()):
                raise UserError(f"{run.folder} holds a tree of task '{tree.prompt_id}' already")


def read_trees(source: Path) -> list[GrownTree]:
    """The trees of a run (its folder, or its name under ./runs), or of a file that can be imported and holds some.

    Raises UserError naming file and line, or where there are no grown trees.
    """
    with opened(source) as run:
        trees = [GrownTree.from_json(entry.payload) for entry in run.journal(ENTRY)]
    if not trees:
        raise UserError(f"{source} holds no grown trees: `ramify rollout --tree` makes a run that does, once it is done")
    return trees
