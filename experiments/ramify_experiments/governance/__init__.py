"""The experiments of governance: its reproduction, and its null and planted cases."""
