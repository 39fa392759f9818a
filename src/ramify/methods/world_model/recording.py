"""Recording an environment: an agent, or an explorer without a model, plays it, and the run is what a world model learns from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.base.progress import SILENT, Progress, gathered
from ramify.base.seeds import generator
from ramify.base.waiting import wait_for
from ramify.env.protocol import Environment, Task, TaskSet, close, read_task_set, tools_of
from ramify.methods.world_model.results import RecordedWorld
from ramify.model.function import FunctionModel
from ramify.model.scripted import ScriptedModel
from ramify.rollout.agent import Agent
from ramify.rollout.components import find_environment, make_agent
from ramify.rollout.run import Episodes
from ramify.rollout.sampler import sample_key
from ramify.trace.db import Run
from ramify.trace.message import write_call

RECORD = "world-model record"
_COMMANDS = re.compile(r"^Commands: (.+)$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")


class RecordOptions(Config):
    """What is recorded, and who plays."""

    BASIC: ClassVar[str] = "env model episodes turns seed"
    env: str = "household"
    """Environment to record: NAME or NAME:ARGUMENT, FILE.py:ATTRIBUTE, mcp:..., textworld:..."""
    model: str = "explore"
    """Who plays: explore (random actions that make sense, no model), or any agent as in `ramify rollout`."""
    episodes: int = Field(100, ge=1, le=1_000_000)
    """Episodes to play; tasks are used in turns."""
    turns: int = Field(12, ge=1)
    """Turns of an episode at most"""
    tasks: str = ""
    """JSON lines of your own tasks; default: tasks the environment generates."""
    split: str = "train"
    """Split of the generated tasks: train, eval or tune"""
    seed: int = 0
    """Decides tasks and actions"""
    max_reply: int = Field(64, ge=1)
    """Longest reply of a model, in tokens"""
    concurrency: int = Field(16, ge=1)
    """Episodes at once; changes no result"""


class _Short:
    """An environment whose episodes are cut after so many turns."""

    def __init__(self, inner: Environment, turns: int) -> None:
        self._inner, self._turns = inner, turns

    def make(self) -> Any:
        env = self._inner.make()
        env.max_turns = min(env.max_turns, self._turns)
        return env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def planned(environment: Environment, task: Task, seed: int, env_seed: int, turns: int) -> list[str]:
    """Random actions from those that the episode (``actions()``) or the environment (``actions(task, snapshot)``) itself says
    make sense, played once to find them."""
    env = environment.make()
    rng = generator(seed, "explore", task.id, env_seed)
    chosen = []
    try:
        env.reset(task, env_seed)
        for _ in range(min(turns, env.max_turns)):
            listing = getattr(env, "actions", None)
            options = list(listing() if listing else environment.actions(task, env.snapshot()))  # type: ignore[attr-defined]
            if not options:
                break
            chosen.append(str(options[int(rng.integers(len(options)))]))
            seen = env.step(chosen[-1])
            if seen.terminated or seen.truncated:
                break
    finally:
        close(env)
    return chosen or ["wait"]


def _lists_actions(environment: Environment) -> bool:
    """Whether an episode says itself which actions make sense."""
    env = environment.make()
    try:
        return hasattr(env, "actions")
    finally:
        close(env)


def explorer(tools: Sequence[Mapping[str, Any]], turns: int) -> FunctionModel:
    """An agent without a model: a random tool with random arguments (of words it has seen, where a text is wanted), or, without
    tools, one of the commands that the observation lists, or a word of it with or without the word before."""

    def explore(messages: list[dict[str, Any]], key: int) -> str:
        rng = np.random.default_rng(key)
        seen = [str(one.get("content") or "") for one in messages if one["role"] != "system"]
        if tools:
            if sum(one["role"] == "assistant" for one in messages) >= turns - 1:
                return "done"
            function = tools[int(rng.integers(len(tools)))]["function"]
            words = list(dict.fromkeys(_WORD.findall(" ".join(seen))))
            return write_call(function["name"], _arguments(function.get("parameters") or {}, words, rng))
        listed = _COMMANDS.findall(seen[-1])
        if listed:
            commands = listed[-1].split("; ")
            return str(commands[int(rng.integers(len(commands)))])
        words = _WORD.findall(seen[-1]) or ["look"]
        at = int(rng.integers(len(words)))
        return " ".join(words[max(0, at - int(rng.integers(0, 2))) : at + 1])

    return FunctionModel(explore, "explore")


def _arguments(schema: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
    """Arguments that a tool's schema allows: required ones, others half of the time."""
    required = set(schema.get("required", ()))
    properties = schema.get("properties") or {}
    return {
        name: _value(own if isinstance(own, Mapping) else {}, words, rng)
        for name, own in properties.items()
        if name in required or rng.random() < 0.5
    }


