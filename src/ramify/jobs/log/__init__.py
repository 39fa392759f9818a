"""What one log says of an attempt that nobody can run again: rules that it breaks, and what judges say. No counterfactual."""
