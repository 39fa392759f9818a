"""Pages and the HTTP server."""
