"""The encoder `remote`: an endpoint of embeddings."""
