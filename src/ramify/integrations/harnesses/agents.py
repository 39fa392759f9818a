"""A person's own agent as an environment: its code runs as it is, and asks ramify for every reply of the model.

The agent talks to an OpenAI-compatible address that belongs to one episode. Each of its requests is an observation, what the
model replies is an action, and the tools that it runs between them pass the gate of :mod:`ramify.env.tools`. So ``play`` records
it, and ``fork``, ``why`` and every other way of continuing go back to a step: the agent runs again from the beginning, is given
the recorded replies and the recorded results of its tools, and its requests are checked against the recorded ones; from the step
on the model is asked anew.
"""

from __future__ import annotations

import contextvars
import inspect
import json
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.base.ids import canonical_json, json_hash
from ramify.base.plugins import takes
from ramify.base.waiting import wait_for
from ramify.env.protocol import CHAT, AnyTasks, Env, Observation, Task, TaskSet, chat_of, task_set_of
from ramify.env.tools import GATE, RUNS, Ask, ToolGate, ask_person, check_effect, declared_name, effect_of
from ramify.integrations.environments.tools import as_text, check_prompt
from ramify.integrations.harnesses.frameworks import runner
from ramify.integrations.harnesses.worktrees import (
    PLACE,
    Worktree,
    base_commit,
    commit_with,
    edited_text,
    file_at,
    patch_between,
)
from ramify.model.asked import stop_texts
from ramify.model.endpoint import SPOKEN
from ramify.model.sse import as_event
from ramify.model.translation import SpokenRequest, Translation
from ramify.score.match import ExactMatch
from ramify.trace.message import Message, ToolCall, plain, read_message, split_reply
from ramify.trace.parallel import results_in_order

COMMIT = "commit"
"""In the data of an observation: the commit of a command's files then."""
BASE = "base"
"""In the data of a task: the commit that its attempts begin with, where it is not the environment's."""
PATIENCE = 600.0
"""Seconds the agent may take between two requests."""
GRACE = 30.0
"""Seconds in which a request that was recorded next must come, once another one has, where subagents asked at the same time."""
MOST_BODY = 64 << 20
_UNSET = {"temperature": None, "top_p": None, "max_tokens": None}
"""Settings that ramify would send and an agent's own request decides."""
_OWN = ("messages", "model", "stream", "stream_options", "n")
Grade = Callable[..., float | bool]
"""(task, answer) or (task, answer, calls): a score from 0 to 1; ``calls`` are those of tools, as in ``ramify.env.tools.RUNS``; of
a command it is the folder of its checkout instead."""


def agent(
    run: Callable[..., Any] | Sequence[str],
    *,
    tools: Iterable[Callable[..., Any]] | Mapping[str, str] = (),
    grade: Grade | None = None,
    tasks: AnyTasks | None = None,
    ask: Ask = ask_person,
    max_turns: int = 64,
    at_once: int = 8,
    patience: float = PATIENCE,
    name: str = "",
    repo: Path | str | None = None,
    base: str = "HEAD",
    place: str = PLACE,
) -> AgentEnvironment:
    """Your own agent as an environment for :func:`ramify.play`, :func:`ramify.why`,
    :func:`ramify.fork_run`, and ``--env FILE.py:NAME``.

    ``run(prompt, url)``, ``async`` or not, is the agent: it does what ``prompt`` (a task's text) says, talks to the
    OpenAI-compatible server at ``url``, and returns its answer. ``run(url)`` instead makes one: a LangChain or LangGraph agent,
    or an ``Agent`` of the OpenAI Agents SDK, whose model is at ``url``; all its tools are then seen. A list of words is a
    command, such as a coding agent, that works in a checkout of ``base`` of the git repository ``repo``: ``{prompt}`` and
    ``{url}`` in its words are replaced (``OPENAI_BASE_URL`` has the address, too), what it prints is the answer, and the files
    after every step are a commit, from which a branch starts. Its tools run in it, so that those of its replies have to be
    declared ``pure`` or ``sandboxed`` by name. ``place`` is what requests and replies call the folder: for a recording of
    ``ramify serve --record`` the folder that the command worked in.

    ``tools`` are the functions of a loop of your own that declare what they do (:func:`ramify.tool`), or effects by the name of
    the tool. A tool that declares nothing is never run on a branch. ``grade`` scores the answer, 1 is success; by default it must
    equal the task's ``answer``. ``tasks`` have a text ``prompt``. ``ask`` is called for tools declared ``ask``. At most
    ``max_turns`` requests an episode and ``at_once`` episodes;
    ``patience`` is in seconds, between two requests. Raises UserError.
    """
    return AgentEnvironment(run, tools, grade, tasks, ask, max_turns, at_once, patience, name, repo, base, place)


