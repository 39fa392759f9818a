"""An environment of light switches, a judge and a model for it: importing this package registers them."""

from lights import environment, judge, model

__all__ = ["environment", "judge", "model"]
