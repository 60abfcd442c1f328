"""The retrieval server: HTTP dialects, MCP, and the queue that batches queries."""
