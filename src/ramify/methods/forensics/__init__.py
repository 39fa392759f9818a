"""forensics: find out why an agent did something, by changing one thing at a time and counting evidence against each motive.

Paper: Model Forensics: Investigating Whether Concerning Behavior Reflects Misalignment, arXiv 2606.26071. Behavioural tests need only an
agent and its world; tests of sentences need a model that continues inside a message.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs. Sentence tests also need ``tokens`` and ``continue``."""

__all__, __getattr__ = public(
    __name__,
    {
        "ach": "BENIGN STANDARD",
        "algorithm": "sentence_scores forbidding plan",
        "case": "CaseConfig",
        "run": "Case",
        "probes": "ask control",
        "report": "table_of as_text",
        "logs": "read_log by_field",
        "ramify.stats.experiment": "TestResult Control counterfactuals dose_response stacked absence",
        "ramify.stats.hypotheses": "ACH Hypothesis",
    },
)
