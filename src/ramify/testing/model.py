"""The conformance battery every model must pass: what it returns, and whether its claimed capabilities hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.problem import Problem
from ramify.base.seeds import derive_key
from ramify.base.waiting import wait_for
from ramify.model.protocol import CAPABILITIES, Completion, Grammar, Model, Prefix, Sampling
from ramify.testing.probe import await_checks
from ramify.trace.message import Message

STOPS = ("eos", "stop", "length", "cancelled")

#: Prefixes used where none are given: ids every vocabulary has.
TOKEN_PREFIXES = tuple(Prefix(np.array(ids, np.int32)) for ids in ([1], [1, 2], [3, 1, 1, 2]))
TEXT_PREFIXES = tuple(Prefix(messages=(Message("user", text),)) for text in ("hello", "count to three", "?"))


def check_model(
    model: Model, prefixes: Sequence[Prefix] | None = None, max_tokens: int = 6, tolerance: float = 2e-3, seed: int = 0
) -> list[Problem]:
    """Run every check; no problem means the model conforms.

    ``tolerance`` is how far log-probs of sampled tokens may lie from those of the same tokens given (absolute, nats). Runs its
    own event loop.
    """
    if prefixes is None:
        prefixes = TOKEN_PREFIXES if "tokens" in model.capabilities else TEXT_PREFIXES
    return wait_for(await_checks(CHECKS, _Probe(model, prefixes, Sampling(max_tokens=max_tokens), tolerance, seed)))


@dataclass(frozen=True)
class _Probe:
    model: Model
    prefixes: Sequence[Prefix]
    settings: Sampling
    tolerance: float
    seed: int

    def claims(self, *names: str) -> bool:
        return set(names) <= self.model.capabilities

    def keys(self, index: int, n: int) -> list[int]:
        return [derive_key(self.seed, "battery", index, i) for i in range(n)]

    async def sample(self, index: int, n: int = 3, settings: Sampling | None = None) -> list[Completion]:
        return await self.model.sample(self.prefixes[index], n, settings or self.settings, self.keys(index, n))


async def _claims(probe: _Probe) -> AsyncIterator[str]:
    unknown = sorted(probe.model.capabilities - set(CAPABILITIES))
    if unknown:
        yield f"it claims unknown capabilities: {', '.join(unknown)}"
    identity = probe.model.identity
    if not identity.name or not identity.weights:
        yield "its identity lacks a name or a weights hash"
    if identity != probe.model.identity:
        yield "its identity changes between two looks"
    if probe.claims("tokens") and not identity.tokenizer:
        yield "it takes tokens and its identity has no tokenizer hash"


async def _samples(probe: _Probe) -> AsyncIterator[str]:
    for index in range(len(probe.prefixes)):
        for n in (1, 3):
            completions = await probe.sample(index, n)
            if len(completions) != n:
                yield f"of {n} requested completions it returns {len(completions)}"
            for completion in completions:
                for message in _faults(probe, completion):
                    yield message


def _faults(probe: _Probe, completion: Completion) -> list[str]:
    """What is wrong with one sample by itself."""
    faults = [] if completion.stop in STOPS else [f"stop reason {completion.stop!r} is not one of {', '.join(STOPS)}"]
    if completion.tokens is None:
        return [*faults, "it claims tokens and a completion has none"] if probe.claims("tokens") else faults
    length, limit = len(completion.tokens), probe.settings.max_tokens
    if not length:
        faults.append("a completion has no token")
    if length > limit or (completion.stop == "length" and length < limit):
        faults.append(f"a completion limited to {limit} tokens that stops for '{completion.stop}' has {length}")
    for name, needed in (("logprobs", "logprobs"), ("model_logprobs", ""), ("entropy", "entropy"), ("ends", "")):
        array = getattr(completion, name)
        if array is None:
            if needed and probe.claims(needed):
                faults.append(f"it claims {needed} and a completion has none")
            continue
        if np.shape(array) != (length,):
            faults.append(f"{name} has shape {np.shape(array)} for {length} tokens")
        elif not np.isfinite(array).all():
            faults.append(f"{name} holds numbers that are not finite")
        elif name.endswith("logprobs") and (array > 1e-6).any():
            faults.append(f"{name} holds numbers above 0")
        elif name == "entropy" and (array < -1e-5).any():
            faults.append("an entropy is below 0")
        elif name == "ends" and length and ((np.diff(array) < 0).any() or array[0] < 0 or array[-1] > len(completion.text)):
            faults.append("ends are not rising offsets into the completion's text")
    return faults


async def _seeds(probe: _Probe) -> AsyncIterator[str]:
    if not probe.claims("seeds"):
        return
    for index in range(len(probe.prefixes)):
        for first, again in zip(await probe.sample(index), await probe.sample(index), strict=True):
            if not _equal(first, again):
                yield "it claims seeds, and the same keys give other completions or log-probs"


async def _batch(probe: _Probe) -> AsyncIterator[str]:
    if not probe.claims("batch_invariant"):
        return
    indices = range(len(probe.prefixes))
    company = await asyncio.gather(*(probe.sample(index, 4) for index in indices))
    for index in indices:
        for i, key in enumerate(probe.keys(index, 4)):
            alone = (await probe.model.sample(probe.prefixes[index], 1, probe.settings, [key]))[0]
            if not _equal(alone, company[index][i]):
                yield (
                    "it claims to be batch-invariant, and a completion sampled alone differs from the same one sampled in a batch"
                )


async def _scores(probe: _Probe) -> AsyncIterator[str]:
    """log-probs of given tokens against those of the same tokens when they were sampled (temperature 1,
    nothing cut: the same numbers)."""
    if not probe.claims("tokens", "logprobs", "prompt_logprobs"):
        return
    rows, sampled = [], []
    for index, prefix in enumerate(probe.prefixes):
        for completion in await probe.sample(index, 2):
            if completion.tokens is not None and completion.logprobs is not None and prefix.tokens is not None:
                rows.append(np.concatenate([prefix.tokens, completion.tokens]).astype(np.int32))
                sampled.append((len(prefix.tokens), completion.logprobs))
    for row, (start, logprobs), scores in zip(rows, sampled, await probe.model.logprobs(rows), strict=True):
        if scores.logprobs.shape != row.shape:
            yield f"logprobs() has shape {scores.logprobs.shape} for {len(row)} tokens"
        elif scores.logprobs[0] != 0:
            yield "logprobs() gives the first token, which nothing precedes, a number other than 0"
        elif start and np.abs(scores.logprobs[start:] - logprobs).max() > probe.tolerance:
            yield f"logprobs() and sample() differ by more than {probe.tolerance} on the same tokens"


async def _empty(probe: _Probe) -> AsyncIterator[str]:
    prefix = Prefix(np.zeros(0, np.int32)) if probe.claims("tokens") else Prefix()
    try:
        completions = await probe.model.sample(prefix, 1, probe.settings, [1])
    except (UserError, NeedsError):
        return
    except Exception as error:  # whichever it is, it is not the sentence a user should read
        yield f"an empty prefix raises {type(error).__name__} instead of a UserError"
        return
    if len(completions) != 1:
        yield f"an empty prefix gives {len(completions)} completions for 1"


async def _stops(probe: _Probe) -> AsyncIterator[str]:
    """A stop token ends the sample and stays in it; a token banned at the start is not sampled there."""
    if not probe.claims("tokens", "seeds"):
        return
    for index in range(len(probe.prefixes)):
        completion = (await probe.sample(index, 1))[0]
        if completion.tokens is None or not len(completion.tokens):
            continue
        first = int(completion.tokens[0])
        stopped = (await probe.sample(index, 1, replace(probe.settings, stop_tokens=(first,))))[0]
        if stopped.tokens is None or stopped.tokens.tolist() != [first] or stopped.stop not in ("stop", "eos"):
            yield "a stop token does not end the completion as its last token"
        try:
            banned = (await probe.sample(index, 1, replace(probe.settings, ban_first=(first,))))[0]
        except NeedsError:
            continue
        if banned.tokens is not None and len(banned.tokens) and int(banned.tokens[0]) == first:
            yield "a token in ban_first is sampled first"


async def _continues(probe: _Probe) -> AsyncIterator[str]:
    """Continuing inside a reply works and gives valid samples."""
    if not probe.claims("tokens", "continue"):
        return
    for index, prefix in enumerate(probe.prefixes):
        completion = (await probe.sample(index, 1))[0]
        if completion.tokens is None or prefix.tokens is None:
            continue
        inside = Prefix(
            np.concatenate([prefix.tokens, completion.tokens[: max(1, len(completion.tokens) // 2)]]).astype(np.int32)
        )
        for more in await probe.model.sample(inside, 2, probe.settings, [1, 2]):
            for message in _faults(probe, more):
                yield f"continuing inside a reply: {message}"


async def _follows(probe: _Probe) -> AsyncIterator[str]:
    """It follows the settings it claims to follow, or refuses them as an endpoint does."""
    if probe.claims("grammar"):
        held = replace(probe.settings, max_tokens=16, grammar=Grammar("regex", "(yes|no) [0-9]"))
        with suppress(NeedsError, UserError):
            for completion in await probe.sample(0, 3, held):
                if completion.stop != "length" and not re.match("(yes|no) [0-9]", completion.text):
                    yield f"under a grammar it says {completion.text[:40]!r}"
    if probe.claims("penalties", "tokens"):
        with suppress(NeedsError, UserError):
            (plain,) = await probe.sample(0, 1)
            token = 0 if plain.tokens is None or not len(plain.tokens) else int(plain.tokens[0])
            (biased,) = await probe.sample(0, 1, replace(probe.settings, logit_bias=((token, -100.0),)))
            if biased.tokens is not None and token in biased.tokens.tolist():
                yield "it samples a token whose logit_bias is -100"


def _equal(left: Completion, right: Completion) -> bool:
    arrays = ((getattr(left, name), getattr(right, name)) for name in ("tokens", "logprobs", "entropy"))
    same = all((a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in arrays)
    return same and left.text == right.text and left.stop == right.stop


CHECKS: tuple[Callable[[_Probe], AsyncIterator[str]], ...] = (
    _claims, _samples, _seeds, _batch, _scores, _empty, _stops, _continues, _follows,
)  # fmt: skip
