"""Vector indexes: the nearest rows to a query vector."""
