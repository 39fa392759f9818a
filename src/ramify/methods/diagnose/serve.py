"""The four tools as an MCP server over standard input and output."""

from __future__ import annotations

import importlib
from typing import Any

from ramify.base.errors import NeedsError
from ramify.base.waiting import wait_for
from ramify.methods.diagnose.tools import RepoTools


def serve(tools: RepoTools) -> None:
    """Answer calls until standard input ends. Raises NeedsError where the package mcp is not installed."""
    try:
        lowlevel, stdio, types = (
            importlib.import_module(name) for name in ("mcp.server.lowlevel", "mcp.server.stdio", "mcp.types")
        )
    except ImportError:
        raise NeedsError("serving tools over MCP needs the package 'mcp': pip install \"ramify[diagnose]\"") from None
    wait_for(_serve(tools, lowlevel, stdio, types))


async def _serve(tools: RepoTools, lowlevel: Any, stdio: Any, types: Any) -> None:
    async def listed(context: Any, params: Any) -> Any:
        made = [
            types.Tool(name=f["name"], description=f["description"], input_schema=f["parameters"])
            for f in (one["function"] for one in tools.schemas)
        ]
        return types.ListToolsResult(tools=made)

    async def called(context: Any, params: Any) -> Any:
        result = tools.call(params.name, params.arguments or {})
        return types.CallToolResult(content=[types.TextContent(type="text", text=result.text)], is_error=not result.ok)

    server = lowlevel.Server("ramify-diagnose", on_list_tools=listed, on_call_tool=called)
    async with stdio.stdio_server() as (given, out):
        await server.run(given, out, server.create_initialization_options())
