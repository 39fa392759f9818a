"""Find a model by its name. Loads torch only for a model that runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramify.base import registry
from ramify.base.errors import NeedsError, UserError, nearest
from ramify.base.extras import told
from ramify.base.plugins import find_attribute, own_component, own_path, takes
from ramify.model.chat import ChatTemplate, template_of
from ramify.model.function import FunctionModel
from ramify.model.protocol import Model, Tokenizer

LOCAL = ("builtin", "hf", "gguf", "smollm2")
"""What the name of a checkpoint begins with, which the local engine runs."""


def is_local(spec: str) -> bool:
    """Whether a model's name is that of a checkpoint for the local engine."""
    return spec.partition(":")[0] in LOCAL


@told()
def find_model(
    spec: str, device: str = "", dtype: str = "", given: Mapping[str, Any] | None = None, weights: bool = True
) -> tuple[Model, ChatTemplate | None]:
    """The model that ``builtin``, ``hf:PATH``, ``gguf:FILE``, ``smollm2``, ``chat:MODEL@URL``,
    ``completions:MODEL@URL`` or any registered ``NAME:ARGUMENT`` names.

    ``FILE.py:ATTRIBUTE``, ``python:MODULE:ATTRIBUTE`` and ``factory:MODULE:ATTRIBUTE`` name a model of your own, what makes one
    without arguments, or a plain function that replies (:class:`ramify.model.function.FunctionModel`).

    With it the template that renders chats as tokens for it, None where it takes messages; ``given`` takes its place (see
    :func:`ramify.engine.checkpoints.chat_template`). A checkpoint runs on ``device`` in ``dtype``
    (:func:`ramify.engine.devices.placement`), which mean nothing for other models, and is there without its ``weights`` where
    these are not wanted (:meth:`ramify.engine.local.LocalModel.load`). Raises UserError where there is no such
    model; only its kind is repeated, since a URL may hold a secret. Raises NeedsError for a local model without `ramify[local]`.
    """
    if own_path(spec) is not None:
        check_placed(spec, device, dtype)
        users_model = own_model(spec)
        return users_model, template_of(users_model, given)
    if is_local(spec):
        from ramify.engine.checkpoints import load_model, model_folder

        return load_model(model_folder(spec), device=device, dtype=dtype, given=given, weights=weights)
    check_placed(spec, device, dtype)
    model = registered_model(spec)
    return model, template_of(model, given)


def check_placed(spec: str, device: str, dtype: str) -> None:
    """Raises UserError where a device or dtype is given for a model that the local engine does not run."""
    kind = spec.partition(":")[0]
    if (device or dtype) and not is_local(spec):
        what = "device" if device else "dtype"
        raise UserError(f"the {what} applies to the local engine, and '{kind}' names a model that it does not run")


@told()
def check_model(spec: str) -> None:
    """Raises UserError where :func:`find_model` knows no such name; no checkpoint is read and no request is sent."""
    if (path := own_path(spec)) is not None:
        find_attribute(path[1])
    elif is_local(spec):
        from ramify.engine.checkpoints import model_folder

        model_folder(spec)
    else:
        registered_model(spec)


def own_model(spec: str) -> Model:
    """The model of the user's that ``FILE.py:ATTRIBUTE`` and the like name; a server is not asked anything. Raises UserError
    where there is none."""
    model: Model = own_component(spec, Model, "identity, capabilities, sample and logprobs", _replying)
    return model


def _replying(name: str, function: Callable[..., Any]) -> Model | None:
    """The model that a plain function is; None of one without arguments, which makes a model."""
    return None if takes(function, 0) or not (takes(function, 1) or takes(function, 2)) else FunctionModel(function, name)


def registered_model(spec: str) -> Model:
    """The model of a registered ``NAME:ARGUMENT``; a server is not asked anything.
    Raises UserError where there is no such name."""
    kind, colon, argument = spec.partition(":")
    try:
        make = registry.get("model", kind)
    except UserError:
        raise UserError(f"unknown model '{kind}' ({nearest(kind, [*LOCAL, *registry.names('model')])})") from None
    model: Model = make(argument) if colon else make()
    return model


@told()
def find_continuing(spec: str, device: str = "", dtype: str = "") -> tuple[Model, ChatTemplate | None]:
    """As :func:`find_model`, for work that continues token ids: a model without a chat template will do, with None."""
    kind, _, argument = spec.partition(":")
    if is_local(spec):
        from ramify.engine.checkpoints import chat_template, model_folder
        from ramify.engine.local import LocalModel

        folder = model_folder(spec)
        model: Model = LocalModel.load(folder, device=device, dtype=dtype)
    elif own_path(spec) is not None:
        model = own_model(spec)
    elif kind == "completions":
        model = registry.get("model", kind)(argument)
    else:
        return find_model(spec)
    try:
        return model, chat_template(folder) if is_local(spec) else template_of(model)
    except NeedsError:
        return model, None


def find_sampled(spec: str, device: str = "", dtype: str = "") -> tuple[Model, Tokenizer, ChatTemplate | None]:
    """As :func:`find_continuing`, with the tokenizer that reads what is sampled.

    Raises NeedsError on a chat endpoint, before any request to it, and on a model without a tokenizer.
    """
    if spec.partition(":")[0] in ("chat", "anthropic", "responses"):
        raise NeedsError(
            "a chat endpoint cannot continue inside a reply; name the same model as completions:NAME@URL?tokenizer=FOLDER"
        )
    model, template = find_continuing(spec, device, dtype)
    tokenizer: Tokenizer | None = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise NeedsError(f"'{model.identity.name}' has no tokenizer, so replies cannot be read")
    return model, tokenizer, template
