"""The server of any model, for clients of OpenAI's and Anthropic's protocols: chats, completions, Responses and Messages, whole
or as they grow; the model, health and metrics.

``ramify serve`` puts :mod:`ramify.web.limits` before it. See docs/howto/serve.md for what each field does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ramify.base.errors import RamifyError, nearest
from ramify.model.endpoint import HttpModel
from ramify.model.middleware import unwrapped
from ramify.model.protocol import CLIENT, READ, REQUEST, Model
from ramify.web.answers import Answer, refusal
from ramify.web.chat_api import ChatForm
from ramify.web.completions import TextForm
from ramify.web.exchange import Recorder
from ramify.web.fields import ChatRequest, R, TextRequest, passed_on, read_request
from ramify.web.forms import Form, Served
from ramify.web.gateway import Gateway
from ramify.web.limits import RefusedRequestError, Slots, client_of, error_answer, error_handlers, read_json
from ramify.web.metrics import Gauges, Metrics
from ramify.web.protocols import TRANSLATIONS, KeptResponses, translated
from ramify.web.sampling import GoneError, begun, unless_gone

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
COUNT = f"{MESSAGES}/count_tokens"
ROUTES = ("/v1/chat/completions", "/v1/completions", MESSAGES, COUNT, RESPONSES, "/v1/models", "/health", "/metrics")
_Endpoint: TypeAlias = Callable[[HttpRequest], Coroutine[Any, Any, Response]]
_GONE = 499
"""Status that a request is counted with when its client disconnected; it is not sent."""


class Api:
    """``model`` served as ``name``, and ``more`` models by their names. ``slots`` bounds running and waiting samples; ``record``
    is called with every answer before its end is sent.

    ``gauges`` gives numbers of the engine for ``/metrics`` (:class:`Metrics`). With ``pass_key`` an endpoint gets its client's
    key, and is not asked anything before. Raises what the model's ``capabilities`` raise.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        slots: Slots,
        record: Recorder | None = None,
        gauges: Callable[[], Gauges] = dict,
        more: Mapping[str, Model] | None = None,
        pass_key: bool = False,
    ) -> None:
        self.served, self.slots, self.record = Served.of(model, name, asks=not pass_key), slots, record
        self.kept = KeptResponses()
        self.all = {name: self.served, **{other: Served.of(one, other, asks=False) for other, one in (more or {}).items()}}
        self.created = int(time.time())
        self.metrics = Metrics(lambda: {"places_taken": slots.taken, "places": slots.most, **gauges()})
        self.gateway: Gateway | None = None
        layers, inner = unwrapped(model)
        if (
            isinstance(inner, HttpModel) and inner.chats and not more
        ):  # requests pass as they are, but for what middleware changes
            self.gateway = Gateway(inner, layers, self.served, slots, self.metrics, record, self.kept, pass_key)

    def app(self) -> Any:
        """The ASGI application."""
        chat: _Endpoint = self._chat
        complete: _Endpoint = self._complete
        messages: _Endpoint = self._messages
        responses: _Endpoint = self._responses
        count: _Endpoint = self._count
        if self.gateway is not None and self.gateway.spoken in ("", "messages"):
            messages, count = self.gateway.messages, self.gateway.count_tokens
        if self.gateway is not None and self.gateway.spoken in ("", "responses"):
            responses = self.gateway.responses
        if self.gateway is not None and not self.gateway.spoken:
            chat, complete = self.gateway.chat, self.gateway.complete
        elif self.gateway is not None and self.gateway.pass_key:  # the others are asked as a model, with the server's own key
            chat = complete = _only(self.gateway.path)
            messages = messages if self.gateway.spoken == "messages" else chat
            responses = responses if self.gateway.spoken == "responses" else chat
        routes = [
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
            Route(MESSAGES, messages, methods=["POST"]),
            Route(COUNT, count, methods=["POST"]),
            Route(RESPONSES, responses, methods=["POST"]),
            Route(RESPONSES + "/{id}", self._kept_response, methods=["GET", "DELETE"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]
        handlers = error_handlers() | {GoneError: _gone, RamifyError: self._failed}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    def count(self, path: str, status: int) -> None:
        """Count an answer, the guard's refusals among them: what :class:`~ramify.web.limits.Guard` takes as ``count``."""
        self.metrics.requests.labels(path if path in ROUTES else "other", str(status)).inc()

    # -- models, health and metrics

    async def _models(self, request: HttpRequest) -> Response:
        cards = [self._card(one) for one in self.all.values()]
        if "anthropic-version" in request.headers:
            when = datetime.fromtimestamp(self.created, UTC).isoformat(timespec="seconds")
            cards = [{"type": "model", "id": c["id"], "display_name": c["id"], "created_at": when} for c in cards]
            return JSONResponse({"data": cards, "has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]})
        return JSONResponse({"object": "list", "data": cards})

    async def _model(self, request: HttpRequest) -> Response:
        return JSONResponse(self._card(self._known(request.path_params["name"])))

    def _card(self, served: Served) -> dict[str, Any]:
        card = {"id": served.name, "object": "model", "created": self.created, "owned_by": "ramify"}
        return card | ({} if served.context is None else {"max_model_len": served.context})

    def _known(self, name: str) -> Served:
        if name not in self.all:
            hint = nearest(name, self.all)
            raise RefusedRequestError(404, f"There is no model '{name[:80]}' here ({hint}).", "model", "model_not_found")
        return self.all[name]

    async def _health(self, request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})  # for anyone: a probe sends no token

    async def _metrics(self, request: HttpRequest) -> Response:
        return Response(self.metrics.text(), headers={"content-type": self.metrics.content_type})

    # -- samples

    async def _chat(self, request: HttpRequest) -> Response:
        async def form(body: Mapping[str, Any]) -> Form:
            served, parsed, rest = self._read(body, ChatRequest)
            return ChatForm.of(served, parsed, rest)

        return await self._answer(request, form)

    async def _messages(self, request: HttpRequest) -> Response:
        return await self._translated(request, "messages")

    async def _responses(self, request: HttpRequest) -> Response:
        return await self._translated(request, "responses")

    async def _translated(self, request: HttpRequest, route: str) -> Response:
        async def answer(chat: dict[str, Any]) -> Response:
            async def form(body: Mapping[str, Any]) -> Form:
                served, parsed, rest = self._read(body, ChatRequest)
                return ChatForm.of(served, parsed, rest)

            return await self._answered(request, chat, form)

        return await translated(TRANSLATIONS[route], read_json(await request.body()), self.kept, True, answer)

    async def _count(self, request: HttpRequest) -> Response:
        body = read_json(await request.body())
        asked = TRANSLATIONS["messages"].read({**body, "max_tokens": 1, "stream": False})
        served, parsed, rest = self._read(asked.fields, ChatRequest)
        form = ChatForm.of(served, parsed, rest)
        return JSONResponse({"input_tokens": await served.count(form.prompts[0])})

    async def _kept_response(self, request: HttpRequest) -> Response:
        id = request.path_params["id"]
        response = self.kept.response(id)
        if request.method == "DELETE":
            self.kept.forget(id)
            return JSONResponse({"id": id, "object": "response", "deleted": True})
        return JSONResponse(response)

    async def _complete(self, request: HttpRequest) -> Response:
        async def form(body: Mapping[str, Any]) -> Form:
            served, parsed, rest = self._read(body, TextRequest)
            return await TextForm.of(served, parsed, rest)

        return await self._answer(request, form)

    def _read(self, body: Mapping[str, Any], kind: type[R]) -> tuple[Served, R, dict[str, Any]]:
        """The model that is asked, the request in ``body``,
        and the fields that only an endpoint can read. Raises RefusedError."""
        named = body.get("model")
        served = self.all.get(named, self.served) if isinstance(named, str) else self.served
        rest = passed_on(body, kind) if served.passes else {}
        request = read_request({name: value for name, value in body.items() if name not in rest}, kind)
        return self._known(request.model), request, rest

    async def _answer(self, request: HttpRequest, make: Callable[[Mapping[str, Any]], Awaitable[Form]]) -> Response:
        return await self._answered(request, read_json(await request.body()), make)

    async def _answered(
        self, request: HttpRequest, body: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Awaitable[Form]]
    ) -> Response:
        start = time.monotonic()
        form = await make(body)
        CLIENT.set(client_of(body, request))
        answer = Answer(form, form.served.model.identity, self.slots, self.metrics, self.record, start)
        REQUEST.set(answer.id)
        READ.set(bool(form.request.stream))
        response: Response
        if form.request.stream:
            response = await begun(request.receive, answer.events())
        else:
            response = JSONResponse(await unless_gone(request.receive, answer.whole()))
        response.headers["x-request-id"] = answer.id
        return response

    async def _failed(self, request: HttpRequest, error: Any) -> Response:
        clients_key = self.gateway is not None and self.gateway.pass_key
        return error_answer(refusal(error, self.served, clients_key), request.url.path)


def _only(path: str) -> _Endpoint:
    async def refuse(request: HttpRequest) -> Response:
        raise RefusedRequestError(400, f"With --pass-key this server answers at {path} only, which its endpoint speaks.")

    return refuse


async def _gone(request: HttpRequest, error: Exception) -> Response:
    return Response(status_code=_GONE)
