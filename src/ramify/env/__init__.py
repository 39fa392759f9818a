"""Environments an agent acts in."""
