"""The experiments of judge-evolution: its reproduction, and its null and planted cases."""
