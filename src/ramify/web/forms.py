"""Shared by the two routes: a form holds a request's prompts and writes its choices as JSON."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramify.base.errors import NeedsError
from ramify.model.chat import own_template
from ramify.model.laid import TooLongError
from ramify.model.middleware import shown_by, unwrapped
from ramify.model.protocol import NO_LIMIT, Completion, Model, Prefix, Sampling, Tokenizer, context_of, eos_of, known_capabilities
from ramify.web.fields import RequestFields
from ramify.web.limits import RefusedRequestError
from ramify.web.replies import Reply, ReplyPart, Token

DEFAULT_TOKENS = 1024
"""Longest reply where neither the request nor the model sets a limit."""
NOTES = ("scores", "pins", "memory", "orchestrator", "stop_thinking")
"""Fields of a sample's data that clients receive as ``ramify``: the results of middleware."""
Top = list[tuple[int, float]]
"""The likeliest tokens at one position, with their log-probs under the model."""


@dataclass(frozen=True)
class Served:
    """The model as the server knows it. ``enders`` are tokens that end a reply and are not shown."""

    model: Model
    name: str
    enders: frozenset[int]
    tokenizer: Tokenizer | None
    context: int | None
    offers: frozenset[str]
    forwards: frozenset[str]
    """Fields of a request that the model passes on as they are (:attr:`ramify.model.protocol.Prefix.asked`)."""
    aliases: frozenset[str] = frozenset()
    """Names of the model and of the models it wraps."""
    passes: bool = False
    """Whether fields that are not read here continue to the endpoint that samples (:func:`ramify.web.fields.passed_on`)."""

    @classmethod
    def of(cls, model: Model, name: str, asks: bool = True) -> Served:
        """Read the properties of ``model`` once. Raises what its ``capabilities`` raise: an endpoint has to answer, unless it is
        one that need not be asked (``asks``)."""
        offers = model.capabilities if asks else known_capabilities(model)
        takes = "tokens" in offers
        template = own_template(model)
        enders = {*eos_of(model), *(template.stop_tokens if template is not None else ())}
        tokenizer = getattr(model, "tokenizer", None) if takes else None
        context, forwards = context_of(model), getattr(model, "forwards", frozenset[str]())
        names: set[str] = set()
        inside: Any = model
        while inside is not None:
            names.add(inside.identity.name)
            inside = getattr(inside, "inner", None)
        hidden = frozenset(enders) if takes else frozenset[int]()
        return cls(
            model, name, hidden, tokenizer, context, offers, forwards, frozenset(names - {name}), getattr(model, "passes", False)
        )

    def named(self, text: str) -> str:
        """``text`` for a client: where it says another name of the model, in quotes,
        it is replaced by the name that clients use."""
        for alias, quote in itertools.product(self.aliases, "'`\""):
            text = text.replace(f"{quote}{alias}{quote}", f"{quote}{self.name}{quote}")
        return text

    def need(self, what: str, why: str) -> None:
        """Raises NeedsError where the model does not offer ``what``."""
        if what not in self.offers:
            raise NeedsError(f"'{self.name}' does not offer {why}")

    def follows(self, settings: Sampling) -> None:
        """Raises NeedsError where the model cannot follow the settings."""
        for name in settings.needs:
            self.need(name, {"penalties": "logit_bias, min_p and penalties", "grammar": "replies held to a format"}[name])

    def limit(self, requested: int | None, default: int | None = None) -> int:
        """Longest reply. Raises RefusedError where more is requested than the context holds."""
        most = self.context or 1 << 20
        if requested is not None and requested > most:
            raise RefusedRequestError(
                400, f"'max_tokens' is {requested}; '{self.name}' holds {most} tokens.", "max_tokens", "invalid_value"
            )
        own = getattr(self.model, "defaults", {}).get("max_tokens")
        return requested or default or own or self.context or (NO_LIMIT if self.forwards else DEFAULT_TOKENS)

    def fits(self, tokens: int) -> None:
        """Raises TooLongError where a prompt leaves no room for a token."""
        if self.context is not None and tokens >= self.context:
            raise TooLongError(f"the prompt has {tokens} tokens; '{self.name}' holds {self.context}, the reply included")

    async def count(self, prefix: Prefix) -> int:
        """Tokens of a prompt as the model is shown it. Raises NeedsError where the model does not say."""
        inner: Any
        layers, inner = unwrapped(self.model)
        shown = (await shown_by(layers, prefix))[-1]
        if not hasattr(inner, "count"):
            raise NeedsError(f"'{self.name}' does not count the tokens of a prompt")
        counted: int = inner.count(shown)
        return counted

    def spelled(self, token: int) -> str:
        """Text of one token by itself."""
        return "" if self.tokenizer is None else self.tokenizer.decode([token])

    async def alternatives(self, prompt: np.ndarray, sampled: np.ndarray, k: int) -> list[Top]:
        """The ``k`` likeliest tokens at the position of each sampled one: from scoring the whole text once more."""
        (scores,) = await self.model.logprobs([np.concatenate([prompt, sampled]).astype(np.int32)], k)
        assert scores.top_tokens is not None
        assert scores.top_logprobs is not None
        return top_of(scores.top_tokens[len(prompt) :], scores.top_logprobs[len(prompt) :])


