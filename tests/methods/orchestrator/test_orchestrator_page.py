"""The page of evidence says what the committed figures say, and its pictures are what its script makes of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/methods/orchestrator-evidence.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("orchestrator_pictures", ROOT / "docs/orchestrator_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_and_pictures_are_made_of_the_committed_figures(script: ModuleType) -> None:
    checks, text = script.read_checks("orchestrator"), PAGE.read_text(encoding="utf-8")
    assert script.page(text, checks) == text
    assert {name for name in checks if f"| {name} |" not in text} == set()
    for name, picture in script.PICTURES.items():
        assert (ROOT / f"docs/images/orchestrator-{name}.svg").read_text(encoding="utf-8") == picture(checks) + "\n"


def test_the_reproduction_passed() -> None:
    report = json.loads((ROOT / "repro/orchestrator-cpu.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert report["size"] == "cpu"
