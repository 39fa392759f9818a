"""Conversations of which it is known what the decision depends on (nothing, one sentence, two), given to
``ramify why --context``, and replies whose forking tokens are known, given to the search of ``ramify why --tokens``."""

from __future__ import annotations

import json
import random
from typing import Any

import ramify
from ramify import Observation
from ramify_experiments.cases import KnownCase, Repetition, SingleReply, first_reply
from ramify_experiments.why import log_nulls, tokens
from ramify_experiments.why.context import FAMILIES, ContextFamily, conversation

NAMES = {family.name: family for family in FAMILIES}


class Letters(SingleReply):
    """One answer to a conversation that the task holds."""

    def reset(self, task: Any, seed: int) -> Observation:
        """The conversation as one message."""
        return Observation(str(task.data["shown"]))

    def step(self, action: str) -> Observation:
        """The end."""
        return Observation("done", 0.0, terminated=True, outcome=action != "pay")


def answer(messages: list[dict[str, Any]], key: int) -> str:
    """Pays with the chance that :data:`RULES` say of what is shown."""
    text = messages[-1]["content"]
    rules = json.loads(RULES.get("now", "{}"))
    there = [sentence in text for sentence in rules["planted"]]
    likely = rules["kind"] == "none" or (any(there) if rules["kind"] == "each" else all(there))
    return "pay" if random.Random(key).random() < rules["high" if likely else "low"] else "wait"


RULES: dict[str, str] = {}
"""What the simulated decision of the repetition that is running depends on."""


def _named(rep: Repetition, family: ContextFamily) -> tuple[list[str], tuple[str, ...]]:
    """What the verb names, and what was planted."""
    case = conversation(family, rep.seed)
    RULES["now"] = json.dumps({"kind": family.kind, "high": family.high, "low": family.low, "planted": case.planted})
    shown = "\n\n".join(message.text for message in case.messages if message.text)
    ramify.play(answer, Letters, [{"id": "letters", "shown": shown}], attempts=1, out=rep.folder / "run", seed=rep.seed)
    node = first_reply(rep.folder / "run")
    me = "python:ramify_experiments.why.nulls"
    who = ("--model", f"{me}:answer", "--env", f"{me}:Letters")
    result = rep.verb("why", str(rep.folder / "run"), node, "--context", "--target", "says:pay", *who)
    return [part["text"] for cause in result["causes"] for part in cause["parts"]], case.planted


def _any(name: str) -> Any:
    return lambda rep: bool(_named(rep, NAMES[name])[0])


def _all(name: str) -> Any:
    def named(rep: Repetition) -> bool:
        texts, planted = _named(rep, NAMES[name])
        return len(texts) == len(planted) and all(any(sentence in text for text in texts) for sentence in planted)

    return named


def _forks(name: str) -> Any:
    family = next(family for family in tokens.FAMILIES if family.name == name)

    def named(rep: Repetition) -> bool:
        reply = tokens.ForkedReply(family, rep.seed)
        places = tokens.searched(reply)
        return places == reply.planted if reply.planted else bool(places)

    return named


CASES = (
    KnownCase(
        "no part matters",
        "nothing",
        "A call happens nine times in ten whatever is shown; any part that is named is a false finding.",
        _any("no cause"),
        0.05,
        full=100,
        quick=4,
    ),
    KnownCase(
        "a coin decides",
        "nothing",
        "A call happens every second time whatever is shown; any part that is named is a false finding.",
        _any("a coin"),
        0.05,
        full=100,
        quick=2,
    ),
    KnownCase(
        "one sentence, 5 to 90 %",
        "planted",
        "One sentence of one of five letters raises a call from 5 to 90 %; it alone must be named.",
        _all("one sentence, 5 -> 90 %"),
        0.95,
        full=100,
        quick=4,
    ),
    KnownCase(
        "two sentences, each enough",
        "planted",
        "Either of two sentences raises a call from 5 to 90 %; both must be named, and nothing else.",
        _all("two, each enough"),
        0.8,
        full=100,
        quick=4,
    ),
    KnownCase(
        "two sentences, needed together",
        "planted",
        "Only both of two sentences raise a call from 5 to 90 %; both must be named, and nothing else.",
        _all("two, needed together"),
        0.95,
        full=100,
        quick=4,
    ),
    KnownCase(
        "--tokens: no token matters",
        "nothing",
        "Whatever token of a reply is changed, it comes out as recorded 19 times in 20; a token that the search names is false.",
        _forks("no fork, 95 %"),
        0.05,
        full=200,
        quick=20,
    ),
    KnownCase(
        "--tokens: a coin decides",
        "nothing",
        "The same of a reply that comes out as recorded every second time.",
        _forks("a coin"),
        0.05,
        full=200,
        quick=20,
    ),
    KnownCase(
        "--tokens: one fork, 95 to 5 %",
        "planted",
        "Another token at one of 30 places lowers that chance from 95 to 5 %; it alone must be named.",
        _forks("one fork, 95 -> 5 %"),
        0.95,
        full=200,
        quick=20,
    ),
    *log_nulls.CASES,
)
