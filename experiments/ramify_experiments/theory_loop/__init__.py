"""Reproduction of theory-loop, and its null and planted cases."""
