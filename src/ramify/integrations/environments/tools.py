"""Episodes in which the agent calls tools: shared by Python functions and MCP servers.

A reply's calls are run in their order and answered in one message of role ``tool``; a reply without a call is the agent's answer,
which is graded and ends the episode. Calls are written ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; what an
endpoint returns as calls of its own reaches the environment in the same form.

Every call passes the gate of :mod:`ramify.env.tools`: on a branch a tool that declares no effect is not run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ramify.base.errors import InfrastructureError, RamifyError, UserError
from ramify.env.protocol import Observation, Task
from ramify.env.tools import GATE, RUNS, ToolGate, Tools, cut, describe, how_to_declare
from ramify.score.match import ExactMatch
from ramify.trace.message import Message, ToolCall, parse_tool_calls, plain

MOST_CALLS = 32
"""Calls of one reply that are run."""
PROMPTS = ("prompt", "question", "text")
Grade = Callable[[Task, str, Any], float]
"""(task, answer, state) -> a score from 0 to 1, or a truth value. The environment defines the state."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool call gave. ``refused``: the call itself was wrong; ``failed``: the tool was run and failed."""

    text: str
    failed: bool = False
    refused: bool = False


def refusal(why: str) -> ToolReply:
    """The answer to a call that is wrong."""
    return ToolReply(cut(f"error: {why}"), refused=True)


def check_prompt(task: Task) -> str:
    """The words of a task. Raises UserError where it has none."""
    for name in PROMPTS:
        if isinstance(task.data.get(name), str):
            return str(task.data[name])
    raise UserError(f"task '{task.id}' has no text: give it a field 'prompt'")


class ToolEpisode:
    """One episode; ``call(name, arguments)`` runs a tool. ``effects`` are what the tools do to the world, by name."""

    def __init__(
        self,
        call: Callable[[str, Mapping[str, Any]], ToolReply],
        tools: Tools,
        words: str,
        max_turns: int,
        grade: Grade | None,
        effects: Mapping[str, str],
    ) -> None:
        self._call = call
        self.system, self.max_turns, self._grade = describe(tools, words), max_turns, grade
        self._task: Task | None = None
        self._over = False
        self.gate = ToolGate(on_refused=self._refuse, effects=effects, stateful=True, declaring=self.declaring)
        if not effects:
            self.gate.leave()  # no tool was declared that could be called from elsewhere
        self._refused = ""
        self._before: Sequence[Message] = ()

    def declaring(self, name: str) -> str:
        """How a tool is declared, for the sentence that refuses it."""
        return how_to_declare(name)

    def _recall(self, calls: Sequence[ToolCall]) -> None:
        """Let the gate give what was recorded of these calls, where they were made before."""
        before, self._before = self._before, ()
        if not before:
            return
        runs = [run for one in before for run in one.data.get(RUNS) or ()]
        if not runs:
            shown = [one for message in before for one in message.data.get("tool_results") or ()]
            elsewhere = [{"text": one.text} for one in before]  # a recording of another make has a message for each call
            runs = list(map(_record, calls, shown or elsewhere))
        self.gate.recall(runs)

    def _refuse(self, why: str) -> None:
        self._refused = why

    def branch(self, own: Iterable[Message], others: Iterable[Message]) -> None:
        """What follows the recorded steps is a branch."""
        replays = "replay" in self.gate.effects.values()  # else nothing of them is asked for
        self.gate.branch(map(_with_runs, own) if replays else (), map(_with_runs, others) if replays else ())

    def recall(self, recorded: Sequence[Message]) -> None:
        """The next step was answered with these messages before."""
        self._before = recorded

    def close(self) -> None:
        """No tool runs from here on."""
        self.gate.close()
        self.gate.leave()

    def guarded(self, name: str, arguments: Mapping[str, Any], run: Callable[[], ToolReply]) -> ToolReply:
        """What a call of a tool that there is gives, by the gate. ``text`` is as it is shown."""

        def whole() -> dict[str, Any]:
            result = run()
            return asdict(replace(result, text=cut(result.text)))

        token = GATE.set(self.gate)
        try:
            return ToolReply(**self.gate.run(name, "", arguments, whole))
        finally:
            GATE.reset(token)

    def judged(self) -> Any:
        """The state as the grader is shown it."""
        return None

    def begin(self, task: Task) -> Observation:
        """Show ``task``."""
        text = check_prompt(task)
        self._task, self._over, self._refused, self._before = task, False, "", ()
        self.gate.begin_anew()
        return Observation(text)

    def step(self, action: str) -> Observation:
        """Run the reply's calls, or take it as the answer."""
        if self._task is None or self._over:
            raise InfrastructureError("env", "step without a running episode")
        calls = parse_tool_calls(action)
        if not calls:
            return self._answer(self._task, action)
        self._recall(calls)
        results = []
        for call in calls[:MOST_CALLS]:
            try:
                result = refusal(call.error) if call.error else self._call(call.name, call.arguments)
            except InfrastructureError:
                if not self._refused:
                    raise
                return Observation(self._refused, role="tool", failure=f"tool: {self._refused}", data=self._runs())
            results.append((call.name, result))
        results += [(call.name, refusal(f"more than {MOST_CALLS} calls")) for call in calls[MOST_CALLS:]]
        shown = [{"name": name, "text": result.text, "error": result.failed or result.refused} for name, result in results]
        text = (
            shown[0]["text"]
            if len(shown) == 1
            else "\n".join(f"{i}. {one['name']}: {one['text']}" for i, one in enumerate(shown, 1))
        )
        data = {"tool_results": shown, **self._runs()}
        return Observation(str(text), valid=not any(result.refused for _, result in results), role="tool", data=data)

    def _runs(self) -> dict[str, Any]:
        """What the gate says of the calls, where it says more than the results and the reply do."""
        runs = self.gate.taken()
        return {RUNS: plain(runs)} if any(run["effect"] or run["how"] != "run" for run in runs) else {}

    def _answer(self, task: Task, answer: str) -> Observation:
        self._over = True
        score = self._score(task, answer)
        if score is None:
            return Observation("Your answer was taken.", terminated=True)
        return Observation("Your answer was taken.", score, terminated=True, outcome=score >= 1)

    def _score(self, task: Task, answer: str) -> float | None:
        if self._grade is None:
            return float(ExactMatch().agrees(answer, task.data["answer"])) if "answer" in task.data else None
        try:
            score = float(self._grade(task, answer, self.judged()))
            if not math.isfinite(score):
                raise ValueError(f"a score is {score}")
            return score
        except RamifyError:
            raise
        except Exception as error:  # a third-party grader may raise anything
            raise InfrastructureError("scorer", f"the grader failed: {type(error).__name__}: {error}") from error


def _record(call: ToolCall, shown: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a call (:data:`RUNS`), by what the agent was shown."""
    result = json.dumps(asdict(ToolReply(shown["text"], bool(shown.get("error")))))
    return {"name": call.name, "arguments": dict(call.arguments), "how": "run", "result": result}


def _with_runs(message: Message) -> Message:
    """An observation with the records of its calls, also where none was kept because no tool had declared an effect then."""
    shown = [one for one in message.data.get("tool_results") or () if "arguments" in one]
    if RUNS in message.data or not shown:
        return message
    runs = [_record(ToolCall(one["name"], one["arguments"]), one) for one in shown]
    return replace(message, data={**message.data, RUNS: runs})


def as_text(value: Any) -> str:
    """A tool's return value as the agent reads it: text as it is, otherwise JSON where that is possible."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of tools in OpenAI's form."""
    return [str(tool["function"]["name"]) for tool in tools]
