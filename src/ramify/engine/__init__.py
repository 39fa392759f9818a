"""The local model engine: many rollouts batched together, shared prefixes computed once, draws that do not depend on batch mates."""
