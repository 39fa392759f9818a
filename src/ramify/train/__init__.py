"""Batches of (tokens, mask, token values) through a sum of registered losses; knows no method."""
