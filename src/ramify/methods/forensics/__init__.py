"""forensics: find out why an agent did something, by changing one thing at a time and counting evidence against each motive.

Paper: Model Forensics: Investigating Whether Concerning Behavior Reflects Misalignment, arXiv 2606.26071. Behavioural tests need only an
agent and its world; tests of sentences need a model that continues inside a message.
"""

from __future__ import annotations

from ramify.base.lazy import loader

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs. Sentence tests also need ``tokens`` and ``continue``."""

_HOMES = {
    "ACH": "ramify.stats.hypotheses",
    "BENIGN": "ach",
    "Hypothesis": "ramify.stats.hypotheses",
    "STANDARD": "ach",
    "TestResult": "ramify.stats.experiment",
    "Control": "ramify.stats.experiment",
    "counterfactuals": "ramify.stats.experiment",
    "dose_response": "ramify.stats.experiment",
    "sentence_scores": "algorithm",
    "forbidding": "algorithm",
    "stacked": "ramify.stats.experiment",
    "absence": "ramify.stats.experiment",
    "plan": "algorithm",
    "CaseConfig": "case",
    "Case": "run",
    "ask": "probes",
    "control": "probes",
    "table_of": "report",
    "as_text": "report",
    "read_log": "logs",
    "by_field": "logs",
}

__all__ = ["NEEDS", *_HOMES]

__getattr__ = loader(__name__, _HOMES)
