"""The mark ``ramify_rate`` as a user has it, in a pytest of its own: tests that pass, flip, reach nobody, or are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

PLUGIN = "ramify.integrations.pytest.plugin"
TESTS = '''
import asyncio
import random
import unittest

import pytest

rate = pytest.mark.ramify_rate
rng = random.Random(4)
runs = []


@rate(at_least=0.8)
def test_always():
    runs.append(1)


def test_it_stopped_as_soon_as_it_was_settled():
    assert len(runs) == 17


@rate(at_least=0.8, usual=0.9)
def test_a_coin():
    assert rng.random() < 0.5, "the coin said no"


class TestMethods:
    @rate(at_least=0.5)
    @pytest.mark.parametrize("value", [1])
    def test_parametrized(self, value, tmp_path):
        assert value == 1


class APIConnectionError(Exception):
    """As a client names it."""


@rate(at_least=0.8)
def test_nobody_there():
    raise APIConnectionError("refused")


@rate(at_least=0.8)
def test_now_and_then():
    if len(runs) % 5 == 0:
        runs.append(1)
        raise ConnectionError("reset")
    runs.append(1)


@rate(at_least=0.8)
def test_broken_code():
    {}["missing"]


@rate(at_least=0.8)
def test_skipped_within():
    pytest.skip("not here")


@rate(atleast=0.8)
def test_a_wrong_word():
    pass


@rate(at_least=1)
def test_what_cannot_be_shown():
    pass


class Old(unittest.TestCase):
    @rate(at_least=0.8)
    def test_it(self):
        pass


def test_live(ramify_live):
    pass
'''
CONFTEST = '''
import asyncio
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Calls asynchronous tests, as the plug-ins for them do."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj())
        return True
'''
ASYNC = """
import pytest

seen = []


@pytest.mark.ramify_rate(at_least=0.5)
async def test_later():
    seen.append(1)
    assert len(seen) != 2, "the second"


def test_it_was_repeated():
    assert len(seen) > 3
"""


def test_a_users_tests_that_may_flip(tmp_path: Path) -> None:
    (tmp_path / "test_flips.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_later.py").write_text(ASYNC)
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--junitxml", "out.xml"]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    out = done.stdout + done.stderr
    cases = {str(case.get("name")): case for case in ET.parse(tmp_path / "out.xml").getroot().iter("testcase")}
    bad = {name: str(kind.get("message")) for name, case in cases.items() for kind in case if kind.tag in ("failure", "error")}
    assert set(bad) == {
        "test_a_coin", "test_nobody_there", "test_broken_code", "test_a_wrong_word", "test_what_cannot_be_shown", "test_it",
    }, out  # fmt: skip
    assert "that does not show a rate of 0.8 or more" in bad["test_a_coin"]
    assert "x the coin said no" in bad["test_a_coin"]
    assert "pass^2" in bad["test_a_coin"]
    assert "flip rate" in bad["test_a_coin"]
    assert "0 of 0 runs succeeded; 3 runs without an outcome not counted; that settles nothing" in bad["test_nobody_there"]
    assert "APIConnectionError: refused" in bad["test_nobody_there"]
    assert "KeyError: 'missing'" in bad["test_broken_code"]
    assert "did you mean 'at_least'" in bad["test_a_wrong_word"]
    assert "no number of runs shows" in bad["test_what_cannot_be_shown"]
    assert "unittest.TestCase" in bad["test_it"]
    told = {p.get("name"): p.get("value") for p in cases["test_now_and_then"].iter("property")}
    assert told["ramify successes"] == told["ramify runs"]
    assert int(told["ramify without outcome"] or 0) > 0
    assert {name for name, case in cases.items() if case.find("skipped") is not None} == {"test_live", "test_skipped_within"}
    assert "ramify: rates of success" in done.stdout
    assert "test_flips.py::test_always: 17 of 17 runs succeeded" in done.stdout


@pytest.mark.parametrize(("option", "variable"), [("--ramify-live", ""), ("", "RAMIFY_LIVE")])
def test_live_by_option_or_variable(tmp_path: Path, option: str, variable: str) -> None:
    (tmp_path / "test_it.py").write_text('def test_it(ramify_live):\n    assert ramify_live.address == "chat:m@http://x/v1"\n')
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *filter(None, [option])]
    named = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RAMIFY_MODEL": "chat:m@http://x/v1"}
    env = os.environ | named | ({variable: "1"} if variable else {})
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
