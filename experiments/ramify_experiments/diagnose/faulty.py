"""A policy that goes wrong as models do, at known rates: calls without a wrapper,
calls made again and again, replies that are cut off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.base.seeds import uniforms
from ramify.methods.diagnose.loop import SHORTER, Speaker, TurnReply
from ramify.methods.diagnose.replies import AskedCall, read_reply
from ramify.trace.message import Message


@dataclass(frozen=True)
class Faults:
    """Chances a turn: ``bare``: the wrapper is missing; ``loop``: it begins to repeat its last call, and continues with chance
    ``stuck`` until it is warned; ``cut``: the reply is cut off, again with chance ``again`` unless it was asked for less
    thinking. ``context``: characters beyond which nothing comes back, as from a server whose context is full."""

    bare: float = 0.2
    loop: float = 0.1
    stuck: float = 0.7
    cut: float = 0.1
    again: float = 0.7
    context: int = 60_000


class Faulty:
    """``inner`` with :class:`Faults`; what happens is decided by ``seed`` and the turn."""

    def __init__(self, inner: Speaker, seed: int, faults: Faults = Faults()) -> None:
        self.inner, self.seed, self.faults = inner, seed, faults

    def __call__(self, messages: Sequence[Message]) -> TurnReply:
        """One turn."""
        f = self.faults
        if sum(len(one.text) for one in messages) > f.context:
            return TurnReply(Message("assistant", ""), "length")
        turn = sum(one.role == "assistant" for one in messages)
        key = np.array([(self.seed * 1_000_003 + turn) % (1 << 63)], np.uint64)
        loop, bare, cut = (float(uniforms(key, np.array([at], np.uint64))[0]) for at in range(3))
        last = [one.text for one in messages if one.role == "assistant"]
        was_cut = bool(last) and last[-1].startswith("<think>so ")
        if messages[-1].text != SHORTER and cut < (f.again if was_cut else f.cut):
            return TurnReply(Message("assistant", "<think>so " + "much to think of " * 20), "length")
        calls = [text for text in last if isinstance(read_reply(Message("assistant", text)), AskedCall)]
        repeats = len(calls) > 1 and calls[-1] == calls[-2]
        if calls and not messages[-1].text.startswith("Warning") and loop < (f.stuck if repeats else f.loop):
            return TurnReply(Message("assistant", calls[-1]))
        reply = self.inner(messages)
        done = read_reply(reply.message)
        if isinstance(done, AskedCall) and bare < f.bare:
            return TurnReply(Message("assistant", "I will call " + json.dumps({"name": done.name, "arguments": done.arguments})))
        return reply
