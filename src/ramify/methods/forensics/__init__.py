"""forensics: find out why an agent did something, by changing one thing at a time and counting evidence against each motive.

Paper: Model Forensics: Investigating Whether Concerning Behavior Reflects Misalignment, arXiv 2606.26071. Behavioural tests need
only an agent and its environment; tests of sentences need a model that continues inside a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs. Sentence tests also need ``tokens`` and ``continue``."""
if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.forensics.case import CaseConfig as CaseConfig
    from ramify.methods.forensics.logs import read_log as read_log
    from ramify.methods.forensics.probes import ask as ask
    from ramify.methods.forensics.probes import control as control
    from ramify.methods.forensics.run import Case as Case
else:
    __all__, __getattr__ = declared(__name__, __file__)
