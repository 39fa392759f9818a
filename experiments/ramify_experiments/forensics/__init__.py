"""The experiments of forensics: its reproduction, and its null and planted cases."""
