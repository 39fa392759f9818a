"""Invariants of a log: what an attempt that goes well seldom does, told by rules from the log alone, without a model.

A rule names the step that broke it and the node that shows it. Rules are read literally and miss what they cannot be sure of: an
error is what a result calls one, a plan is a numbered list under that word or a list of todos, a contradiction is another number
(or another word) for a field of a tool's result, or success that is claimed of a call that failed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramify.base.ids import canonical_json
from ramify.env.schemas import check_call, schema_fault
from ramify.env.tools import described
from ramify.trace.db import Run
from ramify.trace.graph import short
from ramify.trace.message import ToolCall, named_calls
from ramify.trace.offered import tools_of
from ramify.trace.parallel import by_call
from ramify.trace.view import TokenMessage, View

RULES = {
    "contradicted result": "says other than the results of its tools, or claims success of a call that failed",
    "skipped plan step": "announces a step in an explicit plan that never comes",
    "ignored error": "gets an error that the next reply does not take up",
    "repeated action": "does again what it just did, with the same result",
    "refused call": "calls a tool that was not offered, or with arguments that its schema refuses, and never puts it right",
    "failed call": "gets an error as its result",
}
"""What a step does that breaks each rule; the rarest in successful logs first (:data:`ramify.jobs.log.rarity.PUBLIC`)."""
WIDE = 120
"""Characters of what a violation quotes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One step that breaks a rule."""

    rule: str
    """One of :data:`RULES`."""
    step: int
    """The number of the reply in its attempt, from 1."""
    node: str
    """The reply."""
    action: str
    shown: str
    """The node that shows it: a result, a plan, or the reply itself."""
    why: str
    """What is wrong, one clause with what was read."""


@dataclass(frozen=True)
class LoggedStep:
    """A reply of an attempt, and what came back before the next reply."""

    step: int
    reply: TokenMessage
    results: tuple[TokenMessage, ...]
    """In the order of the calls that they answer."""
    calls: tuple[ToolCall, ...]

    @property
    def node(self) -> str:
        """The reply's id."""
        return self.reply.nodes[-1].id

    @property
    def speaker(self) -> str:
        """Whose it is, where several agents speak; else ""."""
        name = self.reply.message.data.get("name")
        return name if isinstance(name, str) else ""

    @property
    def text(self) -> str:
        """What it says besides its calls, thoughts included."""
        text = self.reply.text
        for call in self.calls:
            if call.char_span[1]:
                text = text.replace(self.reply.text[slice(*call.char_span)], " ")
        return f"{self.reply.message.reasoning}\n{text}".strip()

    @property
    def action(self) -> str:
        """What it does, in one line."""
        return short(" ".join(named_calls(self.reply.message.spoken()).split()), WIDE)

    @property
    def key(self) -> str:
        """Equal for equal actions: the calls with their arguments, else what is said."""
        calls = [[call.name, dict(call.arguments), call.error] for call in self.calls]
        return canonical_json(calls) if calls else " ".join(self.reply.text.split())

    def breaks(self, rule: str, why: str, shown: TokenMessage | None = None) -> Violation:
        """The violation, shown by a message other than the reply where one is given."""
        node = self.node if shown is None else shown.nodes[-1].id
        return Violation(rule, self.step, self.node, self.action, node, why)


def logged_steps(messages: Sequence[TokenMessage]) -> list[LoggedStep]:
    """The replies of an attempt with what came back after each."""
    steps: list[LoggedStep] = []
    at = [i for i, message in enumerate(messages) if message.role == "assistant"]
    for number, (i, end) in enumerate(zip(at, [*at[1:], len(messages)], strict=True), 1):
        after, reply = messages[i + 1 : end], messages[i]
        results = by_call(after, reply.message.data, lambda entry: entry.data)
        if not results and end < len(messages) and messages[end].data.get("name") != reply.data.get("name"):
            results = [messages[end]]  # another agent answers
        steps.append(LoggedStep(number, reply, tuple(results), tuple(reply.message.calls)))
    return steps


def violations(run: Run, view: View) -> list[Violation]:
    """Every step of an attempt that breaks a rule, in the order of the steps, each once a rule."""
    steps = logged_steps(view.messages)
    system = "\n".join(message.text for message in view.opening)
    tools = [_readable(tool) for tool in tools_of(run, view) or described(system)]
    broken = [
        *_contradicted(steps, view.messages),
        *_refused(steps, tools),
        *_skipped(steps, tools),
        *_ignored(steps),
        *_repeated(steps),
    ]
    told = {entry.step for entry in broken}
    broken += [entry for entry in _failed_calls(steps) if entry.step not in told]
    first: dict[tuple[str, int], Violation] = {}
    for entry in broken:
        first.setdefault((entry.rule, entry.step), entry)
    return sorted(first.values(), key=lambda entry: (entry.step, list(RULES).index(entry.rule)))


