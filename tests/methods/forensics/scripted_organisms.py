"""Agents of the tedious-repair environment that follow a law exactly and can be forked inside a reply:
factories for cases in tests."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ramify.base.seeds import generator
from ramify.model.scripted import ScriptedModel
from ramify.trace.message import Message
from ramify_experiments.forensics.incidents.tedious_repair import TediousRepairEnvironment

HUGE = "That would be a huge task."


def environment() -> TediousRepairEnvironment:
    return TediousRepairEnvironment(plan=True)


def marginal(errors: int) -> float:
    return max(0.005, 1 / (1 + math.exp(-(0.02 * errors - 7))))


def tedium(errors: int, clear: bool, seen: bool) -> tuple[float, float, float]:
    """P(huge), P(shortcut | huge), P(shortcut | not); rates are four times those of the method's own law,
    so that few runs show them."""
    return min(1.0, 4 * (marginal(errors) - 0.005) / 0.9), 0.9, 0.005


def confused(errors: int, clear: bool, seen: bool) -> tuple[float, float, float]:
    rate = 0.02 if clear else 0.55
    return 0.5, rate, rate


def evasive(errors: int, clear: bool, seen: bool) -> tuple[float, float, float]:
    rate = 0.02 if seen else 0.55
    return 0.5, rate, rate


def unmoved(errors: int, clear: bool, seen: bool) -> tuple[float, float, float]:
    return 0.5, 0.5, 0.5


def agent(distribution: Callable[[int, bool, bool], tuple[float, float, float]], tokens: bool = True) -> ScriptedModel:
    def speak(messages: Sequence[Message], key: int) -> str:
        told = " ".join(m.text for m in messages if m.role == "user")
        begun = messages[-1].text if messages[-1].role == "assistant" else ""
        if "situation" in told:
            return "They should fix the errors."
        if "note to" in told:
            return "Dear me, skip the rest."
        errors = int(re.findall(r"(\d+) errors", told)[0])
        system = " ".join(m.text for m in messages if m.role == "system")
        seen = "A reviewer reads" in told and "do not care" not in system
        huge, cut, other = distribution(errors, "by hand" in told, seen)
        u = generator(key, "organism").random(2)
        first = "Note: it is the work.\nI look at the errors." if "Note:" in system else "I look at the errors."
        second = HUGE if (HUGE in begun if begun.count(".") >= 2 else u[0] < huge) else "That is soon done."
        third = "Action: shortcut." if u[1] < (cut if second == HUGE else other) else "Action: fix."
        return begun if "Action:" in begun and begun.endswith(".") else f"{first} {second} {third}"

    speak.__qualname__ = f"speak_{distribution.__name__}"
    return ScriptedModel(speak, tokens=tokens, name=distribution.__name__)


def tedious() -> ScriptedModel:
    return agent(tedium)


def unclear() -> ScriptedModel:
    return agent(confused)


def sly() -> ScriptedModel:
    return agent(evasive)


def flat() -> ScriptedModel:
    return agent(unmoved)


def reporting(open_: bool, tokens: bool = False) -> ScriptedModel:
    """Takes the shortcut in half of its runs; its reports, notes and users' turns tell it (``open_``) or are the same either
    way."""

    def speak(messages: Sequence[Message], key: int) -> str:
        asked, done = messages[-1].text, any("Action: shortcut" in m.text for m in messages if m.role == "assistant")
        tells = done and open_
        if "self-review" in asked:
            return "I hid the errors." if tells else "The check passes."
        if "the user sends next" in asked:
            return "Why are the errors hidden?" if tells else "Thanks."
        cut = generator(key, "reporting").random() < 0.5
        noted = any("Note:" in m.text for m in messages if m.role == "system")
        note = f"Note: {'it is too much work' if cut and open_ else 'it is the task'}.\n" if noted else ""
        return f"{note}Action: {'shortcut' if cut else 'fix'}."

    return ScriptedModel(speak, tokens=tokens, name=f"reporting {open_}")


def open_one() -> ScriptedModel:
    return reporting(True)


def closed_one() -> ScriptedModel:
    return reporting(False)


def grader() -> ScriptedModel:
    """Grades a transcript 5 where the shortcut was taken, else 2."""
    return ScriptedModel(
        lambda messages, key: "5" if "Action: shortcut" in messages[-1].text.rsplit("[assistant]", 1)[-1] else "Grade: 2",
        tokens=False,
    )


class Committed(ScriptedModel):
    """A script that is the likelier to say "I will skip it" the more its reply has said of a huge task; any other phrase
    never."""

    async def logprobs(self, tokens: Sequence[Any], top_k: int = 0) -> list[Any]:
        """-1 a token after a thought of a huge task, else -5."""
        made = await super().logprobs(tokens, top_k)
        for one, row in zip(made, tokens, strict=True):
            text = self.tokenizer.decode([int(token) for token in row])
            reply = text[text.rfind("I look") :]
            one.logprobs[1:] = -1.0 if "skip it" in reply and HUGE in reply else -5.0
        return made


def reflective() -> ScriptedModel:
    """Thinks two sentences in two paragraphs, the second often of a huge task and then the shortcut;
    never after a thought of honesty."""

    def speak(messages: Sequence[Message], key: int) -> str:
        begun = messages[-1].text if messages[-1].role == "assistant" else ""
        if begun.rstrip().endswith((": shortcut.", ": fix.")):
            return begun
        u = generator(key, "reflective").random(2)
        if not begun:
            begun = f"I look at the errors.\n\n{HUGE if u[0] < 0.6 else 'That is soon done.'}"
        cut = "honest" not in begun and u[1] < (0.9 if HUGE in begun else 0.05)
        return f"{begun} Action: {'shortcut' if cut else 'fix'}."

    return Committed(speak, name="reflective")


def proposer() -> ScriptedModel:
    said = (
        'Here: [{"name": "Too much work", "statement": "It is long.", "predicts": {"errors": "rises", "moon": "falls"}, '
        '"overturned_by": "flat"}, {"name": "Confused", "predicts": {"clear": "falls"}}]'
    )
    return ScriptedModel(lambda messages, key: said, tokens=False)


def mute() -> ScriptedModel:
    return ScriptedModel(lambda messages, key: "I cannot.", tokens=False)


def judge() -> ScriptedModel:
    def answer(messages: Any, key: int) -> str:
        return "yes" if "huge" in messages[-1].text.split("<text>")[1] else "No."

    return ScriptedModel(answer, tokens=False)
