"""Paths in, verdicts or streams out."""
