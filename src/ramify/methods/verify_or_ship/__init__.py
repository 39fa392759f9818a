"""verify-or-ship: decide for a coding agent whether to rewrite, check again, pay for the full test run, ship, or stop.

Paper: Bayesian control for coding agents, arXiv 2606.24453. A belief that the candidate is right is updated by every cheap check;
the policy over beliefs is planned exactly from calibrated tables and prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramify.base.lazy import declared

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none, it reads candidates and what was said of them."""

COMPONENTS = {"reader": ("records",), "judge": ("gate",), "middleware": ("gate",)}
"""Modules of this package that register parts, by kind."""

if TYPE_CHECKING:  # what type checkers and editors see
    from ramify.methods.verify_or_ship.algorithm import ControlConfig as ControlConfig
    from ramify.methods.verify_or_ship.algorithm import Tables as Tables
    from ramify.methods.verify_or_ship.calibration import calibrate as calibrate
    from ramify.methods.verify_or_ship.control import Controller as Controller
    from ramify.methods.verify_or_ship.control import Critic as Critic
else:
    __all__, __getattr__ = declared(__name__, __file__)
