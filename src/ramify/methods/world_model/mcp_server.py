"""A simulated environment as an MCP server over stdio: its tools,
or one tool ``act`` where actions are words; one episode a process."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from ramify.base.errors import InfrastructureError, NeedsError
from ramify.base.waiting import wait_for
from ramify.env.protocol import Observation, Task
from ramify.methods.world_model.environment import SimulatedEnv, SimulatedEnvironment
from ramify.trace.message import write_call

ACT = {
    "name": "act",
    "description": "Do something in the environment: one action, in words. Returns what the environment shows.",
    "parameters": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}


class WorldSession:
    """One episode behind tool calls. An episode that is over stays over: further calls are refused, none is made up."""

    def __init__(self, environment: SimulatedEnvironment, task: Task, seed: int = 0) -> None:
        self.environment, self.env = environment, SimulatedEnv(environment)
        self.opening = self.env.reset(task, seed).text

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """The tools, each with name, description and parameters; ``act`` says what the environment shows first."""
        if self.environment.tools:
            return [tool["function"] for tool in self.environment.tools]
        return [{**ACT, "description": f"{ACT['description']} It began with: {self.opening}"}]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool, dict[str, Any]]:
        """What a call is answered, whether it failed, and what the one who runs the agent may know of it, the agent not: who
        answered (``by``), what was ``invented``, and whether the episode is over (``terminated``) and won (``outcome``)."""
        if self.env.ended:
            return "error: the episode is over", True, {"terminated": True}
        action = write_call(name, dict(arguments)) if self.environment.tools else str(arguments.get("action", ""))
        try:
            seen: Observation = await asyncio.to_thread(self.env.step, action)
        except InfrastructureError as error:
            return f"error: {error.message}", True, {"failure": error.message}
        about = {"terminated": seen.terminated, "outcome": seen.outcome, "reward": seen.reward, **seen.data}
        return seen.text, not seen.valid, about


def serve(environment: SimulatedEnvironment, task: Task, seed: int = 0) -> None:
    """Answer calls until standard input ends. Raises NeedsError where the package mcp is not installed."""
    try:
        lowlevel, stdio, types = (
            importlib.import_module(name) for name in ("mcp.server.lowlevel", "mcp.server.stdio", "mcp.types")
        )
    except ImportError:
        raise NeedsError('a simulated environment as an MCP server needs mcp: pip install "ramify[environments]"') from None
    wait_for(_serve(WorldSession(environment, task, seed), lowlevel, stdio, types))


async def _serve(session: WorldSession, lowlevel: Any, stdio: Any, types: Any) -> None:
    async def listed(context: Any, params: Any) -> Any:
        made = [types.Tool(name=f["name"], description=f["description"], input_schema=f["parameters"]) for f in session.schemas]
        return types.ListToolsResult(tools=made)

    async def called(context: Any, params: Any) -> Any:
        text, failed, about = await session.call(params.name, params.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], is_error=failed, _meta={"ramify/world": about}
        )

    server = lowlevel.Server("ramify-world", on_list_tools=listed, on_call_tool=called)
    async with stdio.stdio_server() as (given, out):
        await server.run(given, out, server.create_initialization_options())
