"""cliffs: find the tokens at which a chain of thought falls off, by forking it at every token, and confirm them.

Paper: Cliff Tokens: Identifying Single-Token Failure Triggers in LLM Mathematical Reasoning, arXiv 2606.25524. Needs a model that
continues token ids, so a chat endpoint is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ("tokens", "continue")
"""Model capabilities the method needs. Without ``prompt_logprobs`` there is no screen and no class."""

COMPONENTS = {"credit": ("rules",), "player": ("again",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.cliffs.forks import ReplyForks as ReplyForks
    from ramify.methods.cliffs.record import read_scan as read_scan
    from ramify.methods.cliffs.report import summary as summary
    from ramify.methods.cliffs.run import ScanConfig as ScanConfig
    from ramify.methods.cliffs.run import scan as scan
else:
    __all__, __getattr__ = declared(__name__, __file__)
