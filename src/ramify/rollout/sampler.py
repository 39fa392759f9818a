"""Sample continuations of a prefix: seeds derived from positions, within a budget, failures as data, own accounting.

All code that continues token ids or a chat uses this module; :class:`ramify.rollout.run.Episodes` continues episodes with it.
What else happens while one continuation is made (a guard that steps in, a thought that is closed before the answer) is a
:class:`Policy`. Stop rules and limits are in the ``Sampling``, a forced beginning is part of the prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from ramify.base import verdicts
from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.ids import stable_hash
from ramify.base.ledger import Ledger
from ramify.base.progress import REPLIES
from ramify.base.seeds import derive_key
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling, known_capabilities, require, require_splittable
from ramify.model.streaming import Piece, Pieces, gathered, stream

T = TypeVar("T")


@dataclass(frozen=True)
class FailurePolicy:
    """Retries per component (provider, engine, env, tool, sandbox, scorer),
    with exponential backoff; then the failure is recorded."""

    retries: Mapping[str, int] = field(default_factory=lambda: {"provider": 2})
    wait: float = 0.5
    """Seconds before the first retry; doubled for each further one."""

    async def call(self, action: Callable[[], Awaitable[T]]) -> T:
        """Run ``action``, with the retries of the component that failed. Raises the last InfrastructureError."""
        tries = 0
        while True:
            try:
                return await action()
            except InfrastructureError as error:
                if error.final or tries >= self.retries.get(error.boundary, 0):
                    raise
                await asyncio.sleep(self.wait * 2**tries)
                tries += 1


SamplePosition = tuple[str | int, ...]
"""A position and the purpose of its samples: ids, names and indices, in order."""


def sample_key(seed: int, position: SamplePosition, index: int | None = None) -> int:
    """The sample key: derived from the run's seed, the whole ``position`` and the sample's index (None: there is only one). Keys
    are made here only."""
    return derive_key(seed, *position) if index is None else derive_key(seed, *position, index)


@dataclass(frozen=True, slots=True)
class Key:
    """The parts of a sample key, see :func:`sample_key`."""

    seed: int
    position: SamplePosition
    index: int | None = None

    @property
    def number(self) -> int:
        """The key as a model takes it."""
        return sample_key(self.seed, self.position, self.index)

    def within(self, *position: str | int) -> Key:
        """The key of a sample made within this sample."""
        return Key(self.number, position)


#: Samples one continuation of a prefix.
Ask = Callable[[Prefix, Sampling, Key], Awaitable[Completion]]


class Policy(Protocol):
    """Intervenes while one continuation is sampled."""

    name: str
    needs: tuple[str, ...]
    """Capabilities that the model must have."""

    async def sample(self, ask: Ask, prefix: Prefix, settings: Sampling, key: Key) -> Completion:
        """One continuation of ``prefix``, made of as many others (``ask``) as it takes:
        plain ones, or those of another policy."""
        ...


@dataclass(frozen=True, slots=True)
class Spent:
    """What a sampler spent, in continuations and tokens."""

    samples: int
    given: int
    """Tokens of prefixes, each counted as often as it was continued."""
    cached: int
    """Those of them found in the model's KV cache, where it reports that."""
    sampled: int
    reported: bool
    """Whether the model always reported its cached tokens; else they are unknown."""

    @property
    def run(self) -> int:
        """Tokens run through the model; where it does not report cached tokens, as if there were none."""
        return self.given - self.cached * self.reported + self.sampled


