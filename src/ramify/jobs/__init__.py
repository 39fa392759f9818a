"""Jobs that use several methods."""