class AgentEnvironment:
    """See :func:`agent`."""

    blocking = True
    max_reply = 4096

    def __init__(
        self,
        run: Callable[..., Any] | Sequence[str],
        tools: Iterable[Callable[..., Any]] | Mapping[str, str],
        grade: Grade | None,
        tasks: AnyTasks | None,
        ask: Ask,
        max_turns: int,
        at_once: int,
        patience: float,
        name: str,
        repo: Path | str | None = None,
        base: str = "HEAD",
        place: str = PLACE,
    ) -> None:
        self.repo, self.place, self.command = repo, place, () if callable(run) else tuple(run)
        self.name = name or (Path(self.command[0]).name if self.command else getattr(run, "__name__", type(run).__name__))
        if bool(self.command) != (repo is not None):
            raise UserError(f"the agent '{self.name}': a command and repo=, the git repository it works in, go together")
        self.base = "" if repo is None else base_commit(repo, base)
        self.makes = not self.command and not takes(run, 2)  # type: ignore[arg-type]  # it is callable then
        if self.makes and not takes(run, 1):  # type: ignore[arg-type]
            raise UserError(
                f"the agent '{self.name}' must be callable as {self.name}(prompt, url), or as {self.name}(url), which makes one"
            )
        if min(max_turns, at_once) < 1 or not patience > 0:
            raise UserError("max_turns, at_once and patience must be positive")
        self.run, self.grade, self.ask, self.max_turns, self.at_once, self.patience = (
            run,
            grade,
            ask,
            max_turns,
            at_once,
            patience,
        )
        self.effects, self.seen = _declared(tools)
        self.declared = dict(tools) if isinstance(tools, Mapping) else {}
        self.on_request: Callable[[], object] = lambda: None
        """Called when an agent asks its model, in a thread of its own."""
        self._tasks = None if tasks is None else task_set_of(tasks)

    def declare(self, effects: Mapping[str, str]) -> None:
        """Effects by name, which count more than what the tools declare."""
        self.effects, self.declared = {**self.effects, **effects}, {**self.declared, **effects}

    def make(self) -> Env:
        """A fresh episode."""
        return AgentEpisode(self)

    def file(self, name: str) -> tuple[str, str]:
        """See :class:`ramify.env.protocol.EditsFiles`."""
        return file_at(self._checked_out(), self.base, name)

    def edited(self, old: str, given: str, name: str) -> str:
        """See :class:`ramify.env.protocol.EditsFiles`."""
        return edited_text(old, given, name)

    def with_file(self, task: Task, path: str, text: str) -> Task:
        """See :class:`ramify.env.protocol.EditsFiles`."""
        commit = commit_with(self._checked_out(), self.base, path, text)
        return Task(f"{task.id} with {path} {commit[:8]}", {**task.data, BASE: commit})

    def patch(self, task: Task) -> str:
        """See :class:`ramify.env.protocol.EditsFiles`."""
        return patch_between(self._checked_out(), self.base, self.begins(task))

    def _checked_out(self) -> Path:
        if self.repo is None:
            raise UserError(f"the agent '{self.name}' does not work in a git repository, so it has no file to edit")
        return Path(self.repo)

    def begins(self, task: Task) -> str:
        """The commit that attempts at a task begin with. Raises UserError where the task names none."""
        base = str(task.data.get(BASE) or self.base)
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", base):
            raise UserError(f"the task '{task.id}' names as its base {base[:60]!r}, which is not a commit")
        return base

    def asked(self, recorded: Task) -> Task:
        """The task that ``recorded``, known by what its first request asked, was: of those given the one whose prompt stands in
        it (an agent may add to that), else one of just those words."""
        said = str(recorded.data["asked"])
        given = [one for one in self._tasks or () if isinstance(one.data.get("prompt"), str) and one.data["prompt"] in said]
        return max(given, key=lambda one: len(one.data["prompt"]), default=Task(recorded.id, {**recorded.data, "prompt": said}))

    def task_set(self, split: str, n: int, seed: int = 0) -> TaskSet:
        """The first ``n`` of its tasks; one with a field ``split`` is of that split alone.
        Raises UserError where there is none."""
        mine = [task for task in self._tasks or () if task.data.get("split", split) == split]
        if not mine:
            raise UserError(f"the agent '{self.name}' has no tasks of the split '{split}': give tasks=")
        return TaskSet.of(mine[:n])


