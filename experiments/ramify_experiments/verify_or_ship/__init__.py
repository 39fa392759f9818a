"""Reproduction, null and planted cases of verify-or-ship."""