def top_of(tokens: np.ndarray, logprobs: np.ndarray) -> list[Top]:
    """Arrays (T, k) as lists."""
    return [list(zip(ids, values, strict=True)) for ids, values in zip(tokens.tolist(), finite(logprobs).tolist(), strict=True)]


def finite(logprobs: np.ndarray) -> np.ndarray:
    """Log-probs as JSON can hold them: nothing below -9999, as OpenAI has it."""
    found: np.ndarray = np.maximum(logprobs, -9999.0)
    return found


class Form(ABC):
    """One request to one route. ``prompts`` has P of them; choice c continues prompt ``c // n``."""

    route: str
    id_head: str
    whole_object: str
    chunk_object: str
    looks = False
    """Whether replies are searched for tool calls."""
    most_calls: int | None = None
    """How many calls of a reply are returned; None: all."""

    def __init__(self, served: Served, request: RequestFields, prompts: Sequence[Prefix], settings: Sampling, top: int) -> None:
        self.served, self.request, self.prompts, self.settings, self.top = served, request, tuple(prompts), settings, top
        self.n = request.n or 1
        self.samples = True
        """Whether anything is sampled, or the prompt is only scored."""

    async def prepare(self) -> None:  # noqa: B027 (a chat has nothing to prepare)
        """Whatever must be computed before the samples; the request holds its places by then."""

    def reply(self) -> Reply:
        """An empty reply to one of the prompts."""
        stops, keep = self.request.stop or (), bool(self.request.include_stop_str_in_output)
        hidden = self.served.enders | frozenset(self.request.stop_token_ids or ())
        return Reply(hidden, stops, keep, self.looks, self.most_calls)

    def prompt_tokens(self, choice: int, completion: Completion) -> np.ndarray | None:
        """Ids of the prompt as the model was shown it; None where it has none."""
        return self.prompts[choice // self.n].tokens

    @property
    @abstractmethod
    def tells_tokens(self) -> bool:
        """Whether the response names single tokens."""

    @abstractmethod
    def opening(self, choice: int) -> dict[str, Any] | None:
        """The first event of a choice."""

    @abstractmethod
    def delta(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """The event of a part; ``tops`` belongs to the part's tokens, or is empty."""

    @abstractmethod
    def closing(self, choice: int, reply: Reply, called: bool) -> dict[str, Any]:
        """The last event of a choice."""

    @abstractmethod
    def whole(self, choice: int, reply: Reply, part: ReplyPart, tops: Sequence[Top]) -> dict[str, Any]:
        """A choice whose only part is ``part``."""

    def named(self, token: Token) -> str:
        """A token as log-probs name it."""
        return f"token_id:{token.id}" if self.request.return_tokens_as_token_ids else token.text

    def spelled(self, token: int) -> str:
        """A runner-up as log-probs name it."""
        return f"token_id:{token}" if self.request.return_tokens_as_token_ids else self.served.spelled(token)

    def ids(self, part: ReplyPart) -> dict[str, Any]:
        """The ids of a part's tokens, where they were requested."""
        shown = self.request.return_token_ids and "tokens" in self.served.offers
        return {"token_ids": [token.id for token in part.tokens]} if shown else {}

    def extras(self, reply: Reply) -> dict[str, Any]:
        """Fields of a finished choice beyond OpenAI's."""
        found: dict[str, Any] = {
            "stop_reason": reply.stopped if isinstance(reply.stopped, str) or self._requested(reply) else None
        }
        data = (reply.completion.data if reply.completion is not None else None) or {}
        if notes := {name: data[name] for name in NOTES if name in data}:
            found["ramify"] = notes
        return found

    def _requested(self, reply: Reply) -> bool:
        return reply.stopped in (self.request.stop_token_ids or ())
