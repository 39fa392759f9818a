"""Judges and credit rules: paths in, scores or per-token values out."""
