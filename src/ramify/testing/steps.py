"""A recorded step of an agent as a test: what it was asked to decide, in a file beside the test, and two ways to ask again.

**Recorded**, without a model: the agent runs, is given the recorded replies and the recorded results of its tools, and its
requests must be the recorded ones (messages, tools, settings). **Live**: a model is asked what the agent asks today, and the
reply, or how the attempt then ends, is held against a target. ``ramify test RUN STEP`` does both, and ``--write`` writes a test.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.base import codec
from ramify.base.errors import InfrastructureError, UserError
from ramify.base.files import reason, write_whole
from ramify.base.ids import json_hash
from ramify.base.plugins import own_path
from ramify.base.waiting import wait_for
from ramify.env.protocol import LABELS, AnyEnvironment, Env, Observation, Task
from ramify.env.tools import RUNS
from ramify.model.chat import ChatTemplate, assistant_node_parts
from ramify.model.protocol import Prefix
from ramify.model.rendered import laid_out
from ramify.rollout.agent import Agent
from ramify.rollout.components import any_environment, make_agent
from ramify.rollout.prompt import chat_shown
from ramify.rollout.sampler import Sampler, sample_key
from ramify.rollout.stage import Stage
from ramify.rollout.stored import sampling_in, task_of
from ramify.score.target import StepTarget, read_target
from ramify.trace.context import seen
from ramify.trace.db import Run
from ramify.trace.message import Message, plain, read_message
from ramify.trace.node import Node
from ramify.trace.path import as_messages

OUTCOME = "outcome"
"""The target that is the attempt's success: it is played on from the step to its end."""
FORMAT = 1
ACCEPT = "RAMIFY_ACCEPT"
"""Environment variable: what the agent asks now is written into the file, instead of what was recorded."""
_LINES = "lines of text"
"""A text of several lines is a list of them in the file, so that a change of one is a change of one line."""


@dataclass(frozen=True)
class AskedRequest:
    """What a model was asked: ``messages`` in OpenAI's form, and the further fields of the request, its tools among them."""

    messages: Sequence[Mapping[str, Any]]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, history: Sequence[Message]) -> AskedRequest:
        """Of the messages of an episode so far."""
        messages, fields = chat_shown(history)
        shown = [message.sent if message.unchanged else message.to_openai() for message in messages]
        given = {name: value for name, value in fields.items() if name not in LABELS}
        return cls(plain(shown), plain(given))

    def lines(self, same: Callable[[Any], Any] = lambda value: value) -> list[str]:
        """As lines for a reader. Two requests with the same lines ask the same; ``same`` takes out of a value what two runs of a
        program differ in."""
        said = list[str]()
        for raw in same(plain(list(self.messages))):
            message = read_message(raw, "a message")
            answers = message.data.get("tool_call_id")
            said += [f"[{message.role}{f' {answers}' if answers else ''}]", *message.text.splitlines()]
            said += [f"calls {name}({_shown(arguments)})" for name, arguments in message.functions]
            said += _shown(message.data["content"], 1).splitlines() if "content" in message.data else []
        fields = same(plain(dict(self.fields)))
        for tool in fields.pop("tools", None) or ():
            function = tool.get("function", tool)
            said += [f"[tool {function.get('name')}]", *_shown(function, 1).splitlines()]
        return [*said, *(f"[{name}] {_shown(value)}" for name, value in sorted(fields.items()) if value is not None)]


def _diff(before: Sequence[str], now: Sequence[str]) -> str:
    """A unified diff whose hunks name the message or tool that they are in."""
    lines = []
    for line in difflib.unified_diff(before, now, "recorded", "now", lineterm="", n=2):
        if hunk := _HUNK.match(line):
            above = before[: int(hunk[1])]
            line = f"@@ {next((place for place in reversed(above) if _PLACE.match(place)), '')} @@"
        lines.append(line)
    return "\n".join(lines)


_HUNK, _PLACE = re.compile(r"@@ -(\d+)"), re.compile(r"\[[a-z_]+( [^\]]*)?\]")


def _shown(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=True)


@dataclass(frozen=True)
class RecordedReply:
    """A recorded request, the reply to it, and the calls of tools that came of that (:data:`ramify.env.tools.RUNS`)."""

    request: AskedRequest
    reply: Mapping[str, Any]
    stop: str = ""
    runs: Sequence[Mapping[str, Any]] = ()

    @property
    def message(self) -> Message:
        """The reply."""
        return read_message(self.reply, "a recorded reply")


