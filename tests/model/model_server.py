"""An OpenAI-compatible server on loopback over any ramify model: what a conforming server is, for tests.
Real sockets, its own thread."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ramify.base.seeds import derive_key
from ramify.model.protocol import Model, Prefix, Sampling
from ramify.trace.message import Message

NAME = "tiny"
EXTENSIONS = (
    "top_k", "min_p", "repetition_penalty", "return_token_ids", "return_tokens_as_token_ids", "stop_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "prompt_logprobs", "include_stop_str_in_output",
)  # fmt: skip


class ModelServer:
    """``chat`` answers chats, ``tokens`` completions of token ids.
    ``strict`` refuses extensions, as hosted servers do; ``log`` keeps bodies.

    ``style`` of ids: token_ids, token_id (inside the log-probs), texts, or none.
    """

    def __init__(
        self, tokens: Model | None = None, chat: Model | None = None, strict: bool = False, style: str = "token_ids"
    ) -> None:
        self.tokens, self.chat, self.strict, self.style = tokens, chat, strict, style
        self.log: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.before: Callable[[dict[str, Any]], Any] = lambda body: None
        self.seeded = True
        self.count: Callable[[int], int] = lambda words: words
        """Tokens of a prompt of so many words, as it counts them."""
        self._calls = 0
        self.app = Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse({"object": "list", "data": [{"id": NAME, "object": "model"}]})),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    async def _body(self, request: Request) -> dict[str, Any] | JSONResponse:
        body: dict[str, Any] = await request.json()
        self.log.append(body)
        self.headers.append(dict(request.headers))
        self._calls += 1
        unknown = [name for name in EXTENSIONS if name in body]
        if self.strict and unknown:
            return JSONResponse({"error": {"message": f"Unrecognized request argument supplied: {unknown[0]}"}}, 400)
        if body["model"] != NAME:
            return JSONResponse({"error": {"message": f"The model '{body['model']}' does not exist"}}, 404)
        early = self.before(body)
        return early if early is not None else body

    def _settings(self, body: dict[str, Any]) -> tuple[Sampling, int]:
        banned = tuple(int(token) for token in body.get("logit_bias", {}))
        settings = Sampling(
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 1.0),
            top_k=max(0, body.get("top_k", 0)),
            max_tokens=max(1, body.get("max_tokens", 16)),
            stop_tokens=tuple(body.get("stop_token_ids", ())),
            ban=banned,
        )
        return settings, derive_key(body.get("seed", 0) if self.seeded else self._calls)

    async def _chat(self, request: Request) -> JSONResponse:
        body = await self._body(request)
        if isinstance(body, JSONResponse):
            return body
        assert self.chat is not None
        messages = tuple(Message(m["role"], m["content"] or "", m) for m in body["messages"])
        settings, key = self._settings(body)
        (completion,) = await self.chat.sample(Prefix(messages=messages), 1, settings, [key])
        message = {"role": "assistant", "content": completion.text, **(completion.data or {})}
        finish = {"eos": "stop"}.get(completion.stop, completion.stop)
        words = self.count(sum(len(message.text.split()) for message in messages))
        usage = {"prompt_tokens": words, "completion_tokens": len(completion.text)}
        return JSONResponse(
            {"model": NAME, "usage": usage, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
        )

    async def _complete(self, request: Request) -> JSONResponse:
        body = await self._body(request)
        if isinstance(body, JSONResponse):
            return body
        assert self.tokens is not None
        prompt = body["prompt"]
        if not isinstance(prompt, list) or not prompt:
            return JSONResponse({"error": {"message": "the prompt is empty"}}, 400)
        settings, key = self._settings(body)
        row = np.array(prompt, np.int32)
        (completion,) = await self.tokens.sample(Prefix(row), 1, settings, [key])
        assert completion.tokens is not None
        assert completion.model_logprobs is not None
        ids = completion.tokens.tolist()
        texts = [self.tokens.tokenizer.decode([token]) for token in ids]  # type: ignore[attr-defined]
        names = [f"token_id:{token}" for token in ids] if self.style == "token_id" else texts
        values: list[float | None] = [float(value) for value in completion.model_logprobs]
        if body.get("echo"):
            scores = (await self.tokens.logprobs([row]))[0].logprobs
            values, names, ids = [None, *(float(v) for v in scores[1:])], ["?"] * len(row), prompt
        choice: dict[str, Any] = {
            "index": 0,
            "text": completion.text,
            "finish_reason": {"eos": "stop"}.get(completion.stop, completion.stop),
        }
        if "logprobs" in body:
            choice["logprobs"] = {"tokens": names, "token_logprobs": values}
        if self.style == "token_ids" and body.get("return_token_ids"):
            choice["token_ids"] = ids
        if self.style == "none":
            choice.pop("logprobs", None)
        if "prompt_logprobs" in body:
            top_k = int(body["prompt_logprobs"])
            found = (await self.tokens.logprobs([row], top_k))[0]
            entries = [{str(t): {"logprob": float(v), "rank": 1}} for t, v in zip(prompt, found.logprobs, strict=True)]
            if found.top_tokens is not None and found.top_logprobs is not None:
                for entry, ids_, values_ in zip(entries, found.top_tokens.tolist(), found.top_logprobs.tolist(), strict=True):
                    entry.update({str(t): {"logprob": v} for t, v in zip(ids_, values_, strict=True)})
            choice["prompt_logprobs"] = [None, *entries[1:]]
        return JSONResponse(
            {"model": NAME, "choices": [choice], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}
        )


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI application on a free port of loopback; yields ``http://127.0.0.1:PORT/v1``."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()