class Sampler:
    """Samples continuations from one model. Samples depend on seed and position alone, not on order or concurrency. ``budget`` is
    checked first: :meth:`sample` raises BudgetSpentError where it is spent. ``retries`` is the retry policy. ``policy``
    intervenes in every continuation. ``ledger`` has, by purpose, what was spent here, whoever else samples from the model. Raises
    NeedsError where the model lacks what ``policy`` needs."""

    def __init__(
        self,
        model: Model,
        seed: int = 0,
        *,
        policy: Policy | None = None,
        budget: Budget | None = None,
        retries: FailurePolicy | None = None,
    ) -> None:
        if policy is not None:
            require(model, policy.needs, policy.name)
        self.model, self.seed, self.policy = model, seed, policy
        self.budget, self.retries = budget or Budget(), retries or FailurePolicy()
        self.ledger = Ledger()
        self.failed = 0
        """Continuations that failed for good."""
        self.first_failure = ""
        """The first sentence with which the model failed."""
        self._unreported = False

    @property
    def identity(self) -> Identity:
        """Identity of the sampler: the model, or the model under the policy."""
        inner = self.model.identity
        if self.policy is None:
            return inner
        return Identity(f"{inner.name}+{self.policy.name}", stable_hash(self.policy.name, inner.weights), inner.tokenizer)

    async def sample(
        self,
        prefix: Prefix,
        n: int,
        settings: Sampling,
        position: SamplePosition,
        start: int = 0,
        purpose: str = "sample",
        policy: Policy | None = None,
    ) -> list[Completion | None]:
        """``n`` continuations of ``prefix``, those of index ``start`` and up at ``position``; None for one that failed.

        ``purpose`` is the line of the ledger. ``policy`` makes each of these, and the sampler's own policy applies to the
        continuations it requests. Raises BudgetSpentError, and UserError or NeedsError on what the model refuses."""
        self.budget.require()
        policies = [one for one in (self.policy, policy) if one is not None]
        self._check(settings, policies)
        if not policies and "taps" in self.model.capabilities:  # a model in this process fails, if at all, as a whole
            numbers = [sample_key(self.seed, position, start + i) for i in range(n)]
            return await self._caught(partial(self._plain, prefix, settings, numbers, purpose), n, purpose)
        keys = [Key(self.seed, position, start + i) for i in range(n)]
        made = (partial(self._made, prefix, settings, key, purpose, *policies) for key in keys)
        done = await in_turns(self.model, (partial(self._caught, one, 1, purpose) for one in made))
        return [completion for (completion,) in done]

    def _check(self, settings: Sampling, policies: Sequence[Policy]) -> None:
        """Raises NeedsError where the model cannot follow the settings or a policy."""
        if needs := settings.needs:  # checked only then: an endpoint finds its capabilities by requests
            require(self.model, needs, "a sampling setting")
        for one in policies:
            require(self.model, one.needs, one.name)
            require_splittable(settings, one.name)

    async def one(
        self,
        prefix: Prefix,
        settings: Sampling,
        position: SamplePosition,
        index: int | None = None,
        purpose: str = "sample",
        taps: Any = None,
        tell: Callable[[Piece], None] | None = None,
    ) -> Completion:
        """One continuation, also where the budget is spent: an episode checks its budget before each turn.

        ``taps`` patch hidden states (:class:`ramify.engine.taps.Taps`). ``tell`` is called with its pieces as they come, but for
        the last; a failure after the first is not retried. No policy applies with either. Raises InfrastructureError where the
        model failed, else as :meth:`sample`.
        """
        if settings.needs:
            self._check(settings, () if self.policy is None or taps is not None or tell is not None else (self.policy,))
        key = Key(self.seed, position, index)
        try:
            if taps is not None or tell is not None:
                return (await self._plain(prefix, settings, [key.number], purpose, taps, tell))[0]
            return (await self._made(prefix, settings, key, purpose, *filter(None, [self.policy])))[0]
        except InfrastructureError as error:
            self._note(error, 1, purpose)
            raise

    def spent(self) -> Spent:
        """What was spent so far."""
        names = ("samples", "given_tokens", "cached_tokens", "sampled_tokens")
        samples, given, cached, sampled = (int(self.ledger.total(unit)) for unit in names)
        return Spent(samples, given, cached, sampled, not self._unreported and samples > 0)

    async def _caught(self, work: Callable[[], Awaitable[Sequence[Completion]]], n: int, purpose: str) -> list[Completion | None]:
        try:
            return list(await work())  # begun here: what is cancelled before its turn leaves nothing that waits to be awaited
        except InfrastructureError as error:
            self._note(error, n, purpose)
            return [None] * n

    def _note(self, error: InfrastructureError, n: int, purpose: str) -> None:
        self.failed += n
        self.first_failure = self.first_failure or str(error)
        self.ledger.add(purpose, failed=n)

    async def _made(self, prefix: Prefix, settings: Sampling, key: Key, purpose: str, *policies: Policy) -> Sequence[Completion]:
        async def plain(prefix: Prefix, settings: Sampling, key: Key) -> Completion:
            return (await self._plain(prefix, settings, [key.number], purpose))[0]

        ask: Ask = plain
        for policy in policies:
            ask = partial(policy.sample, ask)
        return [await ask(prefix, settings, key)]

    async def _plain(
        self,
        prefix: Prefix,
        settings: Sampling,
        keys: Sequence[int],
        purpose: str,
        taps: Any = None,
        tell: Callable[[Piece], None] | None = None,
    ) -> Sequence[Completion]:
        n = len(keys)

        async def request() -> Sequence[Completion]:
            if tell is not None:
                return [await _streamed(stream(self.model, prefix, settings, keys[0]), tell)]
            if taps is None:
                return await self.model.sample(prefix, n, settings, keys)
            model: Any = self.model
            return [tapped.completion for tapped in await model.sample_tapped(prefix, n, settings, keys, taps)]

        with REPLIES.begun(n, self.model) as count:
            completions = await self.retries.call(request)
            sampled = sum(map(sampled_tokens, completions))
            count(sampled)
        verdicts.ended(purpose, (completion.stop for completion in completions))
        cached = sum(completion.cached or 0 for completion in completions)
        self._unreported = self._unreported or any(completion.cached is None for completion in completions)
        given = sum(_given_tokens(prefix, completion) for completion in completions)
        REPLIES.given += given
        self.ledger.add(purpose, samples=n, given_tokens=given, cached_tokens=cached, sampled_tokens=sampled)
        self.budget.charge(calls=n, tokens=sampled)
        return completions


