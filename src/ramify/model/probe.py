"""Test an endpoint before a run: whether it answers, its models, and a model's capabilities."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

from ramify.base.errors import RamifyError
from ramify.base.waiting import wait_for
from ramify.model.address import Endpoint, EndpointLimits
from ramify.model.endpoint import HttpModel
from ramify.model.http import ProviderError, Transport

SAMPLED = 60.0
"""Seconds that a sampled reply may take."""


def probe(url: str, timeout: float = 5.0) -> dict[str, Any]:
    """Test an endpoint, given as URL or as ``chat:MODEL@URL``; nothing is raised, and the result holds no secret.

    Returns ``url``, ``reachable`` (something answered), ``ok`` (nothing is wrong), ``latency_s`` of the list of models,
    ``models``, ``offers`` (capabilities of the named model, for which a few tokens are sampled; of a bare URL none are looked
    for), and ``error`` and ``kind`` where something is wrong. Do not call it from an event loop.
    """
    report: dict[str, Any] = {"url": "", "reachable": False, "ok": False, "latency_s": None, "models": [], "offers": []}
    try:
        spec = re.fullmatch(r"(chat|completions|anthropic|responses):(.*?@(https?://.*))", url, re.DOTALL)
        endpoint = Endpoint.parse(spec[3] if spec else url)
        report["url"] = endpoint.url
        limits = EndpointLimits(connect=timeout, read=timeout, total=timeout, retries=0)
        transport = Transport(endpoint, limits, protocol=spec[1] if spec else "")
        begun = time.monotonic()
        answer = wait_for(transport.get("/models"))
        report |= {"reachable": True, "latency_s": round(time.monotonic() - begun, 4)}
        entries = answer.get("data")
        names = [entry.get("id") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        report["models"] = [name for name in names if isinstance(name, str)]
        if spec:
            slow = replace(limits, read=SAMPLED, total=SAMPLED)  # a reply of 16 tokens takes a while on a CPU
            report["offers"] = sorted(HttpModel.named(spec[1], spec[2], limits=slow).capabilities)
        report["ok"] = True
    except ProviderError as error:
        report |= {"reachable": error.kind not in ("connection", "timeout", "cut"), "error": error.message, "kind": error.kind}
    except RamifyError as error:
        report |= {"error": str(error), "kind": "refused"}
    return report
