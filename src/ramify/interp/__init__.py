"""A model's hidden states: collected at named positions, probed, decomposed and changed."""
