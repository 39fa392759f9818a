"""The experiments of orchestrator: its reproduction, and its null and planted cases."""