@dataclass
class RecordedStep:
    """The last of ``replies`` is the step. ``agent`` is the environment that asks (``ramify.agent(...)``, or one by name)."""

    task: Task
    replies: Sequence[RecordedReply]
    model: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    """Of the environment's episode."""
    later: Sequence[Mapping[str, Any]] = ()
    """Calls of tools that were recorded after the step."""
    agent: AnyEnvironment | None = None
    path: Path | None = None
    """The file that it was read from."""

    @classmethod
    def of(cls, run: Run, node: Node, agent: AnyEnvironment | None = None) -> RecordedStep:
        """The step of a run whose reply is, or goes through, ``node``."""
        tree = run.tree(node.tree)
        while not node.opens:
            node = tree.node(str(node.parent))
        path = [part for part, _ in tree.path(node.id).segments]
        opening = [at for at, part in enumerate(path) if part.role == "assistant" and part.opens]
        replies = []
        for number, at in enumerate(opening):
            before = tree.path(path[at - 1].id)
            request = AskedRequest.of(as_messages(seen(before, tree.node, run.context)))
            end = opening[number + 1] if number + 1 < len(opening) else at + 1
            turn = [part for part in path[at:end] if part.role == "assistant"] or [path[at]]
            (said,) = as_messages([(part, 0, len(part)) for part in turn])
            runs = [dict(entry) for part in path[at:end] for entry in part.data.get(RUNS) or ()]
            replies.append(RecordedReply(request, plain(_reply(said)), turn[-1].stop, plain(runs)))
        below = _first_below(run, node)
        task, _ = task_of(run, node.tree)
        return cls(
            task,
            replies,
            str(run.config.get("model") or ""),
            plain({name: value for name, value in sampling_in(run.config).items() if name != "stop_tokens"}),
            sample_key(int(run.config.get("seed", 0)), ("env", node.tree)),
            plain([dict(entry) for part in below for entry in part.data.get(RUNS) or ()]),
            agent,
        )

    # -- the file

    def to_json(self) -> dict[str, Any]:
        """As :meth:`read` reads it: messages that the last request repeats stand there once."""
        last = self.replies[-1].request
        steps = list[dict[str, Any]]()
        for entry in self.replies:
            asked, n = entry.request, len(entry.request.messages)
            step: dict[str, Any] = {"messages": n if list(last.messages[:n]) == list(asked.messages) else list(asked.messages)}
            step |= {} if dict(asked.fields) == dict(last.fields) else {"fields": dict(asked.fields)}
            step |= {"reply": dict(entry.reply)} | ({"stop": entry.stop} if entry.stop else {})
            steps.append(step | ({"runs": [dict(call) for call in entry.runs]} if entry.runs else {}))
        about = {"ramify_step": FORMAT, "task": codec.to_json(self.task), "model": self.model, "sampling": dict(self.sampling)}
        more = {"later": [dict(call) for call in self.later]} if self.later else {}
        conversation = {"messages": list(last.messages), "fields": dict(last.fields)}
        split: dict[str, Any] = _split({**about, "seed": self.seed, "conversation": conversation, "steps": steps, **more})
        return split

    @classmethod
    def read(cls, path: Path, agent: AnyEnvironment | None = None) -> RecordedStep:
        """Read a file. Raises UserError where there is none, or it holds no recorded step."""
        try:
            record = _joined(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"cannot read the recorded step {path}: {reason(error)}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON: {error}") from None
        if not isinstance(record, dict) or record.get("ramify_step") != FORMAT:
            raise UserError(f"{path} holds no recorded step of this version, which `ramify test RUN STEP --write` writes")
        try:
            whole, fields = record["conversation"]["messages"], record["conversation"]["fields"]
            replies = []
            for step in record["steps"]:
                messages = whole[: step["messages"]] if isinstance(step["messages"], int) else step["messages"]
                asked = AskedRequest(messages, step.get("fields", fields))
                replies.append(RecordedReply(asked, step["reply"], step.get("stop", ""), step.get("runs", ())))
                asked.lines(), replies[-1].message
            task = codec.from_json(Task, record["task"], "task")
            if not replies:
                raise UserError("'steps' is empty")
            about = record.get("model", ""), record.get("sampling", {}), record.get("seed", 0), record.get("later", ())
            return cls(task, replies, *about, agent, path)
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} holds no recorded step: {type(error).__name__}: {error}") from None
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def to_text(self) -> str:
        """The file."""
        return json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n"

    # -- recorded

    @property
    def name(self) -> str:
        """Where it was recorded, for messages."""
        return self.path.name if self.path is not None else f"task '{self.task.id}'"

    @cached_property
    def environment(self) -> Any:
        """What asks. Raises UserError where none is named."""
        if self.agent is None:
            raise UserError(
                f"{self.name}: which agent asks is not known, so whether it asks the same is not either: name it with agent=, "
                "ramify.agent(...) or FILE.py:NAME (of a run --env)"
            )
        return any_environment(_beside(self.agent, self.path) if isinstance(self.agent, str) else self.agent)

    @cached_property
    def asked_now(self) -> tuple[AskedRequest, ...]:
        """The requests that the agent makes today, given the recorded replies; fewer where it ends before the step. No model is
        asked. Raises InfrastructureError where it could not be run so far."""

        async def asked() -> tuple[AskedRequest, ...]:
            async with self._at_step() as played:
                return tuple(played.requests)

        return wait_for(asked())

    @property
    def asks(self) -> AskedRequest:
        """What the agent asks at the step today, or what was recorded where no agent is named. Raises UserError where it ends
        before the step."""
        if self.agent is None:
            return self.replies[-1].request
        if self.ends_before:
            raise UserError(f"{self.name}: the agent ends after {len(self.asked_now)} of {len(self.replies)} requests")
        return self.asked_now[-1]

    @property
    def ends_before(self) -> bool:
        """Whether the agent, given the recorded replies, ends before the step today."""
        return self.agent is not None and len(self.asked_now) < len(self.replies)

    def difference(self) -> str:
        """What the agent asks otherwise than recorded, the first request that differs as a diff; "" where it asks the same."""
        same = getattr(self.environment, "same", lambda value: value)
        for number, recorded in enumerate(self.replies):
            which = f"request {number + 1} of {len(self.replies)}"
            if number >= len(self.asked_now):
                return f"{self.name}: {which} is not made: the agent has ended by then."
            before, now = recorded.request.lines(same), self.asked_now[number].lines(same)
            if before != now:
                return f"{self.name}: in {which} the agent asks something else than was recorded:\n{_diff(before, now)}"
        return ""

    def asks_as_recorded(self) -> None:
        """Assert that the agent asks what it asked when the step was recorded. With ``pytest --ramify-accept`` what it asks is
        written into the file instead. Raises UserError where no agent is named."""
        __tracebackhide__ = True
        said = self.difference()
        if said and os.environ.get(ACCEPT) and self.path is not None and len(self.asked_now) == len(self.replies):
            self.replies = [replace(was, request=now) for was, now in zip(self.replies, self.asked_now, strict=True)]
            write_whole(self.path, self.to_text())
        elif said:
            raise AssertionError(f"{said}\nIf that is meant: pytest --ramify-accept")

    @asynccontextmanager
    async def _at_step(self) -> AsyncIterator[_Played]:
        stage = Stage(self.environment)
        env = stage.make()
        try:
            played = _Played(stage, env)
            if (told := getattr(env, "branch", None)) is not None:
                known = [*(call for entry in self.replies for call in entry.runs), *self.later]
                told([_recorded(known)], ())
            played.saw(await stage.reset(env, self.task, self.seed, [_recorded(())]))
            for entry, following in zip(self.replies, self.replies[1:], strict=False):
                if played.end is not None:
                    break
                await played.say(entry.message, entry.stop, _answers(entry, following))
            yield played
        finally:
            await stage.close(env)

    # -- live

    @property
    def message(self) -> Message:
        """The recorded reply."""
        return self.replies[-1].message

    def target(self, spec: str | None) -> StepTarget:
        """What counts: see :func:`ramify.score.target.read_target`; :data:`OUTCOME` is success. Raises UserError."""
        return StepTarget(OUTCOME, "succeeds", "") if spec == OUTCOME else read_target(spec, self.message)

    def live_agent(self, model: str = "") -> Agent:
        """The model that is asked, by its address, with the recorded settings. Raises UserError where none is known."""
        if not (model or self.model):
            raise UserError(f"{self.name}: no model is known: name one (--ramify-model ADDRESS)")
        return make_agent(model or self.model, None, self.sampling)

    async def sample(self, agent: Agent, target: StepTarget, index: int) -> tuple[bool | None, str]:
        """Sample ``index`` of the step: whether it takes ``target`` (None: not to be said), and what was said. What the agent
        asks today is asked, or what was recorded where no agent is named. Raises InfrastructureError, UserError."""
        sampler = Sampler(agent.model, self.seed)
        if target.name != OUTCOME:
            reply, _, shown = await _reply_to(sampler, agent, self.asks, self._tools(), index)
            return await target.holds(reply, shown), reply.spoken()
        async with self._at_step() as played:
            while played.end is None:
                turns = len(played.requests)
                if turns > played.env.max_turns:
                    return False, f"cut off after {played.env.max_turns} requests"
                reply, stop, _ = await _reply_to(sampler, agent, played.requests[-1], self._tools(), index)
                await played.say(reply, stop, ())
            return played.end.outcome, played.end.text

    def _tools(self) -> list[dict[str, Any]]:
        return list(getattr(self.environment, "tools", ())) if self.agent is not None else []


