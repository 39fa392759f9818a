"""theory-loop: which short program explains how somebody chooses? Rival theories,
experiments that tell them apart, and their revision.

Paper: Closing the Loop to Discover Psychological Theories with an Automated Cognitive Scientist, arXiv 2606.26448. Needs a
sandbox: theories and metrics are programs that nobody trusts. A model that proposes and agents that take part answer messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none; a proposer or a participant that is a model answers messages."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.theory_loop.algorithm import LoopConfig as LoopConfig
    from ramify.methods.theory_loop.bench import simulate as simulate
    from ramify.methods.theory_loop.domain import hilbig as hilbig
    from ramify.methods.theory_loop.loop import loop_of as loop_of
    from ramify.methods.theory_loop.loop import theories_of as theories_of
else:
    __all__, __getattr__ = declared(__name__, __file__)
