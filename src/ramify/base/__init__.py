"""Ids, errors, seeds, configuration, registry, budget and ledger: what every layer above may use."""
