"""dspark: draft several tokens in one pass, check them in one pass of the target, and check no more than pays at the present load.

Paper: DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation (DeepSeek-AI and Peking University, 2026). Needs
the target's weights here: drafters read its hidden states. What comes out follows the target's law exactly, whatever the drafter.
"""

from __future__ import annotations

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ("tokens", "taps")
"""Model capabilities the method needs of the target."""

__all__, __getattr__ = public(
    __name__,
    {
        "algorithm": "StepCosts sequential_temperatures simulate",
        "run": "TrainOptions Target calibrate train verify",
        "bench": "compare",
    },
)
