"""Running code nobody trusts."""
