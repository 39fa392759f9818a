"""Batches of (tokens, mask, streams) through a sum of registered losses; knows no method."""
