"""Middleware that scores replies as they are given: a judge scores each one, and the scores are returned with the reply.

``--middleware score:JUDGE``, any that :func:`ramify.score.judge.find_judge` names. A score changes no reply: a judge that fails
leaves a score without a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ramify.base.errors import NeedsError, UserError
from ramify.base.registry import register
from ramify.env.protocol import Task
from ramify.model.chat import assistant_node_parts, own_template
from ramify.model.middleware import Middleware
from ramify.model.protocol import Completion, Model, Prefix
from ramify.score.judge import Item, Judge, Judgement, find_judge, judged, records
from ramify.trace.message import plain
from ramify.trace.node import Node, Score, make_node
from ramify.trace.path import Path
from ramify.trace.view import TokenMessage


@register("middleware", "score")
class Scored(Middleware):
    """Adds ``data["scores"]``: a list of ``{"scorer", "value", "unit", "evidence", "judges"}``, one per score. Without a judge it
    does nothing.

    What is judged is the path of the messages as the model was shown them, and the reply; the task has no data, so a judge that
    compares with a known answer cannot judge. Values of single tokens are left out. Raises UserError on an unknown judge.
    """

    name = "score"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.judge: Judge | None = find_judge(argument, what="judge") if argument else None
        self._template = own_template(inner)

    @property
    def settings(self) -> Any:
        """The judge and all that can change its judgement."""
        return None if self.judge is None else [self.judge.name, self.judge.identity]

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        """See :class:`Middleware`."""
        if self.judge is None:
            return completion
        try:
            (judgement,) = await judged(self.judge, [Item.of(self._path(given, completion, str(key)), Task("request", {}))])
        except (UserError, NeedsError) as error:  # a judge that needs what no request holds
            judgement = Judgement(failure=str(error))
        return scored(completion, [record for record in records(self.judge, "", judgement) if isinstance(record, Score)])

    def _path(self, given: Prefix, completion: Completion, tree: str) -> Path:
        messages = completion.shown or tuple(TokenMessage(message) for message in given.messages)
        nodes: list[Node] = [make_node(tree, None, 0, "root", "", tokens=given.tokens)]
        for shown in messages if given.tokens is None else ():
            message, last = shown.message, nodes[-1]
            arrays = {"tokens": shown.tokens, "ends": shown.ends}
            nodes.append(make_node(tree, last.id, len(last), message.role, message.text, data=plain(message.data), **arrays))
        if self._template is not None and given.tokens is None:
            parts = assistant_node_parts(self._template, completion, after=nodes[-1].role if len(nodes) > 1 else "")
        else:
            parts = {"text": completion.text, "tokens": completion.tokens, "ends": completion.ends}
        text, data = parts.pop("text"), plain(completion.data or {})
        end = make_node(tree, nodes[-1].id, len(nodes[-1]), "assistant", text, index=0, stop=completion.stop, data=data, **parts)
        return Path.of([*nodes, end])


def scored(completion: Completion, scores: Sequence[Score]) -> Completion:
    """``completion`` with ``scores`` added to its data."""
    records = [
        {"scorer": v.scorer, "value": v.value, "unit": v.unit, "evidence": plain(v.evidence), "judges": dict(v.judges)}
        for v in scores
    ]
    data = completion.data or {}
    return replace(completion, data={**data, "scores": [*data.get("scores", ()), *records]})
