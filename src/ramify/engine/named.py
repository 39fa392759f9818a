"""Find a model by its name. Loads torch only for a model that runs in this process."""

from __future__ import annotations

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError, nearest
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


def find_continuing(spec: str) -> tuple[Model, ChatTemplate | None]:
    """As :func:`find_model`, for work that continues token ids: a checkpoint or endpoint without a chat template will do, with None."""
    kind, _, argument = spec.partition(":")
    if kind in ("builtin", "hf"):
        from ramify.engine.checkpoints import chat_template, model_folder
        from ramify.engine.local import LocalModel

        folder = model_folder(spec)
        model: Model = LocalModel.load(folder)
    elif kind == "completions":
        model = registry.get("model", kind)(argument)
    else:
        return find_model(spec)
    try:
        return model, template_of(model) if kind == "completions" else chat_template(folder)
    except NeedsError:
        return model, None
