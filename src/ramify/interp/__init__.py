"""What a model's hidden states say: collected at named positions, probed, decomposed and changed."""
