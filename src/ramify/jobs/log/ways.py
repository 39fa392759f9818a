"""The ways in which a judge is asked about a log. Help reads them without loading what asks."""

from __future__ import annotations

from typing import Literal, get_args

Way = Literal["whole", "steps", "halving", "answer"]
WAYS: tuple[Way, ...] = get_args(Way)
