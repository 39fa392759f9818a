"""Find a model by its name. Loads torch only for a model that runs in this process."""

from __future__ import annotations

from ramify.base import registry
from ramify.base.errors import UserError, nearest
from ramify.model.chat import ChatTemplate, template_of
from ramify.model.protocol import Model


def find_model(spec: str) -> tuple[Model, ChatTemplate | None]:
    """The model that ``builtin``, ``hf:PATH``, ``chat:MODEL@URL``, ``completions:MODEL@URL`` or any registered ``NAME:ARGUMENT`` names.

    With it the template that lays chats out as tokens for it, None where it takes messages. Raises UserError where there is no such
    model; only its kind is repeated, since a URL may hold a secret.
    """
    kind, colon, argument = spec.partition(":")
    if kind in ("builtin", "hf"):
        from ramify.engine.checkpoints import load_model, model_folder

        return load_model(model_folder(spec))
    try:
        make = registry.get("model", kind)
    except UserError:
        raise UserError(f"unknown model '{kind}' ({nearest(kind, ['builtin', 'hf', *registry.names('model')])})") from None
    model: Model = make(argument) if colon else make()
    return model, template_of(model)