@dataclass
class _Played:
    """One episode, and what was asked in it."""

    stage: Stage
    env: Env
    history: list[Message] = field(default_factory=list)
    requests: list[AskedRequest] = field(default_factory=list)
    end: Observation | None = None

    def saw(self, now: Observation) -> None:
        """What the environment answered. Raises InfrastructureError where it failed."""
        if now.failure:
            raise InfrastructureError(*now.failure.split(": ", 1))
        if not self.history and self.env.system:
            self.history.append(Message("system", self.env.system))
        if now.terminated or now.truncated:
            self.end = now
            return
        self.history.append(Message(now.role, now.text, dict(now.data)))
        self.requests.append(AskedRequest.of(self.history))

    async def say(self, reply: Message, stop: str, recorded: Sequence[Message]) -> None:
        """Give a reply."""
        self.history.append(reply)
        self.saw(await self.stage.step(self.env, reply, stop, recorded))


def recorded_step(test: str | Path, agent: AnyEnvironment | None = None) -> RecordedStep:
    """The recorded step in the JSON file beside a test file (``__file__``), of the same name. ``agent`` is the environment that
    asks: ``ramify.agent(...)``, or the name of one, as ``FILE.py:NAME``. Raises UserError where there is no such file."""
    return RecordedStep.read(Path(test).with_suffix(".json"), agent)


