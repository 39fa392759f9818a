"""Credit rules: each sampled token's share in its attempt's outcome. One file per rule; the protocol is in ``protocol``."""
