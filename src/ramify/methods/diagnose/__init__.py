"""diagnose: find where a bug is and why, tell a repair agent only what helps it, and measure what looking for bugs costs.

Paper: SHERLOC: Structured Diagnostic Localization for Code Repair Agents, arXiv 2606.24820. Needs any model or endpoint that
answers messages; without one a rule policy drives the same loop and says what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.diagnose.injection import inject as inject
    from ramify.methods.diagnose.localizer import Localizer as Localizer
    from ramify.methods.diagnose.localizer import evaluate as evaluate
    from ramify.methods.diagnose.snapshot import Snapshot as Snapshot
    from ramify.methods.diagnose.tools import RepoTools as RepoTools
else:
    __all__, __getattr__ = declared(__name__, __file__)
