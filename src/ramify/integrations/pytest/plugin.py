"""The pytest plug-in: ``--ramify-no-real-calls``, the fixtures ``ramify`` (every assertion by name), ``forbid_real_calls`` and
``sim_env`` (a simulated environment), ``--judge-slot``, ``--ramify-diagnose RUN``, and for tests of what may flip the mark
``ramify_rate``, the fixture ``ramify_live`` with ``--ramify-live`` and ``--ramify-model``, and ``--ramify-accept``.

``--judge-slot SLOT=JUDGE`` is for tests that depend on what a judge says, marked ``@pytest.mark.judge_slot("SLOT")``: they run
where the judge is another version than that with which they passed last, and are skipped where it is the same. JUDGE is the
folder of a run that holds the slot, or a judge by name. Without the option they run like any other test.

It loads with pytest wherever ramify is installed, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

_NO_CALLS, _ACCEPT = "RAMIFY_NO_REAL_CALLS", "RAMIFY_ACCEPT"
_LIVE, _MODEL = "RAMIFY_LIVE", "RAMIFY_MODEL"
_before = pytest.StashKey[dict[str, str | None]]()
_versions = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    group = parser.getgroup("ramify")
    group.addoption(
        "--ramify-no-real-calls", action="store_true", help="Refuse every call of a real model, in this process and its children."
    )
    group.addoption(
        "--judge-slot",
        action="append",
        default=[],
        metavar="SLOT=JUDGE",
        help="Run tests marked judge_slot(SLOT) only where JUDGE (a run's folder, or a judge by name) changed since they passed.",
    )
    group.addoption(
        "--ramify-diagnose",
        metavar="RUN",
        help="Record the lines that tests run, and rank the causes of each failing test; case files go into this run.",
    )
    group.addoption(
        "--ramify-live", action="store_true", help=f"Run the tests that ask a model (fixture ramify_live), as {_LIVE}=1 does."
    )
    group.addoption(
        "--ramify-model", metavar="MODEL", default="", help=f"The model that they ask; default: {_MODEL}, else the recorded one."
    )
    group.addoption(
        "--ramify-accept", action="store_true", help="Recorded steps: write what the agent asks now, instead of failing."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known; refuse real calls from here on where the flag is given."""
    config.addinivalue_line("markers", "judge_slot(name): the test depends on the judge of this slot; see --judge-slot.")
    config.addinivalue_line(
        "markers", "ramify_rate(at_least, confidence=0.95, usual, power=0.8): run the test until its rate of success is settled."
    )
    given = {_NO_CALLS: "--ramify-no-real-calls", _ACCEPT: "--ramify-accept"}
    before = {name: os.environ.get(name) for name, option in given.items() if config.getoption(option)}
    config.stash[_before] = before
    os.environ.update(dict.fromkeys(before, "1"))
    if config.getoption("--ramify-diagnose"):
        from ramify.integrations.pytest.diagnose import Diagnose, RecordLines

        config.pluginmanager.register(RecordLines(config.rootpath))
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Diagnose(config.getoption("--ramify-diagnose"), config.rootpath))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Begin again where pytest took the run of ``--ramify-diagnose`` for a folder of tests."""
    if config.getoption("--ramify-diagnose"):
        from ramify.integrations.pytest.diagnose import joined

        if (again := joined(config.invocation_params.args)) is not None:
            return pytest.main(again, [*(config.invocation_params.plugins or ())])
    return None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the environment back."""
    for name, before in config.stash.get(_before, {}).items():
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the version of the judges that they depend on; skip those that passed with it. Repeat what may flip."""
    if any(item.get_closest_marker("ramify_rate") for item in items):
        from ramify.integrations.pytest.rates import Rates

        config.pluginmanager.register(Rates(), "ramify-rates")
    marked = [(item, _slots(item)) for item in items if _slots(item)]
    given = dict(slot.partition("=")[::2] for slot in config.getoption("--judge-slot"))
    config.stash[_versions] = versions = {slot: _version(slot, spec) for slot, spec in given.items()} if marked else {}
    for item, slots in marked:
        own = {slot: versions[slot] for slot in slots if slot in versions}
        item.user_properties += [(f"judge {slot}", version) for slot, version in own.items()]
        if own and own.keys() == set(slots) and _passed(config, item) == own:
            passed = ", ".join(f"{slot} {version[:12]}" for slot, version in own.items())
            item.add_marker(pytest.mark.skip(reason=f"passed with this judge already: {passed}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember with which judges a marked test passed; one that fails is forgotten."""
    report = yield
    versions = item.config.stash.get(_versions, {})
    slots = _slots(item) if versions else ()
    if slots and report.when == "call" and not report.skipped and hasattr(item.config, "cache"):
        found = {slot: versions[slot] for slot in slots if slot in versions} if report.passed else {}
        item.config.cache.set(_cache_key(item), found)
    return report


