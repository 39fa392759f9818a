"""Reproductions of the published methods, and their null and planted cases: what `ramify repro` and `ramify check method` run."""
