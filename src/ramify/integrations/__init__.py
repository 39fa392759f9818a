"""Integrations with third-party tools, one file each. Importing one loads no third-party package; calling its functions does."""
