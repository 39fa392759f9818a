"""The server's other protocols: OpenAI's Responses and Anthropic's Messages before what answers chats.

A request is read as a chat (:mod:`ramify.model.translation`), answered as one, and the answer, whole or in events, is told in the
protocol that the client speaks. Responses that a client may name later (``previous_response_id``) are kept in memory.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from ramify.base.errors import RamifyError
from ramify.model.endpoint import SPOKEN
from ramify.model.sse import as_event
from ramify.model.translation import SpokenRequest, Telling, Translation
from ramify.web.limits import RefusedRequestError
from ramify.web.passing import input_of
from ramify.web.sampling import Events

TRANSLATIONS: Mapping[str, Translation] = {spoken.name: spoken for spoken in SPOKEN.values()}
"""By route: messages, responses."""
IGNORED_HEADER = "x-ramify-ignored"
"""Of an answer: the request's fields and tools that the model was not shown."""
_CHAT_ONLY = ("verbosity", "reasoning_effort")
"""Fields that a model in this process has nothing for, which the other protocols' clients send by default."""


class KeptResponses:
    """The newest responses of a server, by id: the items that a request which names one continues from."""

    MOST, MOST_CHARACTERS = 4096, 64 << 20

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[list[Any], dict[str, Any], int]] = OrderedDict()
        self._characters = 0

    def put(self, items: list[Any], response: Mapping[str, Any]) -> None:
        """Keep a response, unless it says that it is not to be stored. ``items`` are those that it answers."""
        output, id = response.get("output"), response.get("id")
        if response.get("store") is False or not isinstance(output, list) or not isinstance(id, str):
            return
        found = [*items, *output]
        size = len(json.dumps(found))
        self._kept[id] = found, dict(response), size
        self._characters += size
        while self._characters > self.MOST_CHARACTERS or len(self._kept) > self.MOST:
            self.forget(next(iter(self._kept)))

    def items(self, id: Any) -> list[Any]:
        """The conversation up to the end of a response. Raises RefusedError where it is not kept."""
        return self._found(id)[0]

    def response(self, id: Any) -> dict[str, Any]:
        """A response. Raises RefusedError where it is not kept."""
        return self._found(id, 404)[1]

    def _found(self, id: Any, status: int = 400) -> tuple[list[Any], dict[str, Any], int]:
        if not isinstance(id, str) or id not in self._kept:
            message = (
                f"There is no response '{str(id)[:80]}' here: it was sent with \"store\": false, or by a server that has ended."
            )
            field = "previous_response_id" if status == 400 else None
            raise RefusedRequestError(status, message, field, "previous_response_not_found" if status == 400 else "not_found")
        return self._kept[id]

    def forget(self, id: str) -> None:
        """Forget a response. Raises RefusedError where it is not kept."""
        self._characters -= self._found(id, 404)[2]
        del self._kept[id]

    def __contains__(self, id: object) -> bool:
        return id in self._kept


def continued(request: Mapping[str, Any], kept: KeptResponses) -> dict[str, Any]:
    """A request with the conversation that it continues by ``previous_response_id`` put before its input. Raises RefusedError."""
    before = request.get("previous_response_id")
    return dict(request) if before is None else {**request, "input": [*kept.items(before), *input_of(request)]}


Answer = Callable[[dict[str, Any]], Awaitable[Response]]
"""Answers the fields of a request for a chat."""


async def translated(
    translation: Translation, body: Mapping[str, Any], kept: KeptResponses, local: bool, answer: Answer
) -> Response:
    """The answer to a request of ``translation``'s protocol, by what answers chats.

    ``local``: by a model that reads text alone, and has no fields for how much is thought. Raises RefusedError and UserError.
    """
    request = continued(body, kept) if translation.name == "responses" else dict(body)
    asked = translation.read(request)
    fields, ignored = dict(asked.fields), list(asked.ignored)
    if local:
        ignored += [name for name in _CHAT_ONLY if fields.pop(name, None) is not None]
        _refuse_media(fields)
    response = await answer(fields)
    id = translation.new_id()
    if isinstance(response, Events):
        first, events = response.first, response.events
        response.events = _told(translation.telling(asked, id), first, events, asked, kept)
        response.first = ""
    else:
        told = translation.told(json.loads(bytes(response.body)), asked, id)
        _keep(kept, asked, told)
        fresh = JSONResponse(told)
        fresh.headers.update({name: response.headers[name] for name in ("x-request-id",) if name in response.headers})
        response = fresh
    if ignored:
        response.headers[IGNORED_HEADER] = ", ".join(name.encode("ascii", "replace").decode() for name in ignored)
    return response


def _keep(kept: KeptResponses, asked: SpokenRequest, told: Mapping[str, Any]) -> None:
    if told.get("object") == "response":
        kept.put(input_of(asked.request), told)


def _refuse_media(fields: Mapping[str, Any]) -> None:
    for message in fields["messages"]:
        for part in message["content"] if isinstance(message.get("content"), list) else ():
            if part.get("type") != "text":
                what = {"image_url": "an image", "file": "a document"}.get(part.get("type"), "a part that is not text")
                raise RefusedRequestError(
                    400, f"This model reads text only, and a message holds {what}.", "messages", "unsupported"
                )


async def _told(
    telling: Telling, first: str, events: AsyncGenerator[str, None], asked: SpokenRequest, kept: KeptResponses
) -> AsyncGenerator[str, None]:
    """The events of a chat, told as another protocol has them."""
    failed = False

    def tell(text: str) -> str:
        nonlocal failed
        out: list[dict[str, Any]] = []
        for chunk in _chunks(text):
            if failed:
                break
            error = chunk.get("error")
            try:
                if error is None:
                    out += telling.push(chunk)
            except RamifyError as broken:  # of another shape than a chat's, which passes where nobody has to read it
                error = {"message": f"Upstream: {broken}."}
            if error is not None:
                failed = True
                out += telling.failed(502, error if isinstance(error, dict) else {"message": error})
        return _text(out)

    async with aclosing(events):
        if text := tell(first):
            yield text
        async for raw in events:
            if text := tell(raw):
                yield text
    if failed:
        return
    last = list(telling.end())
    for event in last:
        if isinstance(event.get("response"), dict):
            kept.put(input_of(asked.request), event["response"])
    yield _text(last)


def _text(events: list[dict[str, Any]]) -> str:
    return b"".join(map(as_event, events)).decode()


def _chunks(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of whole events of a chat's stream."""
    for line in text.splitlines():
        if line.startswith("data:") and line != "data: [DONE]":
            value = json.loads(line[5:])
            if isinstance(value, dict):
                yield value
