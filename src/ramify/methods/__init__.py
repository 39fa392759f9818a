"""One package a published method; none imports another."""
