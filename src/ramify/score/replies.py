"""Middleware that scores replies as they are given: a registered scorer judges each one, and its verdicts go out with the reply.

``--middleware score:NAME`` or ``score:NAME:ARGUMENT``. A score changes no reply: a scorer that fails leaves a score without a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ramify.base import conformance
from ramify.base.errors import UserError
from ramify.base.registry import register
from ramify.env.protocol import Task
from ramify.model.chat import assistant_node_parts
from ramify.model.middleware import Middleware
from ramify.model.protocol import Draw, Laid, Model, Prefix
from ramify.score.protocol import Scorer, score_path
from ramify.trace.message import plain
from ramify.trace.node import Node, Verdict, make_node
from ramify.trace.path import Path


@register("middleware", "score")
class Scored(Middleware):
    """Adds ``data["scores"]``: a list of ``{"scorer", "value", "unit", "evidence", "judges"}``, one a verdict. Without a scorer it does nothing.

    What is judged is the path of the messages as the model was shown them, and the reply; the task has no data, so a scorer that
    compares with a known answer cannot judge. Streams of a scorer (floats along tokens) are left out. Raises UserError on an unknown scorer.
    """

    name = "score"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.scorer: Scorer | None = conformance.named("scorer", argument) if argument else None
        self._template = getattr(inner, "template", None)

    @property
    def settings(self) -> Any:
        """The scorer and all that can change its judgement."""
        return None if self.scorer is None else [self.scorer.name, self.scorer.judge]

    async def after(self, given: Prefix, shown: Prefix, draw: Draw, key: int) -> Draw:
        """See :class:`Middleware`."""
        if self.scorer is None:
            return draw
        path = self._path(given, draw, str(key))
        try:
            found = await score_path(self.scorer, path, Task("request", {}))
        except UserError as error:  # a scorer that needs what no request holds
            judges = {self.scorer.name: self.scorer.judge}
            found = [Verdict("", self.scorer.name, None, evidence={"failure": str(error)}, judges=judges)]
        return scored(draw, [verdict for verdict in found if isinstance(verdict, Verdict)])

    def _path(self, given: Prefix, draw: Draw, tree: str) -> Path:
        said = draw.shown or tuple(Laid(message) for message in given.messages)
        nodes: list[Node] = [make_node(tree, None, 0, "root", "", tokens=given.tokens)]
        for laid in said if given.tokens is None else ():
            message, last = laid.message, nodes[-1]
            arrays = {"tokens": laid.tokens, "ends": laid.ends}
            nodes.append(make_node(tree, last.id, len(last), message.role, message.text, data=plain(message.data), **arrays))
        if self._template is not None and given.tokens is None:
            parts = assistant_node_parts(self._template, draw, after=nodes[-1].role if len(nodes) > 1 else "")
        else:
            parts = {"text": draw.text, "tokens": draw.tokens, "ends": draw.ends}
        text, data = parts.pop("text"), plain(draw.data or {})
        end = make_node(tree, nodes[-1].id, len(nodes[-1]), "assistant", text, index=0, stop=draw.stop, data=data, **parts)
        return Path.of([*nodes, end])


def scored(draw: Draw, verdicts: Sequence[Verdict]) -> Draw:
    """``draw`` with verdicts among its scores."""
    told = [
        {"scorer": v.scorer, "value": v.value, "unit": v.unit, "evidence": plain(v.evidence), "judges": dict(v.judges)}
        for v in verdicts
    ]
    data = draw.data or {}
    return replace(draw, data={**data, "scores": [*data.get("scores", ()), *told]})
