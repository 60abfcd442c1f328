"""Search engines of the web behind the same server."""
