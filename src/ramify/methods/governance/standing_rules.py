"""Nine tasks with a standing rule each: a rule stated early, a long stretch of other work, a request that would break it.

The tasks, tools and channels are those of arXiv 2606.22528, section 3.2; the texts are this project's, in English, Chinese and
Spanish, because the paper's were not released. Requests are self-contained: a refusal can only come from the rule. Each task has
an allowed counterpart, which measures refusals of what the rule permits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ramify.base import codec
from ramify.base.errors import UserError, nearest
from ramify.base.seeds import generator
from ramify.methods.governance.filler import LANGUAGES, OPEN_NOTE, filler, opening
from ramify.model.scripted import ScriptedModel
from ramify.rollout.rules import survival
from ramify.trace.message import Message, write_call

CHANNELS = ("system", "user", "memory", "tool")
"""How a rule reaches the conversation: the system's message, the user, a memory entry, a document read through a tool."""


@dataclass(frozen=True)
class RequiredCall:
    """A call of a tool whose arguments match a pattern."""

    tool: str
    pattern: str


@dataclass(frozen=True)
class Scenario:
    """One task in one language."""

    id: str
    kind: str
    """soft: an ordinary act that only a house rule forbids; hard: one that models often refuse unprompted."""
    language: str
    policy: str
    trigger: str
    allowed: str
    """A request of the same kind that the rule permits."""
    predicate: Mapping[str, Any]
    """What the rule forbids, for ``ramify.methods.governance.predicates``."""
    call: tuple[str, Mapping[str, Any]]
    """The natural answer to ``trigger``: a tool and its arguments."""
    allowed_call: tuple[str, Mapping[str, Any]]
    must_match: RequiredCall
    """By which the allowed act is known to be done."""


@dataclass(frozen=True)
class _TaskText:
    """A task in one language; its calls where they hold words of it."""

    policy: str
    trigger: str
    allowed: str
    call: tuple[str, Mapping[str, Any]] | None = None
    allowed_call: tuple[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class _RuleTask:
    """A task in all languages, as the file has it."""

    id: str
    kind: str
    predicate: Mapping[str, Any]
    must_match: RequiredCall
    text: Mapping[str, _TaskText]
    call: tuple[str, Mapping[str, Any]] | None
    allowed_call: tuple[str, Mapping[str, Any]] | None


@dataclass(frozen=True)
class _RuleFile:
    """standing_rules.json; ``frames``: language -> sentences around a task."""

    tools: tuple[dict[str, Any], ...]
    frames: Mapping[str, Mapping[str, str]]
    tasks: tuple[_RuleTask, ...]


@lru_cache(maxsize=1)
def _data() -> _RuleFile:
    text = files("ramify.env").joinpath("standing_rules.json").read_text(encoding="utf-8")
    return codec.from_json(_RuleFile, json.loads(text))


def tools() -> list[dict[str, Any]]:
    """What agents are offered, in OpenAI's form."""
    return [*_data().tools, OPEN_NOTE]


def task_names() -> list[str]:
    """The tasks, soft ones first."""
    return [task.id for task in _data().tasks]


def scenarios(tasks: Sequence[str] = (), languages: Sequence[str] = ("en",)) -> list[Scenario]:
    """The named tasks (all where none is) in each language. Raises UserError on an unknown one."""
    for name, known in [*((task, task_names()) for task in tasks), *((language, LANGUAGES) for language in languages)]:
        if name not in known:
            raise UserError(f"there is no task or language '{name}' ({nearest(name, known)})")
    return [_scenario(task, language) for language in languages for task in _data().tasks if not tasks or task.id in tasks]


def _scenario(task: _RuleTask, language: str) -> Scenario:
    text, end = task.text[language], _data().frames[language]["end"]
    call, allowed_call = text.call or task.call, text.allowed_call or task.allowed_call
    assert call is not None
    assert allowed_call is not None
    return Scenario(
        id=task.id,
        kind=task.kind,
        language=language,
        policy=text.policy,
        trigger=f"{text.trigger} {end}",
        allowed=f"{text.allowed} {end}",
        predicate=task.predicate,
        call=call,
        allowed_call=allowed_call,
        must_match=task.must_match,
    )


def conversation(
    scenario: Scenario, channel: str | None, turns: int, *position: str | int, seed: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """A history of ``turns`` turns of filler after the rule, and the index of the message that states it.

    ``channel`` None leaves the rule out (index -1); ``system`` adds it to the system's message.
    Raises UserError on an unknown channel.
    """
    if channel is not None and channel not in CHANNELS:
        raise UserError(f"there is no channel '{channel}' ({nearest(channel, CHANNELS)})")
    frame = _data().frames[scenario.language]
    acknowledged = {"role": "assistant", "content": frame["ack"]}
    start = [*opening(scenario.language), acknowledged]
    work = filler(scenario.language, turns, scenario.id, *position, seed=seed)
    if channel is None:
        return [*start, *work], -1
    statement = frame[channel].format(policy=scenario.policy)
    if channel == "system":
        return [{**start[0], "content": f"{start[0]['content']} {statement}"}, *start[1:], *work], 0
    stated: list[dict[str, Any]] = [{"role": "user", "content": statement}, acknowledged]
    at = 0
    if channel == "tool":
        call = {"id": "call_handbook", "type": "function", "function": {"name": "open_note", "arguments": '{"place": 0}'}}
        stated = [
            {"role": "user", "content": frame["open"]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_handbook", "content": statement},
            acknowledged,
        ]
        at = 2
    return [*start, *stated, *work], len(start) + at


def reader(seen: float = 0.0, unseen: float = 1.0) -> ScriptedModel:
    """A made-up agent for trying things out offline: it follows a rule that it can read and otherwise does what it is asked.

    ``seen`` and ``unseen``: how often it breaks a rule that it can read, and one that it cannot; the reply's key decides. Asked
    for a summary, it keeps the first sentence of each message, newest first, until the words are spent. It is the least that the
    results of a model should be compared with: what the presence of the rule alone explains.
    """
    requests = {text: s for s in scenarios(languages=LANGUAGES) for text in (s.trigger, s.allowed)}

    def answer(messages: Sequence[Message], key: int) -> str:
        scenario = requests.get(messages[-1].text)
        if scenario is None:
            words = int((re.search(r"at most (\d+) words", messages[-1].text) or ["", "50"])[1])
            return leads(messages[-1].text.partition("\n\n")[2], words)
        triggered = messages[-1].text == scenario.trigger
        held = triggered and survival(scenario.policy, "\n\n".join(m.text for m in messages[:-1])).survived
        breaks = seen if held else unseen
        if triggered and breaks < 1 and generator(key, "reader").random() >= breaks:
            return "I cannot do that: a rule forbids it."
        name, arguments = scenario.call if triggered else scenario.allowed_call
        return write_call(name, arguments)

    return ScriptedModel(answer, tokens=False, name="reader" if (seen, unseen) == (0.0, 1.0) else f"reader {seen:g} {unseen:g}")


def leads(text: str, words: int) -> str:
    """The first sentences of the last paragraphs of a text, as many as begin within ``words`` words."""
    kept: list[str] = []
    for paragraph in reversed(text.split("\n\n")):
        if sum(len(sentence.split()) for sentence in kept) >= words:
            break
        kept.insert(0, re.split(r"(?<=[.!?。])", paragraph.rpartition("]\n")[2].strip())[0])
    return " ".join(kept)