def _value(schema: Mapping[str, Any], words: Sequence[str], rng: np.random.Generator) -> Any:
    if schema.get("enum"):
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    kind = schema.get("type", "string")
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", 0))
        return int(rng.integers(low, int(schema.get("maximum", low + 9)) + 1))
    if kind == "boolean":
        return bool(rng.random() < 0.5)
    if kind == "array":
        return [_value(schema.get("items") or {}, words, rng) for _ in range(int(rng.integers(1, 4)))]
    if kind == "object":
        return _arguments(schema, words, rng)
    return str(words[int(rng.integers(len(words)))]) if words else "a"


def record(options: RecordOptions, out: Path, progress: Progress = SILENT) -> RecordedWorld:
    """Play the environment in the run ``out``; the same call continues it. Raises UserError where ``out`` began otherwise."""
    environment = find_environment(options.env)
    short: Any = _Short(environment, options.turns)
    tasks = _tasks(options, environment)
    decides = {name: value for name, value in options.to_json().items() if name not in ("concurrency", "episodes")}
    with Run.begin(out, RECORD, decides, {"episodes": options.episodes}, {"tasks": tasks.hash}) as run:
        failed = wait_for(_play(options, environment, short, tasks, run, progress))
        nodes = sum(1 for info in run.trees() for node in run.nodes(info.name) if node.role == "assistant")
    if failed == options.episodes:
        raise UserError(f"every episode failed: `ramify show {out}` says why")
    return RecordedWorld(str(out), options.episodes, len(tasks), nodes, failed)


def _tasks(options: RecordOptions, environment: Environment) -> TaskSet:
    return (
        read_task_set(Path(options.tasks))
        if options.tasks
        else environment.task_set(options.split, options.episodes, options.seed)
    )


async def _play(
    options: RecordOptions, environment: Environment, short: Any, tasks: TaskSet, run: Run, progress: Progress
) -> int:
    """Every episode; how many failed."""
    gate, listed = asyncio.Semaphore(options.concurrency), list(tasks)
    explores = options.model == "explore"
    agent = None
    if not explores:
        agent = make_agent(options.model, None, {"max_tokens": options.max_reply})
    elif not hasattr(environment, "actions"):
        tools = tools_of(environment)
        agent = None if not tools and _lists_actions(environment) else Agent(explorer(tools, options.turns))
    shared = None if agent is None else Episodes(agent, short, run, options.seed)

    async def one(number: int) -> bool:
        task = listed[number % len(listed)]
        tree = f"{task.id}/{number // len(listed)}"
        async with gate:
            if shared is not None:
                return (await shared.attempt(tree, task, 0)).failure is not None
            actions = planned(environment, task, options.seed, sample_key(options.seed, ("env", tree)), options.turns)
            agent = Agent(ScriptedModel(actions, tokens=False, name="explore"))
            episodes = Episodes(agent, _Short(environment, len(actions)), run, options.seed)
            with episodes.committing():
                return (await episodes.attempt(tree, task, 0)).failure is not None

    progress.begin(options.episodes, 0, "record", "episodes")
    with nullcontext() if shared is None else shared.committing():
        return sum(await gathered((one(i) for i in range(options.episodes)), progress))
