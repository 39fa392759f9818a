"""The experiments of maze-recovery: its reproduction, and its null and planted cases."""
