"""ramify: branch a language-model agent's run at any token, see which step had which consequence, and use that.

Importing ramify loads no third-party package; names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base import version
from ramify.base.lazy import declared

if TYPE_CHECKING:  # what type checkers and editors see; the names below are these
    from ramify.base.waiting import wait_for as wait_for
    from ramify.engine.local import LocalModel as LocalModel
    from ramify.env.protocol import Observation as Observation
    from ramify.env.protocol import Task as Task
    from ramify.env.protocol import TaskSet as TaskSet
    from ramify.env.tools import tool as tool
    from ramify.integrations.harnesses.agents import agent as agent
    from ramify.jobs.improve import improve as improve
    from ramify.jobs.improve import resume as resume
    from ramify.jobs.play import fork_run as fork_run
    from ramify.jobs.play import play as play
    from ramify.jobs.settings import ImproveConfig as ImproveConfig
    from ramify.jobs.why import why as why
    from ramify.methods.graph_credit.run import StateGraph as StateGraph
    from ramify.methods.tree_rollouts.allocator import BudgetAllocator as BudgetAllocator
    from ramify.methods.tree_rollouts.sampler import TreeSampler as TreeSampler
    from ramify.model.protocol import Sampling as Sampling
    from ramify.model.scripted import ScriptedModel as ScriptedModel
    from ramify.trace.db import Run as Run


__version__ = version.VERSION

if not TYPE_CHECKING:  # to a type checker it would make any name one of the package's
    _NAMES, __getattr__ = declared(__name__, __file__)

    def __dir__():
        return sorted([*globals(), *_NAMES])
