"""The mark ``ramify_rate`` (a test that may flip runs until its rate of success is settled) and the fixture ``ramify_live``."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ramify.base.errors import InfrastructureError, UserError
from ramify.base.waiting import wait_for

if TYPE_CHECKING:
    from ramify.rollout.agent import Agent
    from ramify.testing.repeated import Repeated
    from ramify.testing.steps import RecordedStep

OPTIONS = ("at_least", "confidence", "usual", "power")
UNREACHED = ("APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "ConnectError", "ReadTimeout")
"""Names of what clients (openai, anthropic, httpx) raise where a model could not be reached: no failure of the agent."""
_said = pytest.StashKey[str]()


class Rates:
    """Repeats marked tests, and says their rates at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuse a mark that says nothing, and tests that cannot be repeated."""
        mark = item.get_closest_marker("ramify_rate")
        if mark is None:
            return
        if isinstance(getattr(item, "cls", None), type) and issubclass(item.cls, unittest.TestCase):  # type: ignore[attr-defined]
            pytest.fail("ramify_rate repeats test functions, and not those of a unittest.TestCase", pytrace=False)
        _test_of(mark)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> object:
        """Call a marked test again and again; whoever else calls tests (asynchronous ones) makes each call."""
        __tracebackhide__ = True
        mark = pyfuncitem.get_closest_marker("ramify_rate")
        if mark is None or _said in pyfuncitem.stash:
            return None
        from ramify.testing.repeated import Repeated

        last: BaseException | None = None

        repeated = Repeated(_test_of(mark))
        pyfuncitem.stash[_said] = ""
        try:
            while not repeated.over:
                last = self._again(pyfuncitem, repeated) or last
        finally:
            del pyfuncitem.stash[_said]
        pyfuncitem.user_properties += list(repeated.properties.items())
        self.lines.append(f"{pyfuncitem.nodeid}: {repeated.sentence}")
        if repeated.settled != "passed":
            from ramify.render.text import sanitize

            raise AssertionError(sanitize(repeated.message)) from last  # whose traceback pytest shows
        return True

    def _again(self, item: pytest.Function, repeated: Repeated) -> BaseException | None:
        """One call more; how it failed."""
        __tracebackhide__ = True
        try:
            item.ihook.pytest_pyfunc_call(pyfuncitem=item)
        except UserError:  # the test itself is wrong
            raise
        except (Exception, pytest.fail.Exception) as error:
            unreached = isinstance(error, (InfrastructureError, ConnectionError)) or bool(
                {kind.__name__ for kind in type(error).__mro__} & set(UNREACHED)
            )
            lines = str(error).splitlines() or [""]
            named = (
                lines[0] if isinstance(error, (AssertionError, pytest.fail.Exception)) else f"{type(error).__name__}: {lines[0]}"
            )
            repeated.add(None if unreached else False, named)
            return error
        repeated.add(True)
        return None

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The rates of the tests that were repeated."""
        if self.lines:
            from ramify.render.text import sanitize

            terminalreporter.section("ramify: rates of success")
            for line in self.lines:
                terminalreporter.line(sanitize(line, flatten=True))


def _test_of(mark: pytest.Mark) -> Any:
    from ramify.base.errors import nearest
    from ramify.stats.rates import RateTest

    wrong = next((name for name in mark.kwargs if name not in OPTIONS), None)
    if mark.args or wrong is not None or "at_least" not in mark.kwargs:
        hint = nearest(wrong, OPTIONS) if wrong is not None else "as in ramify_rate(at_least=0.8)"
        pytest.fail(f"the mark ramify_rate takes {', '.join(OPTIONS)} by name, at_least always ({hint})", pytrace=False)
    try:
        return RateTest(**mark.kwargs)
    except UserError as error:
        wrong = str(error)
    pytest.fail(f"the mark ramify_rate: {wrong}", pytrace=False)


class LiveModel:
    """Asks a model what a recorded step asks. Each call is one sample more."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._agents: dict[int, Agent] = {}
        self._asked: Counter[int] = Counter()

    def expect(self, step: RecordedStep, target: str | None = None) -> None:
        """Assert that the agent does what ``target`` says (:meth:`ramify.testing.RecordedStep.target`); None: what was recorded.
        Raises InfrastructureError where the model failed."""
        __tracebackhide__ = True
        wanted, key = step.target(target), id(step)
        if key not in self._agents:
            self._agents[key] = step.live_agent(self.address)
        index = self._asked[key]
        self._asked[key] += 1
        yes, said = wait_for(step.sample(self._agents[key], wanted, index))
        if yes is None:
            raise InfrastructureError("scorer", f"{wanted.name} says neither yes nor no of {said:.200}")
        if not yes:
            raise AssertionError(f"wanted: the agent {wanted.says}; it said: {' '.join(said.split()):.200}")