def _readable(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool of a log; without its schema where that cannot be read."""
    function = tool["function"]
    return {"function": {**function, "parameters": {}}} if schema_fault(function.get("parameters") or {}) else tool


# -- what a result says

_FAILED = re.compile(
    r"\A\s*\W{0,3}(?:\w*error|\w*exception|fatal|failed)\b\s*[:!(\n]"  # Error: ..., ValueError: ...
    r"|^Traceback \(most recent call last\)"
    r"|^\w*(?:Error|Exception): "
    r"|\bexit ?code:? *[1-9]|\(execution failed\)"
    r"|^(?:bash|sh|zsh|/bin/\w+): .*(?:not found|No such file|denied|error)",
    re.MULTILINE | re.IGNORECASE,
)
_REFUSED = re.compile(
    r"\b(?:unknown|no such|invalid|nonexistent) (?:tool|function)\b|\bthere is no tool\b"
    r"|\b(?:tool|function) \S+ (?:is )?not (?:found|available)"
    r"|\bmissing \d* ?required\b|\bunexpected keyword argument\b|\bvalidation error\b|\bfield required\b|\binvalid arguments?\b",
    re.IGNORECASE,
)
_MENTIONS = re.compile(
    r"error|fail|unable|cannot|can't|couldn|sorry|apolog|unfortunately|issue|problem|instead|invalid|again"
    r"|unavailable|not (?:been )?(?:found|available|possible|exist|success|work|enough|valid)|retry|re-?run|fix|correct"
    r"|alternativ|insufficient|exceed|mistake|missing"
    r"|another|however|does ?n['o]t|did ?n['o]t|different|adjust|debug|traceback|exception|wrong|install",
    re.IGNORECASE,
)
_CLAIMS = re.compile(
    r"\bsuccessful(?:ly)?\b|\b(?:has|have) been (?!un)\w+ed\b|\ball set\b"
    r"|\b(?:is|are) (?:now )?(?:done|complete|completed|booked|updated)\b",
    re.IGNORECASE,
)


def failed(result: TokenMessage) -> str:
    """What a result calls an error, in one line; "" where it calls nothing one."""
    if result.data.get("is_error") is True or result.data.get("error") not in (None, "", False):
        return short(" ".join(str(result.text or result.data.get("error")).split()), WIDE)
    value = _json(result.text)
    if isinstance(value, Mapping) and (value.get("error") or value.get("success") is False or value.get("status") == "error"):
        return short(" ".join(result.text.split()), WIDE)
    match = _FAILED.search(result.text)
    return "" if match is None else short(" ".join(result.text[match.start() :].split()), WIDE)


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        return None


def _errors(step: LoggedStep) -> Iterator[tuple[TokenMessage, str, ToolCall | None]]:
    """The errors of a step: the message, what it says, and the call that it answers where that is clear. Of several agents in one
    log what an agent says is its own step's."""
    if step.speaker and (said := failed(step.reply)):
        yield step.reply, said, None
    for i, result in enumerate(step.results):
        if result.role == "assistant":
            continue
        if result.role == "user" and step.speaker == "" and not step.calls and not _FAILED.search(result.text):
            continue  # what a person says
        if said := failed(result):
            alone = len(step.calls) == len(step.results)
            yield result, said, step.calls[i] if alone else step.calls[0] if len(step.calls) == 1 else None


# -- the rules


def _refused(steps: Sequence[LoggedStep], tools: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Calls that are no calls, that their tools' schemas refuse, or that a result says were refused, and that are not put
    right."""
    refused: list[tuple[str, Violation]] = []
    for step in steps:
        wrong = {}
        for call in step.calls:
            if why := call.error or check_call(call.name, call.arguments, tools):
                wrong[call.name] = step.breaks("refused call", why)
        for result, said, answered in _errors(step) if step.calls else ():
            if _REFUSED.search(result.text):
                name = answered.name if answered is not None else step.calls[0].name
                wrong.setdefault(name, step.breaks("refused call", f"it was answered `{said}`", result))
        right = {call.name for call in step.calls} - wrong.keys() if not list(_errors(step)) else set()
        refused = [*((name, entry) for name, entry in refused if name not in right), *wrong.items()]
    yield from (entry for _, entry in refused)


def _failed_calls(steps: Sequence[LoggedStep]) -> Iterator[Violation]:
    """Results that are errors."""
    for step in steps:
        for result, said, _ in _errors(step):
            yield step.breaks("failed call", f"the result says `{said}`", result)


def _repeated(steps: Sequence[LoggedStep]) -> Iterator[Violation]:
    """The action and the results of the step before once more, or of two earlier steps."""
    seen: Counter[tuple[str, ...]] = Counter()
    before: tuple[str, ...] = ()
    for step in steps:
        now = (step.speaker, step.key, *(" ".join(result.text.split()) for result in step.results))
        if not step.key or not step.results:
            before = ()
            continue
        seen[now] += 1
        if now == before or seen[now] > 2:
            times = "for the second time in a row" if seen[now] == 2 else f"for the {seen[now]}th time"
            yield step.breaks("repeated action", f"it is done {times}, and the result is the same")
        before = now


def _ignored(steps: Sequence[LoggedStep]) -> Iterator[Violation]:
    """Steps whose error the next reply does not mention, and after which the same tool is not called again."""
    for at, step in enumerate(steps[:-1]):
        rest = steps[at + 1 :]
        for result, said, call in _errors(step):
            again = call is not None and any(other.name == call.name for entry in rest for other in entry.calls)
            if not again and not _MENTIONS.search(rest[0].text):
                yield step.breaks("ignored error", f"the result says `{said}`, and the next reply does not take it up", result)


def _contradicted(steps: Sequence[LoggedStep], messages: Sequence[TokenMessage]) -> Iterator[Violation]:
    """Success that is claimed right after an error, and values of a result's field that no result has."""
    fields: dict[str, set[str]] = {}
    where: dict[str, TokenMessage] = {}
    shown = {number for message in messages if message.role != "assistant" for number in _numbers(message.text)}
    for at, step in enumerate(steps):
        errors = list(_errors(steps[at - 1])) if at else []
        whole = bool(errors) and len(errors) == len(steps[at - 1].results)
        if whole and not step.calls and _CLAIMS.search(step.text) and not _MENTIONS.search(step.text):
            claim = _CLAIMS.search(step.text)
            yield step.breaks("contradicted result", f"it claims `{claim and claim[0]}` after `{errors[0][1]}`", errors[0][0])
        for name, value in _stated(step.text, fields) if not step.calls else ():
            if value not in fields[name] and value not in shown:
                known = ", ".join(sorted(fields[name])[:3])
                yield step.breaks("contradicted result", f"it says {name} {value}, and the results say {known}", where[name])
        for result in step.results:
            for name, value in _leaves(_json(result.text)):
                fields.setdefault(name, set()).add(value)
                where[name] = result


_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")


def _numbers(text: str) -> set[str]:
    return {_plain(match) for match in _NUMBER.findall(text)}


def _plain(number: str) -> str:
    """A number without separators and without zeros that say nothing."""
    number = number.replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    """(name of the field in words, number) of each number in JSON."""
    left = [("", value)]
    while left:
        name, value = left.pop()
        if isinstance(value, Mapping):
            left += [(str(key).replace("_", " ").lower(), entry) for key, entry in value.items()]
        elif isinstance(value, list):
            left += [(name, entry) for entry in value]
        elif isinstance(value, int | float) and not isinstance(value, bool) and len(name) > 2:
            yield name, _plain(str(value))


def _stated(text: str, fields: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """(field, number) where a text says what a field is: ``total price: $90``, ``the balance is now 12``."""
    lower = text.lower()
    for name in fields:
        if name not in lower:  # most fields are not spoken of
            continue
        for match in re.finditer(
            rf"\b{re.escape(name)}\W{{0,4}}(?:\s*(?:is|was|of|now|=|:)\W{{0,4}}){{1,2}}({_NUMBER.pattern})", text, re.IGNORECASE
        ):
            yield name, _plain(match[1])


_PLAN = re.compile(
    r"\b(?:plan|steps?)\b[^\n]{0,60}:?\W{0,8}\n((?:\s{0,40}\d+[.)][^\n]*\n?(?:\s{0,40}[-*][^\n]*\n?)*){2,})", re.IGNORECASE
)
_ITEM = re.compile(r"^\s*\d+[.)]\s*(.+)$", re.MULTILINE)


def _skipped(steps: Sequence[LoggedStep], tools: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Items of the last explicit plan that name a tool, or another agent, who never comes after; todos that stay open."""
    called = {call.name for step in steps for call in step.calls if call.name}
    names = {str(tool["function"]["name"]) for tool in tools} | called | {step.speaker for step in steps if step.speaker}
    names = {name for name in names if len(name) > 3}
    plan = todo = None
    for step in steps:
        plan = (step, match) if (match := _PLAN.search(step.text)) else plan
        todo = next(((step, items) for call in step.calls if (items := _todos(call.arguments))), todo)
    if plan is not None and names:
        step, match = plan
        later = [entry for entry in steps if entry.step > step.step]
        done = {call.name for entry in (step, *later) for call in entry.calls} | {entry.speaker for entry in later}
        for item in _ITEM.findall(match[1]):
            wanted = {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", item)}
            if wanted and not wanted & done and later:
                yield step.breaks("skipped plan step", f"it plans `{short(item, WIDE)}`, and that never comes")
    if todo is not None:
        step, items = todo
        left = [text for text, state in items if state not in ("completed", "done", "cancelled")]
        if left and len(left) < len(items):
            yield steps[-1].breaks("skipped plan step", f"its todo `{short(left[0], WIDE)}` was never done", step.reply)


def _todos(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(text, state) of a list of todos that a call writes: Claude Code's ``todos``, Codex's ``plan``."""
    items = arguments.get("todos", arguments.get("plan"))
    rows = [item for item in items if isinstance(item, Mapping) and "status" in item] if isinstance(items, list) else []
    return [(str(item.get("content", item.get("step", ""))), str(item["status"])) for item in rows]
