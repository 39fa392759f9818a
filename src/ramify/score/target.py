"""What counts as taking the step again: the same action, a call of a tool, a text, or what a judge says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.base.errors import InfrastructureError, UserError
from ramify.score.judge import Item, Judge, Question, find_judge, truth, yes_or_no
from ramify.trace.message import Message

NOT = "not:"
"""Before a target: the step is taken where it does not hold."""
SAME_DECISION = Question(
    "An agent answered the same request twice.\n\nFirst answer:\n{answer}\n\nSecond answer:\n{text}\n\n"
    "Do both make the same decision, whatever their wording? Answer yes or no.",
    yes_or_no,
    lambda items: {"text": items[0].text, "prompt": items[0].prompt, "answer": items[0].data.get("answer", "")},
)


@dataclass(frozen=True)
class StepTarget:
    """Says of a reply whether it takes the step. ``name`` is its spec, ``says`` what the agent does in words."""

    name: str
    says: str
    recorded: str
    tool: str = ""
    pattern: re.Pattern[str] | None = None
    judge: Judge | None = None
    never: bool = False
    """Whether it is taken by a reply that does not do this."""

    @property
    def identity(self) -> str:
        """Of what decides."""
        return self.name if self.judge is None else f"{NOT * self.never}{self.judge.identity}"

    async def holds(self, reply: Message, shown: Sequence[Message]) -> bool | None:
        """Whether ``reply`` takes the step; None where the judge cannot say. Raises InfrastructureError where it fails."""
        does = await self._does(reply, shown)
        return None if does is None else does != self.never

    async def _does(self, reply: Message, shown: Sequence[Message]) -> bool | None:
        if self.tool:
            return any(call.name == self.tool for call in reply.calls)
        if self.pattern is not None:
            return self.pattern.search(reply.spoken()) is not None
        if self.judge is None:
            return reply.spoken().split() == self.recorded.split()
        item = Item(reply.spoken(), "step", shown[-1].text if shown else "", {"answer": self.recorded}, (*shown, reply))
        (judged,) = await self.judge.judge([item])
        if judged.failure:
            raise InfrastructureError("scorer", judged.failure)
        return truth(self.judge, judged)


def read_target(spec: str | None, recorded: Message, question: Question = SAME_DECISION) -> StepTarget:
    """``same``, ``calls:TOOL``, ``says:REGEX``, or a judge (:func:`ramify.score.judge.find_judge`; ``judge:MODEL`` is asked
    ``question``, by default whether both decide the same); after ``not:`` the opposite.

    By default a step that calls a tool is taken again where that tool is called, any other where the same is said. Raises
    UserError where there is no such target.
    """
    said = recorded.spoken()
    if spec is not None and spec.startswith(NOT):
        inner = read_target(spec.removeprefix(NOT), recorded, question)
        return replace(inner, name=spec, says=f"does not do this: it {inner.says}", never=not inner.never)
    if spec is None:
        tool = next((call.name for call in recorded.calls if call.name), "")
        spec = f"calls:{tool}" if tool else "same"
    kind, _, argument = spec.partition(":")
    if spec == "same":
        return StepTarget(spec, "does the same", said)
    if kind == "calls" and argument:
        return StepTarget(spec, f"calls {argument}", said, tool=argument)
    if kind == "says" and argument:
        try:
            return StepTarget(spec, f"says /{argument}/", said, pattern=re.compile(argument, re.IGNORECASE))
        except re.error as error:
            raise UserError(f"the target says: '{argument}' is not a regular expression: {error}") from None
    if kind in ("calls", "says"):
        raise UserError(f"the target {kind} needs an argument after a colon")
    return StepTarget(spec, f"does what {spec} says yes to", said, judge=find_judge(spec, question=question, what="target"))
