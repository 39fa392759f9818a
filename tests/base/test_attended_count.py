"""What an attended command counted last is what its queue charges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.base import attended


def test_the_last_count_of_a_bar_stays_when_another_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = attended._Attended()
    this.folder = tmp_path
    monkeypatch.setattr(attended, "_this", this)
    counts = {"done": 3, "total": 8}
    attended.showing(lambda: counts)
    attended._write()
    counts["done"] = 8  # since the last look
    attended.showing(lambda: {"done": 0, "total": 0})  # the result is being printed
    attended._write()
    assert json.loads((tmp_path / "state.json").read_text())["done"] == 8
