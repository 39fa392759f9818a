"""world-model: its reproduction, and cases of which the truth is known."""
