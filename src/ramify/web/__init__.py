"""Pages of runs and the HTTP server."""
