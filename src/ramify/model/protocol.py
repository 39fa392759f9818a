"""The model protocol: sample continuations of a prefix, score given tokens, list capabilities.

Axis legend: B batch, T tokens, V vocabulary, L layers, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ramify.base.errors import NeedsError
from ramify.trace.message import Message
from ramify.trace.view import TokenMessage

#: What a model may be able to do. A method declares needs; a mismatch is one sentence before anything runs.
CAPABILITIES = {
    "tokens": "takes and returns token ids",
    "continue": "continues inside a message",
    "logprobs": "returns log-probs of the tokens it sampled",
    "prompt_logprobs": "returns log-probs of tokens it is given",
    "entropy": "returns the entropy of each next-token distribution",
    "seeds": "repeats a sample for the same seed",
    "batch_invariant": "batch-invariant: a sample does not depend on the rest of the batch",
    "penalties": "follows logit_bias, min_p and the penalties",
    "grammar": "holds a reply to a grammar",
    "taps": "hidden states can be read and patched",
    "train": "weights can be trained in process",
}

#: The client that a sample is for: a model that queues samples is fair between clients. Tasks started meanwhile inherit it.
CLIENT: ContextVar[str] = ContextVar("client", default="")
#: The id of the request that a sample is for, as its answer and the header ``x-request-id`` say it; empty outside a server.
REQUEST: ContextVar[str] = ContextVar("request", default="")
#: Whether somebody reads a sample while it is generated. Where nobody does, a model of several may start over with another
#: until the end.
READ: ContextVar[bool] = ContextVar("read", default=True)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What to continue: token ids (int32, shape (T,)), or messages for a model without the ``tokens`` capability."""

    tokens: np.ndarray | None = None
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools the environment offers, as JSON schemas; a model that takes messages may call them."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of an agent's request. An endpoint is sent them with the prompt; of a model in this process what they say
    of sampling is followed by whoever samples (:mod:`ramify.model.asked`)."""


NO_LIMIT = 1 << 30
"""As ``Sampling.max_tokens``: a chat endpoint then gets no limit and sets its own."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole text of a reply has to match; :mod:`ramify.model.grammar` makes them."""

    kind: str
    """json (a JSON schema), regex (a regular expression) or lark (a grammar in llguidance's Lark syntax)."""
    text: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings. Everything but ``until`` and ``seeded`` is part of the provenance's identity.

    What they do to the model's distribution, and in which order, is in :mod:`ramify.engine.sampling`.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    """Stop after sampling one of these; it stays part of the sample."""
    stop_texts: tuple[str, ...] = ()
    """Stop once the text contains one of these; kept whole, tokens are never cut."""
    ban: tuple[int, ...] = ()
    """Token ids given probability 0 throughout."""
    ban_first: tuple[int, ...] = ()
    """Token ids given probability 0 at the first sampled token only (fork "anything but this token")."""
    min_p: float = 0.0
    """Cuts tokens less likely than this share of the likeliest; 0 keeps all."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, number added to its logit), by rising id."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that the prompt or the reply holds already (multiplies negative ones); above 0, 1 changes
    nothing."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit once for each time that the reply holds it."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens that the reply holds."""
    grammar: Grammar | None = None
    """The grammar of the reply: tokens after which it could no longer match have probability 0;
    a reply that cannot continue ends."""
    until: Callable[[np.ndarray], bool] | None = field(default=None, compare=False)
    """Called with the tokens sampled so far; True stops."""
    seeded: bool = field(default=False, compare=False)
    """Whether the sample must be reproducible from its key whatever else is in the batch; an engine may otherwise trade that for
    speed (never for the distribution of what is sampled). An engine that never does ignores it."""

    @property
    def penalised(self) -> bool:
        """Whether penalties make a token's probability depend on the tokens before it."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities that a model needs for these settings."""
        shaped = self.min_p > 0 or self.logit_bias or self.penalised
        return ("penalties",) * bool(shaped) + ("grammar",) * (self.grammar is not None)

    def plain(self, first: bool = True) -> bool:
        """Whether the sampling distribution is the model's own; ``first``: at the first token of a reply, else at a later one."""
        cut = self.top_p < 1 or self.top_k > 0 or self.ban or (first and self.ban_first)
        return self.temperature == 1 and not cut and not self.needs

    def to_json(self) -> dict[str, Any]:
        """JSON form, as stored with the provenance (without the callable and without settings that do not change the
        distribution). Settings that few use appear only where they change something."""
        record = asdict(self)
        del record["until"], record["seeded"]
        for name, neutral in _RARE.items():
            if record[name] == neutral:
                del record[name]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}


_RARE = {
    setting.name: setting.default
    for setting in fields(Sampling)
    if setting.name in ("min_p", "logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty", "grammar")
}


