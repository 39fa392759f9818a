"""The version, which runs and workers carry."""

VERSION = "0.1.0"
