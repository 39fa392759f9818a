"""The turn router at work: who answers, in one turn or in the turns of its roles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ramify.base.errors import UserError
from ramify.methods.orchestrator.algorithm import STEPS
from ramify.methods.orchestrator.conversation import Orchestrated, Orchestration, Shows, messages_of
from ramify.trace.message import Message

ROLES = ("thinker", "worker", "verifier")


class Turns(Protocol):
    """What chooses the worker of a turn: a :class:`ramify.methods.orchestrator.router.TurnRouter`."""

    roles: bool
    """Whether it also chooses a role."""

    def logits(self, messages: Sequence[Message]) -> tuple[np.ndarray, np.ndarray]:
        """Scores of the workers (L,), and of the roles, (3,) or empty."""
        ...


async def route(chat: Orchestration, router: Turns, turn: int = 0) -> Orchestrated:
    """One turn: the router's choice answers; where it fails the next likeliest that is left.
    Raises InfrastructureError where all failed."""
    logits, _ = router.logits(chat.given)
    while True:
        worker, why = chat.likeliest(logits)
        call = await chat.ask(worker, chat.question(), 0, turn, why, attempt=len(chat.failed), answers=True)
        if not call.result.failure:
            return chat.result(call)


THINKER, WORKER, VERIFIER = 0, 1, 2
TOLD = (
    "You are the Thinker: plan and criticise, do not solve. You may end with NEXT: worker or NEXT: verifier.",
    "You are the Worker: do the work, and end with the complete answer.",
    "You are the Verifier: check the last answer of the Worker. Say ACCEPT where it is right, else REVISE and why.",
)
_NEXT = re.compile(r"\bNEXT:\s*(thinker|worker|verifier)\b", re.IGNORECASE)
_VOTE = re.compile(r"\b(ACCEPT|REVISE)\b")


async def turn_loop(chat: Orchestration, router: Turns, turns: int = STEPS) -> Orchestrated:
    """Section 3.5: up to ``turns`` turns of a worker in a role. A Verifier's ACCEPT ends it where a Worker has answered already;
    a Thinker may name the next role; the answer is the last Worker's. Raises UserError of a router without roles."""
    if not router.roles:
        raise UserError("the router has no roles: train it with --roles, or route single turns")
    pieces, answer, suggested = chat.question(), None, None
    for turn in range(turns):
        logits, roles = router.logits(messages_of(pieces))
        role = int(np.argmax(roles)) if suggested is None else suggested
        role = WORKER if answer is None and turn == turns - 1 else role
        suggested, call = None, None
        while call is None or call.result.failure:
            worker, why = chat.likeliest(logits)
            call = await chat.ask(
                worker, [*pieces, Shows("user", TOLD[role])], 0, turn, why, role=ROLES[role], attempt=len(chat.failed)
            )
        pieces += [Shows("user", TOLD[role]), Shows("assistant", call.result.text, call.node)]
        if role == WORKER:
            answer = call
        elif role == THINKER and (named := _NEXT.findall(call.result.text)):
            suggested = ROLES.index(named[-1].lower())
        elif role == VERIFIER and answer is not None and _VOTE.findall(call.result.text)[-1:] == ["ACCEPT"]:
            break
    assert answer is not None
    return chat.result(answer)


async def answer_with(chat: Orchestration, router: Turns, turns: int = STEPS) -> Orchestrated:
    """The router's answer: one turn, or the turns of its roles where it has them and nobody offers tools, whose calls are the
    client's."""
    return await (turn_loop(chat, router, turns) if router.roles and not chat.offered else route(chat, router))