async def _reply_to(
    sampler: Sampler, agent: Agent, request: AskedRequest, tools: Sequence[Mapping[str, Any]], index: int
) -> tuple[Message, str, tuple[Message, ...]]:
    """A reply without the token that ended it, why it stopped, and the messages that it answers."""
    read = (replace(read_message(message, "a message"), sent=message) for message in request.messages)
    messages = tuple(read)
    position = ("test", json_hash([plain(list(request.messages)), plain(dict(request.fields))]))
    prefix = Prefix(_tokens(agent.template, messages), messages, tuple(tools), request.fields)
    completion = await sampler.one(prefix, agent.sampling, position, index, "test")
    reply = completion.message
    if agent.template is not None:
        reply = replace(reply, text=assistant_node_parts(agent.template, completion)["text"])
    return reply, completion.stop, messages


def _tokens(template: ChatTemplate | None, messages: Sequence[Message]) -> np.ndarray | None:
    if template is None:
        return None
    return np.asarray(laid_out(template, [(message.role, message.written()) for message in messages]), np.int32)


def _reply(message: Message) -> dict[str, Any]:
    return message.to_openai() | ({"reasoning_content": message.reasoning} if message.reasoning else {})


def _recorded(runs: Sequence[Mapping[str, Any]]) -> Message:
    """An observation that says which calls came before it."""
    return Message("tool", "", {RUNS: [dict(entry) for entry in runs]} if runs else {})


def _answers(entry: RecordedReply, following: RecordedReply) -> list[Message]:
    """What answered a recorded reply: the calls of its tools, else the messages that follow it in the next request."""
    if entry.runs:
        return [_recorded(entry.runs)]
    ids = {call.get("id") for call in entry.reply.get("tool_calls") or () if isinstance(call, Mapping)}
    read = [read_message(message, "a message") for message in following.request.messages if message.get("role") == "tool"]
    return [message for message in read if message.data.get("tool_call_id") in ids] or [_recorded(())]


def _first_below(run: Run, node: Node) -> list[Node]:
    tree, below = run.tree(node.tree), list[Node]()
    while children := tree.children(node.id):
        node = children[0]
        below.append(node)
    return below


def _beside(spec: str, path: Path | None) -> str:
    """``FILE.py:NAME`` with its file found in the present folder, or else beside the test or above it."""
    named = own_path(spec)
    file, _, attribute = (named[1] if named else "").rpartition(":")
    if path is None or not file.endswith(".py") or Path(file).exists():
        return spec
    folder = next((folder for folder in path.resolve().parents if (folder / file).is_file()), None)
    prefix = f"{named[0]}:" if named and named[0] else ""
    return spec if folder is None else f"{prefix}{folder / file}:{attribute}"


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return {_LINES: value.split("\n")} if "\n" in value else value
    if isinstance(value, Mapping):
        return {name: _split(inner) for name, inner in value.items()}
    return [_split(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        lines = value.get(_LINES) if len(value) == 1 else None
        if isinstance(lines, list):
            return "\n".join(map(str, lines))
        return {name: _joined(inner) for name, inner in value.items()}
    return [_joined(inner) for inner in value] if isinstance(value, list) else value
