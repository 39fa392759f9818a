"""What a verb printed."""

from __future__ import annotations

import json
from typing import Any

import pytest


def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """Its result, of ``--json``: the last line."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])
