"""The experiments of tree-rollouts: its reproduction, and its null and planted cases."""
