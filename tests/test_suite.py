"""The suite's own rules: see suite.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite import over

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent
FILE = "import pytest\n{}\ndef test_one(): pass\n@pytest.mark.slow\ndef test_two(): pass\n"


def test_a_file_that_takes_more_than_its_share_is_named() -> None:
    (said,) = over({"a.py": 3.0, "b.py": 3.0, "c.py": 94.0})
    assert said.startswith("c.py takes 94.0% ")
    assert over({f"{n}.py": 1.0 for n in range(20)}) == []


@pytest.mark.parametrize(("words", "passed"), [([], 1), (["--all"], 3), (["-m", "slow"], 2)])
def test_a_run_holds_what_it_says(words: list[str], passed: int, pytester: pytest.Pytester) -> None:
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\naddopts = -q -m 'not slow' -p no:cacheprovider\nmarkers = slow: heavier")
    pytester.makepyfile(
        test_mixed=FILE.format(""), test_heavy="import pytest\npytestmark = pytest.mark.slow\ndef test_it(): pass"
    )
    pytester.syspathinsert(TESTS)
    pytester.runpytest(*words).assert_outcomes(passed=passed, deselected={1: 1, 3: 0, 2: 1}[passed])
