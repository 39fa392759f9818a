"""The OpenAI-compatible server of any model: chats and completions, whole or as they grow; the model, health and metrics.

``ramify serve`` puts :mod:`ramify.web.limits` before it. See docs/howto/serve.md for what each field does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

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
from ramify.web.sampling import GoneError, begun, unless_gone

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")
_GONE = 499
"""Status that a request is counted with when its client disconnected; it is not sent."""


class Api:
    """``model`` served as ``name``, and ``more`` models by their names. ``slots`` bounds running and waiting samples; ``record``
    is called with every answer before its end is sent.

    ``gauges`` gives numbers of the engine for ``/metrics`` (:class:`Metrics`). Raises what the model's ``capabilities`` raise.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        slots: Slots,
        record: Recorder | None = None,
        gauges: Callable[[], Gauges] = dict,
        more: Mapping[str, Model] | None = None,
    ) -> None:
        self.served, self.slots, self.record = Served.of(model, name), slots, record
        self.all = {name: self.served, **{other: Served.of(one, other, asks=False) for other, one in (more or {}).items()}}
        self.created = int(time.time())
        self.metrics = Metrics(lambda: {"places_taken": slots.taken, "places": slots.most, **gauges()})
        self.gateway: Gateway | None = None
        layers, inner = unwrapped(model)
        if (
            isinstance(inner, HttpModel) and inner.mode == "chat" and not more
        ):  # requests pass as they are, but for what middleware changes
            self.gateway = Gateway(inner, layers, self.served, slots, self.metrics, record)

    def app(self) -> Any:
        """The ASGI application."""
        chat, complete = (self._chat, self._complete) if self.gateway is None else (self.gateway.chat, self.gateway.complete)
        routes = [
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", complete, methods=["POST"]),
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
        return JSONResponse({"object": "list", "data": [self._card(one) for one in self.all.values()]})

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
        start = time.monotonic()
        body = read_json(await request.body())
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
        return error_answer(refusal(error, self.served))


async def _gone(request: HttpRequest, error: Exception) -> Response:
    return Response(status_code=_GONE)
