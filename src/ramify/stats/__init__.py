"""What may be concluded: intervals, tests, power, evidence. The names for agents' runs load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.stats.drops import Counts as Counts
    from ramify.stats.intervals import clopper_pearson as clopper_pearson
    from ramify.stats.intervals import clustered_mean as clustered_mean
    from ramify.stats.intervals import clustered_share as clustered_share
    from ramify.stats.intervals import difference_over_clusters as difference_over_clusters
    from ramify.stats.intervals import wilson as wilson
    from ramify.stats.power import sample_size as sample_size
    from ramify.stats.rates import RateTest as RateTest
    from ramify.stats.rates import runs_needed as runs_needed
    from ramify.stats.repeats import all_of as all_of
    from ramify.stats.repeats import attempts_needed as attempts_needed
    from ramify.stats.repeats import compare_versions as compare_versions
    from ramify.stats.repeats import flip_rate as flip_rate
    from ramify.stats.repeats import flips as flips
    from ramify.stats.repeats import pass_hat as pass_hat
else:
    _NAMES, __getattr__ = declared(__name__, __file__)

    def __dir__():
        return sorted([*globals(), *_NAMES])
