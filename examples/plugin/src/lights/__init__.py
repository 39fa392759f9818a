"""A world of light switches, a judge and a model for it: importing this package registers them."""

from lights import judge, model, world

__all__ = ["judge", "model", "world"]
