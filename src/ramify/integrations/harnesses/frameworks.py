"""Agents of other people's frameworks as an episode runs them: how one is started, and how each of its tools passes the gate.

LangChain and LangGraph (a compiled graph, as ``create_agent`` makes one) and the OpenAI Agents SDK. Nothing is monkeypatched but
the agent object itself, which is made anew for every episode; no checkpointer is asked to go back.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.plugins import takes
from ramify.env.tools import ToolGate, declared_name, effect_of
from ramify.trace.message import plain

Runner = Callable[[str, str], Any]
"""(prompt, url) -> the answer, or something awaitable of it."""


class GuardedEpisode(Protocol):
    """What an agent's start needs of its episode."""

    token: str
    """Names the episode's endpoint."""
    max_turns: int
    effects: dict[str, str]
    """What each tool declares that it does to the world."""
    seen: set[str]
    """Tools whose calls pass the gate."""
    gate: ToolGate


def runner(made: Any, episode: GuardedEpisode) -> Runner:
    """What runs the agent object that a person's function made. Raises UserError on one of no kind that is known."""
    if hasattr(made, "nodes") and hasattr(made, "ainvoke"):
        return _graph(made, episode)
    if hasattr(made, "instructions") and hasattr(made, "handoffs"):
        return _sdk(made, episode)
    if callable(made) and takes(made, 1):
        return lambda prompt, url: made(prompt)
    raise UserError(
        f"the agent is a {type(made).__name__}: a function (prompt, url), or one that makes a LangChain or LangGraph agent, an "
        "Agent of the "
        "OpenAI Agents SDK or a function of the prompt is known"
    )


# -- LangChain and LangGraph


def _graph(graph: Any, episode: GuardedEpisode) -> Runner:
    nodes = list(_tool_nodes(graph, set()))
    tools = [tool for node in nodes for tool in node.tools_by_name.values()]
    for node in nodes:
        _guard_node(node, episode)
    later = any(getattr(tool, "func", True) is None and getattr(tool, "coroutine", None) is not None for tool in tools)
    config = {"configurable": {"thread_id": episode.token}, "recursion_limit": 4 * episode.max_turns + 8}

    def answered(state: Any) -> Any:
        if isinstance(state, Mapping) and state.get("__interrupt__"):
            raise InfrastructureError("env", "the agent interrupted itself to ask a person")
        if isinstance(state, Mapping) and state.get("structured_response") is not None:
            found = state["structured_response"]
            return found.model_dump(mode="json") if hasattr(found, "model_dump") else found
        messages = state.get("messages") if isinstance(state, Mapping) else None
        return state if not messages else _text(messages[-1])

    def run(prompt: str, url: str) -> Any:
        return answered(graph.invoke({"messages": [{"role": "user", "content": prompt}]}, config))

    async def arun(prompt: str, url: str) -> Any:
        return answered(await graph.ainvoke({"messages": [{"role": "user", "content": prompt}]}, config))

    return arun if later else run


def _text(message: Any) -> str:
    found = message.text
    return str(found() if callable(found) and not isinstance(found, str) else found)


def _tool_nodes(runnable: Any, met: set[int]) -> Iterator[Any]:
    """The tool nodes of a graph and of the graphs that are its nodes."""
    if id(runnable) in met:
        return
    met.add(id(runnable))
    if hasattr(runnable, "tools_by_name") and hasattr(runnable, "_execute_tool_sync"):
        yield runnable
    for one in getattr(runnable, "nodes", {}).values() if isinstance(getattr(runnable, "nodes", None), Mapping) else ():
        yield from _tool_nodes(getattr(one, "bound", one), met)
    for one in getattr(runnable, "steps", None) or ():  # a sequence of runnables
        yield from _tool_nodes(one, met)


def _guard_node(node: Any, episode: GuardedEpisode) -> None:
    """Let every call of a tool node's tools pass the gate. Raises UserError on a LangGraph that runs tools in another way."""
    if getattr(node, "_ramify", None) is not None:
        raise UserError(
            "the agent shares its tool node with another episode: make the whole agent in the function that is given its url"
        )
    declared = {}
    for name, tool in node.tools_by_name.items():
        function = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
        episode.seen.add(name)
        episode.effects.setdefault(name, effect_of(function))
        declared[name] = declared_name(function)
    run, arun = node._execute_tool_sync, node._execute_tool_async

    def guarded(request: Any, *rest: Any) -> Any:
        name, arguments = request.tool_call["name"], request.tool_call["args"]
        effect, own = episode.effects.get(name, ""), declared.get(name, "")
        given = episode.gate.run(name, effect, arguments, lambda: _Given.of(run(request, *rest)), own)
        return _Given.back(given, request.tool_call["id"])

    async def aguarded(request: Any, *rest: Any) -> Any:
        name, arguments = request.tool_call["name"], request.tool_call["args"]

        async def call() -> Any:
            return _Given.of(await arun(request, *rest))

        effect, own = episode.effects.get(name, ""), declared.get(name, "")
        return _Given.back(await episode.gate.arun(name, effect, arguments, call, own), request.tool_call["id"])

    node._execute_tool_sync, node._execute_tool_async, node._ramify = guarded, aguarded, episode


