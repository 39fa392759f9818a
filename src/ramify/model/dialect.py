"""The request fields that an OpenAI-compatible server takes, and their names there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ramify.model.protocol import NO_LIMIT, Grammar, Sampling

#: Settings a server may have defaults of its own for (vLLM takes them from the checkpoint, llama.cpp from itself): always sent by
#: name.
_EXTENDED = ("min_p", "repetition_penalty")
_TOKEN_FIELDS = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}


@dataclass(frozen=True)
class Dialect:
    """The request fields that a server takes."""

    extended: bool = True
    seed: bool = True
    limit: str = "max_tokens"
    scores: str = ""
    """Field that gets log-probs of given tokens: prompt_logprobs, echo, or none."""

    def body(self, model: str, settings: Sampling, key: int) -> dict[str, Any]:
        """The fields of every request, without the prompt."""
        body: dict[str, Any] = {
            "model": model,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
        }
        if settings.max_tokens < NO_LIMIT:
            body[self.limit] = settings.max_tokens
        if self.seed:
            body["seed"] = key & 0x7FFFFFFF  # servers cut seeds to 32 bits, some refuse more
        if self.extended:
            body |= {"top_k": -1} | {name: getattr(settings, name) for name in _EXTENDED}
        body |= {name: value for name in ("frequency_penalty", "presence_penalty") if (value := getattr(settings, name))}
        if settings.grammar is not None:
            body |= _held_to(settings.grammar)
        if settings.top_k:
            body["top_k"] = settings.top_k
        return body

    def chat(self, model: str, settings: Sampling, key: int) -> dict[str, Any]:
        """A request for a chat, but for the messages."""
        stop = {"stop": list(settings.stop_texts)} if settings.stop_texts else {}
        return self.body(model, settings, key) | stop

    def tokens(self, model: str, settings: Sampling, key: int) -> dict[str, Any]:
        """A request for token ids, but for the prompt. Servers that know no extensions sample past stops,
        and the sample is cut then."""
        body = self.body(model, settings, key) | {"logprobs": 1}
        if self.extended:
            body |= _TOKEN_FIELDS
            if settings.stop_tokens:
                body["stop_token_ids"] = list(settings.stop_tokens)
            if settings.stop_texts:
                body |= {"stop": list(settings.stop_texts), "include_stop_str_in_output": True}
        if settings.ban or settings.logit_bias:
            body["logit_bias"] = {str(token): value for token, value in settings.logit_bias}
            body["logit_bias"] |= {str(token): -100 for token in settings.ban}
        return body

    def lacks(self, settings: Sampling) -> str:
        """A setting that changes something and that such a server does not know; "" where there is none."""
        neutral = Sampling()
        return next((name for name in _EXTENDED if not self.extended and getattr(settings, name) != getattr(neutral, name)), "")


def _held_to(grammar: Grammar) -> dict[str, Any]:
    """The request field for a grammar: OpenAI's for a JSON schema, vLLM's for anything else."""
    if grammar.kind == "json":
        schema = {"name": "reply", "schema": json.loads(grammar.text), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"structured_outputs": {{"lark": "grammar"}.get(grammar.kind, grammar.kind): grammar.text}}


#: From what a server may take at most to the plainest, by mode.
DIALECTS = {
    "chat": (
        Dialect(),
        Dialect(extended=False),
        Dialect(extended=False, limit="max_completion_tokens"),
        Dialect(extended=False, seed=False),
        Dialect(extended=False, seed=False, limit="max_completion_tokens"),
    ),
    "completions": (Dialect(), Dialect(extended=False), Dialect(extended=False, seed=False)),
    "anthropic": (Dialect(extended=False, seed=False),),
    "responses": (Dialect(extended=False, seed=False),),
}
