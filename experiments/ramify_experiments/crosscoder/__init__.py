"""The experiments of crosscoder: its reproduction, and its null and planted cases."""
