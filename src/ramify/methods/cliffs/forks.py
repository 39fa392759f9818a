"""Fork a reply at any of its tokens, many times, and count how often it ends right: the potential of a position.

Forks of one position go to the model together, so an engine or server that keeps prefixes computes the shared one once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ramify.base.budget import Budget
from ramify.base.errors import InfrastructureError, NeedsError, UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.model.protocol import Model, Prefix, Sampling, Tokenizer, TokenScores, eos_of, require, require_splittable
from ramify.rollout.potential import ForkEnd, Forks, ForksSpent
from ramify.rollout.sampler import FailurePolicy, SamplePosition, Sampler, token_ids
from ramify.rollout.token_traces import TokenProblem, TokenTrace
from ramify.score.judge import FunctionJudge, Item, Judge, judged, truth

TAKES = ("text", "trace")
"""What a verifier of the user's own is called with."""
TOP = 20
"""Likeliest tokens requested from a model on an endpoint, as in the paper; servers name no more by default."""


@dataclass(frozen=True, eq=False)
class Chances:
    """What the model returns for each token of a reply, arrays (T,); None for what it does not return."""

    pi: np.ndarray | None = None
    """Probability under the sampling settings."""
    least: np.ndarray | None = None
    """What that is at least, where it is not known itself: enough to leave tokens out."""
    q: np.ndarray | None = None
    """Probability under the model at temperature 1."""
    entropy: np.ndarray | None = None
    """Of the model's distribution before the token, in nats; see ``entropy_of``."""
    greedy: np.ndarray | None = None
    """Whether no other token is likelier; log-probs within 1e-9 tie."""
    gap: float = 0.0
    """Largest distance of recorded log-probs from those found now, in nats: large where model or settings are not the stem's."""
    entropy_of: int = 0
    """How many likeliest tokens the entropy sums over, which makes it a lower bound; 0 is the whole vocabulary."""


@dataclass(frozen=True)
class ForkSource:
    """Whose forks the counts of a scan are."""

    model: str
    verifier: str
    truncated: str = "apart"
    seed: int = 0
    sampling: Mapping[str, Any] | None = None
    """Of sampled stems; None where each has its own."""
    weights: str = ""
    judge: str = ""
    """Identity of the verifier."""


ReplyPlace: TypeAlias = int | tuple[int, ...]
"""A position t, or (t, a, b): position t and then other tokens than the reply's own."""


class ScoredForks(Forks[TokenTrace, ReplyPlace], ABC):
    """Forks of replies whose tokens have known probabilities, by which a scan leaves tokens out."""

    @abstractmethod
    async def chances(self, trace: TokenTrace) -> Chances:
        """Probabilities of the reply's tokens."""


async def chances_of(forks: Forks[Any, int], trace: Any) -> Chances:
    """Probabilities of the trace's tokens, where ``forks`` know them; of an agent's steps nothing: a step is many tokens and
    may be answered in several ways, so none is screened out."""
    return await forks.chances(trace) if isinstance(forks, ScoredForks) else Chances()


