"""Request fields of the two routes: supported, accepted at one value only, ignored, and refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from ramify.base.errors import nearest
from ramify.model.endpoint import LABELS
from ramify.model.protocol import Model, Sampling, sampling_of
from ramify.web.limits import RefusedRequestError

MAX_CHOICES, MAX_TOP, MAX_STOPS, MAX_STOP = 128, 20, 16, 256
_LARGE = 1 << 62

#: Fields accepted only at their neutral value. Field -> (value, why no other).
NEUTRAL: dict[str, tuple[Any, str]] = {
    "best_of": (1, "use n and choose yourself"),
    "modalities": (["text"], "replies are text"),
    "store": (False, "start the server with --record to keep conversations"),
    "skip_special_tokens": (False, "special tokens are shown, but for the one that ends a reply"),
    "spaces_between_special_tokens": (False, "none are put in"),
}
#: Fields that change no reply whatever they say (``user`` is whom fairness counts the request for).
IGNORED = LABELS
#: Fields of OpenAI's and other servers that are not offered. Field -> why.
REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "suffix": "text is only continued",
    "audio": "replies are text",
    "prediction": "speculation is the server's own business (--drafter)",
    "web_search_options": "there is no search",
    "reasoning_effort": "the model decides how much it thinks",
    "verbosity": "ask for it in a message",
    "ignore_eos": "a reply ends where the model ends it",
    "min_tokens": "a reply ends where the model ends it",
    "guided_json": "use response_format or structured_outputs",
    "guided_regex": "use structured_outputs",
    "guided_choice": "use structured_outputs",
    "guided_grammar": "use response_format or structured_outputs",
    "chat_template": "the template is the checkpoint's own",
    "chat_template_kwargs": "the template takes no options here",
    "continue_final_message": "to continue inside a reply send token ids to /v1/completions",
}


def _text_of(content: Any) -> Any:
    """Content as text: a list of text parts is put together. Anything else is left to be refused as it is."""
    if not isinstance(content, list):
        return content
    for at, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"part {at} is '{str(kind)[:40]}', and only text parts are taken")
    return "".join(part["text"] for part in content)


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> list[str] | list[list[int]]:
    """One text or one list of token ids, or a list of several of one of these, as that list."""
    one = isinstance(value, str) or (isinstance(value, list) and any(type(token) is int for token in value))
    prompts = [value] if one else value
    if not isinstance(prompts, list) or not prompts or len(prompts) > MAX_CHOICES:
        raise ValueError(f"it must be a text, a list of token ids, or a list of 1 to {MAX_CHOICES} of these")
    if all(isinstance(prompt, str) for prompt in prompts):
        return prompts
    for prompt in prompts:
        if not isinstance(prompt, list) or not prompt or not all(type(token) is int and 0 <= token < 1 << 31 for token in prompt):
            raise ValueError("it must hold texts only, or lists of token ids only, none of them empty")
    return prompts


def _typed(value: Any) -> Any:
    if value is None or (isinstance(value, dict) and isinstance(value.get("type"), str)):
        return value
    raise ValueError('it must be an object with a "type"')


def _choice(value: Any) -> Any:
    return value if value in ("auto", "none", "required") else _typed(value)


def _biased(bias: dict[str, float]) -> dict[str, float]:
    for token, value in bias.items():
        if not token.isdecimal() or len(token) > 10:
            raise ValueError(f"'{token[:20]}' is not a token id")
        if not -100 <= value <= 100:
            raise ValueError(f"a bias lies between -100 and 100; token {token} has {value:g}")
    return bias


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Sampled(_Fields):
    """Part of an earlier reply: what its server, or the client that read it, says beyond these fields is passed over."""

    model_config = ConfigDict(extra="ignore")


class FunctionCall(_Sampled):
    """What a tool call calls."""

    name: str
    arguments: str


class Call(_Sampled):
    """A tool call that an earlier reply made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Fields):
    """One message of a chat. ``name`` and ``reasoning`` are not shown to the model;
    an assistant's may say more, as :class:`Call`'s."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _of_any_server(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("role") != "assistant":
            return value
        return {name: inner for name, inner in value.items() if name in cls.model_fields}


class FunctionFields(_Fields):
    """A function that a tool offers."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Fields):
    """A tool offered to the model."""

    type: Literal["function"]
    function: FunctionFields


