"""Parts by name: worlds, models, compactors, agents; ``factory:MODULE:ATTRIBUTE`` is what that callable of your own returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.base import registry
from ramify.base.conformance import takes_text
from ramify.base.errors import RamifyError, UserError
from ramify.base.plugins import find_attribute
from ramify.engine import named
from ramify.env.protocol import World
from ramify.model.chat import ChatTemplate, template_of
from ramify.model.endpoint import HttpModel
from ramify.model.protocol import Model, Sampling, sampling_of
from ramify.rollout.agent import Agent
from ramify.rollout.compact import Compactor


def find_world(spec: str) -> World:
    """The world that ``NAME`` or ``NAME:ARGUMENT`` names: a registered one, made with the argument where one is given.
    ``factory:MODULE:ATTRIBUTE`` is what that callable of your own returns.

    Raises UserError where there is none of that name or it does not take the argument.
    """
    world: World = _part("env", "world", spec, World, "name, make and panel")
    return world


def find_compactor(spec: str) -> Compactor:
    """The compactor that ``NAME``, ``NAME:ARGUMENT`` or ``factory:MODULE:ATTRIBUTE`` names. Raises UserError where there is none."""
    compactor: Compactor = _part("compactor", "compactor", spec, Compactor, "name, identity and compact")
    return compactor


def _part(kind: str, word: str, spec: str, protocol: type, has: str) -> Any:
    name, colon, argument = spec.partition(":")
    if name == "factory":
        return _made(argument, protocol, has)
    make = registry.get(kind, name)
    if colon and not takes_text(make):
        raise UserError(f"the {word} '{name}' takes no argument, so nothing can stand behind '{name}:'")
    return make(argument) if colon else make()


def find_model(spec: str, device: str = "", dtype: str = "") -> tuple[Model, ChatTemplate | None]:
    """The model a text names (see :func:`ramify.engine.named.find_model`), and how chats are laid out for it.

    ``factory:MODULE:ATTRIBUTE`` is what that callable of your own returns. Raises UserError where there is no such model.
    """
    if spec.startswith("factory:"):
        named.check_placed(spec, device, dtype)
        own: Model = _made(spec.removeprefix("factory:"), Model, "identity, capabilities, sample and logprobs")
        return own, template_of(own)
    return named.find_model(spec, device, dtype)


def check_model(spec: str) -> None:
    """Raises UserError where :func:`find_model` would know no such name; nothing is loaded and no server is asked."""
    if spec.startswith("factory:"):
        find_attribute(spec.removeprefix("factory:"))
    else:
        named.check_model(spec)


def _made(path: str, kind: type, has: str) -> Any:
    """What the callable at ``MODULE:ATTRIBUTE`` returns. Raises UserError where it fails, or returns nothing of the protocol ``kind``."""
    make = find_attribute(path)
    try:
        made = make()
        fits = isinstance(made, kind)
    except RamifyError:
        raise
    except Exception as error:  # code of the user's own may raise anything
        raise UserError(f"factory:{path} failed: {type(error).__name__}: {error}") from error
    if not fits:
        raise UserError(f"factory:{path} returned a {type(made).__name__}, which is no {kind.__name__.lower()}: one has {has}")
    return made


def make_agent(
    model: Model | str,
    template: ChatTemplate | None,
    sampling: Sampling | None,
    compactor: Compactor | str | None = None,
    window: int = 0,
) -> Agent:
    """An agent from objects or names; template and sampling default to the model's own. Raises UserError or NeedsError."""
    if isinstance(model, str):
        model, own = find_model(model)
    else:
        own = template_of(model) if template is None else None
    template = template or own
    sampling = sampling or sampling_of(model, max_tokens=64, stop_tokens=() if template is None else template.stop_tokens)
    if isinstance(model, HttpModel):
        model.check(sampling)
    return Agent(model, template, sampling, find_compactor(compactor) if isinstance(compactor, str) else compactor, window)


def read_sampling(record: Mapping[str, Any]) -> Sampling:
    """Inverse of ``Sampling.to_json``."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    return Sampling(**fields)
