"""``ramify mcp``: the runs of a folder as tools of a coding agent, over stdio."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import RamifyError, UserError
from ramify.base.waiting import wait_for
from ramify.kit import Verbs, argument, option

if TYPE_CHECKING:
    from ramify.web.tools import RunTools

app = Verbs("mcp")


@app.itself()
def mcp(
    folder: Annotated[Path, argument(metavar="[FOLDER]", help="A folder of runs.")] = Path("runs"),
    budget_tokens: Annotated[
        int, option("--budget-tokens", metavar="N", help="Tokens of prompts and replies that a session may take.", min=0)
    ] = 500_000,
    budget_attempts: Annotated[
        int, option("--budget-attempts", metavar="N", help="Attempts that a session may play.", min=0)
    ] = 300,
) -> None:
    """Serve the runs of a folder to a coding agent as tools of the Model Context Protocol, on standard input and output: list
    runs, read steps, why, cause, fork, try edits.

    It cannot accept or write an edit, see held-out tasks, or start a recorded command.
    """
    from ramify.integrations.environments.spec import import_package
    from ramify.web.tools import RunTools

    import_package("mcp", "environments", "`ramify mcp`")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    tools = RunTools(folder, budget_tokens, budget_attempts)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clients end their servers with it
    try:
        wait_for(serve(tools))
    except KeyboardInterrupt:
        pass
    finally:
        tools.close()


async def serve(tools: RunTools) -> None:
    """Serve until the client closes."""
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from ramify.base.version import VERSION
    from ramify.render.text import sanitize
    from ramify.web.tools import INSTRUCTIONS

    async def listed(context: Any, request: Any) -> Any:
        return types.ListToolsResult(tools=[types.Tool.model_validate(tool) for tool in tools.listed()])

    async def called(context: Any, call: Any) -> Any:
        try:
            answer, failed = await tools.call(call.name, call.arguments or {}, context.session.report_progress), False
        except RamifyError as error:
            answer, failed = {"error": sanitize(str(error))[:2000]}, True
        text = json.dumps(answer, ensure_ascii=False)
        return types.CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})

    server: Any = Server("ramify", version=VERSION, instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
