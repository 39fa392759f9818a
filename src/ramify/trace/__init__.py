"""The records of a run (nodes, trees, contexts, per-token values, annotations, scores) and the one file that stores them."""
