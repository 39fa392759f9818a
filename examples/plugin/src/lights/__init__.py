"""A world of light switches, a scorer and a model for it: importing this package registers them."""

from lights import model, scorer, world

__all__ = ["model", "scorer", "world"]
