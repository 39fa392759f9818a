"""The pytest plug-in: ``--ramify-no-real-calls``, and the fixtures ``ramify`` (every assertion by name) and ``forbid_real_calls``.

It loads with pytest wherever ramify is installed, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_VARIABLE = "RAMIFY_NO_REAL_CALLS"
_before = pytest.StashKey[str | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    parser.getgroup("ramify").addoption(
        "--ramify-no-real-calls", action="store_true", help="Refuse every call of a real model, in this process and its children."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse real calls from here on where the flag is given."""
    if config.getoption("--ramify-no-real-calls"):
        config.stash[_before] = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the environment back."""
    if _before in config.stash:
        before = config.stash[_before]
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


class Assertions:
    """Every registered assertion as an attribute: ``ramify.assert_conforms("env", environment)``."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The assertion of that name. Raises AttributeError naming the nearest."""
        return _find(name)

    def __dir__(self) -> list[str]:
        return _names()


@pytest.fixture
def ramify() -> Assertions:
    """What a test may assert of parts and runs; see `ramify list assertion`."""
    return Assertions()


@pytest.fixture
def forbid_real_calls() -> Iterator[None]:
    """While the test runs, every engine and endpoint refuses to call a real model."""
    from ramify.model import scripted

    with scripted.forbid_real_calls():
        yield


def __getattr__(name: str) -> Any:
    """``from ramify.integrations.pytest_plugin import assert_conforms`` and so on."""
    if name.startswith("assert_"):
        return _find(name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def _names() -> list[str]:
    from ramify.base import registry

    return ["assert_" + name.replace("-", "_") for name in registry.names("assertion")]


def _find(name: str) -> Callable[..., None]:
    from ramify.base import registry
    from ramify.base.errors import nearest

    known = _names() if name.startswith("assert_") else []
    if name not in known:
        raise AttributeError(f"there is no assertion '{name}'" + (f" ({nearest(name, known)})" if known else ""))
    return _sentence(registry.get("assertion", name.removeprefix("assert_").replace("_", "-")))


def _sentence(found: Callable[..., None]) -> Callable[..., None]:
    """``found``, failing with one line fit for a terminal: what it quotes of a run or a file may be a third party's text."""
    from ramify.base.errors import RamifyError
    from ramify.base.secrets import redact
    from ramify.render.terminal import sanitize

    @functools.wraps(found)
    def asserted(*args: Any, **options: Any) -> None:
        __tracebackhide__ = True
        try:
            found(*args, **options)
        except (AssertionError, RamifyError) as error:
            error.args = (sanitize(redact(str(error)), flatten=True), *error.args[1:])
            raise error from None

    return asserted
