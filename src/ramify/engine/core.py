"""The engine's step: schedule, draft, run, sample.

A step runs one forward batch over all running sequences, each with the tokens it has to catch up (one, as a rule) and, where a
drafter is there, the drafts to verify; longer stretches of given tokens run before, in batches of their own. Nothing here depends
on time, and no sample depends on what it shares a batch with:
where this machine's kernels make it, every token runs in a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as GenericSequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ramify.engine.batch import ForwardBatch, padded
from ramify.engine.forward import CHUNK, Exactness, Forward, threads_for
from ramify.engine.grammar import shapes_after
from ramify.engine.sampling import Picked, pick
from ramify.engine.scheduler import Scheduler
from ramify.engine.sequence import Sequence
from ramify.engine.speculate import Round
from ramify.engine.tiny import Tap
from ramify.model.protocol import Tokenizer

MOST = 4 * CHUNK
"""Most tokens of all sequences in a batch of given tokens, or of tokens that run again for their features."""
FEW = 4
"""A sequence with at most so many tokens to catch up rides along in the batch of all sequences."""


class EngineCore:
    """Runs the sequences of ``scheduler`` on ``forward``, batched as ``exactness`` requires."""

    def __init__(
        self,
        scheduler: Scheduler,
        forward: Forward,
        tokenizer: Tokenizer | None,
        eos: GenericSequence[int],
        exactness: Callable[[], Exactness],
    ) -> None:
        self.scheduler, self.forward, self.tokenizer, self.eos = scheduler, forward, tokenizer, frozenset(eos)
        self.cache, self.speculator, self.stats = scheduler.cache, scheduler.speculator, scheduler.stats
        self._exactness = exactness

    @cached_property
    def alone(self) -> bool:
        """Whether every token runs in a batch of its own."""
        return self._exactness() is Exactness.ALONE

    @cached_property
    def any_threads(self) -> bool:
        """Whether a batch may run on several threads."""
        return self._exactness() in (Exactness.TOGETHER, Exactness.UNPROVEN)

    def step(self) -> bool:
        """Schedule, move every running sequence on by at least one token; True when one finished."""
        with torch.inference_mode():
            running = self.scheduler.schedule()
            if not running:
                return False
            self._run_prompts(running)
            round_ = self._propose(running)
            counts = [seq.pending if seq.pending <= FEW else 1 for seq in running]
            return self._run_all(running, counts, round_)

    def _propose(self, running: GenericSequence[Sequence]) -> Round:
        """Drafts for every sequence, none for most reasons: taps, tokens to catch up, forks that wait for its next token."""
        speculator = self.speculator
        if speculator is None:
            return Round()
        able = [
            slot
            for slot, seq in enumerate(running)
            if seq.pending == 1 and seq.group.taps is None and (seq.logprobs or not seq.group.requests)
        ]
        round_ = speculator.begin([running[slot] for slot in able])
        if not round_.depth:
            return round_
        self._recall(running, able)
        with threads_for(len(able) * speculator.block * self.forward.weights):
            return speculator.propose(self.cache, running, able, round_)

    def _recall(self, running: GenericSequence[Sequence], slots: GenericSequence[int]) -> None:
        """Run again what steps without drafts have computed, for its features. Keys and values stay the same."""
        assert self.speculator is not None
        missing = [
            (slot, p) for slot in slots if (state := running[slot].draft) for p in range(state.featured, running[slot].computed)
        ]
        for at in range(0, len(missing), MOST):  # whole batches but for the last, whose padding lies past the end of its sequence
            owners, where = zip(*missing[at : at + MOST], strict=True)
            tokens = [running[slot].tokens[p] for slot, p in zip(owners, where, strict=True)]
            self._run(tokens, where, owners, watched=True)
        for slot, p in missing:
            if (state := running[slot].draft) is not None:
                state.ran(p, 1)
        self.speculator.stats.recalled += len(missing)

    # -- forward batches

    def _run(
        self, tokens: GenericSequence[int], where: GenericSequence[int], owners: GenericSequence[int], watched: bool
    ) -> list[Tensor]:
        """Run ``tokens`` at positions ``where`` of the slots ``owners``;
        the hidden states [M, D] of one batch, or of one for each entry.

        Under the taps of the sequences and, where ``watched``, with the features that go to the drafter.
        """
        running = self.scheduler.running
        size = 1 if self.alone else len(tokens)
        states = []
        for at in range(0, len(tokens), size):
            part = slice(at, at + size)
            mine = owners[part]
            one_each = len(mine) == len(running) and all(slot == i for i, slot in enumerate(mine))
            batch = ForwardBatch(self.cache, self.forward.kv_heads, tokens[part], where[part], None if one_each else mine)
            with threads_for(batch.size * self.forward.weights if self.any_threads else 0):
                tap = self._tap(batch, [running[slot] for slot in mine], where[part], watched)
                states.append(self.forward.hidden(batch, tap))
            self.stats.forward_passes += 1
            self.stats.forward_rows += batch.size
            self.stats.padded_rows += batch.size - batch.used
        return states

    def _logits(self, hidden: list[Tensor]) -> Tensor:
        """Logits of the entries of :meth:`_run`, one by one."""
        if self.alone:
            with threads_for(0):
                return torch.cat([self.forward.logits(state)[:1] for state in hidden])
        (whole,) = hidden
        with threads_for(len(whole) * self.forward.weights if self.any_threads else 0):
            return self.forward.logits(whole)

    def _tap(
        self, batch: ForwardBatch, sequences: GenericSequence[Sequence], positions: GenericSequence[int], watched: bool
    ) -> Tap | None:
        """The taps of the batch."""
        tapped = [(m, seq.group.taps, seq.states) for m, seq in enumerate(sequences) if seq.group.taps is not None]
        watch = self.speculator.watch(self.cache, batch) if self.speculator and watched else None

        def tap(layer: int, x: Tensor) -> Tensor:
            for m, taps, states in tapped:
                taps.apply(layer, x, m, positions[m], states)
            return x if watch is None else watch(layer, x)

        return tap if tapped else watch

    def _run_prompts(self, running: GenericSequence[Sequence]) -> None:
        """Run up to CHUNK pending tokens of every sequence that has more than a few,
        all but its last; neighbours share batches."""
        stretches = [(slot, min(seq.pending - 1, CHUNK)) for slot, seq in enumerate(running) if seq.pending > FEW]
        for part in _shared_batches(stretches):
            tokens: list[int] = []
            where: list[int] = []
            for slot, count in part:
                start = running[slot].computed
                tokens += running[slot].tokens[start : start + count]
                where += range(start, start + count)
            self._run(tokens, where, [slot for slot, count in part for _ in range(count)], watched=True)
            for slot, count in part:
                self._ran(running[slot], count, watched=True)

    def _run_all(self, running: list[Sequence], counts: GenericSequence[int], round_: Round) -> bool:
        """Run the next ``counts[slot]`` tokens of every sequence and its drafts, and sample for those that are caught up."""
        where = [seq.computed for seq in running]
        tokens = [seq.tokens[p] for seq, p in zip(running, where, strict=True)]
        owners = firsts = list(range(len(running)))
        if max(counts) > 1 or any(round_.drafts):
            tokens, where, owners, firsts = [], [], [], []
            for slot, (seq, n, draft) in enumerate(zip(running, counts, round_.of(range(len(running))).drafts, strict=True)):
                firsts.append(len(tokens))
                tokens += seq.tokens[seq.computed : seq.computed + n]
                tokens += draft
                where += range(seq.computed, seq.computed + n + len(draft))
                owners += [slot] * (n + len(draft))
        watched = self.speculator is not None and self.speculator.drafting
        hidden = self._run(tokens, where, owners, watched)
        ready, entries = [], []
        for slot, (seq, n) in enumerate(zip(running, counts, strict=True)):
            last = seq.pending == n
            self._ran(seq, n, watched)
            if last:
                ready.append(slot)
                entries.append(firsts[slot] + n - 1)
        rows = padded(len(entries), self.forward.unit)
        if ready and not self.alone and not any(round_.drafts) and rows < len(hidden[0]):
            asked = entries + entries[:1] * (rows - len(entries))
            hidden, entries = [hidden[0][asked]], list(range(len(entries)))  # the rest of the batch has no logits to pay for
        return bool(ready) and self._sample(self._logits(hidden), ready, entries, round_)

    def _ran(self, seq: Sequence, count: int, watched: bool) -> None:
        """Record ``count`` computed tokens of a sequence."""
        self.stats.prompt_tokens += max(0, min(count, len(seq.group.prefix) - seq.computed))
        if watched and seq.draft is not None:
            seq.draft.ran(seq.computed, count)
        seq.computed += count

    # -- tokens

    def _sample(self, logits: Tensor, slots: list[int], entries: list[int], round_: Round) -> bool:
        """Sample for the sequences in ``slots``, whose last known tokens are ``entries`` of the batch,
        and for those that fork off here."""
        scheduler, running = self.scheduler, self.scheduler.running
        keep = {}
        for i, slot in enumerate(list(slots)):
            seq = running[slot]
            if not seq.logprobs:
                keep[slot] = seq.computed
                start = len(running)
                forks = scheduler.fork(slot) if seq.group.requests else 0
                slots += range(start, start + forks)
                entries += [entries[i]] * forks
        sequences, index = [running[slot] for slot in slots], entries
        drafted = any(round_.drafts)
        if drafted:
            round_ = round_.of(slots)
            index = [e for entry, draft in zip(entries, round_.drafts, strict=True) for e in range(entry, entry + len(draft) + 1)]
        if index != list(range(len(logits))):
            logits = logits[: len(index)] if index == list(range(len(index))) else logits[index]
        if self.speculator is not None and drafted:
            emitted, round_ = self.speculator.verify(logits, sequences, round_)
        else:
            emitted = _next(logits, sequences)
        finished: list[tuple[int, Sequence, Exception | None]] = []
        kept = []
        for slot, seq, picked in zip(slots, sequences, emitted, strict=True):
            count, failure = self._append(seq, picked)
            kept.append(count)
            if seq.stop or failure:
                finished.append((slot, seq, failure))
                keep[slot] = seq.computed
        if self.speculator is not None:
            self.speculator.settle(sequences, round_, kept)
        scheduler.keep(keep)
        for slot, seq, failure in sorted(finished, key=lambda f: -f[0]):
            scheduler.finish(slot)
            seq.request.done(seq.request, failure or seq)
        return bool(finished)

    def _append(self, seq: Sequence, picked: Picked) -> tuple[int, Exception | None]:
        """Append what a sequence sampled, up to the token that ends it; returns how many, and what its ``until`` raised."""
        failure = None
        count = 0
        for token, logprob, model, entropy in zip(
            picked.tokens, picked.logprobs, picked.model_logprobs, picked.entropy, strict=True
        ):
            seq.tokens.append(token)
            seq.logprobs.append(logprob)
            seq.model_logprobs.append(model)
            seq.entropy.append(entropy)
            count += 1
            failure = self._end(seq)
            if seq.stop or failure:
                break
        if seq.draft is not None:
            seq.draft.ran(seq.computed, count - 1)
        seq.computed += count - 1  # the drafts among them; the last is the next to run
        self.stats.sampled_tokens += count
        if seq.request.progress is not None:
            seq.request.progress(seq)
        return count, failure

    def _end(self, seq: Sequence) -> Exception | None:
        """Set a sequence's stop reason if its last token ends it;
        returns what its ``until`` raised, or why its grammar has no token."""
        settings, token, shaper = seq.request.settings, seq.tokens[-1], seq.request.shaper
        if shaper is not None and (failure := shaper.take(token)) is not None:
            return failure
        if token in self.eos:
            seq.stop = "eos"
        elif token in settings.stop_tokens or (settings.stop_texts and self._has_stop_text(seq)):
            seq.stop = "stop"
        elif settings.until is not None:
            try:
                seq.stop = "stop" if settings.until(np.array(seq.sampled, dtype=np.int32)) else ""
            except Exception as error:  # the caller's own function; it fails that caller's completion only
                return error
        if not seq.stop and shaper is not None and shaper.complete:
            seq.stop = "stop"
        if not seq.stop and len(seq.logprobs) == len(seq.uniforms):
            seq.stop = "length"
        return None

    def _has_stop_text(self, seq: Sequence) -> bool:
        if self.tokenizer is None:
            return False
        texts = seq.request.settings.stop_texts
        # a character is at most 4 tokens (bytes); the rest of the completion was looked at before
        tail = self.tokenizer.decode(seq.sampled[-4 * (max(map(len, texts)) + 1) :])
        return any(text in tail for text in texts)


def _shared_batches(stretches: GenericSequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Stretches (slot, tokens) of rising slots, cut where a batch has enough tokens.

    Attention runs on a rectangle, all slots from the first to the last times the longest stretch:
    at most half of it may be empty.
    """
    batches: list[list[tuple[int, int]]] = []
    for slot, count in stretches:
        if batches:
            part = [*batches[-1], (slot, count)]
            total, rectangle = sum(n for _, n in part), (slot - part[0][0] + 1) * max(n for _, n in part)
            if total <= MOST and rectangle <= 2 * total:
                batches[-1] = part
                continue
        batches.append([(slot, count)])
    return batches


def _next(logits: Tensor, sequences: GenericSequence[Sequence]) -> list[Picked]:
    """One token of each sequence, without drafts. ``logits`` [R, V]."""
    settings, first = [seq.request.settings for seq in sequences], [not seq.logprobs for seq in sequences]
    shapes = shapes_after([seq.request.shaper for seq in sequences], [()] * len(sequences))
    picked = pick(logits, settings, first, [float(seq.uniforms[len(seq.logprobs)]) for seq in sequences], shapes)
    each = zip(picked.tokens, picked.logprobs, picked.model_logprobs, picked.entropy, strict=True)
    return [Picked([token], [logprob], [model], [entropy]) for token, logprob, model, entropy in each]
