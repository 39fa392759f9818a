"""Files of JSON lines, for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path


def write(path: Path, *records: object) -> Path:
    """``path`` with these records, one a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
