"""The experiments of dspark: its reproduction, and its null and planted cases."""
