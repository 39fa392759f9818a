"""Runs runtape (https://pypi.org/project/runtape, MIT) on conversations read from standard input, a JSON object a line. It runs
in a Python of its own and imports nothing of ramify; :mod:`ramify_experiments.why.context` starts it."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any


def shown(request: dict[str, Any]) -> str:
    """All texts of a request."""
    texts = [str(request.get("system") or "")]
    texts += [str(message.get("content") or "") for message in request.get("messages") or []]
    return "\n".join(texts)


def run(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What runtape names in one conversation, and its reruns."""
    from runtape import Recorder  # type: ignore[import-not-found]
    from runtape.rerun import FunctionModel  # type: ignore[import-not-found]
    from runtape.trace import Trace  # type: ignore[import-not-found]
    from runtape.why import why  # type: ignore[import-not-found]

    rng, calls = random.Random(case["seed"]), 0

    def decide(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        there = [sentence in shown(request) for sentence in case["planted"]]
        likely = case["kind"] == "none" or (any(there) if case["kind"] == "each" else all(there))
        if rng.random() < (case["high"] if likely else case["low"]):
            return {"text": None, "tool_calls": [{"id": "x", "name": case["tool"], "arguments": {}}]}
        return {"text": "Nothing is to be done.", "tool_calls": []}

    path = folder / f"{case['seed']}.jsonl"
    recorder = Recorder(str(path))
    asked = recorder.log_llm_request(
        provider="openai", model="m", api="chat.completions", messages=case["messages"], system=case["system"], params={}
    )
    call = {"id": "x", "name": case["tool"], "arguments": {}}
    answered = recorder.log_llm_response(asked, text=None, tool_calls=[call], stop_reason="tool_calls", raw=None, latency_ms=0)
    recorder.close()
    trace = Trace.load(str(next(iter([path] if path.exists() else folder.glob("*.jsonl")))))
    depth = "full" if case.get("full") else "quick"
    report = why(trace, answered, model=FunctionModel(decide), workers=1, cache_dir=None, depth=depth)
    causes = [*report.causes, *([report.joint] if report.joint else [])]
    removed = [segment for cause in causes for segment in (cause.refined or cause.finest).removed]
    return {"texts": [segment.text for segment in removed], "reruns": calls}


def main() -> None:
    """One answer a line."""
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            if line.strip():
                print(json.dumps(run(json.loads(line), Path(folder))), flush=True)


if __name__ == "__main__":
    main()