class ReplyForks(ScoredForks):
    """Counts right continuations of positions of traces. Samples are keyed by position: order and concurrency change nothing. A
    position is a number of tokens, or a tuple of it and the tokens that are tried after it.

    ``sampling`` replaces each trace's own settings where it is given. A fork at position t has the tokens left that its stem had
    there. ``truncated`` decides how forks that reach the token limit are counted: ``apart`` counts them beside n, ``graded``
    gives them to the verifier like the others. ``eos`` are tokens that end a reply; by default the model's own. The verifier is
    not shown them.

    Raises NeedsError where the model does not continue token ids (a chat endpoint cannot continue inside a reply).
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        verifier: Judge | Callable[[str, TokenTrace], Any],
        sampling: Sampling | None = None,
        seed: int = 0,
        *,
        truncated: Literal["apart", "graded"] = "apart",
        eos: Sequence[int] | None = None,
        policy: FailurePolicy | None = None,
        budget: Budget | None = None,
    ) -> None:
        require(model, ("tokens", "continue"), "a fork inside a reply")
        self.sampler = Sampler(model, seed, budget=budget, retries=policy)
        self.model, self.tokenizer, self.sampling = model, tokenizer, sampling
        self.verifier = verifier if isinstance(verifier, Judge) else FunctionJudge(verifier, TAKES)
        super().__init__(self._continued, truncated)
        self.eos = frozenset(eos_of(model) if eos is None else eos)

    @property
    def first_failure(self) -> str:
        """The first sentence with which the model or the verifier failed."""
        return self._failure or self.sampler.first_failure

    async def _continued(self, trace: TokenTrace, place: ReplyPlace, numbers: range, purpose: str) -> list[ForkEnd]:
        """How forks of a trace end. Of a position at which the reply has ended none is sampled: its score is that of every fork.
        Equal texts are judged once. Raises UserError on a position out of range."""
        t, *append = place if isinstance(place, tuple) else (place,)
        self.check(trace)
        prefix, sampling = trace.prefix(t, append), self.sampling or trace.sampler
        if t or append:
            require_splittable(sampling, "a fork inside a reply")
        left, apart = sampling.max_tokens - t - len(append), self.truncated == "apart"
        head = [*trace.response_ids[:t], *append]
        ended = self._ended(trace, t, append, sampling)
        if ended or left < 1:
            cut = apart and not ended
            end = ForkEnd(None if cut else await self._judge(self._text(head), trace), cut, played=False)
            return [end] * len(numbers)
        position: SamplePosition = (trace.id, t, *append, purpose)
        sampling = replace(sampling, max_tokens=left)
        completions = await self.sampler.sample(Prefix(prefix), len(numbers), sampling, position, numbers.start, purpose)
        cuts = [apart and made is not None and made.stop == "length" for made in completions]
        texts = [
            None if made is None or cut else self._text([*head, *token_ids(made)])
            for made, cut in zip(completions, cuts, strict=True)
        ]
        asked = dict.fromkeys(text for text in texts if text is not None)
        if asked:
            self.sampler.ledger.add(purpose, verdicts=len(asked))
        verdicts = await asyncio.gather(*(self._judge(text, trace) for text in asked))
        right = dict(zip(asked, verdicts, strict=True))
        return [ForkEnd(None if text is None else right[text], cut) for text, cut in zip(texts, cuts, strict=True)]

    async def chances(self, trace: TokenTrace) -> Chances:
        """Probabilities of the reply's tokens, by one scoring pass where the model scores given tokens, else as they were
        recorded."""
        self.check(trace)
        settings, skip = self.sampling or trace.sampler, len(trace.prompt_ids)
        recorded = None if trace.logprobs is None else np.exp(np.array(trace.logprobs))
        offers = self.model.capabilities
        if "prompt_logprobs" not in offers:
            return Chances(recorded) if recorded is not None else await self._named_chances(trace, settings)
        row = trace.prefix(trace.length)
        scores, top = await self._scores(row, settings)
        self.sampler.ledger.add("score", scored_tokens=len(row))
        model = scores.logprobs[skip:].astype(np.float64)
        given, best = np.array(trace.response_ids), None
        if scores.top_logprobs is not None and scores.top_tokens is not None:
            best = scores.top_tokens[skip:], scores.top_logprobs[skip:].astype(np.float64)
        found = model if settings.plain() else None
        if scores.sampler_logprobs is not None:
            found = scores.sampler_logprobs[skip:].astype(np.float64)
        elif found is None and best is not None:
            found = sampler_logprobs(given, *best, settings)
        entropy = None if scores.entropy is None else scores.entropy[skip:].astype(np.float64)
        if entropy is None and best is not None:
            entropy = -(np.exp(best[1]) * best[1]).sum(axis=1)
        pi = recorded if found is None else np.exp(found)
        return Chances(
            pi=pi,
            least=at_least(np.exp(model), settings) if pi is None else None,
            q=np.exp(model),
            entropy=entropy,
            greedy=None if best is None else model >= best[1][:, 0] - 1e-9,
            gap=0.0
            if found is None or trace.logprobs is None
            else min(99.0, float(np.abs(found - np.array(trace.logprobs)).max())),
            entropy_of=top,
        )

    async def _named_chances(self, trace: TokenTrace, settings: Sampling) -> Chances:
        """Probabilities from the likeliest tokens that a server names beside one that it samples, a request of one token for each
        token of the reply: much less than a fork. Of a token that is not named the probability is taken as that of the least
        likely named one, which is at least as large. Nothing where the server names none."""
        try:
            named = await self.odds(trace, TOP)
        except NeedsError:
            return Chances()
        count = min(map(len, named))
        tokens = np.array([list(likely)[:count] for likely in named])
        logprobs = np.log(np.maximum([list(likely.values())[:count] for likely in named], 1e-30))
        given = np.array(trace.response_ids)
        q = np.array([likely.get(token, min(likely.values())) for token, likely in zip(trace.response_ids, named, strict=True)])
        sampler = np.log(q) if settings.plain() else sampler_logprobs(given, tokens, logprobs, settings)
        return Chances(
            pi=None if sampler is None else np.exp(sampler),
            least=at_least(q, settings) if sampler is None else None,
            q=q,
            entropy=-(np.exp(logprobs) * logprobs).sum(axis=1),
            greedy=q >= np.exp(logprobs[:, 0]) - 1e-9,
            entropy_of=count,
        )

    async def _scores(self, row: np.ndarray, settings: Sampling) -> tuple[TokenScores, int]:
        """Scores of given tokens as fully as the model gives them, and over how many tokens their entropy goes (0: all)."""
        if "taps" in self.model.capabilities:  # a model in this process: the whole distribution is at hand
            whole: Any = self.model
            free = not (settings.penalised or settings.grammar)  # else a token's chance is taken as it was recorded
            return (await whole.logprobs([row], top_k=1, settings=settings if free else None))[0], 0
        try:
            return (await self.model.logprobs([row], top_k=TOP))[0], TOP
        except NeedsError:
            return (await self.model.logprobs([row]))[0], 0

    async def alternatives(self, trace: TokenTrace, t: int, top: int) -> dict[int, float]:
        """The ``top`` likeliest next tokens after position ``t`` with their probabilities at temperature 1, likeliest first.

        Raises NeedsError where the model does not return the likeliest other tokens.
        """
        return (await self._next(trace.prefix(t, (0,)), 1, trace, top))[0]

    async def odds(self, trace: TokenTrace, top: int) -> list[dict[int, float]]:
        """:meth:`alternatives` of every position that a token of the reply stands at, by one scoring pass where the model scores
        given tokens."""
        return await self._next(trace.prefix(trace.length), trace.length, trace, top)

    async def _next(self, row: np.ndarray, last: int, trace: TokenTrace, top: int) -> list[dict[int, float]]:
        """The likeliest tokens at each of the ``last`` positions of a row, from a scoring pass or, where the server gives none,
        from what it names beside a token that it samples there."""
        self.check(trace)
        self.sampler.ledger.add("score", scored_tokens=len(row))
        try:
            scores = (await self.model.logprobs([row], top_k=top))[0]
        except NeedsError:
            named = getattr(self.model, "next_tokens", None)
            if named is None:
                raise
            rows = [row[: len(row) - last + i] for i in range(last)]
            return list(await asyncio.gather(*(named(given.tolist(), top) for given in rows)))
        if scores.top_tokens is None or scores.top_logprobs is None:
            raise NeedsError(f"'{self.model.identity.name}' does not return the likeliest other tokens")
        chances = np.exp(scores.top_logprobs.astype(np.float64))
        pairs = zip(scores.top_tokens[-last:].tolist(), chances[-last:].tolist(), strict=True)
        return [dict(zip(tokens, values, strict=True)) for tokens, values in pairs]

    async def chances_of(self, trace: TokenTrace, t: int, tokens: Sequence[int]) -> dict[int, float]:
        """Probabilities at temperature 1 of these next tokens after position ``t``, each scored as a given one."""
        self.check(trace)
        rows = [trace.prefix(t, (token,)) for token in tokens]
        self.sampler.ledger.add("score", scored_tokens=sum(map(len, rows)))
        scores = await self.model.logprobs(rows)
        return {token: float(np.exp(score.logprobs[-1])) for token, score in zip(tokens, scores, strict=True)}

    async def sample(
        self, problems: Sequence[TokenProblem], per_problem: int = 1, known: Container[str] = (), progress: Progress = SILENT
    ) -> list[TokenTrace]:
        """Sample and judge replies, the stems to scan, but those of ``known`` ids.
        One that fails is left out and counted as failed."""
        if self.sampling is None:
            raise UserError("sampling traces needs sampling settings")
        missing = [(problem, i) for problem in problems for i in range(per_problem) if _stem_id(problem, i) not in known]
        progress.begin(len(missing), 0, "sample", "replies")
        sampled = await gathered((self._stem(problem, i, self.sampling) for problem, i in missing), progress)
        return [trace for trace in sampled if trace is not None]

    async def judged(self, traces: Sequence[TokenTrace]) -> list[TokenTrace]:
        """The traces, those without a score judged; ``correct`` stays None where the verifier gives none."""

        async def one(trace: TokenTrace) -> TokenTrace:
            if trace.correct is not None:
                return trace
            right = await self._judge(self._text(list(trace.response_ids)), trace)
            return replace(trace, correct=right, verifier=self.verifier.name)

        return list(await asyncio.gather(*map(one, traces)))

    def source(self) -> ForkSource:
        """What counts depend on, except trace and position."""
        model, sampling = self.model.identity, None if self.sampling is None else self.sampling.to_json()
        return ForkSource(
            model.name, self.verifier.name, self.truncated, self.sampler.seed, sampling, model.weights, self.verifier.identity
        )

    def check(self, trace: TokenTrace) -> None:
        """Refuse a trace whose ids belong to another tokenizer. Raises NeedsError."""
        if trace.tokenizer and trace.tokenizer != self.tokenizer.hash:
            raise NeedsError(
                f"the token ids of trace '{trace.id}' belong to another tokenizer than that of '{self.model.identity.name}'"
            )

    def spent(self) -> ForksSpent:
        """What was spent here."""
        made, ledger = self.sampler.spent(), self.sampler.ledger
        by = {
            purpose: dict(sorted(("forks" if unit == "samples" else unit, amount) for unit, amount in amounts.items()))
            for purpose, amounts in ledger.to_json()["spent"].items()
        }
        forward = made.run + int(ledger.total("scored_tokens"))
        return ForksSpent(
            made.samples, made.sampled, forward, made.given, shared=made.reported, by_purpose=by, first_failure=self.first_failure
        )

    # -- parts

    def _text(self, tokens: list[int]) -> str:
        """The whole reply as the verifier sees it: without the token that ended it."""
        return self.tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in self.eos else tokens)

    def _ended(self, trace: TokenTrace, t: int, append: Sequence[int], sampling: Sampling) -> bool:
        """Whether nothing is sampled after this position: the reply has ended there by itself."""
        if t == trace.length and not append:
            return trace.stop != "length"
        last = append[-1] if append else trace.response_ids[t - 1] if t else None
        if last is not None and (last in self.eos or last in sampling.stop_tokens):
            return True
        text = self.tokenizer.decode([*trace.response_ids[:t], *append]) if append and sampling.stop_texts else ""
        return any(stop in text for stop in sampling.stop_texts)

    async def _judge(self, text: str, trace: TokenTrace) -> bool | None:
        """The verifier's word; None where it fails, which makes the fork missing."""
        (found,) = await judged(
            self.verifier, [Item(text, trace.id, data=trace.data, trace=trace)], self.sampler.ledger, self.sampler.budget
        )
        self._failure = self._failure or found.failure
        return truth(self.verifier, found)

    async def _stem(self, problem: TokenProblem, index: int, sampling: Sampling) -> TokenTrace | None:
        name = _stem_id(problem, index)
        prefix = Prefix(np.array(problem.prompt_ids, np.int32))
        try:
            completion = await self.sampler.one(prefix, sampling, (name, "stem"), purpose="stem")
        except InfrastructureError:  # which the sampler counts
            return None
        tokens = token_ids(completion)
        trace = TokenTrace(
            id=name,
            problem_id=problem.id,
            prompt_ids=problem.prompt_ids,
            response_ids=tuple(tokens),
            sampler=sampling,
            verifier=self.verifier.name,
            stop=completion.stop,
            data=problem.data,
            logprobs=None if completion.logprobs is None else tuple(map(float, completion.logprobs)),
            model=self.model.identity.name,
            tokenizer=self.tokenizer.hash,
            seed=self.sampler.seed,
        )
        return replace(trace, correct=await self._judge(self._text(tokens), trace))


