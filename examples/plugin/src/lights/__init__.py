"""An environment of light switches, a judge and a model for it, and a method: importing this package registers them."""

from lights import detours, environment, judge, model

__all__ = ["detours", "environment", "judge", "model"]
