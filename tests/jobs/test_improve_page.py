"""The headline of docs/improve.md is the one of the committed rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramify.stats.intervals import mean_t

ROOT = Path(__file__).resolve().parents[2]


def test_the_headline_is_over_seeds_and_kernels() -> None:
    report = json.loads((ROOT / "repro/improve-processors.json").read_text(encoding="utf-8"))
    rows = report["rows"]
    assert len({one["seed"] for one in rows}) >= 3
    assert len({(one["processor"], one["kernels"]) for one in rows}) >= 2
    gains = [one["gain"] for one in rows]
    (headline,) = [check for check in report["checks"] if check["name"].startswith("default job: gain, over")]
    assert headline["value"] == pytest.approx(sum(gains) / len(gains))
    assert headline["interval"] == pytest.approx(mean_t(gains))
    low, high = headline["interval"]
    sentence = f"{100 * headline['value']:.1f} points, 95 % interval {100 * low:.1f} to {100 * high:.1f}"
    page = (ROOT / "docs/improve.md").read_text(encoding="utf-8")
    assert f"**The default job gains {sentence}**" in page
    assert f"{len(rows)} rows" in page
