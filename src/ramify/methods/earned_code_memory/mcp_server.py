"""The memory as an MCP server over stdio: recall and record for any client, and its active tools,
which call the APIs of an upstream server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from ramify.base.errors import NeedsError, RamifyError, UserError
from ramify.methods.earned_code_memory.memory import Memory, schema
from ramify.methods.earned_code_memory.tools import ToolBox

_TEXT = {"type": "string"}
RECALL = {
    "name": "memory_recall",
    "description": "Notes from earlier tasks that are near a request, and the names of tools made of them. Call it before a "
    "task.",
    "inputSchema": {"type": "object", "properties": {"request": _TEXT}, "required": ["request"]},
}
RECORD = {
    "name": "memory_record",
    "description": "Keep what was done for a request: messages in OpenAI's form, and whether it succeeded where that is known. "
    "Call it after a task.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "request": _TEXT,
            "messages": {"type": "array", "items": {"type": "object"}},
            "success": {"type": "boolean"},
            "task": _TEXT,
        },
        "required": ["request", "messages"],
    },
}


async def serve(memory: Memory, upstream: Sequence[str] = ()) -> None:
    """Serve ``memory`` until the client closes. ``upstream`` is the command of the MCP server whose tools are the base APIs.

    Without one the memory's own tools are not offered: they would have nothing to call.
    Raises NeedsError where mcp is not installed.
    """
    try:
        import mcp
        from mcp import types
        from mcp.client.stdio import stdio_client
        from mcp.server.lowlevel import Server
        from mcp.server.stdio import stdio_server
    except ImportError:
        raise NeedsError('a memory as an MCP server needs mcp: pip install "ramify[environments]"') from None
    async with AsyncExitStack() as stack:
        box: ToolBox | None = None
        if upstream:
            parameters = mcp.StdioServerParameters(command=upstream[0], args=list(upstream[1:]))
            client = await stack.enter_async_context(mcp.Client(stdio_client(parameters)))
            box = await stack.enter_async_context(ToolBox(memory, _asking(client)))
            memory.offer([_described(tool) for tool in (await client.list_tools()).tools])

        async def listed(context: Any, request: Any) -> Any:
            active = (
                [schema(t)["function"] for t in memory.state.tools.values() if t.status == "active"] if box is not None else []
            )
            own = [{"name": one["name"], "description": one["description"], "inputSchema": one["parameters"]} for one in active]
            return types.ListToolsResult(tools=[types.Tool.model_validate(one) for one in (RECALL, RECORD, *own)])

        async def called(context: Any, call: Any) -> Any:
            try:
                text, failed = await answer(memory, box, call.name, call.arguments or {})
            except RamifyError as error:
                text, failed = str(error), True
            return types.CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})

        server: Any = Server("ramify-memory", on_list_tools=listed, on_call_tool=called)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


async def answer(memory: Memory, box: ToolBox | None, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """What a call is answered, and whether it failed. Raises RamifyError on one that cannot be made."""
    if name == RECALL["name"]:
        found = await memory.select(str(arguments.get("request", "")))
        result = {"task": found.task, "notes": found.text, "tools": [tool["function"]["name"] for tool in found.tools]}
        return json.dumps(result, ensure_ascii=False), False
    if name == RECORD["name"]:
        messages, success = arguments.get("messages"), arguments.get("success")
        if not isinstance(messages, list):
            raise UserError("'messages' is a list of messages in OpenAI's form")
        ended = success if isinstance(success, bool) else None
        task = memory.record(str(arguments.get("request", "")), messages, ended, task=str(arguments.get("task") or ""))
        return json.dumps({"task": task}), False
    if box is None:
        raise UserError(f"there is no tool '{name}' here: tools of a memory are run where an MCP server is named with --upstream")
    done = await box.call(name, arguments)
    return done.shown, not done.ok


def _described(tool: Any) -> dict[str, Any]:
    hints = getattr(tool, "annotations", None)
    read_only = bool(getattr(hints, "read_only_hint", None) or getattr(hints, "readOnlyHint", None))
    return {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema, "read_only": read_only}


def _asking(client: Any) -> Any:
    async def ask(name: str, arguments: Mapping[str, Any]) -> Any:
        found = await client.call_tool(name, dict(arguments))
        text = "\n".join(part.text for part in found.content if getattr(part, "text", None) is not None)
        if found.is_error:
            raise UserError(text[:2000])
        structured = getattr(found, "structured_content", None)
        if isinstance(structured, dict):
            return structured.get("result", structured)
        try:
            return json.loads(text)
        except ValueError:
            return text

    return ask
