"""The page of evidence says what the committed figures say, and its pictures are what its script draws."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/methods/kernel-search-evidence.md"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("kernel_search_pictures", ROOT / "docs/kernel_search_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.pop(0)
    return module


def test_tables_and_pictures_are_made_of_the_committed_figures(script) -> None:
    checks, text = script.read(), PAGE.read_text(encoding="utf-8")
    assert script.page(text, checks) == text
    judged = {name for name, check in checks.items() if check["op"] != "report"}
    assert {name for name in judged if f"| {name} |" not in text} == set()
    for name, picture in script.PICTURES.items():
        assert (ROOT / f"docs/images/kernel-search-{name}.svg").read_text(encoding="utf-8") == picture(checks) + "\n"


def test_the_reproduction_passed() -> None:
    report = json.loads((ROOT / "repro/kernel-search-cpu.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert report["size"] == "cpu"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/methods/make_a_loop_faster.py")], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "MathCall at softmax.c:" in done.stdout
