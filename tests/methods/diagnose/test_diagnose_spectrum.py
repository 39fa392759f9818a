"""Where a fault is by what failing and passing tests ran, and by what a failing test imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ramify.integrations.pytest.lines import LineRecorder, below
from ramify.methods.diagnose.code import CodeMap, TakenName, taken_names
from ramify.methods.diagnose.localizer import Localizer
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.spectrum import (
    FEATURES,
    LINE_FEATURES,
    OUTSIDE,
    FailedTest,
    RankWeights,
    Spectrum,
    SpectrumLocalizer,
    candidates,
    shares,
)
from ramify.trace.db import Run

CODE = """\
def low(values):
    least = values[0]
    for value in values:
        if value < least:
            least = value
    return least


def high(values):
    most = 0
    for value in values:
        if value > most:
            most = value
    return most
"""
PLAIN = """\
import pytest
from helper import both
from shop.ends import high, low


@pytest.fixture
def values():
    return [-3, -2]


@pytest.mark.parametrize("given", [[1, 2], [4], [-3, -2]])
def test_high(given):
    assert high(given) == max(given)


@pytest.mark.parametrize("given", [[1, 2], [4], [-3, -2]])
def test_low(given):
    assert low(given) == min(given)


def test_both(values):
    assert both(values) == (-3, -2)
"""
UNITTEST = """\
import unittest

from shop.ends import high, low


class EndsTest(unittest.TestCase):
    def setUp(self):
        self.values = [-3, -2]

    def check(self, value, expected):
        self.assertEqual(value, expected)

    def test_high(self):
        self.check(high(self.values), -2)

    def test_low(self):
        self.check(low(self.values), -3)

    def test_high_of_others(self):
        self.check(high([1, 2]), 2)
