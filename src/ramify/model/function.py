"""A plain Python function as a model: the simplest form of an agent of your own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ramify.base.errors import InfrastructureError, NeedsError, RamifyError, UserError
from ramify.base.ids import stable_hash
from ramify.base.plugins import source_of, takes
from ramify.model.protocol import Completion, Identity, Model, Prefix, Sampling, TokenScores, require
from ramify.model.wire import request_messages

AnyModel: TypeAlias = Model | str | Callable[..., Any]
"""A model object, a name, or a function (see :class:`FunctionModel`)."""
_HAS = ("identity", "capabilities", "sample", "logprobs")


class FunctionModel:
    """``function(messages)`` or ``function(messages, key)`` returns the reply:
    a text, or a whole :class:`Completion`; ``async`` or not.

    ``messages`` are those of a chat request, ``[{"role": "user", "content": "..."}, ...]``; ``key`` is the sample key, a number
    that is the same whenever the same position is sampled again. Async functions run concurrently for all attempts that run,
    others one after the other. What the function raises is a failure of that attempt. It takes no sampling settings. Raises
    UserError where it cannot be called so."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        self._function = function
        self._keyed = takes(function, 2)
        qualified = getattr(function, "__qualname__", type(function).__qualname__)
        if not self._keyed and not takes(function, 1):
            raise UserError(
                f"the model '{name or qualified}' must be callable as {qualified}(messages) or {qualified}(messages, key)"
            )
        full_name = name or f"{getattr(function, '__module__', '')}.{qualified}"
        self.identity = Identity(name or qualified, stable_hash("function", full_name, source_of(function)), "")

    async def sample(self, prefix: Prefix, n: int, settings: Sampling, keys: Sequence[int]) -> list[Completion]:
        """See :class:`ramify.model.protocol.Model`."""
        if prefix.tokens is not None:
            raise NeedsError(f"the model '{self.identity.name}' is a function of messages and takes no tokens")
        require(self, settings.needs, "a sampling setting")
        return list(await asyncio.gather(*(self._reply(request_messages(prefix.messages), key) for key in keys)))

    async def logprobs(self, tokens: Sequence[np.ndarray], top_k: int = 0) -> list[TokenScores]:
        """Raises NeedsError: a function scores nothing."""
        raise NeedsError(f"the model '{self.identity.name}' is a function of messages and scores no tokens")

    async def _reply(self, messages: list[dict[str, Any]], key: int) -> Completion:
        try:
            reply = self._function(messages, key) if self._keyed else self._function(messages)
            if inspect.isawaitable(reply):
                reply = await reply
        except RamifyError:
            raise
        except Exception as error:  # code of the user's own may raise anything
            raise InfrastructureError("engine", f"{self.identity.name} raised {type(error).__name__}: {error}") from error
        if isinstance(reply, Completion):
            return reply
        if not isinstance(reply, str):
            raise InfrastructureError("engine", f"{self.identity.name} returned a {type(reply).__name__}, not a text")
        return Completion(reply, "eos")


def model_of(given: Model | Callable[..., Any]) -> Model:
    """The model that an object or function stands for. Raises UserError on anything else, saying what a model can be."""
    kind = type(given).__name__
    if isinstance(given, type):
        raise UserError(f"{given.__name__} is a class: give an object of it, {given.__name__}(...)")
    if all(_static(given, name) for name in _HAS):
        model: Model = given  # type: ignore[assignment]  # its members were looked up
        return model
    if hasattr(given, "state_dict"):
        raise UserError(f"{kind} is a network without its tokenizer: give ramify.LocalModel(network, tokenizer), or 'hf:FOLDER'")
    if callable(given):
        return FunctionModel(given)
    raise UserError(
        f"a model is a name ('builtin', 'hf:FOLDER', 'chat:NAME@URL'), a model object or a function of messages, not a {kind}; "
        "ramify.ScriptedModel([...]) gives scripted replies"
    )


def _static(given: object, name: str) -> bool:
    """Whether there is such a member, without reading properties (an endpoint's capabilities are requests)."""
    missing = object()
    return inspect.getattr_static(given, name, missing) is not missing
