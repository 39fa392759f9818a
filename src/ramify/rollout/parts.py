"""Parts by name: worlds, models, compactors, agents; of your own by ``FILE.py:ATTRIBUTE``, ``python:`` or ``factory:MODULE:ATTRIBUTE``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramify.base import registry
from ramify.base.conformance import takes_text
from ramify.base.errors import UserError
from ramify.base.plugins import own_part, own_path
from ramify.engine.named import check_model as check_model
from ramify.engine.named import find_model as find_model
from ramify.env.protocol import World
from ramify.model.chat import ChatTemplate, template_of
from ramify.model.endpoint import HttpModel
from ramify.model.protocol import Model, Sampling, sampling_of
from ramify.rollout.agent import Agent
from ramify.rollout.compact import Compactor


def find_world(spec: str) -> World:
    """The world that ``NAME`` or ``NAME:ARGUMENT`` names: a registered one, made with the argument where one is given.
    ``FILE.py:ATTRIBUTE`` and ``python:MODULE:ATTRIBUTE`` name a world of your own or what makes one, ``factory:MODULE:ATTRIBUTE`` too.

    Raises UserError where there is none of that name or it does not take the argument.
    """
    world: World = _part("env", "world", spec, World, "name, make and panel")
    return world


def find_compactor(spec: str) -> Compactor:
    """The compactor that ``NAME``, ``NAME:ARGUMENT`` or, as for worlds, a path names. Raises UserError where there is none."""
    compactor: Compactor = _part("compactor", "compactor", spec, Compactor, "name, identity and compact")
    return compactor


def _part(kind: str, word: str, spec: str, protocol: type, has: str) -> Any:
    if own_path(spec) is not None:
        return own_part(spec, protocol, has)
    name, colon, argument = spec.partition(":")
    make = registry.get(kind, name)
    if colon and not takes_text(make):
        raise UserError(f"the {word} '{name}' takes no argument, so nothing can stand behind '{name}:'")
    return make(argument) if colon else make()


def make_agent(
    model: Model | str,
    template: ChatTemplate | None,
    sampling: Sampling | None,
    compactor: Compactor | str | None = None,
    window: int = 0,
    given: Mapping[str, Any] | None = None,
) -> Agent:
    """An agent from objects or names; template and sampling default to the model's own, or to the template ``given`` as a run stores
    it. Raises UserError or NeedsError."""
    if isinstance(model, str):
        model, own = find_model(model, given=given)
    else:
        own = template_of(model, given) if template is None else None
    template = template or own
    sampling = sampling or sampling_of(model, max_tokens=64, stop_tokens=() if template is None else template.stop_tokens)
    if isinstance(model, HttpModel):
        model.check(sampling)
    return Agent(model, template, sampling, find_compactor(compactor) if isinstance(compactor, str) else compactor, window)


def read_sampling(record: Mapping[str, Any]) -> Sampling:
    """Inverse of ``Sampling.to_json``."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
    return Sampling(**fields)
