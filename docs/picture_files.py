"""What the scripts of the pages' pictures share: where they read results and write pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
METHODS = ROOT / "docs" / "methods"
Checks = dict[str, dict[str, Any]]


def read_checks(slug: str) -> Checks:
    """The committed checks of ``ramify repro SLUG --cpu``, by name."""
    report = json.loads((ROOT / "repro" / f"{slug}-cpu.json").read_text(encoding="utf-8"))
    return {check["name"]: check for check in report["checks"]}


def save(slug: str, pictures: Mapping[str, str]) -> None:
    """Write pictures (name -> SVG) as docs/images/SLUG-NAME.svg, and say so."""
    for name, picture in pictures.items():
        (IMAGES / f"{slug}-{name}.svg").write_text(picture + "\n", encoding="utf-8")
    print(f"wrote {', '.join(f'{slug}-{name}.svg' for name in pictures)}")
