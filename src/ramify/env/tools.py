"""How environments show tools to an agent: their JSON form, the words that explain them, and how long a result may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST = 16_000
"""Characters of one tool result that are shown to the agent."""
Tools = list[dict[str, Any]]


def describe(tools: Tools, words: str = "") -> str:
    """The system message: ``words``, the tools, and how to call them."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    how = (
        "You can call tools. To call one, write\n"
        '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>\n'
        "and you will be shown its result. A reply without a call is your final answer.\n"
        f"Tools:\n{listed}"
    )
    return f"{words}\n\n{how}" if words else how


def cut(text: str, most: int = MOST) -> str:
    """``text``, or its first ``most`` characters and how many more there were."""
    return text if len(text) <= most else f"{text[:most]}\n... ({len(text) - most:,} characters more)"


def tool_json(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's JSON form."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": dict(parameters)}}
