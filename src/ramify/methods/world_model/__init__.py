"""world-model: predict what an environment answers, and let agents act in the prediction.

Paper: Qwen-AgentWorld: Language World Models for General Agents, arXiv 2606.24597. Records an environment, trains a small model
on what it answered (or asks an endpoint), and serves it as an environment of its own:
state and faults in code, text by the model, every gap counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import public

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none to simulate; ``train`` trains checkpoints of the local engine."""

COMPONENTS = {"env": ("environment",), "loss": ("losses",)}
"""Modules of this package that register parts, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.world_model.algorithm import turn_class as turn_class
    from ramify.methods.world_model.algorithm import turn_statistics as turn_statistics
    from ramify.methods.world_model.control import Fault as Fault
    from ramify.methods.world_model.control import Latency as Latency
    from ramify.methods.world_model.control import Paginate as Paginate
    from ramify.methods.world_model.control import Partial as Partial
    from ramify.methods.world_model.control import RateLimit as RateLimit
    from ramify.methods.world_model.control import Stingy as Stingy
    from ramify.methods.world_model.environment import SimulatedEnv as SimulatedEnv
    from ramify.methods.world_model.environment import SimulatedEnvironment as SimulatedEnvironment
    from ramify.methods.world_model.environment import SimulationError as SimulationError
    from ramify.methods.world_model.predict import Prediction as Prediction
    from ramify.methods.world_model.predict import Predictor as Predictor
    from ramify.methods.world_model.predict import Situation as Situation
    from ramify.methods.world_model.store import Effect as Effect
    from ramify.methods.world_model.store import StateStore as StateStore
    from ramify.methods.world_model.trajectories import read_trajectories as read_trajectories
else:
    __all__, __getattr__ = public(
        __name__,
        {
            "algorithm": "turn_class turn_statistics",
            "control": "Fault Latency Paginate Partial RateLimit Stingy",
            "environment": "SimulatedEnv SimulatedEnvironment SimulationError",
            "predict": "Prediction Predictor Situation",
            "store": "Effect StateStore",
            "trajectories": "read_trajectories",
        },
    )
