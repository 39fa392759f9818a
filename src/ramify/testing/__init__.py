"""What a third party needs to test components: the battery of each kind, and a model that says what it is told. Names load on
first use.

A battery is ``check_KIND(component) -> [Problem]``, empty where it conforms; ``check`` finds it by the kind's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.base.problem import Problem as Problem
    from ramify.model.scripted import ScriptedModel as ScriptedModel
    from ramify.model.scripted import forbid_real_calls as forbid_real_calls
    from ramify.testing.compactor import check_compactor as check_compactor
    from ramify.testing.conformance import check as check
    from ramify.testing.conformance import checks as checks
    from ramify.testing.credit import check_credit as check_credit
    from ramify.testing.credit import example_group as example_group
    from ramify.testing.drafter import check_drafter as check_drafter
    from ramify.testing.env import check_env as check_env
    from ramify.testing.judge import check_judge as check_judge
    from ramify.testing.loss import check_loss as check_loss
    from ramify.testing.middleware import check_middleware as check_middleware
    from ramify.testing.model import check_model as check_model
    from ramify.testing.reader import check_reader as check_reader
    from ramify.testing.sandbox import check_sandbox as check_sandbox
    from ramify.testing.searcher import check_searcher as check_searcher
    from ramify.testing.steps import RecordedStep as RecordedStep
    from ramify.testing.steps import recorded_step as recorded_step
else:
    _NAMES, __getattr__ = declared(__name__, __file__)

    def __dir__():
        return sorted([*globals(), *_NAMES])
