"""inspect (``inspect_ai``): its logs in and out, solvers, scorers and compaction with pins."""
