"""Which entries are near a request by the vectors of an embedding endpoint; off unless a memory's setting ``embed`` names one.

Axis legend: N texts, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ramify.base.errors import UserError
from ramify.model.address import Endpoint, EndpointLimits
from ramify.model.http import ProviderError, Transport

BATCH, SECONDS, LARGEST = 128, 20.0, 16_384
"""Texts of one request; how long a task waits for its answer at most, where the URL says no ``timeout``; dimensions at most."""


def address_of(text: str) -> tuple[str, Endpoint]:
    """Model and endpoint of ``MODEL@URL``. Raises UserError where it is none."""
    model, at, url = text.rpartition("@http")
    if not at or not model.strip():
        raise UserError(
            f"an embedding endpoint is named as MODEL@URL, such as bge-m3@http://127.0.0.1:8000/v1, not '{text[:80]}'"
        )
    return model.strip(), Endpoint.parse("http" + url)


class Embedder:
    """Asks ``POST /embeddings`` as OpenAI has it. ``text`` is ``MODEL@URL``;
    a key comes from RAMIFY_API_KEY or OPENAI_API_KEY."""

    def __init__(self, text: str) -> None:
        self.model, endpoint = address_of(text)
        limits: EndpointLimits = endpoint.limits()
        if "timeout" not in endpoint.options:
            limits = replace(limits, read=SECONDS, total=SECONDS)
        if "retries" not in endpoint.options:
            limits = replace(limits, retries=0)
        self._transport = Transport(endpoint, limits)

    async def vectors(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        """(N, D) float32 of length 1, and the tokens that the server counted. Raises ProviderError."""
        rows, tokens = list[np.ndarray](), 0
        for at in range(0, len(texts), BATCH):
            batch = list(texts[at : at + BATCH])
            answer = await self._transport.post("/embeddings", {"model": self.model, "input": batch, "encoding_format": "float"})
            rows += read_vectors(answer, len(batch))
            usage = answer.get("usage")
            count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
            tokens += count if type(count) is int and count > 0 else 0
        if len({len(row) for row in rows}) > 1:
            raise ProviderError("shape", "the endpoint's vectors have different lengths")
        return np.stack(rows), tokens


def read_vectors(answer: Mapping[str, Any], count: int) -> list[np.ndarray]:
    """The vectors of an answer in the order of its indices, each divided by its length. Raises ProviderError."""
    listed = answer.get("data")
    if not isinstance(listed, list) or len(listed) != count:
        raise ProviderError(
            "shape", f"the endpoint answered with {len(listed) if isinstance(listed, list) else 'no'} vectors for {count} texts"
        )
    found: dict[int, np.ndarray] = {}
    for at, one in enumerate(listed):
        values = one.get("embedding") if isinstance(one, Mapping) else None
        index = one.get("index", at) if isinstance(one, Mapping) else at
        if not isinstance(values, list) or not 1 <= len(values) <= LARGEST or not all(type(v) in (int, float) for v in values):
            raise ProviderError("shape", f"vector {at} of the endpoint's answer is not a list of 1 to {LARGEST} numbers")
        row = np.asarray(values, np.float64)
        length = float(np.sqrt((row * row).sum()))
        if not math.isfinite(length) or length == 0 or type(index) is not int or not 0 <= index < count or index in found:
            raise ProviderError("shape", f"vector {at} of the endpoint's answer has no direction, or its index is wrong")
        found[index] = (row / length).astype(np.float32)
    return [found[index] for index in range(count)]


@dataclass
class VectorIndex:
    """Vectors of length 1 by name; one of another length replaces all that are there, since another model made it."""

    names: list[str] = field(default_factory=list)
    _rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    _position: dict[str, int] = field(default_factory=dict)

    def add(self, names: Sequence[str], rows: np.ndarray) -> None:
        """Add vectors (N, D); one of a name that is there replaces it."""
        if rows.shape[1] != self._rows.shape[1]:
            self.names, self._position, self._rows = [], {}, np.zeros((0, rows.shape[1]), np.float32)
        new = [at for at, name in enumerate(names) if name not in self._position]
        for at, name in enumerate(names):
            if name in self._position:
                self._rows[self._position[name]] = rows[at]
        for at in new:
            self._position[names[at]] = len(self.names)
            self.names.append(names[at])
        if new:
            self._rows = np.concatenate([self._rows, rows[new]])

    def nearest(self, vector: np.ndarray, most: int, wanted: Callable[[str], bool]) -> list[tuple[str, float]]:
        """At most ``most`` names that are ``wanted`` by falling cosine with ``vector`` (D,)."""
        if self._rows.shape[1] != len(vector):
            return []
        cosine = self._rows @ vector
        found: list[tuple[str, float]] = []
        for at in np.argsort(-cosine, kind="stable").tolist():
            if len(found) == most:
                break
            if wanted(self.names[at]):
                found.append((self.names[at], float(cosine[at])))
        return found
