"""The experiments of early-decision: its reproduction, and its null and planted cases."""
