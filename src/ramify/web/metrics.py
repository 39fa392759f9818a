"""The server's Prometheus metrics. Each server has its own registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_EACH = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


Gauges: TypeAlias = Mapping[str, float | Sequence[float]]
"""Names (without ``ramify_``) and numbers that are so now; a list holds a count for each position, the first of which is 1."""


class Metrics:
    """``gauges`` is called at each scrape; values that are not numbers are left out."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, gauges: Callable[[], Gauges] = dict) -> None:
        self.registry = CollectorRegistry()
        given: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("ramify_requests", "Requests answered, by route and HTTP status.", ["route", "status"], **given)
        self.gone = Counter("ramify_requests_gone", "Requests whose client disconnected before the end.", **given)
        self.tokens = Counter(
            "ramify_tokens", "Tokens of prompts, of them found in the cache, and of replies.", ["kind"], **given
        )
        self.first = Histogram("ramify_first_token_seconds", "From the request to its first token.", buckets=_FIRST, **given)
        self.each = Histogram("ramify_token_seconds", "Mean time from one token of a reply to the next.", buckets=_EACH, **given)
        self.registry.register(_Gauges(gauges))

    def count(self, prompt: int, cached: int, completion: int) -> None:
        """Count tokens."""
        for kind, count in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            self.tokens.labels(kind).inc(count)

    def text(self) -> bytes:
        """All of it, as ``GET /metrics`` answers."""
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        for name, value in self._gauges().items():
            text = name.replace("_", " ")
            if isinstance(value, Sequence):
                by_position = CounterMetricFamily(f"ramify_{name}", f"{text} this position.", labels=["position"])
                for position, count in enumerate(value, 1):
                    by_position.add_metric([str(position)], count)
                yield by_position
            elif math.isfinite(value):
                yield GaugeMetricFamily(f"ramify_{name}", text, value=value)