TURNS = 64
"""So many of one position are begun in turns; what is beyond goes together."""


async def in_turns(model: Model, work: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """The results of ``work``, samples of ``model`` at one position, all at once.

    On a server they are begun in turns with those of every other position that is sampled at the same time, the first of each,
    then the second of each: what changes there with time, load or its cache is the same for all that is compared. A model in this
    process gets those of a position together, which share their prefix.
    """
    here = "taps" in known_capabilities(model)

    async def begun(turn: int, sample: Callable[[], Awaitable[T]]) -> T:
        for _ in range(0 if here else min(turn, TURNS)):
            await asyncio.sleep(0)  # all positions are in the same round of the event loop
        return await sample()

    return list(await asyncio.gather(*(begun(turn, sample) for turn, sample in enumerate(work))))


async def _streamed(pieces: Pieces, tell: Callable[[Piece], None]) -> Completion:
    begun = False

    def begin(piece: Piece) -> None:
        nonlocal begun
        begun = True
        tell(piece)

    try:
        return await gathered(pieces, begin)
    except InfrastructureError as error:
        error.final = error.final or begun  # another try would say its beginning twice
        raise


def sampled_tokens(completion: Completion) -> int:
    """Tokens a model sampled; of a text-only reply as many as its server says."""
    if completion.tokens is not None:
        return len(completion.tokens)
    return int((completion.data or {}).get("usage", {}).get("completion_tokens", 0))


def _given_tokens(prefix: Prefix, completion: Completion) -> int:
    """Tokens of the prefix; of messages as many as the server says."""
    if prefix.tokens is not None:
        return len(prefix.tokens)
    return int((completion.data or {}).get("usage", {}).get("prompt_tokens", 0))


def token_ids(completion: Completion) -> list[int]:
    """The tokens of a continuation. Raises NeedsError where the model returned text only."""
    if completion.tokens is None:
        raise NeedsError("the model returned a continuation without token ids")
    ids: list[int] = completion.tokens.tolist()
    return ids
