"""Components by name: environments, models, compactors, agents; your own by ``FILE.py:ATTRIBUTE``, ``python:`` or
``factory:MODULE:ATTRIBUTE``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from ramify.base import registry
from ramify.base.errors import RamifyError, UserError, nearest
from ramify.base.plugins import find_attribute, own_component, own_path
from ramify.base.registry import takes_text
from ramify.engine.named import check_model as check_model
from ramify.engine.named import find_model as find_model
from ramify.env.protocol import AnyEnvironment, Environment, environment_of
from ramify.model.chat import ChatTemplate, template_of
from ramify.model.endpoint import HttpModel
from ramify.model.function import AnyModel, model_of
from ramify.model.protocol import Sampling, sampling_of
from ramify.rollout.agent import Agent
from ramify.rollout.compact import Compactor
from ramify.trace.db import Run

MAX_REPLY = 64
"""Tokens of a reply at most, where nobody says another limit."""
AnySampling: TypeAlias = Sampling | Mapping[str, Any]
"""Sampling settings, or some of them by name; the others are then the model's own."""


def find_environment(spec: str) -> Environment:
    """The environment that ``NAME`` or ``NAME:ARGUMENT`` names: a registered one, made with the argument where one is given.
    ``FILE.py:ATTRIBUTE``, ``python:MODULE:ATTRIBUTE`` and ``factory:MODULE:ATTRIBUTE`` name one of your own: what
    :func:`ramify.env.protocol.environment_of` takes.

    Raises UserError where there is none of that name or it does not take the argument.
    """
    own = own_path(spec)
    environment: Environment = (
        _registered("env", "environment", spec) if own is None else environment_of(find_attribute(own[1]), spec)
    )
    return environment


def any_environment(given: AnyEnvironment) -> Environment:
    """The environment of a name, an object, or a class or function that makes one. Raises UserError where it is none."""
    return find_environment(given) if isinstance(given, str) else environment_of(given)


def find_compactor(spec: str) -> Compactor:
    """The compactor that ``NAME``, ``NAME:ARGUMENT`` or, as for environments, a path names.
    Raises UserError where there is none."""
    own = own_path(spec) is not None
    has = "name, identity and compact"
    compactor: Compactor = own_component(spec, Compactor, has) if own else _registered("compactor", "compactor", spec)
    return compactor


def _registered(kind: str, word: str, spec: str) -> Any:
    name, colon, argument = spec.partition(":")
    make = registry.get(kind, name)
    if colon and not takes_text(make):
        raise UserError(f"the {word} '{name}' takes no argument, so nothing may follow '{name}:'")
    return make(argument) if colon else make()


def make_agent(
    model: AnyModel,
    template: ChatTemplate | None,
    sampling: AnySampling | None,
    compactor: Compactor | str | None = None,
    window: int = 0,
    given: Mapping[str, Any] | None = None,
    max_reply: int = MAX_REPLY,
) -> Agent:
    """An agent from objects, functions or names; template and sampling default to the model's own, with at most ``max_reply``
    tokens a reply, or to the template ``given`` as a run stores it. Raises UserError or NeedsError."""
    if isinstance(model, str):
        found, own = find_model(model, given=given)
    else:
        found = model_of(model)
        own = template_of(found, given) if template is None else None
    template = template or own
    if isinstance(sampling, Sampling):
        settings = sampling
    else:
        stops = () if template is None else template.stop_tokens
        settings = _changed(sampling_of(found, max_tokens=max_reply, stop_tokens=stops), sampling or {})
    if isinstance(found, HttpModel):
        found.check(settings)
    return Agent(found, template, settings, find_compactor(compactor) if isinstance(compactor, str) else compactor, window)


def check_trust(run: Run, trust: bool) -> None:
    """Check that the components named by a run's settings may be created. Those of a foreign run are untrusted: they could start
    a program, import a module, or send a key to an address of their choice.

    Raises UserError with the list of what would happen, unless ``trust``;
    ramify's own components that do none of that need no trust.
    """
    if trust or not run.foreign:
        return
    named = {name: run.config.get(name) for name in _RISKY}
    if isinstance(credit := run.config.get("credit"), Mapping):
        named["credit"] = credit.get("name")
    each = [(name, one) for name, value in named.items() for one in (value if isinstance(value, list) else [value])]
    risks = [f"{name} {one!r}" for name, one in each if _risky(name, one)]
    if risks:
        raise UserError(
            f"{run.folder} was imported or made elsewhere, and its settings name what loads code, opens a connection or reads "
            "files: "
            f"{', '.join(risks)}; where that is what you want, give --trust (trust=True)"
        )


_RISKY = ("model", "env", "compactor", "tasks", "backend", "label", "judge")
_TEXTS = ("regex", "equals", "exact", "number", "boxed")
"""Judges that only compare texts."""
_HARMLESS = {"model": ("builtin", "smollm2"), "backend": ("local", "processes"), "tasks": (), "label": _TEXTS, "judge": _TEXTS}


def _risky(name: str, value: Any) -> bool:
    if not value:
        return False
    if name in _HARMLESS:
        return str(value).partition(":")[0] not in _HARMLESS[name]
    try:
        home = registry.get(name, str(value)).__module__
    except (RamifyError, AttributeError):
        return True
    return not str(home).startswith(("ramify.",) if name == "credit" else ("ramify.env.", "ramify.rollout."))


def read_sampling(record: Mapping[str, Any]) -> Sampling:
    """Inverse of ``Sampling.to_json``."""
    return _changed(Sampling(), record)


def _changed(settings: Sampling, record: Mapping[str, Any]) -> Sampling:
    """``settings`` updated by ``record``. Raises UserError on a name there is none of and on a value of another type."""
    from pydantic import TypeAdapter, ValidationError

    known = {one.name: getattr(settings, one.name) for one in fields(Sampling)}
    for name in record:
        if name not in known:
            raise UserError(f"unknown sampling setting '{name}' ({nearest(name, known)})")
    try:
        return TypeAdapter(Sampling).validate_python({**known, **record})
    except ValidationError as error:
        first = error.errors()[0]
        what = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(f"sampling setting '{first['loc'][0]}': {what}, not {first['input']!r}") from None
