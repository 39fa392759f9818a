"""Speculation inside the engine's loop: draft, decide how much to verify, verify, keep what the drafter needs for the next round.

A step of a speculating engine is::

    depth = speculator.depth(rows)                          # rows about to draw a token; 0: this step drafts nothing
    drafts = speculator.propose(arena, rows, slots, depth)  # [] = none for this row
    tile: for each row its anchor (the last token, not run yet) and its drafts, at consecutive positions
    tap = speculator.watch(arena, tile)                     # what the tile runs under; where the step drafts
    emitted = speculator.verify(logits, rows, drafts)       # logits of the entries of these rows, row by row; where any draft is
    ... append emitted tokens one by one until one ends the row; ``kept[i]`` of them stay ...
    speculator.settle(rows, drafts, emitted, kept)

Features (outputs of the target layers that the drafter reads) lie in the arena by position, in layers between the target's and the
drafter's: they are copied, shared and overwritten with the keys and values beside them, and cost the drafter nothing until it drafts.
A step without drafts keeps none, and costs what it costs without a drafter; when drafting goes on, what it computed runs again, once.

Axis legend: R rows, M tile rows, D width, m target layers read by the drafter, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import place_key, uniforms
from ramify.engine.cache import Arena
from ramify.engine.referee import Referee
from ramify.engine.sampling import Picked, inverse_cdf, laws, plain
from ramify.engine.schedules import Greedy, Schedule
from ramify.engine.tiny import Tap
from ramify.engine.verify import coupled, rejection

if TYPE_CHECKING:
    from ramify.engine.drafters import Drafter
    from ramify.engine.forward import Tile
    from ramify.engine.rows import Row

PURPOSES = ("draft", "accept")
"""What a round needs uniforms for besides the tokens themselves."""
STRIDE = 256
"""Counter values of one anchor; more than any block."""


@dataclass(slots=True)
class Kept:
    """What the speculator knows of one row."""

    keys: tuple[int, ...]
    """Of its uniforms, one for each of ``PURPOSES``, where the law needs them."""
    featured: int = 0
    """Leading positions whose features are in the arena."""
    absorbed: int = 0
    """Of them those whose draft-layer keys and values are, too."""


@dataclass(slots=True)
class SpecStats:
    """Counts since the start. A round is one row's drafts and their verification."""

    rounds: int = 0
    plain: int = 0
    """Tokens drawn without drafts while a drafter was there."""
    drafted: int = 0
    proposed: int = 0
    """Drafts that went through the target; after a token that ended the draw none counts."""
    recalled: int = 0
    """Positions run a second time for their features, which a step without drafts had not kept."""
    accepted: int = 0
    emitted: int = 0
    """Tokens of all rounds: accepted drafts, and one bonus or corrected token each."""
    reached_at: list[int] = field(default_factory=list)
    """By position: rounds in which the draft was proposed and all before it were accepted."""
    accepted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    """Absorbing and drafting; then the target's tile, the verification, and taking the tokens in."""
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens a round: accepted drafts plus the bonus or corrected token. nan before the first round."""
        return self.emitted / self.rounds if self.rounds else float("nan")

    @property
    def budget(self) -> float:
        """Drafts verified a round."""
        return self.proposed / self.rounds if self.rounds else float("nan")

    @property
    def acceptance(self) -> list[float]:
        """By position: share of drafts accepted, given that all before them were."""
        return [a / r if r else float("nan") for a, r in zip(self.accepted_at, self.reached_at, strict=True)]


class Speculator:
    """Drafts for the rows of a scheduler. ``law`` is ``coupled`` or ``rejection`` (see :mod:`ramify.engine.verify`).

    Under ``rejection`` rows whose settings say ``seeded`` are verified by ``coupled`` all the same.
    """

    def __init__(
        self, drafter: Drafter, schedule: Schedule, first: int, law: str = "coupled", prior: np.ndarray | None = None
    ) -> None:
        if law not in ("coupled", "rejection"):
            raise UserError(f"verify is '{law}'; it is coupled or rejection")
        self.drafter, self.schedule, self.law = drafter, schedule, law
        c = drafter.config
        self.block, self.width = c.block, c.width
        self._cells = -(-c.width // c.kv_size)
        self._features = first, first + len(c.target_layers) * self._cells
        self._watched = [layer + 1 for layer in c.target_layers]
        self.stored = self.first = self._features[1]
        """The drafter's first layer of the arena; those before it, of the target and of features, are kept with a prefix."""
        self.layers = self.stored - first + drafter.layers
        """Layers to add to the arena; they start at ``first``."""
        self.drafting = True
        """Whether the last step that could draft did."""
        self.stats = SpecStats(reached_at=[0] * self.block, accepted_at=[0] * self.block)
        self.prior = np.full(self.block, 0.7) if prior is None else prior
        """Acceptance by position to start from, [block]."""
        self._weights: list[Tensor] = []
        self._accept = np.empty((0, 0))
        self._drafted: dict[int, int] = {}
        self._places: list[int] = []
        self._room: dict[int, Tensor] = {}
        self._begun = self._now = 0.0
        self._referee, self._load = Referee(), 0

    def admit_row(self, key: int) -> Kept:
        """The state of a new row."""
        return Kept(tuple(place_key(key, purpose) for purpose in PURPOSES) if self.law == "rejection" else ())

    def fork(self, source: Kept, key: int) -> Kept:
        """The state of a row that starts as a copy of another."""
        state = self.admit_row(key)
        state.featured, state.absorbed = source.featured, source.absorbed
        return state

    def watch(self, arena: Arena, tile: Tile) -> Tap:
        """Puts the features of a tile's entries into the arena while the target runs."""
        start, stop = self._features
        if tile.size not in self._room:
            size = self._cells * arena.kv.shape[3]
            self._room[tile.size] = torch.zeros((len(self._watched), tile.size, size), device=arena.kv.device)
        room = self._room[tile.size]
        places = dict(zip(self._watched, room[..., : self.width].unbind(0), strict=True))
        last = self._watched[-1]

        def tap(layer: int, x: Tensor) -> Tensor:
            if layer in places:
                places[layer].copy_(x)
                if layer == last:
                    cells = room if self._cells == 1 else room.unflatten(2, (self._cells, -1)).transpose(1, 2).flatten(0, 1)
                    arena.kv[start:stop].flatten(1, 2).index_copy_(1, tile.slots, cells)
            return x

        return tap

    def absorb(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int]) -> None:
        """Give the drafter all it does not know yet of what these rows have computed, in one call.

        A position whose next token is not known (the last of a prompt before its first draw) waits for it.
        """
        where: list[int] = []
        positions: list[int] = []
        following: list[int] = []
        for row, slot in zip(rows, slots, strict=True):
            state = _state(row)
            stop = min(row.computed, len(row.tokens) - 1)
            where += [slot] * (stop - state.absorbed)
            positions += range(state.absorbed, stop)
            following += row.tokens[state.absorbed + 1 : stop + 1]
            state.absorbed = stop
        if where:
            numbers = torch.tensor([where, positions, following], device=arena.kv.device)
            start, stop = self._features
            cells = arena.kv[start:stop].flatten(1, 2).index_select(1, numbers[0] * arena.capacity + numbers[1])
            features = cells.unflatten(0, (-1, self._cells)).permute(2, 0, 1, 3).flatten(2)[..., : self.width].flatten(1)
            self.drafter.absorb(arena, self.first, numbers[0], numbers[1], features, numbers[2])

    def depth(self, rows: Sequence[Row]) -> int:
        """How many tokens to draft this step for rows about to draw; 0: none.

        Every row has one token pending (its anchor). Rows under taps and rows that will be forked at this token should not be given.
        """
        self._begun, self._load = time.perf_counter(), len(rows)
        if not rows:
            return 0
        depth = self.schedule.depth(len(rows))
        if depth and isinstance(self.schedule, Greedy) and not self._referee.allows(len(rows)):
            depth = 0
        self.drafting = depth > 0
        return depth

    def propose(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int], depth: int) -> list[list[int]]:
        """Drafts to verify, one list a row (empty: none), at most ``depth`` each; the arena needs room for a block past every row.

        The features of all that the rows have computed must be there.
        """
        drafts: list[list[int]] = [[] for _ in rows]
        begun = self._begun = self._now = time.perf_counter()
        limits = np.array([len(row.uniforms) - len(row.logprobs) - 1 for row in rows])
        able = np.flatnonzero(limits > 0).tolist()
        if able:
            depth = min(depth, int(limits.max()))
            chosen, places = [rows[i] for i in able], [slots[i] for i in able]
            self.absorb(arena, chosen, places)
            tokens, confidence = self._draft(arena, chosen, places, depth)
            lengths = np.zeros(len(rows), np.int64)
            lengths[able] = self.schedule.admit(confidence, np.minimum(limits[able], depth))
            self._drafted = {id(row): j for j, row in enumerate(chosen)}
            for j, i in enumerate(able):
                drafts[i] = tokens[j][: lengths[i]]
            self.stats.drafted += depth * len(able)
        self._now = time.perf_counter()
        self.stats.draft_seconds += self._now - begun
        return drafts

    def _draft(self, arena: Arena, rows: Sequence[Row], slots: Sequence[int], depth: int) -> tuple[list[list[int]], np.ndarray]:
        """Tokens [R][depth] and confidences [R, depth]; keeps the weights drawn from where the law needs them."""
        device = arena.kv.device
        settings = [row.job.settings for row in rows]
        begins = [not row.logprobs for row in rows]
        u = torch.from_numpy(self._uniforms(rows, depth)).to(device).unbind(1)
        never = [False] * len(rows)
        bare = [all(plain(s, f) for s, f in zip(settings, first, strict=True)) for first in (begins, never)]
        self._weights = []

        def pick(k: int, logits: Tensor) -> Tensor:
            weights = logits.softmax(-1) if bare[k > 0] else laws(logits, settings, never if k else begins)[1].exp()
            if self.law == "rejection":
                self._weights.append(weights)
            return inverse_cdf(weights, u[k])

        numbers = torch.tensor([slots, [row.tokens[-1] for row in rows], [row.computed for row in rows]], device=device)
        made = self.drafter.draft(arena, self.first, numbers[0], numbers[1], numbers[2], pick, depth)
        if self.drafter.config.confidence:
            confidence = made.confidence.double().cpu().numpy()
        else:
            confidence = np.tile(self.usual()[:depth], (len(rows), 1))
        return made.tokens.tolist(), confidence

    def _uniforms(self, rows: Sequence[Row], depth: int) -> np.ndarray:
        """Uniforms of the drafts, float64 [R, depth].

        Coupled: those of the tokens themselves. Rejection: fresh ones for every anchor. Were they keyed by the draft's position alone, a
        draft thrown away would come back after the next anchor, and what earlier confidences decided (a stale budget) would know it.
        """
        found = np.empty((len(rows), depth)) if self.law == "coupled" else self._keyed(rows, depth)
        for i, row in enumerate(rows):
            if self._coupled(row):
                found[i] = np.resize(row.uniforms[len(row.logprobs) : len(row.logprobs) + depth], depth)
        return found

    def _coupled(self, row: Row) -> bool:
        return self.law == "coupled" or row.job.settings.seeded

    def _keyed(self, rows: Sequence[Row], depth: int) -> np.ndarray:
        """Of every purpose at once; those of the acceptances are for later."""
        keys = np.array([_state(row).keys for row in rows])
        anchors = np.array([len(row.logprobs) for row in rows])
        counters = (anchors[:, None] * STRIDE + np.arange(depth))[:, None]
        found = uniforms(np.repeat(keys[..., None], depth, 2), np.repeat(counters, len(PURPOSES), 1)) * (1 - 2.0**-52)
        self._accept = found[:, 1]
        return found[:, 0].copy()

    def usual(self) -> np.ndarray:
        """Acceptance by position so far, [block], for drafters without confidences; the prior counts as 8 rounds."""
        reached, kept = np.array(self.stats.reached_at), np.array(self.stats.accepted_at)
        return np.asarray((kept + 8 * self.prior) / (reached + 8))

    def verify(self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[Sequence[int]]) -> list[Picked]:
        """The tokens each row emits, 1 to drafts + 1 of them. ``logits`` [sum(len(drafts) + 1), V], row by row.

        Beside the rows that were proposed for, others may draw, without drafts.
        """
        begun = time.perf_counter()
        self.stats.target_seconds += begun - self._now
        places = self._places = [self._drafted.get(id(row), -1) for row in rows]
        by_coupling = [self._coupled(row) or not any(drafts) for row in rows]
        if all(by_coupling) or not any(by_coupling):
            emitted = self._verify(logits, rows, drafts, places, by_coupling[0])
        else:
            stops = np.cumsum([len(draft) + 1 for draft in drafts]).tolist()
            emitted = [Picked([], [], [], [])] * len(rows)
            for law in (True, False):
                which = [i for i, coupled_row in enumerate(by_coupling) if coupled_row == law]
                entries = [e for i in which for e in range(stops[i] - len(drafts[i]) - 1, stops[i])]
                part = self._verify(
                    logits[entries], [rows[i] for i in which], [drafts[i] for i in which], [places[i] for i in which], law
                )
                for i, picked in zip(which, part, strict=True):
                    emitted[i] = picked
        self._now = time.perf_counter()
        self.stats.verify_seconds += self._now - begun
        return emitted

    def _verify(
        self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[Sequence[int]], places: Sequence[int], by_coupling: bool
    ) -> list[Picked]:
        """Verification of rows under one law; ``places`` are theirs among the rows that were drafted for."""
        settings = [row.job.settings for row in rows]
        begins = [not row.logprobs for row in rows]
        drawn = [len(row.logprobs) for row in rows]
        u = [row.uniforms[n : n + len(draft) + 1] for row, n, draft in zip(rows, drawn, drafts, strict=True)]
        if by_coupling:
            return coupled(logits, settings, begins, u, drafts)
        q, accept = torch.stack(self._weights, dim=1), self._accept
        if list(places) != list(range(len(q))):
            q, accept = q[list(places)], accept[list(places)]
        return rejection(logits, settings, begins, u, drafts, q, accept)

    def settle(
        self, rows: Sequence[Row], drafts: Sequence[Sequence[int]], emitted: Sequence[Picked], kept: Sequence[int]
    ) -> None:
        """Count what was kept: the first ``kept[i]`` of row i's emitted tokens. A row that ended has its ``stop`` set."""
        stats, drawn, now = self.stats, sum(kept), time.perf_counter()
        if self._load:  # prompts ran before the step began, and what draws cost at their ends comes after
            self._referee.saw(self._load, self.drafting, drawn, now - self._begun)
        if not any(drafts):
            stats.plain += drawn
            return
        for row, draft, made, n in zip(rows, drafts, emitted, kept, strict=True):
            if not draft:
                stats.plain += n
                continue
            proposed = min(len(draft), n) if row.stop else len(draft)
            accepted = min(n, len(made.tokens) - 1)
            stats.rounds += 1
            stats.proposed += proposed
            stats.accepted += accepted
            stats.emitted += n
            for k in range(min(accepted + 1, proposed)):
                stats.reached_at[k] += 1
                stats.accepted_at[k] += k < accepted
        stats.host_seconds += time.perf_counter() - self._now


def _state(row: Row) -> Kept:
    if row.kept is None:
        raise ValueError("a row of a speculating engine has no state of its speculator")
    return row.kept
