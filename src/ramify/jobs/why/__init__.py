"""Which step of an attempt lost it: fork its steps under the unchanged agent, find where success fell, and say what else was
possible there.

:mod:`ramify.jobs.why.ask` opens the run, chooses the attempt (:mod:`ramify.jobs.why.attempts`) and has its positions forked
(:mod:`ramify.jobs.why.search`). Without a way to run the agent again the attempts that are there are compared
(:mod:`ramify.jobs.why.recorded`), and the result says that this is not a counterfactual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.jobs.why.answer import Why as Why
    from ramify.jobs.why.ask import why as why
    from ramify.jobs.why.findings import found as found
else:
    _NAMES, __getattr__ = declared(__name__, __file__)