class _Given(dict[str, Any]):
    """What a tool node's tool gave, as JSON that can be recorded, with the object itself where it was just made."""

    made: Any = None

    @classmethod
    def of(cls, value: Any) -> _Given:
        """Of a tool message, a command, or a list of them."""
        found = cls(_written(value))
        found.made = value
        return found

    @staticmethod
    def back(given: Any, call: str) -> Any:
        """The object again; a recorded message answers the call ``call``."""
        return given.made if isinstance(given, _Given) else _read(given, call)


def _written(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"several": [_written(one) for one in value]}
    if hasattr(value, "model_dump"):
        return {"message": plain(value.model_dump(mode="json", exclude={"id", "tool_call_id"}))}
    update = {
        key: [_written(one) for one in found] if key == "messages" else found for key, found in dict(value.update or {}).items()
    }
    if (
        value.graph is not None
        or not isinstance(value.goto, str | list | tuple)
        or json.loads(json.dumps(update, default=str)) != update
    ):
        raise InfrastructureError("tool", "a tool gave a command that cannot be recorded: it holds more than messages and JSON")
    return {"command": {"update": update, "goto": list(value.goto) if not isinstance(value.goto, str) else value.goto}}


def _read(given: Mapping[str, Any], call: str) -> Any:
    from langchain_core.messages import ToolMessage, convert_to_messages
    from langgraph.types import Command

    if "several" in given:
        return [_read(one, call) for one in given["several"]]
    if "command" in given:
        update = dict(given["command"]["update"])
        if "messages" in update:
            update["messages"] = [_read(one, call) for one in update["messages"]]
        return Command(update=update, goto=given["command"]["goto"])
    message = given["message"]
    if message["type"] == "tool":
        return ToolMessage(**{**message, "tool_call_id": call})
    return convert_to_messages([{"role": message["type"], "content": message["content"]}])[0]


# -- the OpenAI Agents SDK


def _sdk(agent: Any, episode: GuardedEpisode) -> Runner:
    _guard_agent(agent, episode, set())

    async def run(prompt: str, url: str) -> Any:
        from agents import RunConfig
        from agents import Runner as SdkRunner

        config = RunConfig(tracing_disabled=True)
        done = await SdkRunner.run(agent, prompt, max_turns=episode.max_turns, run_config=config)
        if done.interruptions:
            raise InfrastructureError("env", "the agent interrupted itself to ask a person")
        found = done.final_output
        return found.model_dump(mode="json") if hasattr(found, "model_dump") else found

    return run


def _guard_agent(agent: Any, episode: GuardedEpisode, met: set[int]) -> None:
    """Let the tools of an agent and of those it hands off to pass the gate.
    An agent that is a tool passes it with its own tools."""
    if id(agent) in met:
        return
    met.add(id(agent))
    made = []
    for tool in agent.tools:
        name = getattr(tool, "name", type(tool).__name__)
        inner = getattr(tool, "_agent_instance", None)
        episode.seen.add(name)
        if inner is not None:
            _guard_agent(inner, episode, met)
            made.append(tool)
        elif hasattr(tool, "on_invoke_tool"):
            function = _function(tool)
            episode.effects.setdefault(name, effect_of(function))
            made.append(_guarded_tool(tool, name, episode, declared_name(function)))
        else:
            raise UserError(
                f"the tool '{name}' runs where ramify does not see it ({type(tool).__name__}), so no branch could be kept from it"
            )
    agent.tools = made
    if agent.mcp_servers:
        raise UserError("an MCP server of the agent runs where ramify does not see its tools: give them as functions")
    for one in agent.handoffs:
        inner = one if hasattr(one, "handoffs") else getattr(one, "_agent_ref", lambda: None)()
        if inner is None:
            raise UserError(
                f"the agent hands off to {getattr(one, 'agent_name', one)}, which ramify cannot see into: give the Agent itself"
            )
        episode.seen.add(getattr(one, "tool_name", f"transfer_to_{inner.name.replace(' ', '_').lower()}"))
        _guard_agent(inner, episode, met)


def _function(tool: Any) -> Any:
    """The Python function that a tool of the SDK was made of, None where that is not known."""
    made = getattr(tool.on_invoke_tool, "_invoke_tool_impl", tool.on_invoke_tool)
    return next((one for one in vars(made).values() if effect_of(one)), None)


def _guarded_tool(tool: Any, name: str, episode: GuardedEpisode, declared: str) -> Any:
    import copy

    run: Callable[[Any, str], Awaitable[Any]] = tool.on_invoke_tool
    guarded = copy.copy(tool)

    async def invoke(context: Any, arguments: str) -> Any:
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            given = {"input": arguments}

        async def call() -> Any:
            value = await run(context, arguments)
            return value.model_dump(mode="json") if hasattr(value, "model_dump") else value

        return await episode.gate.arun(name, episode.effects.get(name, ""), given, call, declared)

    guarded.on_invoke_tool = invoke
    return guarded
