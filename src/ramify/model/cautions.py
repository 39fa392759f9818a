"""What `ramify doctor --endpoint` found of how a server draws, kept on this machine, so that results through it say so."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ramify.base.errors import RamifyError
from ramify.base.files import cache_folder, write_whole
from ramify.base.ids import stable_hash


def caution_of(url: str, model: str) -> str:
    """The caution that was kept of ``model`` at the endpoint ``url``; "" where nothing was found, or nobody looked."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return str(json.loads(_file(url, model).read_text(encoding="utf-8"))["caution"])
    return ""


def keep_caution(url: str, model: str, caution: str) -> None:
    """Keep a caution, which replaces an earlier one; "" takes that back."""
    file = _file(url, model)
    with suppress(OSError, RamifyError):  # a cache that cannot be written to costs a caveat that the caller has just read
        if not caution:
            file.unlink(missing_ok=True)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"caution": caution}) + "\n")


def _file(url: str, model: str) -> Path:
    return cache_folder() / "endpoints" / f"{stable_hash('endpoint', url, model)}.json"
