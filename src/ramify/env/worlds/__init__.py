"""Built-in worlds, one file each."""
