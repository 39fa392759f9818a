"""A solver of inspect (``inspect_ai``) that replies with a steered local model:
``Task(..., solver=inspect_steering("DICTIONARY", [136], gain=32))``.

Existing evaluations then measure the effect of a feature, or a set of features: the same task with the set steered, taken out
(``gain=0``), left alone (``gain=1``), and with random directions instead (``random=0``, 1, ...), which is its control.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.base.errors import NeedsError, UserError
from ramify.base.seeds import derive_key
from ramify.integrations.inspect.logs import as_message
from ramify.integrations.inspect.writer import require_inspect

if TYPE_CHECKING:
    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.record import Steering
    from ramify.methods.crosscoder.run import Checkpoints


def inspect_steering(
    dictionary: Path | str,
    features: Sequence[int],
    gain: float | None = None,
    clamp: float | None = None,
    *,
    target: str = "a",
    random: int | None = None,
    tuned: str = "",
    base: str = "",
    raw: bool = False,
    max_tokens: int = 512,
    temperature: float = 0.0,
    seed: int = 0,
) -> Any:
    """A solver that renders a sample's messages, steers ``features`` together at the last token, and appends the reply.

    ``dictionary`` is a folder that ``ramify crosscoder train`` wrote; ``gain`` multiplies the features' activations, ``clamp``
    sets them, ``target`` is the model that replies (a: tuned, b: base), ``tuned`` and ``base`` name the two where they lie
    elsewhere now. ``random``: sample so and so of random directions of the features' norms instead, as long as the change.
    ``raw`` leaves texts as they are, without the chat template. The change is recorded in the sample's metadata, ``steering``:
    the cell, whether a feature fired, the length over the state's. The reply's seed is derived from the sample and the epoch. A
    task with this solver calls no model of inspect's (``model="none/none"``); tools are not called. Raises NeedsError where
    inspect is not installed, UserError on features that the dictionary does not have,
    and unless one of ``gain`` and ``clamp`` is given.
    """
    require_inspect()
    from inspect_ai.solver import solver

    from ramify.methods.crosscoder.dictionary import Dictionary
    from ramify.methods.crosscoder.record import Steering
    from ramify.methods.crosscoder.run import Checkpoints
    from ramify.methods.crosscoder.steer import change_of

    if (gain is None) == (clamp is None):
        raise UserError("steering needs one of gain and clamp")
    if target not in ("a", "b"):
        raise UserError(f"target {target!r} is neither a (tuned) nor b (base)")
    made, about = Dictionary.load(Path(dictionary))
    cell = (
        Steering(tuple(features), "scale", gain) if gain is not None else Steering(tuple(features), "clamp", float(clamp or 0.0))
    )
    change_of(
        cell, made, np.zeros((1, made.config.features), np.float32), "ab".index(target)
    )  # features that are not there are refused now
    names = tuned or about.tuned, base or about.base
    models = Checkpoints.open(*names, about.layer, about.other_tokenizer)
    steered = _Steered(models, made, cell, target, random, seed, None if raw else names[0], max_tokens, temperature)

    def made_here() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            return await steered.solve(state, generate)

        return solve

    steering: Any = solver(name="inspect_steering")(made_here)
    return steering()


class _Steered:
    """What the solver does to one sample."""

    def __init__(
        self,
        models: Checkpoints,
        made: Dictionary,
        cell: Steering,
        target: str,
        random: int | None,
        seed: int,
        templated: str | None,
        max_tokens: int,
        temperature: float,
    ) -> None:
        """``templated``: the model whose chat template renders messages; None leaves texts as they are."""
        from ramify.engine.pairs import pair_template
        from ramify.model.chat import RawTemplate
        from ramify.model.protocol import Sampling

        self.models, self.made, self.cell, self.random, self.seed = models, made, cell, random, seed
        self.target, self.at = target, "ab".index(target)
        self.model = models.models[self.at]
        if self.model.tokenizer is None:
            raise NeedsError(f"'{self.model.name}' has no tokenizer, so its replies cannot be read")
        self.tokenizer = self.model.tokenizer
        self.template = (None if templated is None else pair_template(templated)) or RawTemplate(self.tokenizer)
        self.stops = tuple(dict.fromkeys([*self.model.eos, *self.template.stop_tokens]))
        self.settings = Sampling(temperature=temperature, max_tokens=max_tokens, stop_tokens=self.stops)

    async def solve(self, state: Any, generate: Any) -> Any:
        """Append the steered reply to the sample's messages, and record the change in its metadata."""
        from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelOutput, ModelUsage

        from ramify.methods.crosscoder.dictionary import encode_rows
        from ramify.methods.crosscoder.run import capture
        from ramify.methods.crosscoder.steer import change_of, random_change, sample
        from ramify.model.rendered import laid_out

        messages = [as_message(message, f"sample {state.sample_id!r}") for message in state.messages]
        ids = np.asarray(laid_out(self.template, [(message.role, message.written()) for message in messages]), np.int32)
        states = capture(self.models, [ids])
        codes, cell = encode_rows(self.made, states), self.cell
        change = change_of(cell, self.made, codes, self.at)
        if self.random is not None:
            change = random_change(cell, self.made, codes, self.seed, self.random, self.at)
        key = derive_key(self.seed, "inspect", str(state.sample_id), state.epoch)
        (reply,) = await sample(self.model, [ids], self.models.layer, change, self.settings, key)
        tokens = [] if reply.tokens is None else [int(token) for token in reply.tokens]
        text = self.tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in self.stops else tokens)
        message = ChatMessageAssistant(content=text, source="generate", model=self.model.name)
        choice = ChatCompletionChoice(message=message, stop_reason="max_tokens" if reply.stop == "length" else "stop")
        usage = ModelUsage(input_tokens=len(ids), output_tokens=len(tokens), total_tokens=len(ids) + len(tokens))
        state.output = ModelOutput(model=self.model.name, choices=[choice], usage=usage)
        state.messages.append(message)
        state.metadata["steering"] = {
            "change": cell.name if self.random is None else f"random {self.random} for {cell.name}",
            "target": self.target,
            "fired": bool(change.fired[0]),
            "size": float(change.size(states[:, self.at])[0]),
        }
        return state
