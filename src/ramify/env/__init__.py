"""Worlds an agent acts in."""
