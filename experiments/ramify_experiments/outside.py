"""Rows (what, found) about data that others made, as docs/claims.py reads them from ``repro/*-outside.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ramify.base.files import write_whole
from ramify.render.terminal import say


def tell_rows(rows: Sequence[Sequence[str]], out: Path | None) -> None:
    """Print ``rows`` and write them to ``out``, where one is given."""
    for what, came in rows:
        say(f"{what}: {came}")
    if out is not None:
        write_whole(out, json.dumps({"rows": rows}, indent=1) + "\n")
