"""earned-code-memory: its reproduction, and its null and planted cases."""