def _slots(item: pytest.Item) -> list[str]:
    return [str(name) for mark in item.iter_markers("judge_slot") for name in mark.args]


def _cache_key(item: pytest.Item) -> str:
    from ramify.base.ids import stable_hash

    # one file a test: workers of one session overwrite none of each other's
    return f"ramify/judges/{stable_hash('test', item.nodeid)}"


def _passed(config: pytest.Config, item: pytest.Item) -> dict[str, str] | None:
    cache = getattr(config, "cache", None)  # -p no:cacheprovider: nothing is remembered, everything runs
    found: dict[str, str] | None = None if cache is None else cache.get(_cache_key(item), None)
    return found


def _version(slot: str, spec: str) -> str:
    from pathlib import Path

    from ramify.base.errors import RamifyError, nearest
    from ramify.score.judge import find_judge
    from ramify.trace.db import Run
    from ramify.trace.sources import run_folder

    try:
        folder = run_folder(Path(spec)) if spec else None
        if folder is None:
            return find_judge(spec).identity
        with Run.open(folder) as run:
            known = run.incumbents()
    except RamifyError as error:
        raise pytest.UsageError(f"--judge-slot {slot}: {error}") from None
    if slot not in known:
        raise pytest.UsageError(f"--judge-slot {slot}: {spec} has no judge in that slot ({nearest(slot, known)})")
    return known[slot]


class Assertions:
    """Every registered assertion as an attribute: ``ramify.assert_conforms("env", environment)``."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The assertion of that name. Raises AttributeError naming the nearest."""
        return _find(name)

    def __dir__(self) -> list[str]:
        return _names()


@pytest.fixture
def ramify() -> Assertions:
    """Assertions about components and runs; see `ramify list assertion`."""
    return Assertions()


@pytest.fixture
def forbid_real_calls() -> Iterator[None]:
    """While the test runs, every engine and endpoint refuses to call a real model."""
    from ramify.model import scripted

    with scripted.forbid_real_calls():
        yield


@pytest.fixture
def ramify_live(request: pytest.FixtureRequest) -> Any:
    """The model that recorded steps are asked of: ``ramify_live.expect(STEP, "calls:TOOL")`` is one sample. Without
    ``--ramify-live`` the test is skipped."""
    if not (request.config.getoption("--ramify-live") or os.environ.get(_LIVE)):
        pytest.skip("asks a model: run it with --ramify-live")
    from ramify.integrations.pytest.rates import LiveModel

    return LiveModel(request.config.getoption("--ramify-model") or os.environ.get(_MODEL, ""))


@pytest.fixture
def sim_env(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """``sim_env(world, task=None, seed=0)``: a begun episode of a simulated environment, ``env.call(TOOL, **arguments)`` or
    ``env.step(TEXT)``, then ``env.state()``. ``world`` is a folder or TOML file of world-model, beside the test or as named."""
    from pathlib import Path

    from ramify.methods.world_model.environment import SimulatedEnv, simulated

    def begun(world: str | os.PathLike[str], task: str | None = None, seed: int = 0) -> SimulatedEnv:
        beside = request.path.parent / world
        environment = simulated(str(beside if beside.exists() else Path(world)))
        env = SimulatedEnv(environment)
        env.reset(environment.task(task), seed)
        return env

    return begun


def __getattr__(name: str) -> Any:
    """``from ramify.integrations.pytest.plugin import assert_conforms`` and so on."""
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
    from ramify.render.text import sanitize

    @functools.wraps(found)
    def asserted(*args: Any, **options: Any) -> None:
        __tracebackhide__ = True
        try:
            found(*args, **options)
        except (AssertionError, RamifyError) as error:
            error.args = (sanitize(redact(str(error)), flatten=True), *error.args[1:])
            raise error from None

    return asserted
