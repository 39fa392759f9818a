"""The grade of each reply while a model is served: how much likelier training made it (arXiv 2606.26080, Proposition 1).

``--middleware advantage:hf:REFERENCE`` around a model that samples tokens here. A grade is a warning light, never a permission.
The reference reads prompt and reply anew each time; :class:`ramify.methods.implicit_advantage.Monitor` follows one attempt
without doing so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ramify.base.errors import NeedsError
from ramify.base.ids import stable_hash
from ramify.base.registry import register
from ramify.engine.named import find_continuing
from ramify.methods.implicit_advantage.algorithm import AdvantageConfig, step_columns
from ramify.model.chat import own_template
from ramify.model.middleware import Middleware
from ramify.model.protocol import Completion, Model, Prefix, require
from ramify.score.replies import scored
from ramify.trace.node import Score


@register("middleware", "advantage")
class Graded(Middleware):
    """Adds the score of scorer ``advantage`` to a reply's scores: the sum over its tokens of log pi/ref.
    Without a reference it does nothing.

    Raises NeedsError where the model inside does not return the log-probs of what it samples or reads with another tokenizer than
    the reference.
    """

    name = "advantage"

    def __init__(self, inner: Model, argument: str = "") -> None:
        super().__init__(inner, argument)
        self.reference = find_continuing(argument)[0] if argument else None
        self.config = AdvantageConfig()
        if self.reference is not None:
            require(inner, ("tokens", "logprobs"), "the grade of a reply")
            require(self.reference, ("tokens", "prompt_logprobs"), "the grade of a reply")
            if self.reference.identity.tokenizer != inner.identity.tokenizer:
                raise NeedsError(
                    f"'{inner.identity.name}' and its reference '{self.reference.identity.name}' have two tokenizers"
                )

    @property
    def settings(self) -> Any:
        """The reference and how tokens become a grade."""
        return None if self.reference is None else [self.reference.identity.weights, self.config.to_json()]

    async def after(self, given: Prefix, shown: Prefix, completion: Completion, key: int) -> Completion:
        """See :class:`Middleware`. Raises InfrastructureError where the reference fails."""
        tokens, before = completion.tokens, self._before(given, completion)
        if self.reference is None or tokens is None or completion.model_logprobs is None or before is None:
            return completion
        row = np.concatenate([before, tokens]).astype(np.int32)
        (found,) = await self.reference.logprobs([row])
        columns = step_columns(
            completion.model_logprobs, found.logprobs[len(before) :], np.zeros(len(tokens), np.int64), 1, self.config
        )
        value = float(columns[f"A_{self.config.token}"][0])
        evidence = {"n_tokens": len(tokens), "top_share": float(columns["top_share"][0])}
        judges = {self.name: stable_hash("advantage", self.reference.identity.weights, self.inner.identity.weights)}
        return scored(completion, [Score("", self.name, value, "nats", evidence=evidence, judges=judges)])

    def _before(self, given: Prefix, completion: Completion) -> np.ndarray | None:
        """The tokens that the reply followed."""
        if given.tokens is not None:
            return given.tokens
        rendered = [one.tokens for one in completion.shown if one.tokens is not None]
        template = own_template(self.inner)
        if template is None or not rendered or len(rendered) < len(completion.shown):
            return None
        head = template.open("assistant", completion.shown[-1].message.role) if completion.head is None else completion.head
        return np.concatenate([*rendered, np.array(head, np.int32)])
