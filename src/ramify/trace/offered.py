"""The tools that an attempt was offered, where its log says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.trace.db import Run
from ramify.trace.view import View


def tools_of(run: Run, attempt: View) -> list[dict[str, Any]]:
    """The schemas of the tools that an attempt was offered, in OpenAI's form; none where the run does not hold them."""
    places: list[Any] = [attempt.info.task, attempt.info.data, attempt.info.task.get("data")]
    for node, _ in attempt.path.segments:
        places += [node.data, *(node.data.get(name) for name in ("record", "response", "result", "trace", "sample"))]
        places += [] if node.provenance is None else [run.provenance(node.provenance).settings]
    for place in reversed(places):
        for name in ("tools", "functions", "tool_defs") if isinstance(place, Mapping) else ():
            found = [_schema(tool) for tool in place[name]] if isinstance(place.get(name), list) else []
            if found and all(tool is not None for tool in found):
                return [tool for tool in found if tool is not None]
    return []


def _schema(tool: Any) -> dict[str, Any] | None:
    """A tool's schema in OpenAI's form, from that of Anthropic's and of the Responses interface too; None of anything else."""
    if not isinstance(tool, Mapping):
        return None
    about = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
    if not isinstance(about.get("name"), str):
        return None
    parameters = about.get("parameters", about.get("input_schema", {}))
    more = {"description": about["description"]} if isinstance(about.get("description"), str) else {}
    return {"type": "function", "function": {"name": about["name"], **more, "parameters": parameters}}
