"""Speculation inside the engine's step: draft, decide how much to verify, verify, keep what the drafter needs for the next round.

A step of a speculating engine is::

    round = speculator.begin(sequences)                    # those about to sample a token; round.depth 0: this step drafts
    nothing round = speculator.propose(cache, running, slots, round)
    batch: for each sequence its anchor (the last token, not run yet) and its drafts, at consecutive positions
    tap = speculator.watch(cache, batch)                   # what the batch runs under; where the step drafts
    emitted, round = speculator.verify(logits, sequences, round)  # where any draft is
    ... append emitted tokens one by one until one ends the sequence; ``kept[i]`` of them stay ...
    speculator.settle(sequences, round, kept)

Between these calls all that is known of a step is in its :class:`Round`, which nobody changes.

Features (outputs of the target layers that the drafter reads) lie in the cache by position, in layers between the target's and
the drafter's: they are copied, shared and overwritten with the keys and values alongside them, and cost the drafter nothing until
it drafts. A step without drafts keeps none, and costs what it costs without a drafter;
when drafting resumes, what it computed runs again, once.

Axis legend: R sequences, P of them with drafts, K drafted tokens of each, M rows of a forward batch, D width, m target layers
read by the drafter, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as GenericSequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ramify.base.errors import UserError
from ramify.base.seeds import derive_key, uniforms
from ramify.engine.cache import KVCache
from ramify.engine.controller import AdaptiveController
from ramify.engine.grammar import drafted_shapes
from ramify.engine.sampling import Picked, distributions, inverse_cdf
from ramify.engine.schedules import Schedule
from ramify.engine.sequence import DraftState, Sequence
from ramify.engine.tiny import Tap
from ramify.engine.verify import coupled, rejection

if TYPE_CHECKING:
    from ramify.engine.batch import ForwardBatch
    from ramify.engine.drafters import Drafter

PURPOSES = ("draft", "accept")
"""The other uses of uniforms in a round, besides the tokens."""
STRIDE = 256
"""Counter values of one anchor; more than any block."""
AHEAD = 48
"""Anchors whose uniforms are made at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The drafts of one step, from proposal to verification. Each stage returns a new one."""

    load: int = 0
    """Sequences that could be drafted for."""
    depth: int = 0
    """Tokens to draft for each; 0: none."""
    drafts: tuple[list[int], ...] = ()
    """By sequence, the tokens to verify; empty: none."""
    places: tuple[int, ...] = ()
    """By sequence, its row of ``q``, ``chances`` and ``confidence``; -1: it has none."""
    q: Tensor | None = None
    """Weights that the drafts were sampled from, [P, K, V], where verification needs them."""
    chances: np.ndarray | None = None
    """Uniforms of the acceptances, [P, K], where verification needs them."""
    confidence: np.ndarray | None = None
    """Of each drafted token, given those before it, [P, K]."""
    accepted: tuple[int, ...] = ()
    """By sequence, how many drafts verification accepted."""
    began: float = 0.0
    since: float = 0.0
    """When the step began and when its last stage ended, in seconds of ``time.perf_counter``."""

    def of(self, slots: GenericSequence[int]) -> Round:
        """The round of the sequences in ``slots``; those that came after the proposal have no drafts."""
        n = len(self.drafts)
        if n == len(slots) and all(slot == i for i, slot in enumerate(slots)):
            return self
        drafts = tuple(self.drafts[slot] if slot < n else [] for slot in slots)
        return replace(self, drafts=drafts, places=tuple(self.places[slot] if slot < n else -1 for slot in slots))

    def verified(self, accepted: tuple[int, ...], since: float) -> Round:
        """The round after its verification, which ended at ``since``."""
        given = (self.load, self.depth, self.drafts, self.places, self.q, self.chances, self.confidence)
        return Round(*given, accepted, self.began, since)


@dataclass(slots=True)
class SpecStats:
    """Counts since the start. A round here is one sequence's drafts and their verification."""

    rounds: int = 0
    plain: int = 0
    """Tokens sampled without drafts while a drafter was there."""
    drafted: int = 0
    proposed: int = 0
    """Drafts that went through the target; after a token that ended the sample none counts."""
    recalled: int = 0
    """Positions run a second time for their features, which a step without drafts had not kept."""
    accepted: int = 0
    emitted: int = 0
    """Tokens of all rounds: accepted drafts, and one bonus or corrected token each."""
    reached_at: list[int] = field(default_factory=list)
    """By position: rounds in which the draft was proposed and all before it were accepted."""
    accepted_at: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    """Absorbing and drafting; then the target's batch, the verification, and taking the tokens in."""
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
    """Drafts for the sequences of a scheduler. ``distribution`` is ``coupled`` or ``rejection`` (see
    :mod:`ramify.engine.verify`).

    Under ``rejection`` sequences whose settings say ``seeded`` are verified by ``coupled`` all the same.
    """

    def __init__(
        self, drafter: Drafter, schedule: Schedule, first: int, distribution: str = "coupled", prior: np.ndarray | None = None
    ) -> None:
        if distribution not in ("coupled", "rejection"):
            raise UserError(f"verify is '{distribution}'; it is coupled or rejection")
        self.drafter, self.schedule, self.distribution = drafter, schedule, distribution
        c = drafter.config
        self.block, self.width = c.block, c.width
        self._cells = -(-c.width // c.kv_size)
        self._features = first, first + len(c.target_layers) * self._cells
        self._watched = [layer + 1 for layer in c.target_layers]
        self.stored = self.first = self._features[1]
        """The drafter's first layer of the cache; those before it, of the target and of features, are kept with a prefix."""
        self.layers = self.stored - first + drafter.layers
        """Layers to add to the cache; they start at ``first``."""
        self.drafting = True
        """Whether the last step that could draft did."""
        self.stats = SpecStats(reached_at=[0] * self.block, accepted_at=[0] * self.block)
        self.prior = np.full(self.block, 0.7) if prior is None else prior
        """Acceptance by position to start from, [block]."""
        self._room: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        self._controller: AdaptiveController | None = getattr(schedule, "controller", None)

    def admit(self, key: int) -> DraftState:
        """The state of a sequence that gets a slot."""
        return DraftState(tuple(derive_key(key, purpose) for purpose in PURPOSES) if self.distribution == "rejection" else ())

    def watch(self, cache: KVCache, batch: ForwardBatch) -> Tap:
        """Puts the features of a batch's entries into the cache while the target runs."""
        start, stop = self._features
        if batch.size not in self._room:
            size = self._cells * cache.kv.shape[3]
            room = torch.zeros((len(self._watched), batch.size, size), device=cache.kv.device)
            self._room[batch.size] = room, dict(zip(self._watched, room[..., : self.width].unbind(0), strict=True))
        room, places = self._room[batch.size]
        last = self._watched[-1]

        def tap(layer: int, x: Tensor) -> Tensor:
            if layer in places:
                places[layer].copy_(x)
                if layer == last:
                    cells = room if self._cells == 1 else room.unflatten(2, (self._cells, -1)).transpose(1, 2).flatten(0, 1)
                    cache.kv[start:stop].flatten(1, 2).index_copy_(1, batch.slot_mapping, cells)
            return x

        return tap

    def absorb(self, cache: KVCache, sequences: GenericSequence[Sequence], slots: GenericSequence[int]) -> None:
        """Pass the drafter all features of these sequences that it has not absorbed yet, in one call.

        A position whose next token is not known (the last of a prompt before its first sampled token) waits for it.
        """
        where: list[int] = []
        positions: list[int] = []
        following: list[int] = []
        for seq, slot in zip(sequences, slots, strict=True):
            state = _state(seq)
            stop = min(seq.computed, len(seq.tokens) - 1)
            where += [slot] * (stop - state.absorbed)
            positions += range(state.absorbed, stop)
            following += seq.tokens[state.absorbed + 1 : stop + 1]
            state.absorbed = stop
        if where:
            at = [slot * cache.capacity + p for slot, p in zip(where, positions, strict=True)]
            numbers = torch.from_numpy(np.array((where, positions, following, at))).to(cache.kv.device).unbind(0)
            start, stop = self._features
            cells = cache.kv[start:stop].flatten(1, 2).transpose(0, 1).index_select(0, numbers[3])
            features = cells.view(len(at), len(self._watched), -1).narrow(2, 0, self.width).flatten(1)
            self.drafter.absorb(cache, self.first, numbers[0], numbers[1], features, numbers[2])

    def absorb_before_fork(self, cache: KVCache, seq: Sequence, slot: int) -> None:
        """Absorb once what every copy of a sequence would absorb again, where drafts are made."""
        if self.drafting and _state(seq).featured == seq.computed:
            self.absorb(cache, [seq], [slot])

    def begin(self, sequences: GenericSequence[Sequence]) -> Round:
        """Decide how many tokens to draft this step for sequences about to sample.

        Every one has one token pending (its anchor). Sequences under taps and those that fork at this token should not be given.
        """
        began, load = time.perf_counter(), len(sequences)
        depth = self.schedule.depth(load) if load else 0
        if load:
            self.drafting = depth > 0
        return Round(load, depth, began=began, since=began)

    def propose(self, cache: KVCache, running: GenericSequence[Sequence], slots: GenericSequence[int], round_: Round) -> Round:
        """Drafts for the sequences in ``slots``, at most ``round_.depth`` each;
        the cache needs room for a block past every sequence.

        The features of all that these sequences have computed must be there.
        """
        began = time.perf_counter()
        drafts: list[list[int]] = [[] for _ in running]
        places = [-1] * len(running)
        rooms = [len(running[slot].uniforms) - len(running[slot].logprobs) - 1 for slot in slots]
        able = [slot for slot, room in zip(slots, rooms, strict=True) if room > 0]
        drafted = round_
        if able:
            depth = min(round_.depth, max(rooms))
            sequences = [running[slot] for slot in able]
            self.absorb(cache, sequences, able)
            drafted = self._draft(cache, sequences, able, depth)
            assert drafted.confidence is not None
            limits = np.array([min(room, depth) for room in rooms if room > 0])
            lengths = self.schedule.admit(drafted.confidence, limits).tolist()
            for place, (slot, draft, length) in enumerate(zip(able, drafted.drafts, lengths, strict=True)):
                drafts[slot], places[slot] = draft[:length], place
            self.stats.drafted += depth * len(able)
        now = time.perf_counter()
        self.stats.draft_seconds += now - began
        load, depth, given = round_.load, round_.depth, (drafted.q, drafted.chances, drafted.confidence)
        return Round(load, depth, tuple(drafts), tuple(places), *given, began=round_.began, since=now)

    def _draft(self, cache: KVCache, sequences: GenericSequence[Sequence], slots: GenericSequence[int], depth: int) -> Round:
        """What the drafter makes of each sequence: a round with all ``depth`` drafts of each."""
        device, R = cache.kv.device, len(sequences)
        settings = [seq.request.settings for seq in sequences]
        begins, never = [not seq.logprobs for seq in sequences], [False] * R
        later = all(seq.request.plain for seq in sequences)
        bare = later and not any(b and s.ban_first for b, s in zip(begins, settings, strict=True)), later
        shapers = [seq.request.shaper for seq in sequences]
        uniforms_, chances = self._uniforms(sequences, depth)
        u = torch.from_numpy(uniforms_).to(device).unsqueeze(2).unbind(1)
        # where nothing looks at the weights again, each slot writes over those of the one before
        weights = torch.empty((1 if chances is None else depth, R, self.drafter.config.vocab), device=device)
        rooms = weights.unbind(0)
        so_far: list[Tensor] = []

        def pick(k: int, logits: Tensor) -> Tensor:
            room = rooms[k % len(rooms)]
            if bare[k > 0]:
                q = torch.softmax(logits, -1, out=room)
            else:
                q = torch.exp(
                    distributions(logits, settings, never if k else begins, drafted_shapes(shapers, so_far))[1], out=room
                )
            so_far.append(inverse_cdf(q, u[k]))
            return so_far[-1]

        anchors, positions = [seq.tokens[-1] for seq in sequences], [seq.computed for seq in sequences]
        numbers = torch.from_numpy(np.array((slots, anchors, positions))).to(device).unbind(0)
        proposal = self.drafter.draft(cache, self.first, numbers[0], numbers[1], numbers[2], pick, depth)
        if self.drafter.config.confidence:
            confidence = proposal.confidence.double().cpu().numpy()
        else:
            confidence = np.tile(self.usual()[:depth], (R, 1))
        q = None if chances is None else weights.transpose(0, 1)
        return Round(drafts=tuple(proposal.tokens.tolist()), places=tuple(range(R)), q=q, chances=chances, confidence=confidence)

    def _uniforms(self, sequences: GenericSequence[Sequence], depth: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Uniforms of the drafts and, under rejection, of their acceptances, float64 [P, depth] each.

        Coupled: those of the tokens themselves. Rejection: fresh ones for every anchor. Were they keyed by the draft's position
        alone, a draft thrown away would come back after the next anchor,
        and what earlier confidences decided (a stale budget) would know it.
        """
        picks, chances = (
            (np.empty((len(sequences), depth)), None) if self.distribution == "coupled" else self._keyed(sequences, depth)
        )
        for i, seq in enumerate(sequences):
            if self._coupled(seq):
                picks[i] = np.resize(seq.uniforms[len(seq.logprobs) : len(seq.logprobs) + depth], depth)
        return picks, chances

    def _coupled(self, seq: Sequence) -> bool:
        return self.distribution == "coupled" or seq.request.settings.seeded

    def _keyed(self, sequences: GenericSequence[Sequence], depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Fresh uniforms of every purpose. Those of the next anchors are made along, for a few cost as much as many."""
        states, anchors = [_state(seq) for seq in sequences], [len(seq.logprobs) for seq in sequences]
        short = [(s, at) for s, at in zip(states, anchors, strict=True) if not s.since <= at < s.since + len(s.uniforms)]
        if short:
            keys = np.array([state.keys for state, _ in short])[:, None, :, None]
            begins = np.array([at for _, at in short])[:, None, None, None]
            counters = (begins + np.arange(AHEAD)[:, None, None]) * STRIDE + np.arange(self.block)
            for (state, at), fresh in zip(short, uniforms(keys, counters) * (1 - 2.0**-52), strict=True):
                state.since, state.uniforms = at, fresh
        of_anchors = np.array([state.uniforms[at - state.since] for state, at in zip(states, anchors, strict=True)])
        return of_anchors[:, 0, :depth].copy(), of_anchors[:, 1, :depth]

    def usual(self) -> np.ndarray:
        """Acceptance by position so far, [block], for drafters without confidences; the prior counts as 8 rounds."""
        reached, kept = np.array(self.stats.reached_at), np.array(self.stats.accepted_at)
        return np.asarray((kept + 8 * self.prior) / (reached + 8))

    def verify(self, logits: Tensor, sequences: GenericSequence[Sequence], round_: Round) -> tuple[list[Picked], Round]:
        """The tokens each sequence emits, 1 to drafts + 1 of them. ``logits`` [sum(len(drafts) + 1), V], sequence by sequence."""
        began = time.perf_counter()
        self.stats.target_seconds += began - round_.since
        by_coupling = [self._coupled(seq) for seq in sequences]
        if all(by_coupling) or not any(by_coupling):
            emitted = self._verify(logits, sequences, round_, by_coupling[0])
        else:
            stops = np.cumsum([len(draft) + 1 for draft in round_.drafts]).tolist()
            emitted = [Picked([], [], [], [])] * len(sequences)
            for distribution in (True, False):
                which = [i for i, coupled_one in enumerate(by_coupling) if coupled_one == distribution]
                entries = [e for i in which for e in range(stops[i] - len(round_.drafts[i]) - 1, stops[i])]
                part = self._verify(logits[entries], [sequences[i] for i in which], round_.of(which), distribution)
                for i, picked in zip(which, part, strict=True):
                    emitted[i] = picked
        now = time.perf_counter()
        self.stats.verify_seconds += now - began
        return emitted, round_.verified(tuple(len(kept_tokens.tokens) - 1 for kept_tokens in emitted), now)

    def _verify(self, logits: Tensor, sequences: GenericSequence[Sequence], round_: Round, by_coupling: bool) -> list[Picked]:
        """Verification of sequences under one distribution."""
        settings = [seq.request.settings for seq in sequences]
        begins = [not seq.logprobs for seq in sequences]
        shapers = [seq.request.shaper for seq in sequences]
        u = [
            seq.uniforms[len(seq.logprobs) : len(seq.logprobs) + len(draft) + 1]
            for seq, draft in zip(sequences, round_.drafts, strict=True)
        ]
        if by_coupling or not any(round_.drafts):
            return coupled(logits, settings, begins, u, round_.drafts, shapers)
        assert round_.q is not None
        assert round_.chances is not None
        q, chances = round_.q, round_.chances
        if round_.places != tuple(range(len(q))):
            q, chances = q[list(round_.places)], chances[list(round_.places)]
        return rejection(logits, settings, begins, u, round_.drafts, q, chances, shapers)

    def settle(self, sequences: GenericSequence[Sequence], round_: Round, kept: GenericSequence[int]) -> None:
        """Count what was kept: the first ``kept[i]`` of sequence i's emitted tokens. One that ended has its ``stop`` set.

        Where there are drafts, entry i of the round is sequence i.
        """
        stats, now = self.stats, time.perf_counter()
        if (
            round_.load and self._controller is not None
        ):  # prompts ran before the step began, and what happens at the ends of completions comes after
            self._controller.saw(round_.load, round_.depth > 0, sum(kept), now - round_.began)
        if not any(round_.drafts):
            stats.plain += sum(kept)
            return
        for seq, draft, stayed, n in zip(sequences, round_.drafts, round_.accepted, kept, strict=True):
            if not draft:
                stats.plain += n
                continue
            proposed = min(len(draft), n) if seq.stop else len(draft)
            accepted = min(n, stayed)
            stats.rounds += 1
            stats.proposed += proposed
            stats.accepted += accepted
            stats.emitted += n
            for k in range(min(accepted + 1, proposed)):
                stats.reached_at[k] += 1
                stats.accepted_at[k] += k < accepted
        stats.host_seconds += time.perf_counter() - round_.since


def _state(seq: Sequence) -> DraftState:
    if seq.draft is None:
        raise ValueError("a sequence of a speculating engine has no state of its speculator")
    return seq.draft
