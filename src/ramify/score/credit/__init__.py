"""Credit rules: how much each sampled token had to do with how its attempt ended. One file a rule; the protocol is in ``protocol``."""