"""
FAULTY = "shop/ends.py:9-14"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A checkout with a fault in ``high`` (the most of negative numbers is 0), which an assertion in the tests shows."""
    root = tmp_path / "checkout"
    (root / "shop").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = [".", "tests"]\n', encoding="utf-8")
    (root / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (root / "shop" / "ends.py").write_text(CODE, encoding="utf-8")
    helper = "from shop.ends import high, low\n\n\ndef both(values):\n    return low(values), high(values)\n"
    (root / "tests" / "helper.py").write_text(helper, encoding="utf-8")
    return root


def session(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)


def places(out: str) -> dict[str, str]:
    """Failing test -> the line about it."""
    said = out.partition("where the bug may be")[2].partition("case files are in")[0]
    return {name: where for line in said.splitlines() for name, _, where in [line.partition(": ")] if "::" in name}


# -- the ranking ---------------------------------------------------------------------------------------------------------------


def spectrum_of(failing: int = 1) -> Spectrum:
    passed = {"shop/ends.py": {2: 2, 3: 2, 4: 2, 6: 2, 10: 1, 11: 1, 12: 1, 13: 1, 14: 1}}
    failed = {"shop/ends.py": dict.fromkeys((10, 11, 12, 14), failing)}
    return Spectrum(failing, 3, failed, passed, frozenset(["tests/test_ends.py"]))


RAN = {"shop/ends.py": (10, 11, 12, 14), "tests/test_ends.py": (13,)}
SNAPSHOT = Snapshot({"shop/ends.py": CODE, "tests/test_ends.py": PLAIN, "shop/__init__.py": ""})


def test_suspicion_is_ochiais() -> None:
    known = Spectrum(4, 9, {"a.py": {1: 4, 2: 2}}, {"a.py": {1: 0, 2: 6, 3: 9}})
    assert known.ochiai("a.py", 1) == pytest.approx(1.0)
    assert known.ochiai("a.py", 2) == pytest.approx(2 / (4 * 8) ** 0.5)
    assert known.ochiai("a.py", 3) == 0.0
    assert known.ochiai("b.py", 1) == 0.0


def test_what_the_test_ran_is_ranked_beside_the_test_itself() -> None:
    frames = (("tests/test_ends.py", 13),)
    test = FailedTest("tests/test_ends.py::test_high", "tests/test_ends.py", 13, "AssertionError", frames, RAN)
    known = candidates(test, spectrum_of(), CodeMap(SNAPSHOT))
    assert [(one.name, one.outside) for one in known] == [("high", False), (test.name, True)]
    assert shares(known, RankWeights()).sum() == pytest.approx(1.0)
    case, history = SpectrumLocalizer(test, spectrum_of(3)).traced(SNAPSHOT, "it fails", "high")
    assert case.findings[0].location == FAULTY
    assert set(case.findings[0].lines) == {10, 11, 12, 14}
    assert 0.5 < (case.findings[0].confidence or 0.0) < 1
    assert len(history) == 2


def test_a_missing_server_is_no_fault_of_the_code() -> None:
    frames = (("tests/test_ends.py", 13),)
    test = FailedTest("tests/test_ends.py::test_high", "tests/test_ends.py", 13, "ConnectionRefusedError", frames, RAN)
    case, _ = SpectrumLocalizer(test, spectrum_of()).traced(SNAPSHOT, "it fails", "high")
    assert case.findings[0].file == "tests/test_ends.py"
    assert "outside the code" in case.findings[0].location_explanation


def test_a_failure_that_ran_nothing_of_the_code_names_the_test() -> None:
    test = FailedTest("tests/test_ends.py::test_high", "tests/test_ends.py", 13, "KeyError", ran={"gone.py": (1,)})
    case, _ = SpectrumLocalizer(test, Spectrum(1, 0, {"gone.py": {1: 1}}, {})).traced(SNAPSHOT, "it fails", "high")
    assert [one.file for one in case.findings] == ["tests/test_ends.py"]


def test_every_feature_has_a_weight() -> None:
    known = RankWeights()
    assert [len(known.functions), len(known.outside), len(known.lines)] == [len(FEATURES), len(OUTSIDE), len(LINE_FEATURES)]


# -- recording -----------------------------------------------------------------------------------------------------------------


def test_lines_are_recorded_and_the_trace_function_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(CODE, encoding="utf-8")
    held: dict[str, object] = {}
    before = sys.gettrace()
    sys.settrace(None)  # coverage of these tests themselves would forbid it
    try:
        exec(compile(CODE, str(tmp_path / "ends.py"), "exec"), held)
        recorder = LineRecorder(below(tmp_path))
        assert recorder.start()
        held["high"]([-1])  # type: ignore[operator]
        assert recorder.stop() == {"ends.py": [10, 11, 12, 14]}
        assert sys.gettrace() is None
        if sys.version_info < (3, 12):
            sys.settrace(lambda *event: None)
            assert not recorder.start()
            assert recorder.stop() == {}
    finally:
        sys.settrace(before)


# -- what a failing test imports -----------------------------------------------------------------------------------------------


def test_names_are_followed_from_the_failing_test() -> None:
    text = (
        "import json\nfrom a import one\nfrom .b import two as second\nif FLAGS.new:\n    from c import three\nelse:\n"
        "    from d import three\n\n\ndef helper():\n    return second()\n\n\ndef test_it():\n    from e import four\n"
        "    assert helper() == three() == four()\n\n\ndef test_other():\n    assert one()\n"
    )
    assert taken_names(text, (16,)) == (
        TakenName("b", 1, "two"),
        TakenName("d", 0, "three"),
        TakenName("e", 0, "four"),
        TakenName("c", 0, "three", True),
    )
    assert taken_names("def broken(:", (1,)) == ()


@pytest.mark.parametrize("style", ["pytest", "unittest", "through a package"])
def test_the_rules_name_what_the_test_calls_and_not_the_test(style: str) -> None:
    texts = {
        "shop/ends.py": CODE,
        "shop/__init__.py": "",
        "tests/test_ends.py": PLAIN,
        "shop/more.py": "def high_up():\n    return 1\n",
    }
    where = "tests/test_ends.py:13: AssertionError"
    if style == "unittest":
        texts["tests/test_ends.py"] = UNITTEST
        where = 'Traceback (most recent call last):\n  File "tests/test_ends.py", line 14, in test_high\nAssertionError: 0 != -2'
    elif style == "through a package":
        texts["shop/__init__.py"] = "from .ends import high, low\n"
        texts["tests/test_ends.py"] = PLAIN.replace("shop.ends", "shop")
    case = Localizer().run(Snapshot(texts), f"The test fails.\n\n    assert high(given) == max(given)\n\n{where}\n")
    assert case.findings[0].location == FAULTY
    assert case.findings[0].confidence is None


# -- the plug-in ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("style", ["plain", "workers", "unittest", "doctest"])
def test_the_plugin_names_the_function_behind_the_assertion(shop: Path, style: str) -> None:
    (shop / "tests" / "test_ends.py").write_text(UNITTEST if style == "unittest" else PLAIN, encoding="utf-8")
    args = ["-p", "no:xdist"]
    if style == "workers":
        pytest.importorskip("xdist")
        args = ["-n", "2"]
    elif style == "doctest":
        said = '    """\n    >>> high([1, 2])\n    2\n    >>> high([-3, -2])\n    -2\n    """\n'
        text = CODE.replace("def high(values):\n", f"def high(values):\n{said}")
        (shop / "shop" / "ends.py").write_text(text, encoding="utf-8")
        args += ["--doctest-modules", "shop"]
    done = session(shop, f"--ramify-diagnose={shop / 'kept'}", *args)
    assert ("what ran does not tell a wrong expectation from a fault" in done.stdout) is (style != "doctest")
    said_of = places(done.stdout)
    assert len(said_of) == (2 if style in ("plain", "workers") else 1), done.stdout + done.stderr
    for where in said_of.values():
        assert where.startswith(FAULTY if style != "doctest" else "shop/ends.py:9-20"), done.stdout


@pytest.mark.slow
def test_a_second_time_with_a_space_is_the_same_checkout(shop: Path, tmp_path: Path) -> None:
    (shop / "tests" / "test_ends.py").write_text(PLAIN, encoding="utf-8")
    other = tmp_path / "other"
    (other / "shop").mkdir(parents=True)
    (other / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    (other / "shop" / "ends.py").write_text("def high(values):\n    return 0\n", encoding="utf-8")
    run = other / "runs" / "failures"
    first, second = (session(shop, "-p", "no:xdist", "--ramify-diagnose", str(run)) for _ in range(2))
    for done in (first, second):
        assert done.returncode == 1, done.stdout + done.stderr
        assert places(done.stdout) == places(first.stdout)
        assert list(places(done.stdout)) == ["tests/test_ends.py::test_high[given2]", "tests/test_ends.py::test_both"]
        assert all(where.startswith(FAULTY) for where in places(done.stdout).values())
    with Run.open(run) as kept:
        assert {str(one.evidence["repo"]) for one in kept.findings()} == {"checkout"}