def at_least(q: np.ndarray, settings: Sampling) -> np.ndarray | None:
    """(T,): what the probabilities of tokens under sampling settings are at least, from those of the model, ``q`` (T,).

    A token that has more than half of the model's mass is its likeliest, and the likeliest only gains where the temperature is at
    most 1 and where others are cut off: so it has at least ``q``. Of any other token nothing is known: 0. None where the
    temperature is higher, or where tokens are banned or penalised."""
    if settings.temperature > 1 or settings.ban or settings.ban_first or settings.needs:
        return None
    return np.where(q > 0.5, q, 0.0)


def sampler_logprobs(given: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, settings: Sampling) -> np.ndarray | None:
    """Log-probs (T,) of ``given`` tokens under sampling settings, from the likeliest ``tokens`` (T,
    k) and their log-probs (T, k).

    None where these do not decide it: settings that keep more tokens than are named, or that ban some. -inf for tokens cut off.
    """
    kept = logprobs
    if settings.ban or settings.ban_first or settings.needs:
        return None
    if settings.temperature == 0:
        kept = logprobs[:, :1]
    elif settings.top_k and settings.top_k <= logprobs.shape[1]:
        kept = logprobs[:, : settings.top_k] / settings.temperature
    elif settings.top_k or settings.temperature != 1 or (np.exp(logprobs).sum(axis=1) < settings.top_p).any():
        return None
    whole = np.exp(kept)
    if settings.temperature == 0 or settings.top_k:  # else the masses are those of the whole vocabulary already
        whole = whole / whole.sum(axis=1, keepdims=True)
    before = whole.cumsum(axis=1) - whole
    whole = np.where((before < settings.top_p) | (settings.top_p == 1), whole, 0.0)
    here = tokens[:, : whole.shape[1]] == given[:, None]
    with np.errstate(divide="ignore"):
        return np.asarray(np.log((whole * here).sum(axis=1) / whole.sum(axis=1)))


def _stem_id(problem: TokenProblem, index: int) -> str:
    return f"{problem.id}#{index}"
