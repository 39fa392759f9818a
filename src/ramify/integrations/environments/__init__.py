"""Other people's environments and tools."""
