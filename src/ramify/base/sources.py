"""Which code this is: what one version of the package made is never taken for what another would make."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ramify.base.ids import stable_hash


@cache
def sources_hash() -> str:
    """Hash of the package's source as it is on disk, by path and content."""
    package = Path(__file__).resolve().parents[1]
    files = sorted(package.rglob("*.py"))
    return stable_hash(*(part for file in files for part in (str(file.relative_to(package)), file.read_bytes())))
