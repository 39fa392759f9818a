"""The experiments of implicit-advantage: its reproduction, and its null and planted cases."""