def eos_of(model: object) -> tuple[int, ...]:
    """The tokens that end a reply of a model, where it lists them."""
    return tuple(getattr(model, "eos", ()))


def known_capabilities(model: Model) -> frozenset[str]:
    """Capabilities of ``model`` without a request to its server, where they can be told so (what a chat endpoint takes); else its
    ``capabilities``, which may be found by requests."""
    known: frozenset[str] | None = getattr(model, "unasked", None)
    return model.capabilities if known is None else known


def context_of(model: object) -> int | None:
    """The longest sequence of tokens that a model takes; None where it is unknown."""
    context = getattr(model, "context", None)
    return None if context is None else int(context)


def sampling_of(model: object, **given: Any) -> Sampling:
    """Sampling settings: what is ``given`` and not None, else the model's own ``defaults`` (its generation_config.json), else
    Sampling's.

    ``max_tokens`` is never taken from the model's defaults.
    """
    defaults = {name: value for name, value in getattr(model, "defaults", {}).items() if name != "max_tokens"}
    return Sampling(**{**defaults, **{name: value for name, value in given.items() if value is not None}})


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One continuation. Arrays have shape (T,); None where the model does not report them."""

    text: str
    stop: str
    """eos (the model's end-of-turn token), stop (a stop token or text), length, cancelled."""
    tokens: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    """float32: under the sampling distribution (after temperature, top-p, bans): what importance ratios need."""
    model_logprobs: np.ndarray | None = None
    """float32: under the model itself (temperature 1, nothing cut)."""
    entropy: np.ndarray | None = None
    """float32, nats: entropy of the model's next-token distribution before each sampled token."""
    ends: np.ndarray | None = None
    """int32: character end of each token in ``text``."""
    data: Mapping[str, Any] | None = None
    """Small JSON extras that go onto the node: ``tool_calls`` as OpenAI writes them, ``usage``."""
    shown: tuple[TokenMessage, ...] = ()
    """The rendered prompt, message by message, where it differs from the prefix: rendered as tokens, or changed by middleware."""
    head: tuple[int, ...] | None = None
    """The tokens between these and the sample, which open the reply; None where they are the template's own after a message."""
    cached: int | None = None
    """Tokens of the prefix whose keys and values the model had already; None where it does not say."""

    @property
    def message(self) -> Message:
        """The reply as a message."""
        return Message("assistant", self.text, self.data or {})


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Scores of given tokens; entry t belongs to token t given those before it, entry 0 is 0. Shape (T,) or (T, k)."""

    logprobs: np.ndarray
    entropy: np.ndarray | None = None
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    sampler_logprobs: np.ndarray | None = None
    """Under the sampling settings, where these were requested: -inf where they exclude a given token."""
    certainty: np.ndarray | None = None
    """float32 (T,), nats, with top_k only: divergence of the uniform distribution from the model's own, KL(uniform || model)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A model's identity: a name, a hash of its weights (or of endpoint and model name), a hash of its tokenizer."""

    name: str
    weights: str
    tokenizer: str = ""


@runtime_checkable
class Tokenizer(Protocol):
    """What ramify needs of a tokenizer. ``encode`` adds no special tokens."""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ``tokens``, special tokens included."""
        ...

    def ends(self, tokens: Sequence[int]) -> np.ndarray:
        """int32 (T,): character offset in ``decode(tokens)`` at which each token's text ends."""
        ...

    @property
    def hash(self) -> str:
        """Identity of the tokenizer, merges and special tokens included."""
        ...


@runtime_checkable
class Model(Protocol):
    """Anything that continues a prefix."""

    @property
    def identity(self) -> Identity:
        """The model's identity."""
        ...

    @property
    def capabilities(self) -> frozenset[str]:
        """A subset of :data:`CAPABILITIES`."""
        ...

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """Sample ``n`` continuations. ``keys[i]`` is the sample key that decides sample i (``base.seeds.derive_key``), n of them.

        Raises InfrastructureError("engine" or "provider") when the model fails; it never returns fewer samples.
        """
        ...

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Score given token rows under the model at temperature 1."""
        ...


def require_splittable(settings: Sampling, who: str) -> None:
    """Raises NeedsError where a reply made in two parts would not have the distribution of one made at once."""
    if settings.grammar or settings.frequency_penalty or settings.presence_penalty:
        raise NeedsError(
            f"{who} continues inside a reply, where its grammar, frequency_penalty and presence_penalty would begin anew"
        )


def require(model: Model, needs: Iterable[str], who: str) -> None:
    """Refuse before anything runs. Raises NeedsError naming every capability ``model`` lacks."""
    missing = sorted(set(needs) - model.capabilities)
    if missing:
        lacks = "; ".join(f"{name} ({CAPABILITIES[name]})" for name in missing)
        raise NeedsError(f"{who} needs a model with {lacks}, which '{model.identity.name}' does not offer")
