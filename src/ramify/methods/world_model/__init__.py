"""world-model: predict what an environment answers, and let agents act in the prediction.

Paper: Qwen-AgentWorld: Language World Models for General Agents, arXiv 2606.24597. Records an environment, trains a small model
on what it answered (or asks an endpoint), and serves it as an environment of its own:
state and faults in code, text by the model, every gap counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none to simulate; ``train`` trains checkpoints of the local engine."""

COMPONENTS = {"env": ("environment",), "loss": ("losses",)}
"""Modules of this package that register parts, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.world_model.environment import SimulatedEnvironment as SimulatedEnvironment
    from ramify.methods.world_model.predict import Prediction as Prediction
    from ramify.methods.world_model.predict import Situation as Situation
    from ramify.methods.world_model.store import Effect as Effect
    from ramify.methods.world_model.store import StateStore as StateStore
else:
    __all__, __getattr__ = declared(__name__, __file__)
