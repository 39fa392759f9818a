"""Incident environments, one file each, offered by name to every verb that plays environments."""
