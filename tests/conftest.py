"""What all tests share. One thread for torch, set before any test imports it:
pools that fight over two cores cost several times the work."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Verb
from forked import Forks
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from suite import Suite

from ramify.base import paces, plugins
from ramify.render import terminal

# A busy machine pauses for seconds, and an example that is sampled anew in every run finds its fault in somebody else's change.
# To look for new ones: --hypothesis-profile default.
PLACE = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("all", PLACE, max_examples=100)
settings.register_profile("place", PLACE, max_examples=25)
settings.load_profile("place")
# Hypothesis reads the constants of every loaded module of ours: ten seconds a worker, and examples that another's change alters.
providers._get_local_constants = Constants
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What a verb says of itself by the clock would be among what a test reads of it, on a slow machine.
terminal.FIRST = plugins.PATIENCE = 3600.0
paces.LEAST = float("inf")  # what a call took would be told by the next dry run
os.environ["RAMIFY_FIRST_LINE"] = "3600"  # of commands that tests start; those in a terminal of theirs say it as ever
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A job in the background of a shell ignores Ctrl-C, and so would the commands that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tidy() -> None:
    """Nothing of earlier tests is left to be finalized where the stack is full, which would fail and say nothing of either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    return Verb(capsys)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests, too")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.all:
        config.option.markexpr = ""
    if config.option.markexpr != "not slow" and not config.getoption("--hypothesis-profile"):
        settings.load_profile("all")
    config.pluginmanager.register(Suite(config))
    if [Path(one).name for one in config.args] == ["tests"] and hasattr(config, "workerinput"):
        # Registering an operator asks each module that is loaded whether the code is its own: ten seconds once all tests are.
        import transformers.generation  # noqa: F401


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test that is asked for are not even imported, which takes as long as some of the tests."""
    asked = config.option.markexpr
    if asked in ("slow", "not slow") and collection_path.name.startswith("test_") and collection_path.is_file():
        text = collection_path.read_text(encoding="utf-8")
        return ("mark.slow" not in text if asked == "slow" else "\npytestmark = pytest.mark.slow" in text) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest first, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: -(mark.args[0] if (mark := item.get_closest_marker("timeout")) else 0))


def pytest_collection_finish() -> None:
    """A million objects of torch and of the tests themselves stay to the end:
    the collector need not walk them again and again."""
    gc.collect()
    gc.freeze()
