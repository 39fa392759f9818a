"""diagnose: find where a bug is and why, tell a repair agent only what helps it, and measure what looking for bugs costs.

Paper: SHERLOC: Structured Diagnostic Localization for Code Repair Agents, arXiv 2606.24820. Needs any model or endpoint that
answers messages; without one a rule policy drives the same loop and says what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none beyond answering messages."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.diagnose.algorithm import InjectionGate as InjectionGate
    from ramify.methods.diagnose.algorithm import LocalizeConfig as LocalizeConfig
    from ramify.methods.diagnose.algorithm import SolveRates as SolveRates
    from ramify.methods.diagnose.algorithm import gold_spans as gold_spans
    from ramify.methods.diagnose.algorithm import scores as scores
    from ramify.methods.diagnose.case import CaseFile as CaseFile
    from ramify.methods.diagnose.case import Diagnosis as Diagnosis
    from ramify.methods.diagnose.injection import inject as inject
    from ramify.methods.diagnose.localizer import Localizer as Localizer
    from ramify.methods.diagnose.localizer import evaluate as evaluate
    from ramify.methods.diagnose.masking import mask as mask
    from ramify.methods.diagnose.snapshot import Snapshot as Snapshot
    from ramify.methods.diagnose.tools import SCHEMAS as SCHEMAS
    from ramify.methods.diagnose.tools import RepoTools as RepoTools
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "algorithm": "InjectionGate LocalizeConfig SolveRates gold_spans scores",
            "case": "CaseFile Diagnosis",
            "injection": "inject",
            "localizer": "Localizer evaluate",
            "masking": "mask",
            "snapshot": "Snapshot",
            "tools": "SCHEMAS RepoTools",
        },
    )
