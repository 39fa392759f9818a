"""The reproduction of diagnose, and its null and planted cases."""
