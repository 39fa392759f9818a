"""The experiments of cliffs: its reproduction, and its null and planted cases."""