def _declared(tools: Iterable[Callable[..., Any]] | Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """Effects by name, and the names of tools that pass the gate themselves. Raises UserError."""
    if isinstance(tools, Mapping):
        for name, effect in tools.items():
            check_effect(effect, f"the tool '{name}'")
        return dict(tools), set()
    effects = {}
    for tool in tools:
        if not effect_of(tool):
            own = getattr(tool, "__name__", repr(tool))
            raise UserError(
                f'the tool {own} declares no effect: put @ramify.tool("pure"), "replay", "sandboxed" or "ask" above it'
            )
        effects[declared_name(tool)] = effect_of(tool)
    return effects, set(effects)


@dataclass(eq=False)
class _Request:
    """One request of the agent, and the reply it waits for."""

    messages: list[dict[str, Any]]
    asked: dict[str, Any]
    key: str
    reply: Future[tuple[Message, str]] = field(default_factory=Future)


@dataclass(frozen=True)
class _Ended:
    """The agent has returned or raised, or a call of a tool was refused."""

    answer: Any = None
    error: str = ""
    boundary: str = "env"


class AgentEpisode:
    """One episode: the agent in a thread of its own, and what it asks for."""

    system = ""

    def __init__(self, environment: AgentEnvironment) -> None:
        self._environment = environment
        self.max_turns = environment.max_turns
        self._events: queue.Queue[_Request | _Ended] = queue.Queue()
        self.gate = ToolGate(environment.ask, on_refused=lambda why: self._events.put(_Ended(error=why, boundary="tool")))
        self.effects, self.seen = dict(environment.effects), set(environment.seen)
        self.gate.effects = environment.declared
        self._waiting: list[_Request] = []
        self._now: _Request | None = None
        self._conversations: list[list[str]] = []
        self._openings: list[int] = []
        """How many messages the first request of each had."""
        self.asked: dict[str, Any] = {}
        """The further fields of the agent's request, its tools among them."""
        self._current = -1
        self._wanted: Mapping[str, Any] = {}
        self._recorded: Sequence[Message] | None = None
        self._tree: Worktree | None = None
        self._commit = ""
        self._several = False
        """Whether the recorded attempt has several conversations, whose requests come in any order."""
        self.token = ""
        self._over, self._opening = False, threading.Lock()
        self._misspoken = False
        """Whether the model's last reply made a call that is none: an agent that ends of it was ended by the model."""
        self._task: Task | None = None
        self._thread: threading.Thread | None = None

    # -- the environment's side

    def branch(self, own: Iterable[Message], others: Iterable[Message]) -> None:
        """What follows the recorded steps is a branch."""
        own = list(own)
        self._several = any("conversation" in chat_of(one.data) for one in own)
        self.gate.branch(own, others)

    def recall(self, recorded: Sequence[Message]) -> None:
        """The next step was answered with these messages before."""
        self._recorded = recorded

    def reset(self, task: Task, seed: int) -> Observation:
        """Start the agent on ``task``, up to its first request."""
        if "asked" in task.data and "prompt" not in task.data:
            task = self._environment.asked(task)
        self._task = task
        prompt = check_prompt(task)
        self.token = secrets.token_urlsafe(16)
        _server().episodes[self.token] = self
        with self._opening:
            if self._over:
                raise InfrastructureError("env", "the episode is over")
            if self._environment.repo is not None:
                self._tree = Worktree(Path(self._environment.repo), self._environment.begins(task), self._environment.place)
        self._replaying(None)
        context = contextvars.copy_context()
        context.run(GATE.set, self.gate)
        url = f"{_server().url}/{self.token}/v1"
        self._thread = threading.Thread(
            target=context.run, args=(self._live, prompt, url), name=f"ramify {self._environment.name}", daemon=True
        )
        self._thread.start()
        first = self._next()
        if first.failure:
            raise InfrastructureError(*first.failure.split(": ", 1))
        if first.terminated:
            raise InfrastructureError("env", "the agent answered without a request to its model")
        return first

    def step(self, action: str) -> Observation:
        """Give the agent a reply that is text alone, with its calls written into it."""
        return self.reply(Message("assistant", action), "")

    def reply(self, message: Message, stop: str) -> Observation:
        """Give the agent a reply; what it asks for next, or its answer."""
        request = self._now
        if request is None or self._over:
            raise InfrastructureError("env", "step without a running episode")
        message = _with_calls(_ended(message, stop_texts(request.asked)))
        self._replaying(message)
        why = self._barred(message)
        if why:
            return self._failed(why, "tool")
        self._conversations[self._current] = [*map(_message_key, request.messages), _message_key(_as_openai(message))]
        self._now, self._misspoken = None, any(call.error for call in message.calls)
        request.reply.set_result((message, stop))
        return self._next()

    def snapshot(self) -> None:
        """None: an agent's state is its own, so a fork runs it again from the beginning,
        with the recorded replies and results."""

    def restore(self, snapshot: Any) -> None:
        """Never called: there are no snapshots."""
        raise InfrastructureError("env", "an agent has no snapshot")

    def key(self) -> None:
        """None: the state is the agent's."""

    def close(self) -> None:
        """End it: no tool runs from here on, and what the agent still asks for is refused."""
        with self._opening:
            self._over = True
        self.gate.close()
        if self._thread is None:  # the agent never started, so no call is its own
            self.gate.leave()
        _server().episodes.pop(self.token, None)
        ended = InfrastructureError("env", "the episode is over")
        if self._tree is not None:
            self._tree.close()
        for request in [*self._waiting, *([self._now] if self._now else []), *self._left()]:
            if not request.reply.done():
                request.reply.set_exception(ended)
        self._events.put(_Ended(error="the episode is over"))  # for a step that still waits, of an attempt that was cancelled

    def _left(self) -> Iterable[_Request]:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return
            if isinstance(event, _Request):
                yield event

    # -- what was recorded

    def _replaying(self, reply: Message | None) -> None:
        """Take up what :meth:`recall` said of this step."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            self._wanted, self._commit = {}, ""
            return
        self._commit = next((str(one.data[COMMIT]) for one in recorded if COMMIT in one.data), "")
        self._wanted = next((found for one in recorded if (found := chat_of(one.data))), {})
        runs = [dict(run) for one in recorded for run in one.data.get(RUNS) or ()]
        if not runs and reply is not None:  # recorded elsewhere: the messages that answer the calls are the results
            results = {str(one.data.get("tool_call_id")): one.text for one in recorded if one.role == "tool"}
            for call, parsed in zip(reply.data.get("tool_calls") or (), reply.calls, strict=False):
                if call.get("id") in results and not parsed.error:
                    runs.append(
                        {"name": parsed.name, "arguments": dict(parsed.arguments), "how": "run", "result": results[call["id"]]}
                    )
        self.gate.recall(runs)
        self._replay = True

    _replay = False

    def _barred(self, message: Message) -> str:
        """Why a reply may not reach the agent: it would run a tool that ramify does not see. "" where it may."""
        replay, self._replay = self._replay, False
        if not self.gate.branched:
            return ""
        for call in message.calls:
            if call.name in self.seen or call.error:
                continue
            effect = self.gate.effect(call.name, self.effects.get(call.name, ""))
            if effect in ("pure", "sandboxed"):
                continue
            if effect == "ask" and not replay:
                try:
                    if self._environment.ask(call.name, call.arguments):
                        continue
                    return self._refused(call, effect, f"a person said no to '{call.name}'")
                except InfrastructureError as error:
                    return self._refused(call, effect, error.message)
            where = (
                "a step before this one called it, and going back past it would run it again"
                if replay
                else "it is not run on a branch"
            )
            declared = f"is declared '{effect}', and ramify does not see its calls" if effect else "declares no effect"
            return self._refused(
                call,
                effect,
                f"the tool '{call.name}' {declared}: {where} (--effect {call.name}=pure or sandboxed, or @ramify.tool above it "
                "and its name in tools=)",
            )
        return ""

    def _refused(self, call: ToolCall, effect: str, why: str) -> str:
        self.gate.bar(call.name, effect, call.arguments, why)
        return why

    # -- what the agent asks for

    def _next(self) -> Observation:
        """Wait for the agent's next request, or its end."""
        wanted = self._wanted.get("request")
        late = time.monotonic() + self._environment.patience
        while True:
            found = next((one for one in self._waiting if wanted in (None, one.key)), None)
            if found is not None:
                self._waiting.remove(found)
                return self._observed(found)
            try:
                event = self._events.get(timeout=max(0.0, late - time.monotonic()))
            except queue.Empty:
                if self._waiting:
                    return self._observed(self._waiting.pop(0))  # another one than was recorded, which the check then says
                return self._failed(f"the agent asked for nothing in {self._environment.patience:g} s", "env")
            if isinstance(event, _Ended):
                return self._broken_off(event) if event.error else self._graded(event.answer)
            self._waiting.append(event)
            if wanted not in (None, event.key):
                late = min(late, time.monotonic() + GRACE * self._several)

    def _conversation(self, keys: list[str]) -> tuple[int, bool]:
        """The conversation that a request with messages of these ``keys`` continues, the longest if several, -1 where it begins
        one; and whether it extends it. A request that does not, but holds a later message of one, or its opening and more, is the
        same conversation with its history edited (compacted, trimmed): what tells a subagent is that it shares none of that."""
        fits = [i for i, one in enumerate(self._conversations) if keys[: len(one)] == one]
        if fits:
            return max(fits, key=lambda i: len(self._conversations[i])), True
        shared = []
        for i, (one, opening) in enumerate(zip(self._conversations, self._openings, strict=True)):
            later = len(set(keys) & (set(one[opening:]) - set(one[:opening])))
            if later or (len(keys) > opening and keys[:opening] == one[:opening]):
                shared.append((later, i))
        return (max(shared)[1] if shared else -1), False

    def _observed(self, request: _Request) -> Observation:
        """A request as an observation: the messages that are new to its conversation."""
        keys = list(map(_message_key, request.messages))
        at, extends = self._conversation(keys)
        first, follows = self._current < 0, extends and at == self._current
        new = request.messages[len(self._conversations[at]) if extends else 0 :]
        if at < 0:
            self._conversations.append([])
            self._openings.append(len(keys))
            at = len(self._conversations) - 1
        chat: dict[str, Any] = {"request": request.key}
        if first and len(new) > 1 and _plain(new[0]) and new[0]["role"] == "system":
            self.system = new[0]["content"]
            new = new[1:]
        if not first and not follows:
            chat["shown"] = request.messages
        elif len(new) != 1 or not _plain(new[0]):
            chat["messages"] = new
        if at:
            chat["conversation"] = at
        if request.asked != self.asked:
            chat["asked"] = self.asked = request.asked
        self._now, self._current = request, at
        self._conversations[at] = keys
        read = [read_message(one, "a message of the agent's request") for one in new if one.get("role") != "assistant"]
        said = [one for one in read if one.role != "system"] or read
        role = "tool" if said and said[-1].role == "tool" else "user"
        text = "\n".join(one.text for one in said)
        runs = self.gate.taken()
        data = {CHAT: json.dumps(plain(chat), ensure_ascii=False), **({RUNS: plain(runs)} if runs else {}), **self._files()}
        return Observation(text, role=role, data=data)

    def _broken_off(self, end: _Ended) -> Observation:
        """The agent raised: an attempt that the model lost where its reply was at fault, else a failure that is not counted."""
        seen = self._failed(end.error, end.boundary)
        if end.boundary != "env" or not self._misspoken:
            return seen
        return replace(seen, failure="", terminated=True, outcome=False, valid=False)

    def _failed(self, why: str, boundary: str) -> Observation:
        self._over = True
        self.gate.close(why)
        runs = self.gate.taken()
        return Observation(why, role="tool", failure=f"{boundary}: {why}", data={RUNS: plain(runs)} if runs else {})

    def _graded(self, answer: Any) -> Observation:
        self._over = True
        runs = self.gate.taken()
        data: dict[str, Any] = {**({RUNS: plain(runs)} if runs else {}), **self._files()}
        if self._tree is not None:
            answer = self._tree.named(answer, False)
        score = self._score(answer)
        return Observation(
            as_text(answer), score or 0.0, terminated=True, outcome=None if score is None else score >= 1, role="tool", data=data
        )

    def _score(self, answer: Any) -> float | None:
        task, grade = self._task, self._environment.grade
        assert task is not None
        if grade is None:
            return float(ExactMatch().agrees(as_text(answer), task.data["answer"])) if "answer" in task.data else None
        try:
            return float(
                grade(task, answer, self._tree.inside if self._tree else self.gate.calls)
                if takes(grade, 3)
                else grade(task, answer)
            )
        except RamifyError:
            raise
        except Exception as error:  # the person's own grader may raise anything
            raise InfrastructureError("scorer", f"the grader failed: {type(error).__name__}: {error}") from error

    # -- the agent's side

    def _live(self, prompt: str, url: str) -> None:
        """Run the agent, in its own thread."""
        try:
            self._events.put(_Ended(self._acted(prompt, url)))
        except BaseException as error:  # the person's own code may raise anything; the attempt says what
            if not self._over:
                raised = f"the agent raised {type(error).__name__}: {error}"
                self._events.put(_Ended(error=error.message if isinstance(error, InfrastructureError) else raised))
        finally:
            self.gate.leave()

    def _acted(self, prompt: str, url: str) -> Any:
        """What the agent answers, once it has done what ``prompt`` says."""
        run: Any = self._environment.run
        if self._tree is not None:
            run = partial(self._tree.run, self._environment.command)
        if self._environment.makes:
            run = runner(run(url), self)
        answer = run(prompt, url)
        return wait_for(answer) if inspect.isawaitable(answer) else answer

    def outward(self, reply: dict[str, Any]) -> dict[str, Any]:
        """A reply as the agent gets it."""
        return reply if self._tree is None else dict(self._tree.named(reply, True))

    def _files(self) -> dict[str, str]:
        """The commit of a command's files now; after a recorded step they are what they were then."""
        if self._tree is None:
            return {}
        if self._commit:
            self._tree.back(self._commit)
        return {COMMIT: self._tree.commit()}

    def _request_key(self, messages: list[str], asked: Mapping[str, Any]) -> str:
        """What a request is known by: its messages by their keys, and its further fields."""
        return json_hash([messages, plain(asked)])

    def asks(self, body: Mapping[str, Any]) -> tuple[Message, str]:
        """The reply to one request of the agent, once there is one. Raises UserError on what is not such a request,
        InfrastructureError after the end."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise UserError("'messages' must be a list with at least one message")
        if body.get("n") not in (None, 1):
            raise UserError("'n' must be 1: a branch is a reply")
        if self._tree is not None:
            body = self._tree.named(dict(body), False)
            messages = body["messages"]
        for at, one in enumerate(messages):
            read_message(one, f"message {at}")
        messages = results_in_order(messages, lambda one: one, lambda one: str(one.get("role")))  # tools may run at the same time
        asked = {**_UNSET, **{key: value for key, value in body.items() if key not in _OWN}}
        request = _Request([dict(one) for one in messages], asked, self._request_key(list(map(_message_key, messages)), asked))
        if self._over:
            raise InfrastructureError("env", "the episode is over")
        self.gate.requests += 1
        self._environment.on_request()
        self._events.put(request)
        return request.reply.result()


def _plain(message: Mapping[str, Any]) -> bool:
    """Whether a message is its role and its text."""
    return message.keys() == {"role", "content"} and isinstance(message["content"], str) and message["role"] in ("system", "user")


def _message_key(message: Mapping[str, Any]) -> str:
    """What a message says, however a client writes it: role, text, calls, which call it answers."""
    read = read_message(message, "a message")
    calls = [
        [call.get("id") if isinstance(call, Mapping) else None, *map(_parsed, found)]
        for call, found in zip(read.data.get("tool_calls") or (), read.functions, strict=False)
    ]
    return canonical_json([read.role, read.text, calls, read.data.get("tool_call_id"), plain(read.data.get("content"))])


def _parsed(value: Any) -> Any:
    return plain(value)


def _ended(message: Message, stops: Sequence[str]) -> Message:
    """A reply up to the first stop text that the agent asked for: a model in this process keeps it, a server leaves it out."""
    at = min((found for stop in stops if (found := message.text.find(stop)) >= 0), default=-1)
    return message if at < 0 else replace(message, text=message.text[:at])


def _with_calls(message: Message) -> Message:
    """A reply with its calls alongside the text, also where they were written into it."""
    if message.data.get("tool_calls"):
        return message
    text, calls = split_reply(message.text)
    return Message("assistant", text, {**message.data, "tool_calls": calls}) if calls else message


def _as_openai(message: Message) -> dict[str, Any]:
    """A reply as the agent gets it."""
    reply: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.reasoning:
        reply["reasoning_content"] = message.reasoning
    return reply | ({"tool_calls": message.data["tool_calls"]} if message.data.get("tool_calls") else {})


# -- the server


class _Server:
    """The address of all episodes of this process: one path each, which nobody can guess."""

    def __init__(self) -> None:
        self.episodes: dict[str, AgentEpisode] = {}
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.owner = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, name="ramify agents", daemon=True).start()


_starting = threading.Lock()


def _server() -> _Server:
    with _starting:
        return _only_server()


@cache
def _only_server() -> _Server:
    return _Server()


_CHAT_ROUTE, _COUNT_ROUTE = "v1/chat/completions", "v1/messages/count_tokens"
_SPOKEN: dict[str, Translation] = {f"v1{spoken.path}": spoken for spoken in SPOKEN.values()}
"""Protocols besides chat completions, by the path of their requests."""


class _Handler(BaseHTTPRequestHandler):
    """``/TOKEN/v1/chat/completions``, ``/responses`` and ``/messages``, whole or streamed, and ``/TOKEN/v1/models``.
    One request a connection: agents leave theirs open."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what was asked stands in the run."""

    def do_GET(self) -> None:
        """The list of models: whatever the agent names is the model."""
        self._json(200, {"object": "list", "data": [{"id": "model", "object": "model", "owned_by": "ramify"}]})

    def do_POST(self) -> None:
        """One reply, in the protocol of the path."""
        owner: _Server = self.server.owner  # type: ignore[attr-defined]
        token, _, route = self.path.lstrip("/").partition("/")
        route = route.split("?")[0].rstrip("/")
        length = self.headers.get("content-length") or ""
        body = self.rfile.read(int(length)) if length.isascii() and length.isdecimal() and int(length) <= MOST_BODY else b""
        episode, spoken = owner.episodes.get(token), _SPOKEN.get(route)
        if episode is None or route not in (_CHAT_ROUTE, _COUNT_ROUTE, *_SPOKEN):
            what = "the episode is over" if episode is None else f"there is no /{route}: an agent asks /v1/chat/completions"
            self._refuse(404 if episode else 410, what, spoken)
            return
        try:
            fields = json.loads(body)
            if not isinstance(fields, dict):
                raise UserError("the body is not an object")
            if route == _COUNT_ROUTE:  # about four characters each: who counts exactly is the model, and it is not asked
                self._json(200, {"input_tokens": len(body) // 4})
                return
            asked = SpokenRequest(fields, fields) if spoken is None else spoken.read(fields)
            message, stop = episode.asks(asked.fields)
        except (UserError, ValueError, RecursionError) as error:
            self._refuse(400, str(error), spoken)
            return
        except InfrastructureError as error:
            self._refuse(410, error.message, spoken)
            return
        except Exception as error:  # whatever else is wrong with a request, its agent is told
            self._refuse(400, f"the request cannot be read: {type(error).__name__}: {error}", spoken)
            return
        self._answer(asked, spoken, episode.outward(_as_openai(message)), stop, message.data.get("usage"))

    def _answer(self, asked: SpokenRequest, spoken: Translation | None, reply: dict[str, Any], stop: str, usage: Any) -> None:
        fields = asked.fields
        name, now = str(fields.get("model") or "model"), int(time.time())
        finish = "tool_calls" if reply.get("tool_calls") else "length" if stop == "length" else "stop"
        head = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": now, "model": name}
        counts = {"prompt_tokens": 0, "completion_tokens": 0, **(usage if isinstance(usage, Mapping) else {})}
        counts["total_tokens"] = counts["prompt_tokens"] + counts["completion_tokens"]
        if not fields.get("stream"):
            choice = {"index": 0, "message": reply, "finish_reason": finish, "logprobs": None}
            answer = {**head, "object": "chat.completion", "choices": [choice], "usage": counts}
            self._json(200, answer if spoken is None else spoken.told(answer, asked, spoken.new_id()))
            return
        delta = {**reply, "tool_calls": [{"index": i, **call} for i, call in enumerate(reply.get("tool_calls") or ())]}
        chunks = [{"index": 0, "delta": delta, "finish_reason": None}], [{"index": 0, "delta": {}, "finish_reason": finish}]
        events = [{**head, "object": "chat.completion.chunk", "choices": choices} for choices in chunks]
        events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": counts})
        if spoken is None:
            self._send(200, b"".join(map(as_event, events)) + b"data: [DONE]\n\n", "text/event-stream")
            return
        telling = spoken.telling(asked, spoken.new_id())
        told = [event for chunk in events for event in telling.push(chunk)]
        self._send(200, b"".join(map(as_event, [*told, *telling.end()])), "text/event-stream")

    def _refuse(self, status: int, why: str, spoken: Translation | None = None) -> None:
        error = {"message": why, "type": "invalid_request_error", "param": None, "code": None}
        self._json(status, {"error": error} if spoken is None else spoken.refused(status, error))

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        try:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the agent is gone
            self.close_connection = True
