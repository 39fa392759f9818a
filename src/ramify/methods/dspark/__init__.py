"""dspark: draft several tokens in one pass, check them in one pass of the target,
and check no more than pays at the present load.

Paper: DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation (DeepSeek-AI and Peking University,
2026). Needs the target's weights here: drafters read its hidden states.
The output distribution is exactly the target's, whatever the drafter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of the target."""
COMPONENTS = {"drafter": ("dspark_drafter", "eagle")}
"""Modules of this package that register components, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.dspark.bench import compare as compare
    from ramify.methods.dspark.run import Target as Target
    from ramify.methods.dspark.run import calibrate as calibrate
    from ramify.methods.dspark.run import train as train
    from ramify.methods.dspark.settings import TrainOptions as TrainOptions
else:
    __all__, __getattr__ = declared(__name__, __file__)
