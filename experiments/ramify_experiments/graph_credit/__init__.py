"""The experiments of graph-credit: its reproduction, and its null and planted cases."""
