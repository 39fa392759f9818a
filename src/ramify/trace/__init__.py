"""What is remembered: nodes, trees, contexts, streams, marks, verdicts, and the one file that holds them."""
