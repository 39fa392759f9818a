"""forensics: find out why an agent did something, by changing one thing at a time and counting evidence against each motive.

Paper: Model Forensics: Investigating Whether Concerning Behavior Reflects Misalignment, arXiv 2606.26071. Behavioural tests need
only an agent and its environment; tests of sentences need a model that continues inside a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs. Sentence tests also need ``tokens`` and ``continue``."""
COMPONENTS = {"env": ("builtin",)}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.forensics.ach import BENIGN as BENIGN
    from ramify.methods.forensics.ach import STANDARD as STANDARD
    from ramify.methods.forensics.algorithm import forbidding as forbidding
    from ramify.methods.forensics.algorithm import plan as plan
    from ramify.methods.forensics.algorithm import sentence_scores as sentence_scores
    from ramify.methods.forensics.case import CaseConfig as CaseConfig
    from ramify.methods.forensics.experiment import Control as Control
    from ramify.methods.forensics.experiment import TestResult as TestResult
    from ramify.methods.forensics.experiment import absence as absence
    from ramify.methods.forensics.experiment import corrected as corrected
    from ramify.methods.forensics.experiment import counterfactuals as counterfactuals
    from ramify.methods.forensics.experiment import dose_response as dose_response
    from ramify.methods.forensics.experiment import stacked as stacked
    from ramify.methods.forensics.hypotheses import ACH as ACH
    from ramify.methods.forensics.hypotheses import NONE as NONE
    from ramify.methods.forensics.hypotheses import Hypothesis as Hypothesis
    from ramify.methods.forensics.logs import by_field as by_field
    from ramify.methods.forensics.logs import read_log as read_log
    from ramify.methods.forensics.probes import ask as ask
    from ramify.methods.forensics.probes import control as control
    from ramify.methods.forensics.report import table_of as table_of
    from ramify.methods.forensics.run import Case as Case
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "ach": "BENIGN STANDARD",
            "algorithm": "sentence_scores forbidding plan",
            "case": "CaseConfig",
            "run": "Case",
            "probes": "ask control",
            "report": "table_of",
            "logs": "read_log by_field",
            "ramify.methods.forensics.experiment": "TestResult Control corrected counterfactuals dose_response stacked absence",
            "ramify.methods.forensics.hypotheses": "ACH NONE Hypothesis",
        },
    )