class StreamOptions(_Fields):
    """Options of a streamed answer's format; those of other servers are ignored."""

    model_config = ConfigDict(extra="ignore")
    include_usage: bool | None = None


class RequestFields(_Fields):
    """Fields of both routes."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-_LARGE, le=_LARGE)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_LARGE)] | None = None
    stop: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP)]],
            BeforeValidator(_several),
            Field(max_length=MAX_STOPS),
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=MAX_STOP)] | None = None
    include_stop_str_in_output: bool | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    logit_bias: Annotated[dict[str, float], AfterValidator(_biased), Field(max_length=1024)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    response_format: Annotated[Any, AfterValidator(_typed)] = None
    structured_outputs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def sampling(self, max_tokens: int, model: Model | None = None) -> Sampling:
        """The sampling settings of the request; others are the defaults of ``model``."""
        bias = self.logit_bias or {}
        return sampling_of(
            model,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            max_tokens=max_tokens,
            stop_tokens=tuple(self.stop_token_ids or ()),
            stop_texts=tuple(self.stop or ()),
            ban=tuple(sorted(int(token) for token, value in bias.items() if value == -100)),
            min_p=self.min_p,
            logit_bias=tuple(sorted((int(token), value) for token, value in bias.items() if value not in (-100, 0))),
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seeded=self.seed is not None,
        )


class ChatRequest(RequestFields):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=_LARGE)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=_LARGE)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_CHOICES)] | None = None
    tool_choice: Annotated[Any, AfterValidator(_choice)] = None
    parallel_tool_calls: bool | None = None


class TextRequest(RequestFields):
    """``POST /v1/completions``."""

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=0, le=_LARGE)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None


R = TypeVar("R", bound=RequestFields)

_OWN = ("modalities", "skip_special_tokens", "spaces_between_special_tokens")
"""Neutral fields about how tokens become a reply, which is done here also where an endpoint samples them."""
_OF_CHATS = frozenset(name for name in REFUSED if not name.startswith("guided_")) - {"suffix", "ignore_eos", "min_tokens"}
"""Refused fields about how a chat is laid out, which is done here also where an endpoint samples the tokens."""


def passed_on(body: Mapping[str, Any], kind: type[RequestFields]) -> dict[str, Any]:
    """Those fields of a request for token ids that an endpoint gets as they came: all that are not read here."""
    read = {*kind.model_fields, *_OWN, *(_OF_CHATS if kind is ChatRequest else ())}
    found = {name: value for name, value in body.items() if name not in read and value is not None}
    for name in ("response_format", "structured_outputs"):  # an endpoint has its own ways to keep to them
        if (body.get(name) or {"type": "text"}) != {"type": "text"}:
            found[name] = body[name]
    return found


def read_request(body: Mapping[str, Any], kind: type[R]) -> R:
    """The request in a JSON object. Raises RefusedError (400) whose one sentence names the field."""
    given = {name: value for name, value in body.items() if name not in IGNORED}
    for name in [name for name in given if name in NEUTRAL or name in REFUSED]:
        value = given.pop(name)
        neutral, why = NEUTRAL.get(name, (None, REFUSED.get(name)))
        if value is not None and (value != neutral or isinstance(value, bool) != isinstance(neutral, bool)):
            only = "" if neutral is None else f" at another value than {json.dumps(neutral)}"
            raise RefusedRequestError(400, f"'{name}' is not offered{only}: {why}.", name, "unsupported_parameter")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _sentence(error, kind) from None


def _sentence(error: ValidationError, kind: type[RequestFields]) -> RefusedRequestError:
    """The first thing wrong, in one sentence."""
    found = min(error.errors(include_url=False, include_input=False), key=lambda found: found["type"] == "missing")
    where = ""
    for part in found["loc"]:
        # unions put the names of their alternatives, types such as list[str], into the path
        if isinstance(part, int):
            where += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            where += f".{part}" if where else part
    where = where[:120]
    if found["type"] == "extra_forbidden":
        known = [*kind.model_fields, *NEUTRAL] if len(found["loc"]) == 1 else ()
        hint = f" ({nearest(where, known)})" if known else ""
        return RefusedRequestError(400, f"Unknown field '{where}'{hint}.", where, "unknown_parameter")
    message = found["msg"].removeprefix("Value error, ")
    return RefusedRequestError(400, f"Field '{where}': {message[:1].lower()}{message[1:]}.", where, "invalid_value")
