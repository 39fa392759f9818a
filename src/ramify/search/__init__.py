"""Choose what to expand under a budget: one loop, rules passed in as functions."""
